"""`Figure`, panels with a title and a note: draws itself as HTML, or as Plotly's dictionary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .markup import Markup, asset, show, tag
from .panels import Heatmap, Panel, ParallelCoordinates, Plot, RowId
from .plotly import Dictionary, Told, as_plotly
from .svg import Written, class_of, draw

HALF: Final = 560.0
FULL: Final = 1140.0
"""Widths of a drawing in pixels, in a column of a report and in both."""


@dataclass(frozen=True)
class Figure:
    """A figure of a sweep: panels with a title and a line on what they show.

    Attributes
    ----------
    name : str
        Tells it from other figures: ``history``.
    title, note : str
    panels : sequence of Panel
        Those with a caption are small, and stand beside each other below the others.
    tell : callable
        Returns what is told of a trial that is pointed at.
    is_wide : bool
        Whether it has a row of a page for itself.
    warning : str
        Why it should not be trusted; empty if there is no reason.
    subtitle : str
        Stands above the small panels.
    remarks : sequence of str
        Further lines, below.
    is_of_data : bool
        Whether its names are those of the data, which are written as they are.
    """

    name: str
    title: str
    note: str
    panels: Sequence[Panel]
    tell: Callable[[RowId], Told]
    is_wide: bool = True
    warning: str = ""
    subtitle: str = ""
    remarks: Sequence[str] = ()
    is_of_data: bool = False

    @property
    def style(self) -> str:
        """The style sheet of what `draw` returns."""
        return asset("figures.css")

    @property
    def script(self) -> str:
        """A script for the browser, of which figures.js says what it defines."""
        return asset("figures.js")

    def draw(self, width: float, written: Written = str, *, with_tips: bool = True) -> Markup:
        """Return the figure as HTML, complete without its script.

        Parameters
        ----------
        width : float, pixels
            Of the place that it is for.
        written : callable
            Writes names of columns.
        with_tips : bool
            Whether it says itself what the script tells of its trials; of very many it then shows
            a part.
        """
        if self.is_of_data:
            written = str
        large, small = [], []
        for panel in self._thinned if with_tips else self.panels:
            drawing = draw(panel, width, written)
            if isinstance(panel, (Plot, Heatmap)) and panel.caption:
                small.append(tag("figure", tag("figcaption", written(panel.caption)), drawing))
            else:
                if self.is_wide and isinstance(panel, Plot):  # which scrolls on a narrow page
                    about = {"role": "group", "aria_label": panel.label, "tabindex": 0}
                    drawing = tag("div", drawing, class_="scrolls", **about)
                large.append(drawing)
        return tag(
            "div",
            tag("p", self.warning, class_="warning") if self.warning else None,
            self._keys(),
            *large,
            tag("h3", self.subtitle) if self.subtitle else None,
            tag("div", *small, class_="panels") if small else None,
            *(tag("p", remark, class_="note") for remark in self.remarks),
            class_="drawn",
            data_of=self.name,
            data_tips=self._tips() if with_tips else None,
        )

    def plotly(self, theme: str = "light") -> Dictionary:
        """Return the figure as a dictionary for Plotly; `theme` is ``light`` or ``dark``."""
        return as_plotly(self._thinned, self.tell, theme)

    @property
    def _thinned(self) -> list[Panel]:
        return [
            panel.thinned() if isinstance(panel, (Plot, ParallelCoordinates)) else panel
            for panel in self.panels
        ]

    def _keys(self) -> Markup | None:
        """Return the keys of layers, which the script makes buttons that hide them."""
        styles: dict[str, str] = {}
        for panel in self.panels:
            if isinstance(panel, Plot) and not panel.caption:
                for layer in panel.layers:
                    if layer.name and layer.x:
                        styles.setdefault(layer.name, f"{layer.kind} {class_of(layer.style)}")
        keys = [
            tag("span", tag("i", class_=f"mark {style}"), name, class_="key", data_key=name)
            for name, style in styles.items()
        ]
        return tag("div", *keys, class_="keys") if len(keys) > 1 else None

    def _rows(self) -> Iterator[RowId]:
        for panel in self._thinned:
            if isinstance(panel, Plot):
                for layer in panel.layers:
                    yield from layer.rows
            elif isinstance(panel, ParallelCoordinates):
                yield from panel.rows

    def _tips(self) -> str:
        tips: dict[str, list[tuple[str, Any]]] = {
            str(row): [
                (name, value if type(value) is int else show(value))
                for name, value in self.tell(row)
            ]
            for row in dict.fromkeys(self._rows())
        }
        return json.dumps(tips, separators=(",", ":"), allow_nan=False)
