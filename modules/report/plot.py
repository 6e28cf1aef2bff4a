"""Scales, which place values on an axis, and a plot with two axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from diel import format_value

from .markup import NOT_SET, Markup, as_number, escape, join, place, show, tag

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
    """A scale of labels at equal distances; no more than `most` of them are written."""

    def __init__(self, labels: Sequence[str], most: int = _MOST_LABELS) -> None:
        self.labels = tuple(labels)
        self._most = most
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
        labels = sorted({show(value) for value in there}, key=_natural)
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


def _natural(label: str) -> tuple[Any, ...]:
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


_LIFT: Final = 8.0
"""Pixels from the horizontal axis up to the lowest value, so that dots there hide no label."""


@dataclass(frozen=True)
class Plot:
    """The frame of a plot: its size, its scales, and the titles of its axes."""

    width: float
    height: float
    """Size of the drawing with its axes."""
    x: Scale
    y: Scale
    x_title: str
    y_title: str
    left: float = 58
    right: float = 14
    top: float = 26
    bottom: float = 40
    """Margins."""
    x_ticks: int = 6
    y_ticks: int = 5

    def at(self, x: object, y: object) -> tuple[float, float] | None:
        """Return the coordinates of a pair of values; None if one of them has no place."""
        across, up = self.x.place(x), self.y.place(y)
        if across is None or up is None:
            return None
        return self.across(across), self.down(up)

    def across(self, where: float) -> float:
        """Return the x of a place on the horizontal axis, 0 to 1."""
        return self.left + where * (self.width - self.left - self.right)

    def down(self, where: float) -> float:
        """Return the y of a place on the vertical axis, 0 to 1."""
        return (
            self.height
            - self.bottom
            - _LIFT
            - where * (self.height - self.top - self.bottom - _LIFT)
        )

    def draw(
        self, *content: Markup, label: str, kind: str = "points", style: str = "", **data: str
    ) -> Markup:
        """Return the drawing, with `content` over the grid.

        `label` describes the drawing for those who cannot see it; `kind` names what the page's
        script does with it, and `data` are attributes for the script. Labels of the axes are drawn
        over all lines.
        """
        lines, labels = self._grid()
        return tag(
            "svg",
            lines,
            *content,
            tag("g", class_="over"),
            labels,
            viewBox=f"0 0 {place(self.width)} {place(self.height)}",
            role="img",
            aria_label=label,
            data_chart=kind,
            class_=style or None,
            **data,
        )

    def _grid(self) -> tuple[Markup, Markup]:
        """Return the lines of the grid, and the labels of the axes."""
        lines, labels = [], []
        bottom, right = self.height - self.bottom, self.width - self.right
        for where, label in self.y.ticks(self.y_ticks):
            y = self.down(where)
            lines.append(line(self.left, y, right, y, "grid"))
            labels.append(text(self.left - 8, y + 4, label, "tick end halo"))
        for where, label in self.x.ticks(self.x_ticks):
            x = self.across(where)
            lines.append(line(x, bottom, x, bottom + 4, "axis"))
            shown = format_value(label, longest=14)
            labels.append(text(x, bottom + 17, shown, "tick middle halo"))
        lines.append(line(self.left, bottom, right, bottom, "axis"))
        middle = (self.left + right) / 2
        labels.append(text(middle, self.height - 5, self.x_title, "name middle halo"))
        labels.append(text(4, 13, self.y_title, "name halo"))
        return join(*lines), join(*labels)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """Return a straight line."""
    return tag("path", d=f"M{place(x1)},{place(y1)}L{place(x2)},{place(y2)}", class_=style)


def polyline(points: Sequence[tuple[float, float]], style: str, row: int) -> Markup:
    """Return the line of a row through points."""
    places = " ".join(f"{place(x)},{place(y)}" for x, y in points)
    return tag("polyline", points=places, class_=style, data_i=row)


def text(x: float, y: float, words: str, style: str) -> Markup:
    """Return a line of text; `style` says how it is aligned: middle, end, or from `x` on."""
    return tag("text", escape(words), x=place(x), y=place(y), class_=style)


def dots(points: Sequence[tuple[int, float, float]], style: str) -> Markup:
    """Return dots, (row, x, y) each, as one path: the shortest HTML for them."""
    if not points:
        return Markup("")
    return tag(
        "path",
        d="".join(f"M{place(x)},{place(y)}h0" for _, x, y in points),
        class_=f"dots {style}",
        data_rows=" ".join(str(row) for row, _, _ in points),
    )


def stairs(points: Sequence[tuple[float, float]], end: float, style: str) -> Markup:
    """Return a line that keeps its height until the next point, and up to `end`."""
    if not points:
        return Markup("")
    (x, y), *later = points
    path = f"M{place(x)},{place(y)}" + "".join(f"H{place(x)}V{place(y)}" for x, y in later)
    return tag("path", d=f"{path}H{place(max(end, points[-1][0]))}", class_=style)
