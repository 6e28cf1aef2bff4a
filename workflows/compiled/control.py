"""The heater of a plate: it is regulated by the temperature along a line of the plate."""

import numpy as np


def run(ctx):
    """Regulate the heater in each step; write the last temperatures and particles."""
    temperature, heater = ctx.boundary("temperature"), ctx.boundary("heater")
    line = ctx.options["line"]
    for _ in range(ctx.options["steps"]):
        temperature.pull()
        heater.owned[0][0] = power(temperature.array[line].tolist(), ctx.options["wanted"])
        heater.push()
    parts = [ctx.recv(("heat", 0, rank), tag="temperature") for rank in range(ctx.ranks_of("heat"))]
    particles = ctx.recv(("particles", 0, 0), tag="particles")
    for name, rows in (("temperature", np.concatenate(parts)), ("particles", particles)):
        np.savetxt(ctx.run_dir / f"{name}.csv", rows, fmt="%.17g", delimiter=",")
    return {"hottest": float(parts[0].max()), "heater": float(heater.owned[0][0])}


def power(temperatures, wanted):
    """Return the temperature of the heater: the more, the colder the line is."""
    total = 0.0
    for value in temperatures:
        total += value
    return max(0.0, 1.0 + 4.0 * (wanted - total / len(temperatures)))
