/* Brownian particles in a harmonic trap: dx = -k x dt + s dW, from x = 1 (Ornstein and Uhlenbeck).

   ensemble COPY

   simulates PARTICLES of them in STEPS steps up to TIME, all three from the environment, and puts
   how many there were and the sums of x and of x^2 at the end into the tuple space of the run, as
   ("moments", COPY). The method is Heun's for additive noise, of weak order 2. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const double k = 1.0, s = 0.5, start = 1.0;

/* SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014). */
static uint64_t state;

static uint64_t next_bits(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In (0, 1]: its logarithm is wanted. */
static double uniform(void) { return ((next_bits() >> 11) + 1) * 0x1p-53; }

/* Two at a time, by Box and Muller. */
static double normal(void) {
    static double second;
    static int has_second = 0;
    if (has_second) {
        has_second = 0;
        return second;
    }
    const double radius = sqrt(-2.0 * log(uniform()));
    const double angle = 2.0 * 3.14159265358979323846 * uniform();
    second = radius * sin(angle);
    has_second = 1;
    return radius * cos(angle);
}

static double from_environment(const char *name) {
    const char *text = getenv(name);
    char *end = NULL;
    const double value = text ? strtod(text, &end) : 0.0;
    if (!text || *end || !(value > 0.0)) {
        fprintf(stderr, "%s is to be a positive number in the environment\n", name);
        exit(2);
    }
    return value;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s COPY\n", arguments[0]);
        return 2;
    }
    const long copy = atol(arguments[1]);
    const long particles = (long)from_environment("PARTICLES");
    const long steps = (long)from_environment("STEPS");
    const double dt = from_environment("TIME") / steps, kick = s * sqrt(dt);

    state = (uint64_t)copy << 48; /* copies lie 2^48 states apart */
    double sum = 0.0, sum_of_squares = 0.0;
    for (long particle = 0; particle < particles; ++particle) {
        double x = start;
        for (long step = 0; step < steps; ++step) {
            const double noise = kick * normal();
            const double predicted = x - k * x * dt + noise;
            x += -0.5 * k * (x + predicted) * dt + noise;
        }
        sum += x;
        sum_of_squares += x * x;
    }
    printf("mean of %ld particles: %.6f\n", particles, sum / particles);

    char command[100];
    snprintf(command, sizeof command, "diel tuple put --json moments/%ld -", copy);
    FILE *put = popen(command, "w");
    if (!put) {
        perror(command);
        return 1;
    }
    fprintf(put, "[%ld, %.17g, %.17g]", particles, sum, sum_of_squares);
    return pclose(put) == 0 ? 0 : 1;
}
