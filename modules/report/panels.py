"""What a figure shows, without how it is drawn: axes, layers of marks, and panels made of them.

::

    Plot                   an axis across, an axis up, and layers: dots, lines, bars, ...
    ParallelCoordinates    an axis for each parameter, and a line for each trial
    Heatmap                a value for each pair of labels
    StackedBars            a bar of parts for each label

`svg` and `plotly` draw each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from .scales import NamedScale, Scale

RowId: TypeAlias = "int | str"
"""Names a trial in a figure: by default its place among the rows of a `Picture`."""


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
    """Layers between two axes; with a caption it is one of several small ones."""

    x: Axis
    y: Axis
    layers: Sequence[Layer]
    label: str
    """What it shows, for those who cannot see it."""
    caption: str = ""

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
    """

    x: str
    y: str
    labels: tuple[Sequence[str], Sequence[str]]
    value: Sequence[Sequence[float]]
    trials: Sequence[Sequence[int]]
    maximise: bool
    title: str

    @property
    def caption(self) -> str:
        """Names both axes: there are several planes beside each other."""
        return f"{self.x} and {self.y}"

    @property
    def label(self) -> str:
        """What it shows, for those who cannot see it."""
        return f"{self.title} with each {self.caption}"

    def scales(self) -> tuple[NamedScale, NamedScale]:
        """Return the scales of both axes."""
        across, up = self.labels
        return NamedScale(across, most=5, in_bands=True), NamedScale(up, most=8, in_bands=True)


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
