"""Panels as figures for Plotly: plain dictionaries, for notebooks and other programs.

Plotly is not imported: ``plotly.graph_objects.Figure(figure)`` makes a figure of such a dictionary.
Text that comes from outside is escaped, since Plotly interprets some of HTML. Colours are Okabe and
Ito's, which the colour-blind can tell apart; the colour scale of objectives differs in lightness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from .markup import escape, show
from .panels import (
    Heatmap,
    Layer,
    LinearScale,
    LogScale,
    NamedScale,
    Panel,
    ParallelCoordinates,
    Plot,
    RowId,
    StackedBars,
)

Dictionary: TypeAlias = "dict[str, Any]"
"""A figure of Plotly, with ``data`` and ``layout``, or a part of it."""
Told: TypeAlias = "Sequence[tuple[str, Any]]"
"""Names and values that are told of a trial; the first is its number."""

_MANY: Final = 200
_COLOURED_AS: Final = {
    **{"far": "stopped", "alone": "cloud", "pairs": "stopped"},
    "infeasible": "failed",
}
"""By the style of a layer: the style whose colour it has."""
_EDGE: Final = 0.015
"""How far within the end of an axis that is, as a share of the axis: dots are not cut there."""


@dataclass(frozen=True)
class Theme:
    """Colours on a light or a dark page: of text and rules, and of each style of a layer."""

    ink: str
    soft: str
    rule: str
    cloud: str
    best: str
    running: str
    stopped: str
    failed: str
    scale: Sequence[str]
    """From the worst to the best."""
    sweeps: Sequence[str]
    """Of several sweeps, in order; further ones differ in their dashes."""

    def of(self, style: str) -> str:
        """Return the colour of a style."""
        if style[1:].isdecimal():
            return self.sweeps[int(style[1:]) % len(self.sweeps)]
        colour: str = getattr(self, _COLOURED_AS.get(style, style))
        return colour

    def scale_of(self, *, maximise: bool) -> list[list[Any]]:
        """Return Plotly's scale of colours for an objective, from its smallest to its largest."""
        shades = self.scale if maximise else tuple(reversed(self.scale))
        return [[number / (len(shades) - 1), shade] for number, shade in enumerate(shades)]


THEMES: Final[Mapping[str, Theme]] = {
    "light": Theme(
        "#1b2430", "#5c6876", "#dde2e8", "#0072b2", "#d55e00", "#009e73", "#8a6d00", "#b3261e",
        ("#d4dae2", "#93b7d5", "#357db4", "#08305a"),
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#1b2430", "#56b4e9"),
    ),
    "dark": Theme(
        "#e4e9ef", "#98a5b3", "#303a45", "#56b4e9", "#ff9a4d", "#2cc295", "#f0e442", "#ff7a70",
        ("#2c3641", "#35668c", "#5aa4d8", "#d3ecff"),
        ("#56b4e9", "#ff9a4d", "#2cc295", "#e39bc4", "#f0e442", "#e4e9ef", "#9cc9e4"),
    ),
}  # fmt: skip
_DASHES: Final = ("solid", "dash", "dot", "dashdot")
_LINE_STYLES: Final[Mapping[str, Dictionary]] = {
    "best": {"width": 3},
    "cloud": {"width": 1.4},
    "stopped": {"width": 1.2, "dash": "dot"},
    "running": {"width": 2, "dash": "dash"},
}


def as_plotly(panels: Sequence[Panel], tell: Callable[[RowId], Told], theme: str) -> Dictionary:
    """Return panels as one figure of Plotly.

    Layers of several plots share its axes; of several planes a menu chooses one. What stands beside
    shares is left out. `tell` returns what is told of a trial.
    """
    colours, first = THEMES[theme], panels[0]
    if isinstance(first, ParallelCoordinates):
        return _parallel(first, colours)
    if isinstance(first, StackedBars):
        return _shares(first, colours)
    if isinstance(first, Heatmap):
        return _planes([panel for panel in panels if isinstance(panel, Heatmap)], colours)
    return _plots([panel for panel in panels if isinstance(panel, Plot)], tell, colours)


def plain(text: str) -> str:
    """Return text escaped, so that Plotly shows it as it is."""
    return str(escape(text))


# -- plots ----------------------------------------------------------------------------------------


def _plots(plots: Sequence[Plot], tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    data: list[Dictionary] = []
    for plot in plots:
        for layer in plot.layers:
            name = plain(layer.name)
            is_new = name not in {trace["name"] for trace in data}
            about: Dictionary = {"name": name, "legendgroup": name, "showlegend": is_new}
            data.append(about | _TRACES[layer.kind](layer, plot, tell, colours))
    axes: list[Dictionary] = []
    for axis in (plots[0].x, plots[0].y):
        about, scale = {"title": axis.title}, axis.scale
        if isinstance(scale, NamedScale):
            about |= {"type": "category"}
        elif isinstance(scale, LogScale):
            about |= {"type": "log", "range": [math.log10(scale.low), math.log10(scale.high)]}
        elif isinstance(scale, LinearScale) and len(plots) == 1:
            about |= {"range": [scale.low, scale.high]}
        axes.append(about)
    figure = _figure(data, colours, *axes)
    figure["layout"]["barmode"] = "overlay"
    return figure


def _points(layer: Layer, plot: Plot, mode: str, **about: Any) -> Dictionary:
    """Return a trace of points; those beyond the axis stand just within its end."""
    scale, y = plot.y.scale, layer.y
    if isinstance(scale, LinearScale):
        room = _EDGE * (scale.high - scale.low)
        low, high = scale.low + room, scale.high - room
        y = [min(high, max(low, value)) for value in y]
    return {"type": "scatter", "mode": mode, "x": list(layer.x), "y": list(y), **about}


def _dots(layer: Layer, plot: Plot, tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    is_cloud = layer.style in ("cloud", "far", "infeasible")
    told = [tell(row) for row in layer.rows]
    marker = {
        "color": colours.of(layer.style),
        "size": (4 if len(layer.x) > _MANY else 6) if is_cloud else 8,
        "opacity": 0.6 if is_cloud else 1.0,
        **({"symbol": "square"} if layer.style == "infeasible" else {}),
    }
    return _points(
        layer, plot, "markers", marker=marker, customdata=[entries[0][1] for entries in told],
        text=[_lines(*entries) for entries in told], hoverinfo="text",
    )  # fmt: skip


def _line(layer: Layer, plot: Plot, tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    (first, *_) = [_lines(tell(row)[0]) for row in layer.rows] or [plain(layer.text)]
    names = plot.x.title, plot.y.title
    colour = colours.of(layer.style)
    told = [
        f"{first}<br>{_lines(*zip(names, point, strict=True))}"
        for point in zip(layer.x, layer.y, strict=True)
    ]
    return _points(
        layer, plot, "lines" if len(layer.x) > 1 else "markers", text=told, hoverinfo="text",
        line={**_LINE_STYLES.get(layer.style, {}), "color": colour}, marker={"color": colour},
        visible="legendonly" if layer.is_extra else True,
    )  # fmt: skip


def _stairs(layer: Layer, plot: Plot, tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    line: Dictionary = {"shape": "hv", "width": 2, "color": colours.of(layer.style)}
    if layer.style[1:].isdecimal():
        line["dash"] = _DASHES[int(layer.style[1:]) // len(colours.sweeps) % len(_DASHES)]
    return _points(layer, plot, "lines", line=line, hoverinfo="skip")


def _ticks(layer: Layer, plot: Plot, tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    marker = {"symbol": "line-ns-open", "size": 9, "color": colours.of(layer.style)}
    return _points(layer, plot, "markers", marker=marker, hoverinfo="name")


def _bars(layer: Layer, plot: Plot, tell: Callable[[RowId], Told], colours: Theme) -> Dictionary:
    outline = {"width": 0.5, "color": colours.rule}
    return {
        "type": "bar",
        "orientation": "h",
        "base": list(layer.x),
        "x": list(layer.lengths),
        "y": [plain(label) for label in layer.y],
        "marker": {"color": colours.of(layer.style), "line": outline},
        "text": [_lines(*tell(row)) for row in layer.rows],
        "textposition": "none",
        "hoverinfo": "text",
    }


_TRACES: Final[dict[str, Callable[[Layer, Plot, Callable[[RowId], Told], Theme], Dictionary]]] = {
    "dots": _dots,
    "line": _line,
    "stairs": _stairs,
    "ticks": _ticks,
    "bars": _bars,
}


def _lines(*told: tuple[str, Any]) -> str:
    return "<br>".join(plain(f"{name} {show(value)}") for name, value in told)


# -- other panels ---------------------------------------------------------------------------------


def _parallel(parallel: ParallelCoordinates, colours: Theme) -> Dictionary:
    across = [*zip(*map(parallel.places, parallel.values), strict=True)]
    dimensions = []
    for axis, places in zip(parallel.axes, across, strict=True):
        ticks = parallel.ticks(axis, 8)
        dimensions.append(
            {
                "label": axis.title,
                "values": list(places),
                "range": [0, 1],
                "tickvals": [where for where, _ in ticks],
                "ticktext": [label for _, label in ticks],
            }
        )
    data = {
        "type": "parcoords",
        "dimensions": dimensions,
        "line": {
            "color": dimensions[-1]["values"],
            "colorscale": colours.scale_of(maximise=parallel.maximise),
            "cmin": 0,
            "cmax": 1,
        },
        "unselected": {"line": {"color": colours.rule, "opacity": 0.25}},
        "labelfont": {"color": colours.ink},
        "tickfont": {"color": colours.soft},
        "rangefont": {"color": colours.soft},
        "labelangle": -12 if len(dimensions) > 7 else 0,
    }
    figure = _figure([data], colours)
    figure["layout"]["margin"] = {"l": 70, "r": 20, "t": 60, "b": 30}
    return figure


def _shares(shares: StackedBars, colours: Theme) -> Dictionary:
    rows = list(reversed(shares.rows))  # Plotly begins below
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [parts[number] for _, parts in rows],
            "y": [plain(label) for label, _ in rows],
            "marker": {"color": colours.of(style)},
            "hovertemplate": "%{x:.1%}<extra></extra>",
        }
        for number, (name, style) in enumerate(shares.parts)
    ]
    x = {"title": shares.title, "tickformat": ".0%"}
    figure = _figure(data, colours, x, {"automargin": True})
    figure["layout"]["barmode"] = "stack"
    return figure


def _planes(planes: Sequence[Heatmap], colours: Theme) -> Dictionary:
    """Return the first of planes, and a menu that chooses another."""
    data: list[Dictionary] = []
    buttons = []
    for number, plane in enumerate(planes):
        data += _plane(plane, colours, visible=number == 0)
        shown = [place // 2 == number for place in range(2 * len(planes))]
        axes = {"xaxis.title.text": plain(plane.x), "yaxis.title.text": plain(plane.y)}
        buttons.append(
            {"label": plain(plane.caption), "method": "update", "args": [{"visible": shown}, axes]}
        )
    kind = {"type": "category", "nticks": 8, "automargin": True}
    figure = _figure(data, colours, {"title": planes[0].x, **kind}, {"title": planes[0].y, **kind})
    if len(buttons) > 1:
        menu = {
            "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom",
            "bgcolor": "rgba(128,128,128,0.15)", "font": {"color": colours.ink},
        }  # fmt: skip
        figure["layout"] |= {"updatemenus": [menu], "showlegend": False}
        figure["layout"]["margin"]["t"] = 50
    return figure


def _plane(plane: Heatmap, colours: Theme, *, visible: bool) -> list[Dictionary]:
    """Return the surface of a pair, and dots where trials have been."""
    xs, ys = ([plain(label) for label in labels] for labels in plane.labels)
    surface = {
        "type": "contour" if min(len(xs), len(ys)) > 3 and plane.are_trials else "heatmap",
        "x": xs,
        "y": ys,
        "z": [[row[place] for row in plane.value] for place in range(len(ys))],
        "colorscale": colours.scale_of(maximise=plane.maximise),
        "colorbar": {"title": {"text": plain(plane.title)}, "thickness": 12},
        "hovertemplate": "%{x}, %{y}: %{z:.4g}<extra></extra>",
        "visible": visible,
    }
    if plane.writes_counts:
        counts = [[str(row[place] or "") for row in plane.trials] for place in range(len(ys))]
        surface |= {"text": counts, "texttemplate": "%{text}"}
    tried = [
        (x, y, plane.trials[i][j])
        for i, x in enumerate(xs)
        for j, y in enumerate(ys)
        if plane.trials[i][j] and plane.are_trials
    ]
    most = max((count for _, _, count in tried), default=1)
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _, _ in tried],
        "y": [y for _, y, _ in tried],
        "marker": {
            "size": [4 + 8 * math.sqrt(count / most) for _, _, count in tried],
            "color": colours.best,
            "opacity": 0.75,
        },
        "text": [f"{count:,} trial{'s' if count > 1 else ''}" for _, _, count in tried],
        "hoverinfo": "text+x+y",
        "visible": visible,
    }
    return [surface, dots]


def _figure(
    data: list[Dictionary], colours: Theme, x: Dictionary | None = None, y: Dictionary | None = None
) -> Dictionary:
    """Return a figure of traces; `x` and `y` are its axes, None for a figure without any."""
    layout: Dictionary = {
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
