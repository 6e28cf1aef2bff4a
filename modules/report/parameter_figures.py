"""Figures of parameters for Plotly: parallel coordinates, importance and pairs."""

from __future__ import annotations

import math
from typing import Any, Final

from .importance import Importance, Plane
from .picture import Picture
from .plot import Scale, scale_for
from .plotly_parts import Figure, Theme, colour_scale, figure_of, plain
from .sweep import Sweep

_BARS: Final = 12
_PLANES: Final = 6
_TICKS: Final = 8
_LINES: Final = 280
_BEST_LINES: Final = 20
"""Of very many trials about `_LINES` are drawn, and so many of the best."""


def parallel_axes(picture: Picture) -> dict[str, Scale]:
    """Return the scale of each parameter that varies, and the objective's, as the last."""
    scales: dict[str, Scale] = {
        name: scale_for([picture.rows[row].get(name) for row in picture.lines])
        for name in picture.varying
    }
    return {**scales, picture.sweep.objective: picture.axis}


def parallel_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw trials in parallel coordinates, on whose axes ranges can be chosen.

    The values of an axis are places on its scale, from 0 to 1; what they stand for is written
    there. The last of the lines is the best trial's.
    """
    if not picture.varying or len(picture.lines) < 2:
        return None
    sweep, lines = picture.sweep, picture.lines
    spared = {*lines[:: -(-len(lines) // _LINES)], *picture.top[:_BEST_LINES]}
    lines = [row for row in lines if row in spared]
    dimensions = []
    for name, scale in parallel_axes(picture).items():
        ticks = scale.ticks(_TICKS)
        dimensions.append(
            {
                "label": name,
                "values": [scale.place(picture.rows[row].get(name)) for row in lines],
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
            "colorscale": colour_scale(colours, maximise=sweep.maximise),
            "cmin": 0,
            "cmax": 1,
        },
        "unselected": {"line": {"color": colours.rule, "opacity": 0.25}},
        "labelfont": {"color": colours.ink},
        "tickfont": {"color": colours.soft},
        "rangefont": {"color": colours.soft},
        "labelangle": -12 if len(dimensions) > 7 else 0,
    }
    figure = figure_of([data], colours, x=None, y=None)
    figure["layout"]["margin"] = {"l": 70, "r": 20, "t": 60, "b": 30}
    return figure


def importance_figure(sweep: Sweep, found: Importance | None, colours: Theme) -> Figure | None:
    """Draw the share of the variance that each parameter explains, alone and with another."""
    if found is None:
        return None
    effects = list(reversed(found.effects[:_BARS]))
    names = [plain(effect.name) for effect in effects]

    def bars(name: str, shares: list[float], colour: str) -> dict[str, Any]:
        return {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": shares,
            "y": names,
            "marker": {"color": colour},
            "hovertemplate": "%{x:.1%}<extra></extra>",
        }

    data = [
        bars("alone", [effect.alone for effect in effects], colours.cloud),
        bars("with one other", [effect.in_pairs / 2 for effect in effects], colours.stopped),
    ]
    share = f"share of the variance of {sweep.objective}, {found.trials:,} trials"
    figure = figure_of(
        data, colours, x={"title": share, "tickformat": ".0%"}, y={"automargin": True}
    )
    figure["layout"]["barmode"] = "stack"
    return figure


def contour_figure(sweep: Sweep, found: Importance | None, colours: Theme) -> Figure | None:
    """Draw the expected objective over two parameters; a menu chooses between pairs."""
    planes = found.planes[:_PLANES] if found is not None else []
    if not planes:
        return None
    data: list[dict[str, Any]] = []
    buttons = []
    for number, plane in enumerate(planes):
        data += _plane(plane, sweep, colours, visible=number == 0)
        shown = [place // 2 == number for place in range(2 * len(planes))]
        axes = {
            "xaxis.title.text": plain(plane.first),
            "yaxis.title.text": plain(plane.second),
        }
        label = f"{plain(plane.first)} and {plain(plane.second)}"
        buttons.append({"label": label, "method": "update", "args": [{"visible": shown}, axes]})
    first = planes[0]
    figure = figure_of(
        data,
        colours,
        x={"title": first.first, "type": "category", "nticks": 8, "automargin": True},
        y={"title": first.second, "type": "category", "nticks": 8, "automargin": True},
    )
    if len(buttons) > 1:
        menu = {
            "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom",
            "bgcolor": "rgba(128,128,128,0.15)", "font": {"color": colours.ink},
        }  # fmt: skip
        figure["layout"] |= {"updatemenus": [menu], "showlegend": False}
        figure["layout"]["margin"]["t"] = 50
    return figure


def _plane(plane: Plane, sweep: Sweep, colours: Theme, *, visible: bool) -> list[dict[str, Any]]:
    """Return the surface of a pair, and dots where trials have been."""
    xs, ys = ([plain(label) for label in labels] for labels in plane.labels)
    surface = {
        "type": "contour" if min(len(xs), len(ys)) > 3 else "heatmap",
        "x": xs,
        "y": ys,
        "z": [[row[place] for row in plane.mean] for place in range(len(ys))],
        "colorscale": colour_scale(colours, maximise=sweep.maximise),
        "colorbar": {"title": {"text": plain(sweep.objective)}, "thickness": 12},
        "hovertemplate": "%{x}, %{y}: %{z:.4g}<extra></extra>",
        "visible": visible,
    }
    tried = [
        (x, y, plane.trials[i][j])
        for i, x in enumerate(xs)
        for j, y in enumerate(ys)
        if plane.trials[i][j]
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
