"""Conditions of parameters: with which values of other parameters a parameter exists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from .dimensions import Choices, Dimension, Finite, LogIntegers, Range, SpaceError, same

_BOUNDS = ("at_least", "at_most")


@dataclass(frozen=True)
class Condition:
    """The values that one parameter has to have for another one to exist."""

    values: tuple[Any, ...] | None = None
    """Values that fulfil the condition; None where only the bounds count."""
    at_least: float = -math.inf
    at_most: float = math.inf

    def holds(self, value: Any) -> bool:
        """Whether a value fulfils the condition."""
        if self.values is not None:
            return any(same(known, value) for known in self.values)
        try:
            return bool(self.at_least <= value <= self.at_most)
        except TypeError:  # no number
            return False


Conditions = Mapping[str, Mapping[str, Condition]]
"""For each parameter: its condition on each of its parents."""


def parse_conditions(
    dimensions: Mapping[str, Dimension], wanted: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Condition]]:
    """Parse the ``if`` of every parameter.

    A `SpaceError` if a condition can never hold, or is about a parameter that is not there.
    """
    return {
        name: {
            parent: _condition(name, parent, entry, dimensions) for parent, entry in table.items()
        }
        for name, table in wanted.items()
    }


def _condition(
    name: str, parent: str, entry: object, dimensions: Mapping[str, Dimension]
) -> Condition:
    if parent not in dimensions:
        raise SpaceError(
            f"if: there is no parameter {parent!r}{_meant(parent, list(dimensions))}", name
        )
    dimension = dimensions[parent]
    if isinstance(entry, Mapping):
        if entry and set(entry) <= set(_BOUNDS):
            return _bounds(name, parent, entry, dimension)
        if not isinstance(dimension, Choices) or not _is_value(entry, dimension):
            unknown = ", ".join(str(key) for key in entry if key not in _BOUNDS) or "{}"
            raise SpaceError(
                f"if: {parent}: unknown condition {unknown}; write a value, a list of values, "
                "or { at_least = ..., at_most = ... }",
                name,
            )
    if not isinstance(dimension, (Finite, LogIntegers)):
        raise SpaceError(
            f"if: {parent} has any value between two, so it is never just {entry!r}; "
            f"write {parent} = {{ at_least = ... }} or {{ at_most = ... }}",
            name,
        )
    return _one_of(name, parent, entry, dimension)


def _one_of(name: str, parent: str, entry: object, dimension: Dimension) -> Condition:
    """Return the condition that a parameter has a value, or one of a list of values."""
    values: tuple[Any, ...] = (entry,)
    if (
        isinstance(entry, Sequence)
        and not isinstance(entry, str)
        and not _is_value(entry, dimension)
    ):
        values = tuple(entry)
    if not values:
        raise SpaceError(f"if: {parent} = [] never holds", name)
    for value in values:
        if not _is_value(value, dimension):
            known = [str(choice) for choice in dimension] if isinstance(dimension, Choices) else []
            raise SpaceError(f"if: {parent} is never {value!r}{_meant(str(value), known)}", name)
    return Condition(tuple(_own(value, dimension) for value in values))


def _bounds(name: str, parent: str, entry: Mapping[str, Any], dimension: Dimension) -> Condition:
    values = dimension if isinstance(dimension, Choices) else ()
    for bound in [*entry.values(), *values]:
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or bound != bound:
            raise SpaceError(
                f"if: {parent} = {dict(entry)}: at_least and at_most need numbers", name
            )
    at_least, at_most = entry.get("at_least", -math.inf), entry.get("at_most", math.inf)
    return Condition(None, _own(at_least, dimension), _own(at_most, dimension))


def _own(value: Any, dimension: Dimension) -> Any:
    """Return the parameter's value that equals a value but for rounding: 3 * 0.1 for 0.3."""
    if isinstance(dimension, Finite) and _is_value(value, dimension):
        return dimension[dimension.index_of(value)]
    return value


def _is_value(value: object, dimension: Dimension) -> bool:
    try:
        dimension.share(value)
    except (ValueError, OverflowError):
        return False
    return True


def _meant(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f"; there are {', '.join(known)}" if known else ""


def parents_first(conditions: Conditions) -> list[str]:
    """Return the names of the parameters, each after its parents.

    Otherwise they stay in their order. A `SpaceError` if conditions run in a circle.
    """
    placed: dict[str, None] = {}
    while len(placed) < len(conditions):
        free = next(
            (
                name
                for name, table in conditions.items()
                if name not in placed and all(parent in placed for parent in table)
            ),
            None,
        )
        if free is None:
            raise SpaceError(_circle(conditions, placed))
        placed[free] = None
    return list(placed)


def _circle(conditions: Conditions, placed: Mapping[str, None]) -> str:
    name = next(name for name in conditions if name not in placed)
    way: list[str] = []
    while name not in way:
        way.append(name)
        name = next(parent for parent in conditions[name] if parent not in placed)
    return f"conditions run in a circle: {' if '.join([*way[way.index(name) :], name])}"


def breaks(dimension: Dimension, asked: Sequence[Condition]) -> Iterator[tuple[int, int]]:
    """Cut the values of a parameter into runs within which every condition about it is constant.

    Yields how many values there are in a run, and which conditions hold there, as bits. A range
    that cannot be counted gives a run of one for each part.
    """
    if isinstance(dimension, Finite):
        ends = sorted(_changes(dimension, asked) | {0, len(dimension)})
        runs = [(stop - start, dimension[start]) for start, stop in pairwise(ends)]
    else:
        runs = [(1, value) for value in _samples(dimension, asked)]
    length_before, bits_before = 0, -1
    for length, value in runs:
        bits = sum(1 << index for index, condition in enumerate(asked) if condition.holds(value))
        if bits != bits_before and length_before:
            yield length_before, bits_before
            length_before = 0
        length_before, bits_before = length_before + length, bits
    yield length_before, bits_before


def _changes(dimension: Finite, asked: Sequence[Condition]) -> set[int]:
    """Return the indices at which a condition may begin or cease to hold."""
    if isinstance(dimension, Choices):
        return set(range(len(dimension))) if asked else set()
    found = set()
    for condition in asked:
        if condition.values is not None:
            at = [dimension.index_of(value) for value in condition.values]
            found |= {*at, *(index + 1 for index in at)}
        else:
            found |= {
                _count_before(dimension, condition.at_least),
                _count_before(dimension, condition.at_most),
            }
            # The bound itself belongs to the values that it admits.
            found |= {min(index + 1, len(dimension)) for index in list(found)}
    return found


def _count_before(values: Finite, bound: float) -> int:
    """Return how many of monotone values come before a bound."""
    rising = values[0] <= values[len(values) - 1]
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        before = values[middle] < bound if rising else values[middle] > bound
        low, high = (middle + 1, high) if before else (low, middle)
    return low


def _samples(dimension: Dimension, asked: Sequence[Condition]) -> list[Any]:
    """Return a value from every part of a range, and from between the parts."""
    ends = [0.0, 1.0]
    assert isinstance(dimension, (Range, LogIntegers))
    low, high = sorted((dimension.start, dimension.stop))
    for condition in asked:
        bounds = (
            [condition.at_least, condition.at_most]
            if condition.values is None
            else list(condition.values)
        )
        ends += [dimension.share(bound) for bound in bounds if low <= bound <= high]
    ends = sorted(set(ends))
    middles = [(below + above) / 2 for below, above in pairwise(ends)]
    return [dimension.at(min(share, 1 - 2**-53)) for share in sorted({*ends, *middles})]
