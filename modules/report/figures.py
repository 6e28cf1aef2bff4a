"""The figures by name: history, cost, curves, predictions, residuals, confusion, parallel, ...

A function that is decorated with `figure` is called with what is `Known` of a sweep, and returns
None where it has nothing to show. Figures show a `SweepView`, so their size is bounded whatever the
number of trials. All names in them are as the user wrote them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..trial import Reports
from .data import (
    LINEAGE,
    STARTED,
    STATE,
    STOPPED,
    TOOK,
    TRAINER,
    TRIAL,
    Sweep,
    SweepView,
    is_infeasible,
)
from .figure import Figure
from .importance import TREES, Effect, Importance
from .markup import as_number, show, with_unit, words
from .panels import (
    Axis,
    Heatmap,
    Layer,
    LinearScale,
    LogScale,
    NamedScale,
    Panel,
    ParallelCoordinates,
    Plot,
    Scale,
    StackedBars,
    focus,
    is_logarithmic,
    natural,
    scale_for,
    spread,
)

Curve: TypeAlias = "Sequence[tuple[float, float]]"
"""Steps, and a value at each."""

_INFEASIBLE_NOTE: Final = " Squares are trials that break a constraint, which do not count."
_FAR: Final = "far worse, at the edge"
_FAR_IN_CURVES: Final = 8.0
_RUNNING_CURVES: Final = 32
_BARS: Final = 400
_EFFECTS: Final = 12
_PLANES: Final = 6
_PAIRS: Final = 3
_WEAK: Final = 0.3
_FEW_METRICS: Final = 4
_TARGETS: Final = 6
"""Most targets whose predictions are drawn."""
_CLASSES: Final = 30


@dataclass(frozen=True)
class Known:
    """What is known of a sweep.

    Attributes
    ----------
    view : SweepView
    found : Importance or None
        From `analyse`, of this view or an earlier one.
    running : mapping of int to sequence
        For each trial in flight: steps, and the objective at each.
    """

    view: SweepView
    found: Importance | None = None
    running: Mapping[int, Curve] = field(default_factory=dict)


_FIGURES: list[Callable[[Known], Figure | None]] = []


def figure(describe: Callable[[Known], Figure | None]) -> Callable[[Known], Figure | None]:
    """Decorate a function that describes a figure: it is shown behind those above it."""
    _FIGURES.append(describe)
    return describe


def figures_of(
    view: SweepView,
    found: Importance | None,
    running: Mapping[int, Curve] | None = None,
) -> dict[str, Figure]:
    """Return the figures of a sweep that have something to show, by name; see `Known`."""
    known = Known(view, found, running or {})
    described = [describe(known) for describe in _FIGURES]
    return {each.name: each for each in described if each is not None}


# -- trials ---------------------------------------------------------------------------------------


@figure
def history(known: Known) -> Figure | None:
    """Describe the objective of trials in order of completion, and the best so far."""
    view = known.view
    if not view.top:
        return None
    sweep, selection, steps = view.sweep, view.selection, view.steps
    count = max(1, selection.count)
    cloud = sorted({*view.sampled, *view.top} - set(steps))

    def at(row: int) -> tuple[float, float]:
        return view.orders[row] + 1.0, view.objective_of(row)

    places = {row: at(row) for row in (*cloud, *steps)}
    note = f"Each dot is a trial; the line is the {sweep.direction} so far"
    if len(steps) > 1:
        note += f", which {len(steps) - 1} trials have improved" if len(steps) > 2 else (
            ", improved once"
        )  # fmt: skip
    layers = [
        *_cloud({row: places[row] for row in cloud}, view.axis),
        *_best(steps, places, count, f"{sweep.direction} so far", "better than all before"),
    ]
    failures = selection.failures
    layers += _infeasible({row: at(row) for row in view.infeasible})
    orders = [order + 1 for order, row in failures if not is_infeasible(row)]
    if orders and len(failures) == selection.lost:
        low = [view.axis.low] * len(orders)
        layers.append(Layer("ticks", "failed", "failed or diverged", orders, low))
    plot = Plot(
        Axis("trials, in order of completion", LinearScale(0.0, float(count), is_whole=True)),
        Axis(sweep.objective, view.axis),
        layers,
        f"{sweep.direction} {sweep.objective} so far, and that of each trial",
    )
    is_alone = not view.against_cost
    note += f".{_INFEASIBLE_NOTE}" if view.infeasible else "."
    return Figure("history", "History", note, [plot], view.tell, is_alone)


@figure
def cost(known: Known) -> Figure | None:
    """Describe quality against training time, with the Pareto front of both."""
    view = known.view
    sweep, pairs = view.sweep, view.against_cost
    if not pairs:
        return None
    x = cost_scale([spent for spent, _ in pairs.values()])
    y = focus([quality for _, quality in pairs.values()], sweep.maximise_quality)
    front = [row for row in view.front if row in pairs]
    broken = {row: pair for row, pair in pairs.items() if row in set(view.infeasible)}
    apart = {*front, *broken}
    thinned = " It is thinned out." if view.selection.front.thinned else ""
    many = f"{len(view.front)} trial{'s' if len(view.front) != 1 else ''}"
    stairs = f"The stairs are the Pareto front, {many}: none is both better and cheaper."
    plot = Plot(
        Axis(with_unit(sweep.cost), x),
        Axis(sweep.quality, y),
        [
            *_infeasible(broken),
            *_cloud({row: pair for row, pair in pairs.items() if row not in apart}, y),
            *_best(front, pairs, x.high, "front", "on the front"),
        ],
        f"{sweep.quality} against {sweep.cost}, with the Pareto front",
    )
    return Figure(
        "cost",
        f"{words(sweep.quality).capitalize()} against {words(sweep.cost)}",
        f"{stairs if view.front else ''}{thinned}{_INFEASIBLE_NOTE if broken else ''}".lstrip(),
        [plot],
        view.tell,
        is_wide=False,
    )


def _cloud(places: Mapping[int, tuple[float, float]], scale: LinearScale) -> list[Layer]:
    """Return trials as dots; those beyond the axis stand at its edge, under a name that says so."""
    layers = []
    is_far = {row: not scale.low <= y <= scale.high for row, (_, y) in places.items()}
    for name, style, wanted in (("trials", "cloud", False), (_FAR, "far", True)):
        rows = [row for row in places if is_far[row] == wanted]
        if rows or not wanted:
            xs, ys = ([places[row][axis] for row in rows] for axis in (0, 1))
            layers.append(Layer("dots", style, name, xs, ys, rows))
    return layers


def _infeasible(places: Mapping[int, tuple[float, float]]) -> list[Layer]:
    """Return trials that break constraints as marks of their own; none if there are none."""
    if not places:
        return []
    xs, ys = ([place[axis] for place in places.values()] for axis in (0, 1))
    return [Layer("dots", "infeasible", "infeasible", xs, ys, [*places])]


def _best(
    rows: Sequence[int], places: Mapping[int, tuple[float, float]], end: float, line: str, dots: str
) -> list[Layer]:
    """Return stairs through the best trials, up to the end of the axis, and the trials as dots."""
    xs, ys = ([places[row][axis] for row in rows] for axis in (0, 1))
    return [
        Layer("stairs", "best", line, [*xs, end] if xs else [], [*ys, *ys[-1:]]),
        Layer("dots", "best", dots, xs, ys, rows),
    ]


def cost_scale(costs: Sequence[float]) -> LinearScale | LogScale:
    """Return the scale of costs, logarithmic if they spread over orders of magnitude."""
    if is_logarithmic(costs):
        return LogScale(min(costs) * 0.9, max(costs) * 1.1)
    return LinearScale(min(0.0, *costs), max(0.0, *costs) * 1.03 or 1.0)


@figure
def curves(known: Known) -> Figure | None:
    """Describe the learning curves of the best, the stopped and the running trials."""
    view, top = known.view, known.view.top
    running = {
        trial: points
        for trial in sorted(known.running)[:_RUNNING_CURVES]
        if (points := [(step, y) for step, y in known.running[trial] if math.isfinite(y)])
    }
    if not view.curves and not running:
        return None
    layers: list[Layer] = []
    ends: dict[str, list[tuple[int, float, float]]] = {}
    for row in reversed(view.curves):  # the best is drawn over the others
        style = "stopped" if row not in top else "best" if row == top[0] else "cloud"
        xs, ys = zip(*view.curve_of(row), strict=True)
        layers.append(Layer("line", style, _CURVES[style], xs, ys, [row]))
        ends.setdefault(style, []).append((row, xs[-1], ys[-1]))
    for trial, points in running.items():
        xs, ys = zip(*points, strict=True)
        layers.append(Layer("line", "running", _CURVES["running"], xs, ys, text=f"trial {trial}"))
    everything = [y for layer in layers for y in layer.y]
    # First steps are far worse than the rest: a twentieth of all points may lie on the edge.
    maximise = view.sweep.maximise
    shown = sorted(everything, reverse=not maximise)[len(everything) // 20 :]
    for style, places in ends.items():  # where each trial was stopped or done
        rows, xs, ys = zip(*places, strict=True)
        layers.append(Layer("dots", style, _CURVES[style], xs, ys, rows))
    plot = Plot(
        Axis("step", spread([x for layer in layers for x in layer.x])),
        Axis(view.sweep.objective, focus(shown, maximise, far=_FAR_IN_CURVES)),
        layers,
        f"{view.sweep.objective} of the best and the stopped trials, step by step",
    )
    note = _note_on_curves(view, len(ends.get("stopped", ())), len(running))
    return Figure("curves", "Learning curves", note, [plot], view.tell)


def _note_on_curves(view: SweepView, stopped: int, running: int) -> str:
    best = len(view.curves) - stopped
    note = "What the best trial has reported on its way"
    if best > 1:
        note = f"What the {best} best trials have reported on their way"
    if stopped:
        of = f" of {view.selection.stopped:,}" if stopped < view.selection.stopped else ""
        note += f", and, dashed, {stopped}{of} that were stopped early, up to there"
    if not best:
        note = "What trials have reported on their way"
    return f"{note}; {running} are running." if running else f"{note}."


_CURVES: Final = {
    "best": "the best",
    "cloud": "others among the best",
    "stopped": "stopped early",
    "running": "running",
}


@figure
def lineage(known: Known) -> Figure | None:
    """Describe which trials went on from which, and what the lineage of the best one had when."""
    view = known.view
    ends: dict[Any, tuple[int, Any, float]] = {}
    for place, row in enumerate(view.rows):
        if (own := row.get(LINEAGE)) is not None and len(own) == 3:
            ends[row.get(TRIAL)] = place, own[0], own[2]
    joined = [trial for trial, (_, parent, _) in ends.items() if parent in ends]
    if not joined or not view.top:
        return None
    best = [view.rows[view.top[0]].get(TRIAL)]
    while (parent := ends[best[-1]][1] if best[-1] in ends else None) in ends:
        best.append(parent)
    chosen = joined[:: -(-len(joined) // _BARS)]
    layers = []
    # The best one is drawn over the others.
    for style, name, trials in (
        ("cloud", "others", [trial for trial in chosen if trial not in best]),
        ("best", "the lineage of the best", best[-2::-1]),
    ):
        for trial in trials:
            place, parent, stop = ends[trial]
            before, _, start = ends[parent]
            values = [view.objective_of(before), view.objective_of(place)]
            layers.append(Layer("line", style, name, [start, stop], values, [place]))
    steps = [x for layer in layers for x in layer.x]
    plot = Plot(
        Axis("step", spread(steps)),
        Axis(view.sweep.objective, view.axis),
        layers,
        f"{view.sweep.objective} of trials that went on from each other",
    )
    note = "Each line is a trial, which begins where the one had ended that it went on from; the "
    note += f"best one is the last of {len(best)}."
    return Figure("lineage", "Lineage", note, [plot, *_schedules(view, best[::-1])], view.tell)


def _schedules(view: SweepView, trials: Sequence[Any]) -> list[Plot]:
    """Return how the parameters changed in a lineage, a plot for each that did."""
    rows = [row for trial in trials for row in view.rows if row.get(TRIAL) == trial]
    starts, end = [float(row[LINEAGE][1]) for row in rows], float(rows[-1][LINEAGE][2])
    panels: list[Plot] = []
    for name in view.varying:
        values = [as_number(row.get(name)) for row in rows]
        if len({*values}) < 2 or None in values or len(panels) == _PLANES:
            continue
        numbers = [float(value) for value in values if value is not None]
        panels.append(
            Plot(
                Axis("step", LinearScale(min(starts), end)),
                Axis(name, cost_scale(numbers) if is_logarithmic(numbers) else _with_room(numbers)),
                [Layer("stairs", "best", name, [*starts, end], [*numbers, numbers[-1]])],
                f"{name}, step by step",
                name,
            )
        )
    return panels


# -- predictions of the best trial ----------------------------------------------------------------

_OF_BEST: Final = "Predictions of the best trial for rows that it was not trained on"


def _of_data(name: str, title: str, note: str, panels: Sequence[Panel]) -> Figure | None:
    """Return a figure of the best trial's predictions, named as the data; None without panels."""
    if not panels:
        return None
    is_wide = len(panels) > 1
    return Figure(name, title, note, [*panels], lambda _: (), is_wide=is_wide, is_of_data=True)


def _of_targets(
    known: Known, drawn: Callable[[str, Sequence[float], Sequence[float]], tuple[Any, ...]]
) -> list[Panel]:
    """Return a plot of each target; `drawn` has its axes, points, line, and what it shows."""
    found = known.view.predictions
    several = [] if found is None or not found.are_values else [*found.pairs()][:_TARGETS]
    panels: list[Panel] = []
    for name, true, predicted in several:
        x, y, points, line, label = drawn(name, true, predicted)
        layers = [
            Layer("dots", "cloud", "rows", *points),
            Layer("line", "best", "right predictions", [x.scale.low, x.scale.high], line),
        ]
        caption = name if len(several) > 1 else ""
        panels.append(Plot(x, y, layers, label, caption, has_titles=True))
    return panels


@figure
def predictions(known: Known) -> Figure | None:
    """Describe what the best trial predicts against what is true, of each target."""

    def against(name: str, true: Sequence[float], predicted: Sequence[float]) -> tuple[Any, ...]:
        scale = _with_room([*true, *predicted])
        axes = Axis(name, scale), Axis(f"predicted {name}", scale)
        label = f"predicted {name} against true"
        return *axes, (true, predicted), [scale.low, scale.high], label

    note = f"{_OF_BEST}, in the units of the data: on the line they are right."
    return _of_data("predictions", "Predicted against true", note, _of_targets(known, against))


@figure
def residuals(known: Known) -> Figure | None:
    """Describe what is left, true less predicted, against what is predicted, of each target."""

    def left(name: str, true: Sequence[float], predicted: Sequence[float]) -> tuple[Any, ...]:
        rest = [a - b for a, b in zip(true, predicted, strict=True)]
        most = 1.08 * max(map(abs, rest)) or 1.0
        x = Axis(f"predicted {name}", _with_room(predicted))
        y = Axis(f"residual of {name}", LinearScale(-most, most))
        return x, y, (predicted, rest), [0.0, 0.0], f"residuals of {name}"

    note = (
        "What is true less what is predicted, in the units of the data. A bend, or a fan that "
        "opens, is something that the network has not learned."
    )
    return _of_data("residuals", "Residuals", note, _of_targets(known, left))


@figure
def confusion(known: Known) -> Figure | None:
    """Describe how many rows of each class got which prediction; of labels, who had and got it."""
    found = known.view.predictions
    if found is None:
        return None
    panels: list[Heatmap] = []
    if found.is_class:
        panels = [_confused("", found.true[0], found.predicted[0])]
    elif not found.are_values:
        given = [*zip(found.names, found.true, found.predicted, strict=True)][:_PLANES]
        panels = [_confused(f"{name}, F1 {_f1(*pair):.2f}", *pair) for name, *pair in given]
    panels = [panel for panel in panels if len(panel.labels[0]) <= _CLASSES]
    got = "of each class" if found.is_class else "without (0) and with (1) each label"
    note = f"{_OF_BEST}: how many {got} got each prediction; the diagonal is right."
    return _of_data("confusion", "Confusion", note, panels)


def _f1(true: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the F1 score of a label, as `dnn.metrics` has it: 0 if nobody has or gets it."""
    hits = sum(a == b == "1" for a, b in zip(true, predicted, strict=True))
    return 2 * hits / (true.count("1") + predicted.count("1") or 1)


def _confused(name: str, true: Sequence[str], predicted: Sequence[str]) -> Heatmap:
    labels = sorted({*true, *predicted}, key=natural)
    counts = Counter(zip(predicted, true, strict=True))
    total = Counter(true)
    return Heatmap(
        "predicted",
        "true" if name else "class",
        (labels, labels[::-1]),
        [[counts[guess, each] / (total[each] or 1) for each in labels[::-1]] for guess in labels],
        [[counts[guess, each] for each in labels[::-1]] for guess in labels],
        True,
        "share of its class",
        "rows",
        name,
    )


# -- parameters -----------------------------------------------------------------------------------


@figure
def parallel(known: Known) -> Figure | None:
    """Describe trials in parallel coordinates, on whose axes ranges can be chosen."""
    view = known.view
    sweep, rows = view.sweep, view.lines
    if not view.varying or len(rows) < 2:
        return None
    names = [*view.varying, sweep.objective]
    values = [[view.rows[row].get(name) for name in names] for row in rows]
    columns = [*zip(*values, strict=True)]
    scales: list[Scale] = [*map(scale_for, columns[:-1]), view.axis]
    worst, best = columns[-1][0], columns[-1][-1]
    edge = view.axis.low if sweep.maximise else view.axis.high
    is_beyond = view.axis.place(worst) in (0.0, 1.0)
    panel = ParallelCoordinates(
        [Axis(name, scale) for name, scale in zip(names, scales, strict=True)],
        rows,
        values,
        [view.shade(row) for row in rows],
        (f"{show(edge)} and worse" if is_beyond else show(worst), show(best)),
        sweep.maximise,
    )
    constants = ", ".join(f"{words(name)} {value}" for name, value in view.constants.items())
    return Figure(
        "parallel",
        "Parameters",
        "Each line is a trial. Drag along an axis to choose a range, or use the arrow keys, with "
        "Shift for its upper end; a click or Esc lets go. The table follows.",
        [panel],
        view.tell,
        remarks=[f"For all trials: {constants}."] if constants else [],
    )


@figure
def importance(known: Known) -> Figure | None:
    """Describe how far each parameter decides the objective, alone and with one other."""
    found, view = known.found, known.view
    if found is None:
        return None
    objective = view.sweep.objective
    shares = StackedBars(
        f"share of the variance of {objective}, {found.trials:,} trials",
        [("alone", "alone"), ("with one other", "pairs")],
        [(effect.name, (effect.alone, effect.in_pairs / 2)) for effect in found.effects],
    )
    pairs = [
        f"{words(first)} with {words(second)} {share:.0%}"
        for first, second, share in found.pairs[:_PAIRS]
        if share >= 0.01
    ]
    explained = (
        f"The forest explains {max(0.0, found.explained):.0%} of the variance among trials that "
        "it has not seen"
    )
    is_weak = found.explained < _WEAK
    method = (
        f"Functional ANOVA of {TREES} regression trees (Hutter, Hoos and Leyton-Brown, 2014), over "
        f"the values that the trials took. {'' if is_weak else f'{explained}. '}Results far on the "
        "worse side count as less far."
    )
    together = [f"Together, beyond what each does alone: {'; '.join(pairs)}."] if pairs else []
    return Figure(
        "importance",
        "What decides",
        f"Share of the variance of {words(objective)}, as a forest learns it from "
        f"{found.trials:,} trials, that a parameter explains alone (number, dark) and with one "
        "other (light, half of each pair).",
        [shares, *(_effect(effect, known, found) for effect in found.effects[:_EFFECTS])],
        view.tell,
        warning=f"{explained}: too little to trust these shares." if is_weak else "",
        subtitle=f"Expected {words(objective)}, whatever the other parameters are",
        remarks=[*together, method],
    )


def _effect(effect: Effect, known: Known, found: Importance) -> Plot:
    """Return the objective that the forest expects with each value of a parameter."""
    scale = _with_room([value for shown in found.effects for value in shown.mean])
    longest = max(len(label) for label in effect.labels[:: max(1, len(effect.labels) // 4)])
    labels = NamedScale(effect.labels, most=max(2, 220 // (7 * min(longest, 14) + 12)))
    best = (max if known.view.sweep.maximise else min)(effect.mean)
    at = effect.mean.index(best)
    return Plot(
        Axis(effect.name, labels),
        Axis(known.view.sweep.objective, scale),
        [
            Layer("line", "effect", "", effect.labels, effect.mean),
            Layer("dots", "effect", "", effect.labels, effect.mean),
            Layer("dots", "best", "", [effect.labels[at]], [best]),
        ],
        f"what the objective is with each {effect.name}",
        effect.name,
    )


def _with_room(values: Sequence[float]) -> LinearScale:
    room = 0.08 * (max(values) - min(values)) or 0.5
    return LinearScale(min(values) - room, max(values) + room)


@figure
def contour(known: Known) -> Figure | None:
    """Describe the expected objective over the pairs of parameters that do most together."""
    planes = known.found.planes[:_PLANES] if known.found is not None else []
    if not planes:
        return None
    sweep = known.view.sweep
    return Figure(
        "contour",
        "Two parameters together",
        f"The {words(sweep.objective)} that the forest expects, whatever the other parameters are, "
        "of the pairs that do most together: the darker the better (the brighter, on a dark page). "
        "Dots are where trials have been.",
        [
            Heatmap(plane.first, plane.second, plane.labels, plane.mean, plane.trials,
                    sweep.maximise, sweep.objective)
            for plane in planes
        ],
        known.view.tell,
    )  # fmt: skip


# -- the run --------------------------------------------------------------------------------------


@figure
def timeline(known: Known) -> Figure | None:
    """Describe when each trial ran, on which trainer."""
    view = known.view
    spans = []
    for row in sorted({*view.sampled, *view.top}):
        values = view.rows[row]
        start, took = as_number(values.get(STARTED)), as_number(values.get(TOOK))
        if start is not None and took is not None:
            is_stopped = str(values.get(STATE)).lower() in STOPPED
            spans.append((row, start, took, show(values.get(TRAINER)), is_stopped))
    if not spans:
        return None
    spans = spans[:: -(-len(spans) // _BARS)]
    first = min(start for _, start, *_ in spans)
    layers = []
    for name, style, wanted in (("finished", "cloud", False), ("stopped early", "stopped", True)):
        bars = [span[:-1] for span in spans if span[-1] == wanted]
        if bars:
            rows, starts, lengths, trainers = zip(*bars, strict=True)
            begun = [start - first for start in starts]
            layers.append(Layer("bars", style, name, begun, trainers, rows, lengths))
    end = max(start - first + took for _, start, took, *_ in spans)
    labels = sorted({trainer for _, _, _, trainer, _ in spans}, key=natural, reverse=True)
    plot = Plot(
        Axis("seconds since the first trial", LinearScale(0.0, end or 1.0)),
        Axis("trainer", NamedScale(labels, in_bands=True)),
        layers,
        "when trials ran, by trainer",
    )
    note = "One bar for each trial, by trainer."
    return Figure("timeline", "When trials ran", note, [plot], view.tell)


# -- one trial ------------------------------------------------------------------------------------


def trial_curves(sweep: Sweep, reports: Reports) -> Figure | None:
    """Describe all metrics that one trial has reported over its steps; None if there are none."""
    names = dict.fromkeys(name for _, metrics in reports for name in metrics)
    panels: list[Plot] = []
    for name in names:
        points = [
            (step, number)
            for step, metrics in reports
            if (number := as_number(metrics.get(name))) is not None
        ]
        if points and name not in (sweep.cost, TRIAL):
            xs, ys = zip(*points, strict=True)
            is_extra = name not in sweep.objective and len(names) >= _FEW_METRICS
            style = f"r{len(panels)}"
            layer = Layer("line", style, name, xs, ys, text=name, is_extra=is_extra)
            x, y = Axis("step", spread(xs)), Axis("reported", _with_room(ys))
            panels.append(Plot(x, y, [layer], f"{name}, step by step", name))
    if not panels:
        return None
    return Figure("curve", "Learning curve", "What it has reported.", panels, lambda _: ())
