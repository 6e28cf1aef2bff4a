"""Figures of a sweep for Plotly, as plain dictionaries, for a live page or a notebook.

Plotly is not imported: ``plotly.graph_objects.Figure(figure)`` makes a figure of such a dictionary.
Figures show a `Picture`, so their size is bounded whatever the number of trials. Text that comes
from outside is escaped, since Plotly interprets some of HTML.

Colours are Okabe and Ito's, which the colour-blind can tell apart; the colour scale of objectives
differs in lightness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..trial import Reports
from .importance import Importance
from .markup import as_number, show, with_unit
from .parameter_figures import contour_figure, importance_figure, parallel_figure
from .picture import Picture
from .plot import LinearScale, focus, is_logarithmic
from .plotly_parts import DASHES, RUNS, THEMES, Figure, Theme, figure_of, hover_text, marks, plain
from .sweep import STARTED, STATE, STOPPED, TOOK, TRAINER, TRIAL, Sweep

_TIMELINE: Final = 400
_CURVES_RUNNING: Final = 32
_FAR: Final = "far worse, at the edge"
_EDGE: Final = 0.015
"""How far within the end of an axis that is, as a share of the axis: dots are not cut there."""


def figures_of(
    picture: Picture,
    found: Importance | None,
    theme: str = "light",
    running: Mapping[int, Sequence[tuple[int, float]]] | None = None,
) -> dict[str, Figure]:
    """Return the figures of a sweep by name; those that have nothing to show are left out.

    ``history``, ``cost``, ``curves``, ``parallel``, ``importance``, ``contour`` (of the two
    parameters with the largest effect together; its menu has other pairs) and ``timeline``.

    Parameters
    ----------
    picture : Picture
    found : Importance or None
        From `analyse`, of this picture or an earlier one.
    theme : {"light", "dark"}
    running : mapping of int to sequence, optional
        For each trial in flight: steps, and the objective at each.
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
    steps, axis = picture.steps, picture.axis

    def objective(row: int) -> float:
        return _within(picture.objective_of(row), axis)

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
        *_cloud(picture, {row: (picture.orders[row] + 1, picture.objective_of(row))
                          for row in cloud}, axis, colours),
        line,
        marks(picture, steps, xs, [objective(row) for row in steps], "better than all before",
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
            "text": [plain(f"trial {row.get(TRIAL)}: {row.get(STATE)}") for _, row in failures],
            "hoverinfo": "text",
        }
        data.append(rug)
    return figure_of(
        data,
        colours,
        x={"title": "trials, in order of completion", "rangemode": "tozero"},
        y={"title": picture.sweep.objective,
           "range": [picture.axis.low, picture.axis.high]},
    )  # fmt: skip


def cost_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw quality against training time, with the Pareto front of both."""
    sweep, front = picture.sweep, set(picture.front)
    pairs = picture.against_cost
    if not pairs:
        return None
    costs = [cost for cost, _ in pairs.values()]
    y = focus([quality for _, quality in pairs.values()], sweep.maximise_quality)
    cloud = {row: pair for row, pair in pairs.items() if row not in front}
    best = [row for row in picture.front if row in pairs]
    heights = [_within(pairs[row][1], y) for row in best]
    stairs = {
        "type": "scatter",
        "mode": "lines",
        "name": "front",
        "x": [*(pairs[row][0] for row in best), max(costs)],
        "y": [*heights, *heights[-1:]],
        "line": {"shape": "hv", "width": 2, "color": colours.best},
        "hoverinfo": "skip",
    }
    data = [
        *_cloud(picture, cloud, y, colours),
        stairs,
        marks(picture, best, [pairs[row][0] for row in best], heights, "on the front",
              colours.best, size=8),
    ]  # fmt: skip
    x: dict[str, Any] = {"title": with_unit(sweep.cost)}
    if is_logarithmic(costs):
        x["type"] = "log"
    else:
        x["rangemode"] = "tozero"
    return figure_of(data, colours, x=x, y={"title": sweep.quality, "range": [y.low, y.high]})


def _cloud(
    picture: Picture, places: Mapping[int, tuple[float, float]], scale: LinearScale, colours: Theme
) -> list[dict[str, Any]]:
    """Return trials as dots; those beyond the axis stand at its edge, under a name that says so."""
    is_beyond = {row: _within(y, scale) != y for row, (_, y) in places.items()}
    data = []
    for name, colour, wanted in (("trials", colours.cloud, False), (_FAR, colours.stopped, True)):
        rows = [row for row in places if is_beyond[row] == wanted]
        if rows or not wanted:
            data.append(marks(picture, rows, [places[row][0] for row in rows],
                              [_within(places[row][1], scale) for row in rows], name,
                              colour))  # fmt: skip
    return data


def _within(value: float, scale: LinearScale) -> float:
    """Return a value, or that just within the end of the axis if it is far beyond."""
    room = _EDGE * (scale.high - scale.low)
    if value < scale.low or value > scale.high:
        return scale.low + room if value < scale.low else scale.high - room
    return value


def curves_figure(
    picture: Picture, colours: Theme, running: Mapping[int, Sequence[tuple[int, float]]]
) -> Figure | None:
    """Draw the learning curves of the best, the stopped and the running trials."""
    top = set(picture.top)
    title = picture.sweep.objective
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
                "text": [
                    "<br>".join(map(plain, (text, f"step {show(step)}", f"{title} {show(value)}")))
                    for step, value in points
                ],
                "hoverinfo": "text",
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
        points = [(step, value) for step, value in running[trial] if math.isfinite(value)]
        if points:
            curve(points, "running", f"trial {trial}", color=colours.good, width=2, dash="dash")
    if not data:
        return None
    shown = sorted(values, reverse=not picture.sweep.maximise)[len(values) // 20 :]
    y = focus(shown, picture.sweep.maximise, far=8.0)
    for trace in data:
        trace["y"] = [_within(value, y) for value in trace["y"]]
    return figure_of(
        data, colours, x={"title": "step"}, y={"title": title, "range": [y.low, y.high]}
    )


def curve_figure(sweep: Sweep, reports: Reports, theme: str = "light") -> Figure | None:
    """Draw all metrics that one trial has reported over its steps; None if there are none."""
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
                    "name": plain(name),
                    "x": [step for step, _ in points],
                    "y": [value for _, value in points],
                    "line": {"color": shades[len(data) % len(shades)]},
                    "visible": True if name in sweep.objective or len(names) < 4 else "legendonly",
                }
            )
    return figure_of(data, colours, x={"title": "step"}, y={"title": "reported"}) if data else None


def timeline_figure(picture: Picture, colours: Theme) -> Figure | None:
    """Draw when each trial ran, on which trainer."""
    rows = sorted({*picture.sampled, *picture.top})
    spans = []
    for row in rows:
        values = picture.rows[row]
        start, took = as_number(values.get(STARTED)), as_number(values.get(TOOK))
        if start is not None and took is not None:
            spans.append((row, start, took))
    if not spans:
        return None
    spans = spans[:: -(-len(spans) // _TIMELINE)]
    first = min(start for _, start, _ in spans)
    data = []
    for name, colour, stopped in (("finished", colours.cloud, False),
                                  ("stopped early", colours.stopped, True)):  # fmt: skip
        bars = [
            entry
            for entry in spans
            if (str(picture.rows[entry[0]].get(STATE)).lower() in STOPPED) == stopped
        ]
        if bars:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "base": [start - first for _, start, _ in bars],
                    "x": [took for _, _, took in bars],
                    "y": [plain(show(picture.rows[row].get(TRAINER))) for row, _, _ in bars],
                    "marker": {"color": colour, "line": {"width": 0.5, "color": colours.rule}},
                    "text": [hover_text(picture, row) for row, _, _ in bars],
                    "textposition": "none",
                    "hoverinfo": "text",
                }
            )
    figure = figure_of(
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
        trace = {"type": "scatter", "name": plain(name), "line": line, "mode": "lines+markers",
                 "marker": {"size": 5}, "hoverinfo": "text"}  # fmt: skip
        if picture.steps:
            best = [picture.objective_of(row) for row in picture.steps]
            shown = (*picture.steps, picture.steps[-1])
            values += best
            history.append(
                {
                    **trace,
                    "x": [*(picture.orders[row] + 1 for row in picture.steps),
                          picture.gathered.count],
                    "y": [*best, best[-1]],
                    "text": [hover_text(picture, row) for row in shown],
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
                    "text": [hover_text(picture, row) for row in front],
                }
            )
    figures = {}
    if history:
        scale = focus(values, first.maximise)
        for best_so_far in history:
            best_so_far["y"] = [_within(value, scale) for value in best_so_far["y"]]
        figures["history"] = figure_of(
            history,
            colours,
            x={"title": "trials, in order of completion", "rangemode": "tozero"},
            y={"title": first.objective, "range": [scale.low, scale.high]},
        )
    if cost:
        figures["cost"] = figure_of(
            cost,
            colours,
            x={"title": with_unit(first.cost), "rangemode": "tozero"},
            y={"title": first.quality},
        )
    return figures
