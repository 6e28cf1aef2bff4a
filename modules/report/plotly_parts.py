"""Common parts of figures for Plotly: colours, dots, and escaped text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from .markup import escape, show
from .picture import Picture
from .sweep import TRIAL

Figure: TypeAlias = "dict[str, Any]"
"""A figure of Plotly as a dictionary with ``data`` and ``layout``."""
_DOTS: Final = 500
"""Most dots of a trace, of more a part is drawn: a browser must not take long for a figure."""
_MANY: Final = 200
_HOVER: Final = 10


@dataclass(frozen=True)
class Theme:
    """Colours on a light or a dark page."""

    ink: str
    soft: str
    rule: str
    cloud: str
    best: str
    good: str
    stopped: str
    bad: str
    scale: Sequence[str]
    """From the worst to the best."""


THEMES: Final[Mapping[str, Theme]] = {
    "light": Theme(
        "#1b2430", "#5c6876", "#dde2e8", "#0072b2", "#d55e00", "#009e73", "#8a6d00", "#b3261e",
        ("#d4dae2", "#93b7d5", "#357db4", "#08305a"),
    ),
    "dark": Theme(
        "#e4e9ef", "#98a5b3", "#303a45", "#56b4e9", "#ff9a4d", "#2cc295", "#f0e442", "#ff7a70",
        ("#2c3641", "#35668c", "#5aa4d8", "#d3ecff"),
    ),
}  # fmt: skip


RUNS: Final[Mapping[str, Sequence[str]]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#1b2430", "#56b4e9"),
    "dark": ("#56b4e9", "#ff9a4d", "#2cc295", "#e39bc4", "#f0e442", "#e4e9ef", "#9cc9e4"),
}
"""Colours of several runs, in order; further runs differ in their dashes."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")


def marks(
    picture: Picture,
    rows: Sequence[int],
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    colour: str,
    *,
    size: float | None = None,
) -> dict[str, Any]:
    """Return trials as dots; of very many trials a part."""
    every = -(-len(rows) // _DOTS) or 1
    rows, x, y = rows[::every], x[::every], y[::every]
    many = len(rows) > _MANY
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "customdata": [picture.rows[row].get(TRIAL) for row in rows],
        "text": [hover_text(picture, row) for row in rows],
        "hoverinfo": "text",
        "marker": {
            "color": colour,
            "size": size or (4 if many else 6),
            "opacity": 1.0 if size else 0.6,
        },
    }


def colour_scale(colours: Theme, *, maximise: bool) -> list[list[Any]]:
    """Return Plotly's scale of colours for an objective, from its smallest to its largest."""
    shades = colours.scale if maximise else tuple(reversed(colours.scale))
    return [[number / (len(shades) - 1), shade] for number, shade in enumerate(shades)]


def hover_text(picture: Picture, row: int) -> str:
    """Return the text that is shown while the pointer is on a trial."""
    values = picture.rows[row]
    names = [picture.sweep.objective, *picture.varying[:_HOVER]]
    entries = [f"{name} {show(values.get(name))}" for name in dict.fromkeys(names)]
    return "<br>".join(plain(line) for line in (f"trial {show(values.get(TRIAL))}", *entries))


def plain(text: str) -> str:
    """Return text escaped, so that Plotly shows it as it is."""
    return str(escape(text))


def figure_of(
    data: list[dict[str, Any]],
    colours: Theme,
    *,
    x: dict[str, Any] | None,
    y: dict[str, Any] | None,
) -> Figure:
    """Return a figure of traces; `x` and `y` are its axes, None for a figure without any."""
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": colours.soft, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 62, "r": 16, "t": 30, "b": 46},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "uirevision": "kept",
    }
    for name, axis in (("xaxis", x), ("yaxis", y)):
        if axis is not None:
            title = {"text": plain(axis.pop("title", "")), "font": {"color": colours.ink}}
            layout[name] = {
                "title": title,
                "gridcolor": colours.rule,
                "zerolinecolor": colours.rule,
                "linecolor": colours.rule,
                **axis,
            }
    return {"data": data, "layout": layout}
