"""Integrate exp(-x**2) from 0 to 1, with cells that are halved until the error is small."""

import math

MOST_CELLS = 2**16


def integrand(x):
    """Return the function that is integrated."""
    return math.exp(-x * x)


def integral(cells):
    """Return the integral by the trapezoidal rule."""
    inner = sum(integrand(i / cells) for i in range(1, cells))
    return (inner + (integrand(0) + integrand(1)) / 2) / cells


def result(cells):
    """Return the integral, and about how wrong it is, by comparing it with twice as many cells."""
    value, finer = integral(cells), integral(2 * cells)
    return value, abs(finer - value) * 4 / 3


def solve(ctx):
    """Put the first result and its error into the tuple space."""
    value, error = result(ctx.options["cells"])
    ctx.tuples.tput("integral", value)
    ctx.tuples.tput("error", error)


def refine(ctx):
    """Halve the cells until the error is below the tolerance; put the better result in place."""
    cells, error = 1, math.inf
    while error > ctx.options["tolerance"]:
        cells *= 2
        if cells > MOST_CELLS:
            raise ValueError(f"even {MOST_CELLS} cells are too coarse")
        value, error = result(cells)
    ctx.tuples.tget("integral")
    ctx.tuples.tput("integral", value)


def plot(ctx):
    """Write the integrand as text."""
    rows = ["*" * round(60 * integrand(i / 10)) for i in range(11)]
    (ctx.run_dir / "integrand.txt").write_text("\n".join(rows) + "\n")


def report(ctx):
    """Return the result."""
    ctx.tuples.tget("error")
    return ctx.tuples.tget("integral")
