"""What all contenders of `sweep.py` compute, whatever they have installed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

TRAINERS = 2
SHAPE = {"a": 100, "b": 20, "c": 10, "d": 5, "e": 10}
"""Values of each parameter of a grid of a million points; smaller ones have fewer of `a`."""


def objective(parameters: dict[str, Any]) -> float:
    """Return the same number from the same point, whoever asks."""
    return (
        parameters["a"] * 3
        + parameters["b"] * 5
        - parameters["c"] * 7
        + parameters["d"] * 0.5
        - parameters["e"]
    )


def shape_of(points: int) -> dict[str, int]:
    """Return a grid of so many points."""
    shape, rest = dict(SHAPE), points
    for name in ("e", "d", "c", "b"):
        shape[name] = math.gcd(rest, shape[name])
        rest //= shape[name]
    return {**shape, "a": rest}


def points_of(shape: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield all points of a grid."""
    for values in itertools.product(*map(range, shape.values())):
        yield dict(zip(shape, values, strict=True))


def sum_of(shape: dict[str, int]) -> float:
    """Return the sum of the scores of all points."""
    return sum(map(objective, points_of(shape)))
