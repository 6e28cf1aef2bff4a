"""What a figure shows, without how it is drawn: scales, layers of marks, and panels made of them.

::

    Plot                   an axis across, an axis up, and layers: dots, lines, bars, ...
    ParallelCoordinates    an axis for each parameter, and a line for each trial
    Heatmap                a value for each pair of labels
    StackedBars            a bar of parts for each label

`svg` and `plotly` draw each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from .markup import NOT_SET, as_number, show

_MOST_NAMED: Final = 14
"""Most numbers that are placed on an axis one by one; more of them are a range."""
_MOST_LABELS: Final = 24
_LOG_FROM: Final = 20.0
"""Ratio of the largest to the smallest value from which an axis may be logarithmic."""
_FAR: Final = 2.5
_FINEST: Final = 1e-290
_MOST_WRITTEN: Final = 12
"""Most labels of a plane whose cells have numbers."""


class Scale(Protocol):
    """Places values on an axis, from 0 to 1."""

    def place(self, value: Any) -> float | None:
        """Return the place of a value on the axis; None if it has none."""

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return about `count` ticks: the place and the label of each."""


@dataclass(frozen=True)
class LinearScale:
    """A linear scale; values beyond an end are placed on it, and ticks may be whole numbers."""

    low: float
    high: float
    is_whole: bool = False

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
        step = max(step, 1.0) if self.is_whole else step
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
    is_whole = all(float(number).is_integer() for number in numbers)
    return LinearScale(min(numbers), max(numbers), is_whole)


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


# -- panels ---------------------------------------------------------------------------------------

RowId: TypeAlias = "int | str"
"""Names a trial in a figure: by default its place among the rows of a `SweepView`."""

_DOTS: Final = 500
_LINES: Final = 280
_BEST_LINES: Final = 20
"""How many dots of a layer and lines are drawn where a browser must not take long, and how many of
the lines are the best."""


@dataclass(frozen=True)
class Axis:
    """An axis: its title, as the user wrote the name, and its scale."""

    title: str
    scale: Scale


@dataclass(frozen=True)
class Layer:
    """Marks of one kind and style.

    Attributes
    ----------
    kind : str
        ``stairs`` keep their height until the next point; ``ticks`` stand on the axis; ``bars``
        begin at ``x`` and lie at a label of the axis up.
    style : str
        What they stand for: a class of figures.css, and a colour of `plotly.Theme`.
    name : str
        In the keys; layers of one name are hidden together. Without a name there is no key.
    x, y : sequence
        Values on the axes.
    rows : sequence of RowId
        The trial of each mark; of a line one for the whole line, or none.
    lengths : sequence of float
        Of bars, along the axis across.
    text : str
        Names a line that belongs to no row.
    is_extra : bool
        Whether Plotly draws it only when its key is clicked.
    """

    kind: Literal["dots", "line", "stairs", "ticks", "bars"]
    style: str
    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    rows: Sequence[RowId] = ()
    lengths: Sequence[float] = ()
    text: str = ""
    is_extra: bool = False

    def thinned(self) -> Layer:
        """Return the layer with a part of its dots, if there are very many."""
        every = -(-len(self.x) // _DOTS)
        if self.kind != "dots" or every < 2:
            return self
        return replace(self, x=self.x[::every], y=self.y[::every], rows=self.rows[::every])


@dataclass(frozen=True)
class Plot:
    """Layers between two axes; with a caption it is one of several smaller ones.

    Those are without titles on their axes, unless `has_titles`.
    """

    x: Axis
    y: Axis
    layers: Sequence[Layer]
    label: str
    """What it shows, for those who cannot see it."""
    caption: str = ""
    has_titles: bool = False

    def thinned(self) -> Plot:
        """Return the plot with a part of its dots, if there are very many."""
        return replace(self, layers=[layer.thinned() for layer in self.layers])


@dataclass(frozen=True)
class Heatmap:
    """A value for each pair of labels of two axes, as shades.

    Attributes
    ----------
    value : list of list of float, (labels across, labels up)
    trials : list of list of int
        How many trials had each pair.
    maximise : bool
        Whether large values are the good ones.
    title : str
        What the values are.
    counted : str
        What `trials` counts, and where that is not trials: then the counts are written, in the
        place of dots.
    of : str
        What tells it from others beside it, if it does not count trials; it is large without.
    """

    x: str
    y: str
    labels: tuple[Sequence[str], Sequence[str]]
    value: Sequence[Sequence[float]]
    trials: Sequence[Sequence[int]]
    maximise: bool
    title: str
    counted: str = "trials"
    of: str = ""

    @property
    def caption(self) -> str:
        """Names both axes, where there are several planes beside each other; else empty."""
        return f"{self.x} and {self.y}" if self.are_trials else self.of

    @property
    def label(self) -> str:
        """What it shows, for those who cannot see it."""
        return f"{self.title} with each {self.x} and {self.y}"

    def scales(self) -> tuple[NamedScale, NamedScale]:
        """Return the scales of both axes."""
        across, up = self.labels
        if self.are_trials:
            return NamedScale(across, most=5, in_bands=True), NamedScale(up, most=8, in_bands=True)
        room = (270 if self.of else 470) // (7 * min(14, max(map(len, across))) + 10)
        return (
            NamedScale(across, most=max(2, room), in_bands=True),
            NamedScale(up, most=_MOST_WRITTEN, in_bands=True),
        )

    @property
    def are_trials(self) -> bool:
        """Whether dots show where trials have been."""
        return self.counted == "trials"

    @property
    def writes_counts(self) -> bool:
        """Whether there is room for a number in each cell."""
        return not self.are_trials and max(map(len, self.labels)) <= _MOST_WRITTEN


@dataclass(frozen=True)
class StackedBars:
    """For each label the shares of several parts in a whole, as a bar; the largest first."""

    title: str
    parts: Sequence[tuple[str, str]]
    """Name and style of each part."""
    rows: Sequence[tuple[str, Sequence[float]]]
    """A label, and the share of each part."""


@dataclass(frozen=True)
class ParallelCoordinates:
    """Lines over parallel axes, of which the last is the objective's.

    Attributes
    ----------
    rows : sequence of int
        Trials, the worst first, the best last.
    values : sequence of sequence
        Of each of them the values on all axes.
    shades : sequence of int
        Of each of them its colour.
    ends : tuple of str
        The objective at the worst and the best end of the colours, as text.
    maximise : bool
    """

    axes: Sequence[Axis]
    rows: Sequence[int]
    values: Sequence[Sequence[Any]]
    shades: Sequence[int]
    ends: tuple[str, str]
    maximise: bool

    def thinned(self) -> ParallelCoordinates:
        """Return a part of the lines, if there are very many, with those of the best."""
        every, least = -(-len(self.rows) // _LINES), max(0, len(self.rows) - _BEST_LINES)
        shown = [n for n in range(len(self.rows)) if n % every == 0 or n >= least]
        return replace(
            self,
            rows=[self.rows[n] for n in shown],
            values=[self.values[n] for n in shown],
            shades=[self.shades[n] for n in shown],
        )

    def places(self, values: Sequence[Any]) -> list[float | None]:
        """Return where a line crosses each axis, from 0 to 1; None where it does not.

        Lines through a named value are spread by the objective, so that none hides the others.
        """
        aside = (self.axes[-1].scale.place(values[-1]) or 0.0) - 0.5
        return [
            _spread(axis.scale, axis.scale.place(value), aside)
            for axis, value in zip(self.axes, values, strict=True)
        ]

    def ticks(self, axis: Axis, count: int) -> list[tuple[float, str]]:
        """Return the ticks of an axis: place and label."""
        return [(_spread(axis.scale, at, 0.0) or 0.0, text) for at, text in axis.scale.ticks(count)]


def _spread(scale: Scale, where: float | None, aside: float) -> float | None:
    """Return a place moved within the band of its named value; `aside` is from -0.5 to 0.5."""
    if where is None or not isinstance(scale, NamedScale):
        return where
    band = min(0.16, 0.7 / len(scale.labels))
    return band / 2 + where * (1 - band) + aside * band


Panel: TypeAlias = "Plot | Heatmap | ParallelCoordinates | StackedBars"
