"""Reduce the moments that the walkers of an ensemble have put, and compare them with theory."""

import math

RATE, NOISE, START = 1.0, 0.5, 1.0  # k, s and x(0) in ensemble.c


def reduce(ctx):
    """Return the mean and the variance of all particles, and their distance from theory.

    Raises
    ------
    ArithmeticError
        If either differs from theory by more than five of its standard errors.
    """
    counts, sums, squares = zip(
        *(ctx.tuples.tget(("moments", copy)) for copy in range(ctx.options["walkers"])),
        strict=True,
    )
    particles = sum(counts)
    mean = math.fsum(sums) / particles
    variance = (math.fsum(squares) - particles * mean**2) / (particles - 1)
    found = {"particles": particles, "mean": mean, "variance": variance}

    # The solution of the Fokker-Planck equation is a normal distribution at all times.
    decay = math.exp(-RATE * ctx.options["time"])
    theory = {"mean": START * decay, "variance": NOISE**2 / (2 * RATE) * (1 - decay**2)}
    error_of = {
        "mean": math.sqrt(theory["variance"] / particles),
        "variance": theory["variance"] * math.sqrt(2 / (particles - 1)),
    }
    for name, expected in theory.items():
        off = (found[name] - expected) / error_of[name]
        ctx.log.info("%s %.6f, expected %.6f: %+.2f errors", name, found[name], expected, off)
        if abs(off) > 5:
            raise ArithmeticError(f"the {name} is {found[name]:.6f}, not {expected:.6f}")
        found[f"{name} off by"] = off
    return found
