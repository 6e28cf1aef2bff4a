"""Scales, which place values on an axis and choose its ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .markup import NOT_SET, as_number, show

_MOST_NAMED: Final = 14
"""Most numbers that are placed on an axis one by one; more of them are a range."""
_MOST_LABELS: Final = 24
_LOG_FROM: Final = 20.0
"""Ratio of the largest to the smallest value from which an axis may be logarithmic."""
_FAR: Final = 2.5
_FINEST: Final = 1e-290


class Scale(Protocol):
    """Places values on an axis, from 0 to 1."""

    def place(self, value: Any) -> float | None:
        """Return the place of a value on the axis; None if it has none."""

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return about `count` ticks: the place and the label of each."""


@dataclass(frozen=True)
class LinearScale:
    """A linear scale; values beyond an end are placed on it."""

    low: float
    high: float

    def place(self, value: Any) -> float | None:
        """Return where a value lies."""
        number = as_number(value)
        if number is None:
            return None
        if self.high == self.low:
            return 0.5
        return min(1.0, max(0.0, (number - self.low) / (self.high - self.low)))

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return multiples of 1, 2 or 5 times a power of ten."""
        if self.high == self.low:
            return [(0.5, show(self.low))]
        rough = (self.high - self.low) / max(1, count)
        if rough < _FINEST:
            return [(0.0, show(self.low)), (1.0, show(self.high))]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, min(last, first + 50) + 1)]
        return [
            ((value - self.low) / (self.high - self.low), _tick(value, digits)) for value in values
        ]


@dataclass(frozen=True)
class LogScale:
    """A logarithmic scale; values beyond an end are placed on it."""

    low: float
    high: float

    def place(self, value: Any) -> float | None:
        """Return where a value lies."""
        number = as_number(value)
        if number is None or number <= 0:
            return None
        whole = math.log(self.high / self.low)
        return min(1.0, max(0.0, math.log(number / self.low) / whole)) if whole else 0.5

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return powers of ten, with 2 and 5 between them where these are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, -(-(last - first) // max(1, count)))
        factors = (1,) if last - first > 3 else (1, 2, 5) if last - first > 1 else range(1, 10)
        values = [
            factor * 10.0**power for power in range(first, last + 1, every) for factor in factors
        ]
        inside = [value for value in values if self.low * 0.999 <= value <= self.high * 1.001]
        if not inside:
            inside = [self.low, self.high]
        return [(self.place(value) or 0.0, show(value)) for value in inside]


class NamedScale:
    """A scale of labels at equal distances; no more than `most` of them are written.

    The first and the last are at the ends of the axis, or, with `in_bands`, half a step inside.
    """

    def __init__(
        self, labels: Sequence[str], most: int = _MOST_LABELS, *, in_bands: bool = False
    ) -> None:
        self.labels = tuple(labels)
        self._most = most
        self._in_bands = in_bands
        self._number_of = {label: number for number, label in enumerate(self.labels)}

    def place(self, value: Any) -> float | None:
        """Return where a value lies."""
        number = self._number_of.get(NOT_SET if value is None else show(value))
        return None if number is None else self.place_of(number)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return every value, or some where there are very many."""
        every = -(-len(self.labels) // self._most)
        return [
            (self.place_of(number), label)
            for number, label in enumerate(self.labels)
            if number % every == 0
        ]

    def place_of(self, number: int) -> float:
        """Return the place of the label with this number, from 0."""
        if self._in_bands:
            return (number + 0.5) / len(self.labels)
        return number / (len(self.labels) - 1) if len(self.labels) > 1 else 0.5


@dataclass(frozen=True)
class OrNotSet:
    """A scale, and below it a place for trials that do not have the parameter."""

    scale: Scale

    _GAP = 0.14

    def place(self, value: Any) -> float | None:
        """Return where a value lies."""
        if value is None:
            return 0.0
        place = self.scale.place(value)
        return None if place is None else self._GAP + (1 - self._GAP) * place

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return the scale's ticks, and one for parameters that are not set."""
        above = [
            (self._GAP + (1 - self._GAP) * place, label) for place, label in self.scale.ticks(count)
        ]
        return [(0.0, NOT_SET), *above]


def scale_for(values: Sequence[Any]) -> Scale:
    """Return the scale that shows a parameter's values best.

    Few values, and words, are placed one by one; numbers that spread over orders of magnitude are
    on a logarithmic axis.
    """
    there = [value for value in values if value is not None]
    numbers = [as_number(value) for value in there]
    if there and all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        by_label = {show(value): number for value, number in zip(there, known, strict=True)}
        if len(by_label) <= _MOST_NAMED:
            labels = sorted(by_label, key=lambda label: by_label[label])
        else:
            scale: Scale = (
                LogScale(min(known), max(known)) if is_logarithmic(known) else spread(known)
            )
            return scale if len(there) == len(values) else OrNotSet(scale)
    else:
        labels = sorted({show(value) for value in there}, key=natural)
    if len(there) < len(values) or not labels:
        labels = [NOT_SET, *labels]
    return NamedScale(labels)


def is_logarithmic(numbers: Sequence[float]) -> bool:
    """Whether positive numbers spread over orders of magnitude, most of them low down."""
    low, high = min(numbers), max(numbers)
    if low <= 0 or high / low < _LOG_FROM:
        return False
    return sorted(numbers)[len(numbers) // 2] < low + 0.3 * (high - low)


def spread(numbers: Sequence[float]) -> LinearScale:
    """Return a linear scale over numbers."""
    return LinearScale(min(numbers), max(numbers))


def focus(numbers: Sequence[float], maximise: bool, far: float = _FAR) -> LinearScale:
    """Return a linear scale over the results that matter, with a little room at both ends.

    Results that are worse than the median by more than `far` times the distance from there to the
    best are placed on the end of the axis: one network that diverged must not squeeze all others
    into a line.
    """
    ordered = sorted(numbers, reverse=not maximise)  # the best last
    best, median = ordered[-1], ordered[(len(ordered) - 1) // 2]
    limit = median - far * (best - median)
    worst = ordered[0]
    if best != median:
        worst = max(worst, limit) if maximise else min(worst, limit)
    low, high = min(worst, best), max(worst, best)
    room = 0.04 * (high - low) or abs(high) * 0.05 or 0.5
    return LinearScale(low - room, high + room)


def natural(label: str) -> tuple[Any, ...]:
    """Return a sort key by which numbers in labels count as numbers: 32, 64, 64x32, 128."""
    parts: list[Any] = []
    for part in label.replace("x", " x ").split():
        number = part.replace(".", "", 1).isdecimal()
        parts.append((0, float(part), "") if number else (1, 0.0, part))
    return tuple(parts)


def _tick(value: float, digits: int) -> str:
    if abs(value) >= 1e5 or (value and digits > 5):
        return show(float(value))
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("-") and not float(text.replace(",", "")) else text
