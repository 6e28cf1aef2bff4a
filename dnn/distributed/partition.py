"""Cuts of a chain of layers into stages of nearly equal cost, and of units into even slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dnn.errors import ConfigurationError

__all__ = ["even_bounds", "stage_bounds"]


def stage_bounds(
    costs: Sequence[float], stages: int, crossing: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Cut a chain into stages so that the most expensive one costs as little as possible.

    Parameters
    ----------
    costs : sequence of float, not negative
        Cost of each part of the chain; a part is not cut.
    stages : int, at least 1
    crossing : sequence of int, optional
        How many numbers each part passes to the next. Of equally good cuts, those are taken where
        stages exchange least, and of these the earliest.

    Returns
    -------
    tuple of stages + 1 int
        Stage s has parts ``bounds[s] .. bounds[s + 1] - 1``, at least one part.

    Raises
    ------
    ConfigurationError
        If there are more stages than parts.
    """
    parts = len(costs)
    if not 1 <= stages <= parts:
        message = f"{stages} stages need as many layers at least, and there are {parts}"
        raise ConfigurationError(f"pipeline: {message}")
    sent = [0] * parts if crossing is None else list(crossing)
    before = [0.0, *accumulate(costs)]
    # best[end]: largest cost of a stage, numbers exchanged, and cuts, of the parts before `end`.
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, (0,))}
    for stage in range(stages):
        further = {}
        for end in range(stage + 1, parts - (stages - stage - 1) + 1):
            further[end] = min(
                (
                    max(largest, before[end] - before[start]),
                    exchanged + (sent[start - 1] if start else 0),
                    (*cuts, end),
                )
                for start, (largest, exchanged, cuts) in best.items()
                if start < end
            )
        best = further
    return best[parts][2]


def even_bounds(units: int, slices: int) -> tuple[int, ...]:
    """Cut units into slices whose lengths differ by one at most, longer slices first.

    Parameters
    ----------
    units, slices : int, at least 1

    Returns
    -------
    tuple of slices + 1 int
        Slice i has units ``bounds[i] .. bounds[i + 1] - 1``; none if there are fewer than slices.
    """
    size, longer = divmod(units, slices)
    bounds = tuple(i * size + min(i, longer) for i in range(slices + 1))
    assert all(start <= stop for start, stop in pairwise(bounds))
    return bounds
