"""The sections of a report that have plots: each a function from a picture to HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from diel import format_duration, format_value

from .importance import TREES, Effect, Importance
from .markup import (
    Markup,
    bar_row,
    between,
    figure,
    join,
    nothing,
    place,
    section,
    show,
    tag,
    with_unit,
    words,
)
from .picture import SHADES, Picture
from .plot import (
    LinearScale,
    LogScale,
    NamedScale,
    Plot,
    Scale,
    dots,
    focus,
    is_logarithmic,
    line,
    polyline,
    scale_for,
    spread,
    stairs,
    text,
)
from .sweep import TRIAL

if TYPE_CHECKING:
    from ..evaluation import BiasReport

_EFFECTS: Final = 12
_PAIRS: Final = 3
_WEAK: Final = 0.3
_HALF: Final = 560.0
_FULL: Final = 1140.0
_HEIGHT: Final = 320.0
_AXIS_ROOM: Final = 104.0
_FAR_IN_CURVES: Final = 8.0
_FEW: Final = 100
_MANY: Final = 500


def headline(picture: Picture) -> Markup:
    """Show the best result, the number of trials and the time: the head of a report."""
    sweep, gathered, moment = picture.sweep, picture.gathered, picture.moment
    figures = []
    if picture.best is not None:
        value = show(picture.best.get(sweep.objective))
        number = picture.best.get(TRIAL)
        which = f"trial {show(number)}" if number is not None else ""
        figures.append(
            figure(f"{sweep.direction} {words(sweep.objective)}", value, which, "chosen")
        )
    bias, honest = moment.bias, Markup("")
    if bias is not None and bias.honest is not None:
        honest = figure(f"honest {words(bias.objective)}", show(bias.honest), bias.method)
    figures.append(between("honest", honest))
    done = f"of {sweep.expected:,}" if sweep.expected else "so far"
    if sweep.expected == gathered.count:
        done = "all of them"
    figures.append(figure("trials", f"{gathered.count:,}", done))
    if gathered.failed:
        figures.append(figure("failed", f"{gathered.failed:,}", "see below", "bad"))
    if gathered.diverged:
        figures.append(figure("diverged", f"{gathered.diverged:,}", "see below", "bad"))
    if gathered.stopped:
        figures.append(figure("stopped", f"{gathered.stopped:,}", "early"))
    if moment.elapsed_s:
        name = "time" if not moment.earlier else "time since it went on"
        rate = (gathered.count - moment.earlier) / moment.elapsed_s
        about = ""
        if rate > 0:
            about = f"{rate:,.3g} trials a second" if rate >= 1 else f"{1 / rate:,.3g} s a trial"
        figures.append(figure(name, format_duration(moment.elapsed_s), about))
    if sweep.expected and sweep.expected > gathered.count:
        progress = tag("div", tag("i", style=f"width:{gathered.count / sweep.expected:.2%}"),
                       class_="progress")  # fmt: skip
    else:
        progress = None
    chips = []
    if picture.best is not None:
        chips = [
            tag("span", tag("span", words(name)), tag("b", show(picture.best.get(name))),
                class_="chip")
            for name in picture.varying
            if picture.best.get(name) is not None
        ]  # fmt: skip
    return join(
        tag("div", *figures, class_="figures"),
        nothing("No trial has a result yet.") if picture.best is None else None,
        between("caution", _caution(bias)),
        progress,
        tag("div", *chips, class_="chips") if chips else None,
    )


def _caution(bias: BiasReport | None) -> Markup:
    """Return the warning that the best score must not be reported as it is; empty if none."""
    if bias is None or not bias.warning:
        return Markup("")
    text = f"{words(bias.objective)} {show(bias.naive)}: {bias.warning}. "
    link = tag("a", "Is the best as good as it looks?", href="#bias")
    return tag("p", text, link, class_="warning")


def history_section(picture: Picture) -> Markup | None:
    """Show the objective of the trials, and the best so far; None if there is none."""
    if not picture.top:
        return None
    steps = len(picture.steps)
    note = f"Each dot is a trial; the line is the {picture.sweep.direction} so far"
    if steps > 1:
        note += f", which {steps - 1} trials have improved" if steps > 2 else ", improved once"
    beyond = sum(
        picture.axis.place(picture.objective_of(row)) in (0.0, 1.0) for row in picture.sampled
    )
    tail = " Dots on the edge are worse than the axis reaches." if beyond else ""
    drawn = tag("figure", _draw_history(picture))
    is_alone = not picture.against_cost
    return section("history", "History", drawn, note=f"{note}.{tail}", wide=is_alone)


def _draw_history(picture: Picture) -> Markup:
    """Draw the objective of the trials in order of completion, and the best so far."""
    sweep = picture.sweep
    count = max(1, picture.gathered.count)
    plot = Plot(
        _HALF, _HEIGHT, LinearScale(0.0, float(count)), picture.axis,
        "trials, in order of completion", words(sweep.objective),
    )  # fmt: skip
    shown = [*picture.sampled, *picture.top]
    cloud = _dots(plot, picture, sorted(set(shown) - set(picture.steps)))
    steps = [
        (row, at[0], at[1])
        for row in picture.steps
        if (at := plot.at(picture.orders[row] + 1, picture.objective_of(row)))
    ]
    failed = [
        line(plot.across((order + 1) / count), plot.down(0.0) - 7, plot.across((order + 1) / count),
             plot.down(0.0), "failed")
        for order, _ in picture.gathered.failures
        if len(picture.gathered.failures) == picture.gathered.lost
    ]  # fmt: skip
    return plot.draw(
        dots(cloud, "cloud"),
        join(*failed),
        stairs([(x, y) for _, x, y in steps], plot.across(1.0), "best-line"),
        dots(steps, "best-dots"),
        label=f"{sweep.direction} {sweep.objective} so far, and that of each trial",
        style=_crowd(len(cloud)),
    )


def _dots(plot: Plot, picture: Picture, rows: list[int]) -> list[tuple[int, float, float]]:
    found = []
    for row in rows:
        at = plot.at(picture.orders[row] + 1, picture.objective_of(row))
        if at is not None:
            found.append((row, *at))
    return found


def _crowd(count: int) -> str:
    """Return the style that keeps so many dots or lines apart."""
    return "few" if count < _FEW else "some" if count < _MANY else "many"


def cost_section(picture: Picture) -> Markup | None:
    """Show quality against training time; None if no trial has both."""
    sweep = picture.sweep
    title = f"{words(sweep.quality).capitalize()} against {words(sweep.cost)}"
    drawn = _draw_against_cost(picture)
    if drawn is None:
        return None
    thinned = " It is thinned out." if picture.gathered.front.thinned else ""
    note = (
        f"The stairs are the Pareto front, {len(picture.front)} "
        f"trial{'s' if len(picture.front) != 1 else ''}: none is both better and cheaper.{thinned}"
    )
    return section("cost", title, tag("figure", drawn), note=note)


def _draw_against_cost(picture: Picture) -> Markup | None:
    """Draw quality against cost with the Pareto front; None if no trial has both."""
    sweep = picture.sweep
    pairs = picture.against_cost
    if not pairs:
        return None
    costs = [cost for cost, _ in pairs.values()]
    x: Scale = LinearScale(min(0.0, *costs), max(0.0, *costs) * 1.03 or 1.0)
    if is_logarithmic(costs):
        x = LogScale(min(costs) * 0.9, max(costs) * 1.1)
    y = focus([quality for _, quality in pairs.values()], sweep.maximise_quality)
    plot = Plot(_HALF, _HEIGHT, x, y, with_unit(sweep.cost), with_unit(sweep.quality))
    placed = {row: at for row, pair in pairs.items() if (at := plot.at(*pair)) is not None}
    front = [(row, *placed[row]) for row in picture.front if row in placed]
    cloud = [(row, *at) for row, at in placed.items() if row not in set(picture.front)]
    return plot.draw(
        dots(cloud, "cloud"),
        stairs([(x, y) for _, x, y in front], plot.across(1.0), "front-line"),
        dots(front, "front-dots"),
        label=f"{words(sweep.quality)} against {words(sweep.cost)}, with the Pareto front",
        style=_crowd(len(cloud)),
    )


def curves_section(picture: Picture) -> Markup | None:
    """Show learning curves, where trials have reported some."""
    drawn = _draw_curves(picture)
    if drawn is None:
        return None
    best = sum(row in set(picture.top) for row in picture.curves)
    stopped = len(picture.curves) - best
    note = (
        f"What the {best} best trials have reported on their way"
        if best > 1
        else ("What the best trial has reported on its way")
    )
    if stopped:
        of = f" of {picture.gathered.stopped:,}" if stopped < picture.gathered.stopped else ""
        note += f", and, dashed, {stopped}{of} that were stopped early, up to there"
    keys = [tag("span", tag("i", class_="key"), "the best")]
    if best > 1:
        keys.append(tag("span", tag("i", class_="key good"), "others among the best"))
    if stopped:
        keys.append(tag("span", tag("i", class_="key stopped"), "stopped early"))
    return section(
        "curves",
        "Learning curves",
        tag("div", *keys, class_="keys"),
        tag("figure", drawn),
        note=f"{note}.",
        wide=True,
    )


def _draw_curves(picture: Picture) -> Markup | None:
    """Draw the learning curves of the best and the stopped trials; None if there are none."""
    if not picture.curves:
        return None
    points = {row: picture.curve_of(row) for row in picture.curves}
    steps = [x for curve in points.values() for x, _ in curve]
    values = [y for curve in points.values() for _, y in curve]
    # First steps are far worse than the rest: a twentieth of all points may lie on the edge.
    shown = sorted(values, reverse=not picture.sweep.maximise)[len(values) // 20 :]
    plot = Plot(
        _FULL, _HEIGHT, spread(steps), focus(shown, picture.sweep.maximise, far=_FAR_IN_CURVES),
        "step", words(picture.sweep.objective),
    )  # fmt: skip
    drawn, top = [], set(picture.top)
    for row in reversed(picture.curves):  # the best is drawn over the others
        style = "stopped" if row not in top else "best" if row == picture.top[0] else "good"
        places = [at for x, y in points[row] if (at := plot.at(x, y)) is not None]
        drawn.append(polyline(places, style, row))
    # The end of each curve, where its trial was stopped or done.
    ends = [(row, *at) for row in picture.curves if (at := plot.at(*points[row][-1])) is not None]
    stopped = [end for end in ends if end[0] not in top]
    return plot.draw(
        tag("g", *drawn, class_="curves"),
        dots(stopped, "stopped-dots"),
        dots([end for end in ends if end[0] in top], "end-dots"),
        label=f"{words(picture.sweep.objective)} of the best and the stopped trials, step by step",
    )


def parallel_section(picture: Picture) -> Markup | None:
    """Show the trials in parallel coordinates; None if there are not two, or nothing varies."""
    drawn = _draw_parallel(picture)
    if drawn is None:
        return None
    constants = ", ".join(f"{words(key)} {value}" for key, value in picture.constants.items())
    return section(
        "parallel",
        "Parameters",
        tag("div", _draw_legend(picture), tag("span", "", class_="chosen-count"),
            tag("button", "clear", type="button", class_="clear", hidden=True), class_="bar"),
        tag("figure", drawn, class_="scrolls", tabindex=0),
        tag("p", f"For all trials: {constants}.", class_="note") if constants else None,
        note="Each line is a trial. Drag along an axis to choose a range; a click on it lets go. "
        "The other plots and the table follow.",
        wide=True,
    )  # fmt: skip


def _draw_parallel(picture: Picture) -> Markup | None:
    """Draw each trial as a line over an axis for each parameter; None if nothing varies."""
    names = picture.varying
    if not names or len(picture.lines) < 2:
        return None
    scales: list[Scale] = [
        scale_for([picture.rows[row].get(name) for row in picture.lines]) for name in names
    ]
    names, scales = [*names, picture.sweep.objective], [*scales, picture.axis]
    width, height = max(_FULL, _AXIS_ROOM * len(names)), 380.0
    top, bottom, left, right = 44.0, height - 18.0, 74.0, width - 64.0
    across = [left + lane * (right - left) / (len(names) - 1) for lane in range(len(names))]

    def down(where: float) -> float:
        return bottom - where * (bottom - top)

    lines = []
    for row in picture.lines:
        values = picture.rows[row]
        aside = (picture.axis.place(values.get(names[-1])) or 0.0) - 0.5
        places = [
            _lane(scale, scale.place(values.get(name)), aside)
            for name, scale in zip(names, scales, strict=True)
        ]
        points = [(x, down(y)) for x, y in zip(across, places, strict=True) if y is not None]
        style = f"q{picture.shade(row)}" + (" best" if row == picture.top[0] else "")
        lines.append(polyline(points, style, row))
    axes = []
    for number, (name, scale, x) in enumerate(zip(names, scales, across, strict=True)):
        marks = [
            tag("title", name),
            line(x, top, x, bottom, "axis"),
            tag("rect", x=place(x - 14), y=place(top), width="28", height=place(bottom - top),
                class_="grip"),
        ]  # fmt: skip
        for where, label in scale.ticks(6):
            where = _lane(scale, where, 0.0) or 0.0
            marks.append(line(x - 4, down(where), x, down(where), "axis"))
            marks.append(
                text(x - 8, down(where) + 4, format_value(label, longest=14), "tick end halo")
            )
        style = "name middle" + (" chosen" if number == len(names) - 1 else "")
        marks.append(text(x, 20, format_value(words(name), longest=18), style))
        axes.append(tag("g", *marks, class_="dimension", data_x=place(x), data_name=name))
    return tag(
        "svg",
        tag("g", *lines, class_=f"lines {_crowd(len(lines))}"),
        join(*axes),
        tag("g", class_="over"),
        viewBox=f"0 0 {place(width)} {place(height)}",
        style=f"min-width:{place(min(width, 120.0 * len(names)))}px",
        role="img",
        aria_label="parallel coordinates of the parameters and the objective",
        data_chart="parallel",
        data_top=place(top),
        data_bottom=place(bottom),
    )


def _lane(scale: Scale, where: float | None, aside: float) -> float | None:
    """Spread the lines through a named value by the objective, so that none hides the others.

    `aside`, from -0.5 to 0.5, says which line of those through the value at `where` it is.
    """
    if where is None or not isinstance(scale, NamedScale):
        return where
    band = min(0.16, 0.7 / len(scale.labels))
    return band / 2 + where * (1 - band) + aside * band


def _draw_legend(picture: Picture) -> Markup:
    """Draw the colour scale of the objective, from the worst to the best."""
    worst, best = picture.lines[0], picture.lines[-1]
    first, last, beyond = picture.objective_of(worst), picture.objective_of(best), ""
    edge = picture.axis.low if picture.sweep.maximise else picture.axis.high
    if picture.axis.place(first) in (0.0, 1.0):
        first = edge
        beyond = " and worse"
    boxes = [tag("i", class_=f"q{shade}") for shade in range(SHADES)]
    return tag(
        "span",
        tag("span", f"{show(first)}{beyond}"),
        tag("span", *boxes, class_="ramp"),
        tag("span", f"{show(last)} {words(picture.sweep.objective)}"),
        tag("span", tag("i", class_="key"), "the best"),
        class_="legend",
    )


def importance_section(picture: Picture, found: Importance | None) -> Markup | None:
    """Show how far each parameter decides the objective; None if that is not known."""
    if found is None:
        return None
    bars = [
        bar_row(
            words(effect.name),
            f"{effect.alone:.0%}",
            (effect.alone, "alone"),
            (effect.in_pairs / 2, "pairs"),
            title=effect.name,
        )
        for effect in found.effects
    ]
    pairs = [
        f"{words(first)} with {words(second)} {share:.0%}"
        for first, second, share in found.pairs[:_PAIRS]
        if share >= 0.01
    ]
    together = f"Together, beyond what each does alone: {'; '.join(pairs)}." if pairs else None
    weak = (
        f"The forest explains {max(0.0, found.explained):.0%} of the variance among trials that "
        "it has not seen"
    )
    warning = (
        tag("p", f"{weak}: too little to trust these shares.", class_="warning")
        if found.explained < _WEAK
        else None
    )
    effects = [
        tag("figure", tag("figcaption", words(effect.name)),
            _draw_effect(effect, found, picture.sweep.maximise))
        for effect in found.effects[:_EFFECTS]
    ]  # fmt: skip
    method = (
        f"Functional ANOVA of {TREES} regression trees (Hutter, Hoos and Leyton-Brown, 2014), over "
        f"the values that the trials took. {'' if warning else f'{weak}. '}Results far on the "
        "worse side count as less far."
    )
    return section(
        "importance",
        "What decides",
        warning,
        tag("div", *bars, class_="bars"),
        tag("p", together, class_="note") if together else None,
        tag("h3", f"Expected {words(picture.sweep.objective)}, whatever the other parameters are"),
        tag("div", *effects, class_="effects"),
        tag("p", method, class_="fine"),
        note=f"Share of the variance of {words(picture.sweep.objective)}, as a forest learns it "
        f"from {found.trials:,} trials, that a parameter explains alone (number, dark) and with "
        "one other (light, half of each pair).",
        wide=True,
    )


def _draw_effect(effect: Effect, found: Importance, maximise: bool) -> Markup:
    """Draw the objective that the forest expects with each value of a parameter."""
    everything = [value for shown in found.effects for value in shown.mean]
    longest = max(len(label) for label in effect.labels[:: max(1, len(effect.labels) // 4)])
    scale = NamedScale(effect.labels, most=max(2, 220 // (7 * min(longest, 14) + 12)))
    low, high = min(everything), max(everything)
    room = 0.08 * (high - low) or 0.5
    plot = Plot(
        270, 170, scale, LinearScale(low - room, high + room), "", "",
        left=48, right=16, top=8, bottom=24, x_ticks=5, y_ticks=3,
    )  # fmt: skip
    points = [
        (plot.across(scale.place_of(number)), plot.down(plot.y.place(value) or 0.0))
        for number, value in enumerate(effect.mean)
    ]
    path = "M" + "L".join(f"{place(x)},{place(y)}" for x, y in points)
    target = max(effect.mean) if maximise else min(effect.mean)
    best = effect.mean.index(target)
    dot_list = [
        tag("path", tag("title", f"{label}: {show(value)}"), d=f"M{place(x)},{place(y)}h0",
            class_="dots effect" + (" chosen" if number == best else ""))
        for number, (label, value, (x, y)) in enumerate(
            zip(effect.labels, effect.mean, points, strict=True))
    ]  # fmt: skip
    return plot.draw(
        tag("path", d=path, class_="effect-line"),
        *dot_list,
        label=f"what the objective is with each {words(effect.name)}",
        kind="effect",
    )
