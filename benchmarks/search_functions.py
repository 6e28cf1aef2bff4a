"""What `search.py` minimises: spaces as in a workflow file, and losses.

Where a formula has its optimum in the middle of its ranges, as most of the classics have, the
ranges are shifted by a part that follows from the seed: a strategy that begins in the middle, or
draws there more often, gains nothing from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from search_tables import GRIDS, PATH

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A function to minimise; its least value is 0, or what `least` says."""

    space: dict[str, Any]
    loss: Callable[[Point, int], float]
    """From a point and the seed of a sweep."""
    least: float = 0.0
    noise: float = 0.0
    """Standard deviation of what is told beside the loss; what is reported is without it."""
    is_held_out: bool = False
    """Whether nothing was tuned on it."""


def reals(count: int, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    return {f"x{index}": {"from": low, "to": high} for index in range(count)}


def shifted(formula: Callable[[Any], float], count: int, half_width: float, **more: Any) -> Problem:
    """Return a function of `count` numbers whose optimum, at 0, is anywhere in the middle 80 %."""

    def loss(point: Point, seed: int) -> float:
        generator = Random(1000 + seed)
        at = [2 * point[f"x{i}"] - 1 - generator.uniform(-0.8, 0.8) for i in range(count)]
        return formula(half_width * np.array(at))

    return Problem(reals(count), loss, **more)


def sphere(x: Any) -> float:
    return float(x @ x)


def ackley(x: Any) -> float:
    spread, waves = math.sqrt(x @ x / len(x)), np.cos(2 * math.pi * x).mean()
    return float(20 + math.e - 20 * math.exp(-0.2 * spread) - math.exp(waves))


def rastrigin(x: Any) -> float:
    return float((10 + x * x - 10 * np.cos(2 * math.pi * x)).sum())


def griewank(x: Any) -> float:
    places = np.sqrt(np.arange(1, len(x) + 1))
    return float(1 + x @ x / 4000 - np.cos(x / places).prod())


def levy(x: Any) -> float:
    w = 1 + x / 4
    inner = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(math.pi * w[:-1] + 1) ** 2)
    ends = np.sin(math.pi * w[0]) ** 2 + (w[-1] - 1) ** 2 * (1 + np.sin(2 * math.pi * w[-1]) ** 2)
    return float(inner.sum() + ends)


def rosenbrock(x: Any) -> float:
    x = x + 1
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def branin(point: Point, seed: int) -> float:
    x, y = point["x"], point["y"]
    inner = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return inner**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


A = np.array(
    (
        (10, 3, 17, 3.5, 1.7, 8),
        (0.05, 10, 17, 0.1, 8, 14),
        (3, 3.5, 1.7, 10, 17, 8),
        (17, 8, 0.05, 10, 0.1, 14),
    )
)
P = 1e-4 * np.array(
    (
        (1312, 1696, 5569, 124, 8283, 5886),
        (2329, 4135, 8307, 3736, 1004, 9991),
        (2348, 1451, 3522, 2883, 3047, 6650),
        (4047, 8828, 8732, 5743, 1091, 381),
    )
)


def hartmann(point: Point, seed: int) -> float:
    x = np.array([point[f"x{index}"] for index in range(6)])
    return -float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-(A * (x - P) ** 2).sum(axis=1)))


def mixed(point: Point, seed: int) -> float:
    """Return a bowl whose place depends on one choice; another choice only adds."""
    generator = Random(seed)
    bowls = [[generator.uniform(0.1, 0.9) for _ in range(3)] for _ in range(4)]
    depths = generator.sample([0.0, 0.1, 0.2, 0.3], 4)
    chosen = point["kind"]
    rate = (math.log10(point["rate"]) + 5) / 4
    place = [rate, point["share"], (point["width"] - 8) / 56]
    far = sum((a - b) ** 2 for a, b in zip(place, bowls[chosen], strict=True))
    return far + depths[chosen] + 0.05 * ((point["extra"] - seed) % 5)


def network(point: Point, seed: int) -> float:
    """Return a loss like that of a network: a valley between rate, batch and width, and a cliff."""
    generator = Random(7 + seed)
    best = generator.uniform(-3.2, -1.8)
    rate, batch = math.log10(point["learning_rate"]), math.log2(point["batch_size"])
    wanted = best + 0.3 * (batch - 5) * math.log10(2) * 2
    cliff = max(rate - wanted - 0.6, 0) * 3
    width, depth = math.log2(point["width"]), point["depth"]
    size = 0.02 * (width - generator.uniform(5, 9)) ** 2
    size += 0.05 * abs(depth - generator.choice([1, 2, 3]))
    penalty = {"relu": 0.0, "tanh": 0.05, "sigmoid": 0.2}[point["activation"]]
    drop = 0.3 * (point["dropout"] - generator.uniform(0, 0.5)) ** 2
    return 0.15 * (rate - wanted) ** 2 + cliff + size + penalty + drop


def optimizers(point: Point, seed: int) -> float:
    """Return a loss whose parameters depend on a choice, and are of different importance."""
    generator = Random(11 + seed)
    best = {name: generator.uniform(-4, -1) for name in ("sgd", "adam", "rmsprop")}
    depth = dict(zip(best, generator.sample([0.0, 0.04, 0.1], 3), strict=True))
    kind = point["optimizer"]
    loss = depth[kind] + 0.1 * (math.log10(point["rate"]) - best[kind]) ** 2
    if kind == "sgd":
        loss += (point["momentum"] - generator.uniform(0.5, 0.9)) ** 2
        loss += 0.0 if point["nesterov"] else 0.02
    elif kind == "adam":
        loss += 0.05 * (math.log10(1 - point["beta2"]) + generator.uniform(1.5, 3)) ** 2
        loss += (point["beta1"] - generator.uniform(0.7, 0.95)) ** 2
    else:
        loss += 0.3 * (point["smoothing"] - generator.uniform(0.6, 0.95)) ** 2
    return loss + 0.3 * (point["dropout"] - generator.uniform(0.0, 0.5)) ** 2


def layers(point: Point, seed: int) -> float:
    """Return a loss of up to four layers, each of which has a width if it is there."""
    generator = Random(13 + seed)
    wanted = generator.choice([2, 3, 4])
    widths = [generator.uniform(4.5, 8.5) for _ in range(4)]
    loss = 0.15 * abs(point["depth"] - wanted)
    for index in range(point["depth"]):
        loss += 0.03 * (math.log2(point[f"width{index}"]) - widths[index]) ** 2
    return loss + 0.1 * (math.log10(point["rate"]) - generator.uniform(-4, -2)) ** 2


def ordinal(point: Point, seed: int) -> float:
    """Return a bowl over integers, a third of its value from how two of them go together."""
    generator = Random(17 + seed)
    at = [generator.randrange(2, 14) for _ in range(5)]
    far = [point[f"n{index}"] - at[index] for index in range(5)]
    return sum(one * one for one in far) / 40 + abs(far[0] + far[1]) / 10


def steps(point: Point, seed: int) -> float:
    """Return a function that is flat in steps, as one of integers and coarse numbers is."""
    generator = Random(19 + seed)
    loss = 0.0
    for index, name in enumerate(("a", "b", "c", "d")):
        low, high = (1, 512) if name == "d" else (0, 99)
        share = (math.log(point[name]) / math.log(512)) if name == "d" else point[name] / 99
        loss += (index + 1) * (share - generator.uniform(0.1, 0.9)) ** 2
        assert low <= point[name] <= high
    return loss + 0.1 * (point["e"] != generator.randrange(6))


@cache
def looked_up(name: str) -> tuple[Any, float, list[Any]]:
    from modules.space import Space

    table = np.load(PATH)[name]
    return table, float(table.min()), list(Space.parse(GRIDS[name]).dimensions.items())


def tabular(name: str, **more: Any) -> Problem:
    def loss(point: Point, seed: int) -> float:
        table, least, dimensions = looked_up(name)
        place = tuple(dimension.index_of(point[key]) for key, dimension in dimensions)
        return float(table[place]) - least

    return Problem(GRIDS[name], loss, **more)


LOG = {"from": 1e-5, "to": 1e-1, "scale": "log"}
MIXED = {
    "kind": [0, 1, 2, 3],
    "rate": LOG,
    "share": {"from": 0.0, "to": 1.0},
    "width": {"from": 8, "to": 64},
    "extra": [0, 1, 2, 3, 4],
}
NETWORK = {
    "learning_rate": {"from": 1e-5, "to": 1.0, "scale": "log"},
    "batch_size": {"from": 8, "to": 256, "log_steps": 6},
    "width": {"from": 8, "to": 1024, "scale": "log"},
    "depth": {"from": 1, "to": 4},
    "activation": ["relu", "tanh", "sigmoid"],
    "dropout": {"from": 0.0, "to": 0.6},
}
OPTIMIZERS = {
    "optimizer": ["sgd", "adam", "rmsprop"],
    "rate": {"from": 1e-5, "to": 1.0, "scale": "log"},
    "momentum": {"from": 0.0, "to": 0.95, "if": {"optimizer": "sgd"}},
    "nesterov": {"choices": [True, False], "if": {"optimizer": "sgd"}},
    "beta1": {"from": 0.5, "to": 0.99, "if": {"optimizer": "adam"}},
    "beta2": {"choices": [0.9, 0.97, 0.99, 0.997, 0.999], "if": {"optimizer": "adam"}},
    "smoothing": {"from": 0.5, "to": 0.99, "if": {"optimizer": "rmsprop"}},
    "dropout": {"from": 0.0, "to": 0.6},
}
LAYERS = {
    "depth": {"from": 1, "to": 4},
    "rate": LOG,
    **{
        f"width{i}": {"from": 8, "to": 512, "scale": "log", "if": {"depth": {"at_least": i + 1}}}
        for i in range(4)
    },
}
BRANIN = {"x": {"from": -5.0, "to": 10.0}, "y": {"from": 0.0, "to": 15.0}}
ORDINAL = {f"n{index}": {"from": 0, "to": 15} for index in range(5)}
HUNDRED = {"from": 0, "to": 99}
STEPS = {
    **dict.fromkeys("abc", HUNDRED),
    "d": {"from": 1, "to": 512, "scale": "log"},
    "e": list(range(6)),
}

PROBLEMS: dict[str, Problem] = {
    "sphere": shifted(sphere, 5, 5.0),
    "ackley": shifted(ackley, 5, 16.0),
    "rosenbrock": shifted(rosenbrock, 4, 2.0),
    "hartmann6": Problem(reals(6), hartmann, -3.32237),
    "mixed": Problem(MIXED, mixed),
    "optimizers": Problem(OPTIMIZERS, optimizers),
    "ordinal": Problem(ORDINAL, ordinal),
    "svc": tabular("svc"),
    "noisy_sphere": shifted(sphere, 4, 1.0, noise=0.1),
    "rastrigin": shifted(rastrigin, 4, 5.0, is_held_out=True),
    "branin": Problem(BRANIN, branin, 0.397887, is_held_out=True),
    "levy": shifted(levy, 6, 10.0, is_held_out=True),
    "griewank": shifted(griewank, 5, 50.0, is_held_out=True),
    "network": Problem(NETWORK, network, is_held_out=True),
    "layers": Problem(LAYERS, layers, is_held_out=True),
    "steps": Problem(STEPS, steps, is_held_out=True),
    "boosting": tabular("boosting", is_held_out=True),
    "mlp": tabular("mlp", is_held_out=True),
    "noisy_network": Problem(NETWORK, network, noise=0.05, is_held_out=True),
}
