"""What all contenders of `sweep.py` compute, whatever they have installed."""

from __future__ import annotations

from typing import Any

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
