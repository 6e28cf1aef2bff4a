/* Particles on a plate: they drift from hot to cold, and are reflected at its edges. */
#include <diel.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    double x, y, u, v;
} particle;

/* Spread over the plate, each at its own place. */
static void place(particle *p, int64_t number, double nx, double ny) {
    p->x = nx * fmod((double)(number + 1) * 0.6180339887498949, 1.0);
    p->y = ny * fmod((double)(number + 1) * 0.4142135623730951, 1.0);
    p->u = p->v = 0;
}

static int64_t cell_of(double x, int64_t cells) {
    int64_t cell = (int64_t)x;
    return cell < cells ? cell : cells - 1;
}

/* Move along an axis by a speed, and turn back at an edge. */
static void move(double *x, double *speed, double length) {
    *x += *speed;
    if (*x < 0) {
        *x = -*x;
        *speed = -*speed;
    } else if (*x > length) {
        *x = 2 * length - *x;
        *speed = -*speed;
    }
}

static void step_once(particle *p, const double *T, int64_t nx, int64_t ny, double drift) {
    int64_t i = cell_of(p->x, nx), j = cell_of(p->y, ny);
    int64_t west = i > 0 ? i - 1 : i, east = i < nx - 1 ? i + 1 : i;
    int64_t south = j > 0 ? j - 1 : j, north = j < ny - 1 ? j + 1 : j;
    p->u -= drift * (T[j * nx + east] - T[j * nx + west]);
    p->v -= drift * (T[north * nx + i] - T[south * nx + i]);
    move(&p->x, &p->u, (double)nx);
    move(&p->y, &p->v, (double)ny);
}

int run(diel *d) {
    double drift = 0.05;
    int64_t steps = 50, count = 40, step, k, nx, ny;
    diel_boundary temperature, load;
    diel_array T, cells, all;
    particle *particles;
    int status;

    diel_option_double(d, "drift", &drift);
    diel_option_int(d, "steps", &steps);
    diel_option_int(d, "count", &count);
    if ((status = diel_boundary_open(d, "temperature", &temperature)) != DIEL_DONE) return status;
    if ((status = diel_boundary_open(d, "particles", &load)) != DIEL_DONE) return status;
    if ((status = diel_boundary_array(d, &temperature, &T)) != DIEL_DONE) return status;
    if ((status = diel_boundary_array(d, &load, &cells)) != DIEL_DONE) return status;
    ny = T.shape[0], nx = T.shape[1];
    particles = malloc((size_t)count * sizeof *particles);
    if (particles == NULL) return 1;
    for (k = 0; k < count; k++) place(&particles[k], k, (double)nx, (double)ny);

    for (step = 0; step < steps && status == DIEL_DONE; step++) {
        if ((status = diel_pull(d, &temperature, -1, NULL)) != DIEL_DONE) break;
        memset(cells.data, 0, (size_t)cells.bytes);
        for (k = 0; k < count; k++) {
            particle *p = &particles[k];
            step_once(p, T.data, nx, ny, drift);
            ((double *)cells.data)[cell_of(p->y, ny) * nx + cell_of(p->x, nx)] += 1;
        }
        status = diel_push(d, &load, -1);
    }
    all = diel_matrix(DIEL_FLOAT64, particles, count, 4);
    if (status == DIEL_DONE) status = diel_send(d, "control", 0, 0, "particles", &all);
    free(particles);
    return status;
}
