"""Oscillators with damping, one for each row of a table: oscillator.toml."""

import csv
import math


def solve(ctx):
    """Integrate an oscillator, write its positions, and return its energy at the end."""
    options = ctx.options
    position, velocity, dt = 1.0, 0.0, options["dt"]
    rows = []
    for step in range(round(options["end"] / dt)):
        velocity -= dt * (options["stiffness"] * position + options["damping"] * velocity)
        position += dt * velocity
        rows.append((dt * (step + 1), position))
    if not math.isfinite(position) or abs(position) > 1e6:
        raise ValueError(f"dt = {dt:g} is too large for a stiffness of {options['stiffness']:g}")
    with (ctx.element_dir / "positions.csv").open("w") as file:
        csv.writer(file).writerows([("time", "position"), *rows])
    energy = 0.5 * velocity**2 + 0.5 * options["stiffness"] * position**2
    return {"energy": energy, "steps": len(rows)}


def report(ctx):
    """Read the table of all oscillators; return which has lost most of its energy."""
    with (ctx.run_dir / "elements" / "cases.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] == "finished"]
    least = min(rows, key=lambda row: float(row["energy"]))
    return f"{least['name']} has the least energy of {len(rows)} oscillators: {least['energy']}"
