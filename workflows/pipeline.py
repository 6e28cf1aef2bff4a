"""Estimate pi by throwing points at a square, in several copies."""

import random


def sample(ctx):
    """Throw points; put an estimate of pi, 4 times the share in the circle, for the collector."""
    generator = random.Random(ctx.copy_index)
    points = ctx.options["points"]
    inside = sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(points))
    ctx.tuples.tput(("inside", ctx.copy_index), 4 * inside / points)


def collect(ctx):
    """Write one line a sampler into a file for the executable."""
    estimates = [
        ctx.tuples.tget(("inside", copy_index), timeout=120)
        for copy_index in range(ctx.copies_of["sampler"])
    ]
    lines = [f"copy {index}: {estimate:.4f}" for index, estimate in enumerate(estimates)]
    (ctx.run_dir / "pi.txt").write_text("\n".join(lines) + "\n")
    return sum(estimates) / len(estimates)
