"""Figures of a sweep for Plotly: plain dictionaries, for a page that goes on or for a notebook.

Plotly is not imported: ``plotly.graph_objects.Figure(figure)`` makes a figure of one. They show a
`Picture`, so their size is bounded whatever the number of trials. Text that comes from outside is
escaped, since Plotly obeys some of HTML.

Colours are Okabe and Ito's, which the colour-blind can tell apart; the colour scale of objectives
differs in lightness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..trial import Reports
from .importance import Importance, Plane
from .markup import as_number, escape, show, with_unit, words
from .picture import Picture
from .plot import LogScale, NamedScale, OrNotSet, focus, is_logarithmic, scale_for
from .sweep import STARTED, STATE, STOPPED, TOOK, TRAINER, TRIAL, Sweep

Figure: TypeAlias = "dict[str, Any]"
"""With ``data`` and ``layout``, as Plotly has them."""

_FEW: Final = 1000
"""Dots beyond this are drawn by the graphics card."""
_BARS: Final = 12
_PLANES: Final = 6
_TICKS: Final = 8
_TIMELINE: Final = 1000
_HOVER: Final = 10
_CURVES_RUNNING: Final = 32


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
"""Of several runs, one after the other; further ones differ in their dashes."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")


def figures_of(
    picture: Picture,
    found: Importance | None,
    theme: str = "light",
    running: Mapping[int, Sequence[tuple[int, float]]] | None = None,
) -> dict[str, Figure]:
    """Return the figures of a sweep by name; those that have nothing to show are left out.

    ``history``, ``cost``, ``curves``, ``parallel``, ``importance``, ``contour`` (of the two
    parameters that do most together; its menu has other pairs) and ``timeline``.

    Parameters
    ----------
    picture : Picture
    found : Importance or None
        From `analyse`, of this picture or an earlier one.
    theme : {"light", "dark"}
    running : mapping of int to sequence, optional
        Of trials that are under way, steps and the objective there.
    """
    colours = THEMES[theme]
    drawn = {
        "history": history_figure(picture, colours),
        "cost": cost_figure(picture, colours),
        "curves": curves_figure(picture, colours, running or {}),
        "parallel": parallel_figure(picture, colours),
        "importance": importance_figure(picture.sweep, found, colours),
        "contour": contour_figure(picture.sweep, found, colours),
        "timeline": timeline_figure(picture, colours),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def history_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw the objective of trials in order of completion, and the best so far."""
    if not picture.top:
        return None
    cloud = sorted({*picture.sampled, *picture.top} - set(picture.steps))
    steps = picture.steps
    objective = picture.objective_of
    xs = [picture.orders[row] + 1 for row in steps]
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": f"{picture.sweep.direction} so far",
        "x": [*xs, max(1, picture.gathered.count)],
        "y": [*map(objective, steps), objective(steps[-1])],
        "line": {"shape": "hv", "width": 2, "color": colours.best},
        "hoverinfo": "skip",
    }
    data = [
        _dots(picture, cloud, [picture.orders[row] + 1 for row in cloud],
              [objective(row) for row in cloud], "trials", colours.cloud),
        line,
        _dots(picture, steps, xs, [objective(row) for row in steps], "better than all before",
              colours.best, size=8),
    ]  # fmt: skip
    failures = picture.gathered.failures
    if failures and len(failures) == picture.gathered.lost:
        rug = {
            "type": "scatter",
            "mode": "markers",
            "name": "failed or diverged",
            "x": [order + 1 for order, _ in failures],
            "y": [picture.axis.low] * len(failures),
            "marker": {"symbol": "line-ns-open", "size": 9, "color": colours.bad},
            "text": [_text(f"trial {row.get(TRIAL)}: {row.get(STATE)}") for _, row in failures],
            "hoverinfo": "text",
        }
        data.append(rug)
    return _figure(
        data,
        colours,
        x={"title": "trials, in order of completion", "rangemode": "tozero"},
        y={"title": with_unit(picture.sweep.objective),
           "range": [picture.axis.low, picture.axis.high]},
    )  # fmt: skip


def cost_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw quality against training time, with the front of those that none beats in both."""
    sweep, front = picture.sweep, set(picture.front)
    pairs = picture.against_cost
    if not pairs:
        return None
    costs = [cost for cost, _ in pairs.values()]
    y = focus([quality for _, quality in pairs.values()], sweep.maximise_quality)
    cloud = [row for row in pairs if row not in front]
    best = [row for row in picture.front if row in pairs]
    stairs = {
        "type": "scatter",
        "mode": "lines",
        "name": "front",
        "x": [*(pairs[row][0] for row in best), max(costs)],
        "y": [*(pairs[row][1] for row in best), *(pairs[row][1] for row in best[-1:])],
        "line": {"shape": "hv", "width": 2, "color": colours.best},
        "hoverinfo": "skip",
    }
    data = [
        _dots(picture, cloud, [pairs[row][0] for row in cloud], [pairs[row][1] for row in cloud],
              "trials", colours.cloud),
        stairs,
        _dots(picture, best, [pairs[row][0] for row in best], [pairs[row][1] for row in best],
              "on the front", colours.best, size=8),
    ]  # fmt: skip
    x: dict[str, Any] = {"title": with_unit(sweep.cost)}
    if is_logarithmic(costs):
        x["type"] = "log"
    else:
        x["rangemode"] = "tozero"
    return _figure(
        data, colours, x=x, y={"title": with_unit(sweep.quality), "range": [y.low, y.high]}
    )


def curves_figure(
    picture: Picture, colours: Theme, running: Mapping[int, Sequence[tuple[int, float]]]
) -> Figure | None:
    """Draw the learning curves of the best, the stopped and the running trials."""
    top = set(picture.top)
    data: list[dict[str, Any]] = []
    values: list[float] = []
    kinds: set[str] = set()

    def curve(points: Sequence[tuple[float, float]], kind: str, text: str, **line: Any) -> None:
        values.extend(value for _, value in points)
        data.append(
            {
                "type": "scatter",
                "mode": "lines" if len(points) > 1 else "markers",
                "name": kind,
                "legendgroup": kind,
                "showlegend": kind not in kinds,
                "x": [step for step, _ in points],
                "y": [value for _, value in points],
                "line": line,
                "marker": {"color": line.get("color")},
                "text": _text(text),
                "hoverinfo": "text+x+y",
            }
        )
        kinds.add(kind)

    for row in reversed(picture.curves):
        name = f"trial {show(picture.rows[row].get(TRIAL))}"
        points = picture.curve_of(row)
        if row not in top:
            curve(points, "stopped early", name, color=colours.stopped, width=1.2, dash="dot")
        elif row == picture.top[0]:
            curve(points, "the best", name, color=colours.best, width=3)
        else:
            curve(points, "others among the best", name, color=colours.cloud, width=1.4)
    for trial in sorted(running)[:_CURVES_RUNNING]:
        told = [(step, value) for step, value in running[trial] if math.isfinite(value)]
        if told:
            curve(told, "running", f"trial {trial}", color=colours.good, width=2, dash="dash")
    if not data:
        return None
    shown = sorted(values, reverse=not picture.sweep.maximise)[len(values) // 20 :]
    y = focus(shown, picture.sweep.maximise, far=8.0)
    title = with_unit(picture.sweep.objective)
    return _figure(data, colours, x={"title": "step"}, y={"title": title, "range": [y.low, y.high]})


def curve_figure(sweep: Sweep, reports: Reports, theme: str = "light") -> Figure | None:
    """Draw all that one trial has reported on its way; None if it has reported nothing."""
    colours = THEMES[theme]
    shades = (colours.best, colours.cloud, colours.good, colours.stopped, colours.bad, colours.soft)
    names = dict.fromkeys(name for _, metrics in reports for name in metrics)
    data: list[dict[str, Any]] = []
    for name in names:
        points = [
            (step, number)
            for step, metrics in reports
            if (number := as_number(metrics.get(name))) is not None
        ]
        if points and name not in (sweep.cost, TRIAL):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": _text(words(name)),
                    "x": [step for step, _ in points],
                    "y": [value for _, value in points],
                    "line": {"color": shades[len(data) % len(shades)]},
                    "visible": True if name in sweep.objective or len(names) < 4 else "legendonly",
                }
            )
    return _figure(data, colours, x={"title": "step"}, y={"title": "reported"}) if data else None


def parallel_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw trials in parallel coordinates, of which ranges can be chosen."""
    names = picture.varying
    if not names or len(picture.lines) < 2:
        return None
    sweep, lines = picture.sweep, picture.lines
    dimensions = [
        _dimension(name, [picture.rows[row].get(name) for row in lines]) for name in names
    ]
    low, high = picture.axis.low, picture.axis.high
    objective = [min(high, max(low, picture.objective_of(row))) for row in lines]
    dimensions.append({"label": words(sweep.objective), "values": objective, "range": [low, high]})
    scale = colours.scale if sweep.maximise else tuple(reversed(colours.scale))
    last = len(scale) - 1
    data = {
        "type": "parcoords",
        "dimensions": dimensions,
        "line": {
            "color": objective,
            "colorscale": [[number / last, shade] for number, shade in enumerate(scale)],
            "cmin": low,
            "cmax": high,
            "showscale": True,
            "colorbar": {"title": {"text": _text(words(sweep.objective))}, "thickness": 12},
        },
        "unselected": {"line": {"color": colours.rule, "opacity": 0.25}},
        "labelfont": {"color": colours.ink},
        "tickfont": {"color": colours.soft},
        "rangefont": {"color": colours.soft},
        "labelangle": -12 if len(dimensions) > 7 else 0,
    }
    figure = _figure([data], colours, x=None, y=None)
    figure["layout"]["margin"] = {"l": 70, "r": 20, "t": 60, "b": 30}
    return figure


def _dimension(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis: words and few values one by one, orders of magnitude logarithmic."""
    scale = scale_for(values)
    dimension: dict[str, Any] = {"label": words(name)}
    if isinstance(scale, (NamedScale, OrNotSet, LogScale)):
        ticks = scale.ticks(_TICKS)
        dimension |= {
            "values": [scale.place(value) for value in values],
            "tickvals": [where for where, _ in ticks],
            "ticktext": [label for _, label in ticks],
            "range": [0, 1],
        }
    else:
        dimension["values"] = [as_number(value) for value in values]
    return dimension


def importance_figure(sweep: Sweep, found: Importance | None, colours: Theme) -> Figure | None:
    """Draw the share of the variance that each parameter explains, alone and with another."""
    if found is None:
        return None
    effects = list(reversed(found.effects[:_BARS]))
    names = [_text(words(effect.name)) for effect in effects]

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
    share = f"share of the variance of {words(sweep.objective)}, {found.trials:,} trials"
    figure = _figure(data, colours, x={"title": share, "tickformat": ".0%"}, y={"automargin": True})
    figure["layout"]["barmode"] = "stack"
    return figure


def contour_figure(sweep: Sweep, found: Importance | None, colours: Theme) -> Figure | None:
    """Draw what to expect of two parameters; a menu chooses between pairs."""
    planes = found.planes[:_PLANES] if found is not None else []
    if not planes:
        return None
    data: list[dict[str, Any]] = []
    buttons = []
    for number, plane in enumerate(planes):
        data += _plane(plane, sweep, colours, visible=number == 0)
        shown = [place // 2 == number for place in range(2 * len(planes))]
        axes = {
            "xaxis.title.text": _text(words(plane.first)),
            "yaxis.title.text": _text(words(plane.second)),
        }
        label = f"{_text(words(plane.first))} and {_text(words(plane.second))}"
        buttons.append({"label": label, "method": "update", "args": [{"visible": shown}, axes]})
    first = planes[0]
    figure = _figure(
        data,
        colours,
        x={"title": words(first.first), "type": "category", "nticks": 8, "automargin": True},
        y={"title": words(first.second), "type": "category", "nticks": 8, "automargin": True},
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
    xs, ys = ([_text(label) for label in labels] for labels in plane.labels)
    scale = colours.scale if sweep.maximise else tuple(reversed(colours.scale))
    last = len(scale) - 1
    surface = {
        "type": "contour" if min(len(xs), len(ys)) > 3 else "heatmap",
        "x": xs,
        "y": ys,
        "z": [[row[place] for row in plane.mean] for place in range(len(ys))],
        "colorscale": [[number / last, shade] for number, shade in enumerate(scale)],
        "colorbar": {"title": {"text": _text(words(sweep.objective))}, "thickness": 12},
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


def timeline_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw when each trial ran, on which trainer."""
    rows = sorted({*picture.sampled, *picture.top})
    told = []
    for row in rows:
        values = picture.rows[row]
        start, took = as_number(values.get(STARTED)), as_number(values.get(TOOK))
        if start is not None and took is not None:
            told.append((row, start, took))
    if not told:
        return None
    told = told[:: -(-len(told) // _TIMELINE)]
    first = min(start for _, start, _ in told)
    data = []
    for name, colour, stopped in (("finished", colours.cloud, False),
                                  ("stopped early", colours.stopped, True)):  # fmt: skip
        some = [
            entry
            for entry in told
            if (str(picture.rows[entry[0]].get(STATE)).lower() in STOPPED) == stopped
        ]
        if some:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "base": [start - first for _, start, _ in some],
                    "x": [took for _, _, took in some],
                    "y": [_text(show(picture.rows[row].get(TRAINER))) for row, _, _ in some],
                    "marker": {"color": colour, "line": {"width": 0.5, "color": colours.rule}},
                    "text": [_hover(picture, row) for row, _, _ in some],
                    "textposition": "none",
                    "hoverinfo": "text",
                }
            )
    figure = _figure(
        data, colours, x={"title": "seconds since the first trial"},
        y={"title": "trainer", "type": "category"},
    )  # fmt: skip
    figure["layout"]["barmode"] = "overlay"
    return figure


def comparison_figures(pictures: Mapping[str, Picture], theme: str = "light") -> dict[str, Figure]:
    """Return figures over several sweeps, by their names: ``history`` and ``cost``.

    The best so far against the number of trials, and the fronts of quality against cost.
    """
    colours = THEMES[theme]
    history: list[dict[str, Any]] = []
    cost: list[dict[str, Any]] = []
    values: list[float] = []
    first = next(iter(pictures.values())).sweep
    for number, (name, picture) in enumerate(pictures.items()):
        line = {"shape": "hv", "width": 2.2, "color": RUNS[theme][number % len(RUNS[theme])],
                "dash": DASHES[number // len(RUNS[theme]) % len(DASHES)]}  # fmt: skip
        trace = {"type": "scatter", "name": _text(name), "line": line, "mode": "lines+markers",
                 "marker": {"size": 5}, "hoverinfo": "text"}  # fmt: skip
        if picture.steps:
            best = [picture.objective_of(row) for row in picture.steps]
            values += best
            history.append(
                {
                    **trace,
                    "x": [*(picture.orders[row] + 1 for row in picture.steps),
                          picture.gathered.count],
                    "y": [*best, best[-1]],
                    "text": [_hover(picture, row) for row in (*picture.steps, picture.steps[-1])],
                }
            )  # fmt: skip
        front = [row for row in picture.front if row in picture.against_cost]
        if front:
            pairs = [picture.against_cost[row] for row in front]
            cost.append(
                {
                    **trace,
                    "x": [spent for spent, _ in pairs],
                    "y": [quality for _, quality in pairs],
                    "text": [_hover(picture, row) for row in front],
                }
            )
    figures = {}
    if history:
        scale = focus(values, first.maximise)
        figures["history"] = _figure(
            history,
            colours,
            x={"title": "trials, in order of completion", "rangemode": "tozero"},
            y={"title": with_unit(first.objective), "range": [scale.low, scale.high]},
        )
    if cost:
        figures["cost"] = _figure(
            cost,
            colours,
            x={"title": with_unit(first.cost), "rangemode": "tozero"},
            y={"title": with_unit(first.quality)},
        )
    return figures


# -- parts ----------------------------------------------------------------------------------------


def _dots(
    picture: Picture,
    rows: Sequence[int],
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    colour: str,
    *,
    size: float | None = None,
) -> dict[str, Any]:
    many = len(rows) > _FEW
    return {
        "type": "scattergl" if many else "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "customdata": [picture.rows[row].get(TRIAL) for row in rows],
        "text": [_hover(picture, row) for row in rows],
        "hoverinfo": "text",
        "marker": {
            "color": colour,
            "size": size or (4 if many else 6),
            "opacity": 1.0 if size else 0.6,
        },
    }


def _hover(picture: Picture, row: int) -> str:
    """Return what is said of a trial that is pointed at."""
    values = picture.rows[row]
    names = [picture.sweep.objective, *picture.varying[:_HOVER]]
    told = [f"{words(name)} {show(values.get(name))}" for name in dict.fromkeys(names)]
    return "<br>".join(_text(line) for line in (f"trial {show(values.get(TRIAL))}", *told))


def _text(text: str) -> str:
    """Return text as Plotly shows it: what would be HTML there is escaped."""
    return str(escape(text))


def _figure(
    data: list[dict[str, Any]],
    colours: Theme,
    *,
    x: dict[str, Any] | None,
    y: dict[str, Any] | None,
) -> Figure:
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
            title = {"text": _text(axis.pop("title", "")), "font": {"color": colours.ink}}
            layout[name] = {
                "title": title,
                "gridcolor": colours.rule,
                "zerolinecolor": colours.rule,
                "linecolor": colours.rule,
                **axis,
            }
    return {"data": data, "layout": layout}
