"""The plots of a report with what stands around them, each a function from a picture to HTML."""

from __future__ import annotations

from typing import Final

from diel import format_duration

from .charts import (
    draw_against_cost,
    draw_curves,
    draw_effect,
    draw_history,
    draw_legend,
    draw_parallel,
)
from .importance import FEWEST_TRIALS, TREES, Importance
from .markup import Markup, bar, between, figure, join, nothing, section, show, tag, words
from .picture import Picture
from .sweep import Evaluation

_EFFECTS: Final = 12
_PAIRS: Final = 3
_WEAK: Final = 0.3


def headline(picture: Picture) -> Markup:
    """Show the best, how many trials and how long: the first thing to look for."""
    sweep, gathered, moment = picture.sweep, picture.gathered, picture.moment
    figures = []
    if picture.best is not None:
        value = show(picture.best.get(sweep.objective))
        number = picture.best.get(sweep.trial)
        which = f"trial {show(number)}" if number is not None else ""
        figures.append(
            figure(f"{sweep.direction} {words(sweep.objective)}", value, which, "chosen")
        )
    evaluation, honest = moment.evaluation, Markup("")
    if evaluation is not None and evaluation.honest is not None:
        honest = figure(
            f"honest {words(evaluation.metric)}", show(evaluation.honest), evaluation.protocol
        )
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
        between("caution", _caution(moment.evaluation)),
        progress,
        tag("div", *chips, class_="chips") if chips else None,
    )


def _caution(evaluation: Evaluation | None) -> Markup:
    """Return the warning beside the best score, why it is not to be reported as it is."""
    if evaluation is None or not evaluation.warnings:
        return Markup("")
    text = (
        f"{words(evaluation.metric)} {show(evaluation.naive)}: {'; '.join(evaluation.warnings)}. "
    )
    link = tag("a", "Is the best as good as it looks?", href="#bias")
    return tag("p", text, link, class_="warning")


def history_section(picture: Picture) -> Markup:
    """Show the objective of the trials, and the best so far."""
    if not picture.top:
        return section("history", "History", nothing("No trial has a result yet."))
    steps = len(picture.steps)
    note = f"Each dot is a trial; the line is the {picture.sweep.direction} so far"
    if steps > 1:
        note += f", which {steps - 1} trials have improved" if steps > 2 else ", improved once"
    beyond = sum(
        picture.axis.place(picture.objective_of(row)) in (0.0, 1.0) for row in picture.sampled
    )
    tail = " Dots on the edge are worse than the axis reaches." if beyond else ""
    drawn = tag("figure", draw_history(picture))
    return section("history", "History", drawn, note=f"{note}.{tail}")


def cost_section(picture: Picture) -> Markup:
    """Show quality against training time."""
    sweep = picture.sweep
    title = f"{words(sweep.quality).capitalize()} against {words(sweep.cost)}"
    drawn = draw_against_cost(picture)
    if drawn is None:
        none = f"The trials have no column {sweep.cost} with {sweep.quality}."
        return section("cost", title, nothing(none))
    thinned = " It is thinned out." if picture.gathered.front.thinned else ""
    note = (
        f"The stairs are the Pareto front, {len(picture.front)} "
        f"trial{'s' if len(picture.front) != 1 else ''}: none is both better and cheaper.{thinned}"
    )
    return section("cost", title, tag("figure", drawn), note=note)


def curves_section(picture: Picture) -> Markup | None:
    """Show learning curves, where trials have reported some."""
    drawn = draw_curves(picture)
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


def parallel_section(picture: Picture) -> Markup:
    """Show the trials in parallel coordinates."""
    drawn = draw_parallel(picture)
    if drawn is None:
        none = "It takes two trials and a parameter that differs."
        return section("parallel", "Parameters", nothing(none), wide=True)
    constants = ", ".join(f"{words(key)} {value}" for key, value in picture.constants.items())
    return section(
        "parallel",
        "Parameters",
        tag("div", draw_legend(picture), tag("span", "", class_="chosen-count"),
            tag("button", "clear", type="button", class_="clear", hidden=True), class_="bar"),
        tag("figure", drawn, class_="scrolls"),
        tag("p", f"For all trials: {constants}.", class_="note") if constants else None,
        note="Each line is a trial. Drag along an axis to choose a range; a click on it lets go. "
        "The other plots and the table follow.",
        wide=True,
    )  # fmt: skip


def importance_section(picture: Picture, found: Importance | None) -> Markup:
    """Show what decides the objective."""
    title = "What decides"
    if found is None:
        none = (
            f"It takes {FEWEST_TRIALS} trials with results, and parameters and results that differ."
        )
        return section("importance", title, nothing(none), wide=True)
    bars = [
        tag(
            "div",
            tag("span", words(effect.name), class_="label", title=effect.name),
            bar((effect.alone, "alone"), (effect.in_pairs / 2, "pairs")),
            tag("span", f"{effect.alone:.0%}", class_="share"),
            class_="row",
        )
        for effect in found.effects
    ]
    pairs = [
        f"{words(first)} with {words(other)} {share:.0%}"
        for first, other, share in found.pairs[:_PAIRS]
        if share >= 0.01
    ]
    told = f"Together, beyond what each does alone: {'; '.join(pairs)}." if pairs else None
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
            draw_effect(effect, found, picture.sweep.maximise))
        for effect in found.effects[:_EFFECTS]
    ]  # fmt: skip
    method = (
        f"Functional ANOVA of {TREES} regression trees (Hutter, Hoos and Leyton-Brown, 2014), over "
        f"the values that the trials took. {weak}. Results far on the worse side count as less far."
    )
    return section(
        "importance",
        title,
        warning,
        tag("div", *bars, class_="bars"),
        tag("p", told, class_="note") if told else None,
        tag("h3", f"Expected {words(picture.sweep.objective)}, whatever the other parameters are"),
        tag("div", *effects, class_="effects"),
        tag("p", method, class_="fine"),
        note=f"Share of the variance of {words(picture.sweep.objective)}, as a forest learns it "
        f"from {found.trials:,} trials, that a parameter explains alone (number, dark) and with "
        "one other (light, half of each pair).",
        wide=True,
    )
