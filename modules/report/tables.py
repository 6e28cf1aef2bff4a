"""The tables of a report: the best trials, the failed ones, the selection bias, how to repeat."""

from __future__ import annotations

from typing import Any

from .parts import copy_button, figure, nothing, section, table
from .picture import Picture
from .sweep import Evaluation
from .toml_text import highlight
from .wording import Markup, show, tag, words


def bias(evaluation: Evaluation) -> Markup:
    """Show the naive score of the best beside the honest one."""
    of = f"best of {evaluation.trials:,}" if evaluation.trials else "best"
    spread = f" ± {evaluation.spread:.2g}" if evaluation.spread is not None else ""
    metric = words(evaluation.metric)
    numbers = [figure(f"naive {metric}", show(evaluation.naive), of)]
    if evaluation.honest is not None and evaluation.bias is not None:
        gap = "by which the best looks too good" if evaluation.bias > 0 else "none to be seen"
        value = show(evaluation.honest) + spread
        numbers.insert(0, figure(f"honest {metric}", value, evaluation.protocol, "chosen"))
        numbers.append(figure("selection bias", f"{evaluation.bias:.2g}", gap))
    figures = tag("div", *numbers, class_="figures")
    folds = [
        [str(number + 1), show(naive), show(honest)]
        for number, (naive, honest) in enumerate(evaluation.folds)
    ]
    return section(
        "bias",
        "Is the best as good as it looks?",
        *(tag("p", warning, class_="warning") for warning in evaluation.warnings),
        figures,
        table(["outer fold", f"naive {metric}", f"honest {metric}"], folds) if folds else None,
        note="The best of many trials is partly lucky: its score was used to choose it. "
        "An honest estimate is from rows that had no part in the choice.",
        wide=True,
    )


def trials(picture: Picture) -> Markup:
    """Show the table of the best trials."""
    if not picture.top:
        return section("trials", "Best trials", nothing("None yet."), wide=True)
    columns = picture.columns()
    heads = [tag("th", "#", data_kind="number", aria_sort="ascending")]
    for name in columns:
        numbers = picture.numbers(name, picture.top)
        kind = "number" if len(numbers) == len(picture.top) else "word"
        style = "chosen" if name == picture.sweep.objective else None
        heads.append(tag("th", words(name), data_kind=kind, class_=style, title=name))
    body = []
    for rank, row in enumerate(picture.top, start=1):
        cells = [tag("td", str(rank))]
        for name in columns:
            value = picture.rows[row].get(name)
            style = "chosen" if name == picture.sweep.objective else None
            cells.append(tag("td", show(value), data_v=_sortable(value), class_=style))
        body.append(tag("tr", *cells, data_i=row))
    ranking = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), class_="sortable")
    good = picture.gathered.good
    which = f"The {len(picture.top)} best of {good:,}" if len(picture.top) < good else "All trials"
    return section(
        "trials", "Best trials", tag("div", ranking, class_="scrolls tall"),
        note=f"{which} by {picture.sweep.direction} {words(picture.sweep.objective)}. "
        "A click on a column's head sorts by it.",
        wide=True,
    )  # fmt: skip


def _sortable(value: Any) -> Any:
    """Return what a cell is sorted by: the whole number where fewer digits are shown."""
    return repr(float(value)) if isinstance(value, float) else None


def failures(picture: Picture) -> Markup | None:
    """Show trials without a result, by reason."""
    gathered = picture.gathered
    if not gathered.lost:
        return None
    reasons = [[f"{many:,}", reason] for reason, many in gathered.reasons.most_common()]
    names = [picture.sweep.trial, *picture.varying, picture.sweep.reason]
    known = [name for name in names if any(name in row for _, row in gathered.failures)]
    examples = [[show(row.get(name)) for name in known] for _, row in gathered.failures]
    of = f"{gathered.lost:,} of {gathered.count:,} trials have no result."
    if gathered.diverged:
        of += (
            f" Of {gathered.diverged:,} the training, or the objective, came to NaN or infinity: "
            "they diverged."
        )
    kinds = [("failed", gathered.failed), ("diverged", gathered.diverged)]
    title = f"Trials that {' or '.join(kind for kind, many in kinds if many)}"
    return section(
        "failures",
        title,
        table(["trials", "reason"], reasons),
        tag(
            "details",
            tag("summary", f"the first {len(examples)}"),
            tag("div", table([words(name) for name in known], examples), class_="scrolls tall"),
        ),
        note=of,
        wide=True,
    )


def again(picture: Picture) -> Markup:
    """Show how to repeat the sweep: the command, the workflow file, what it ran on."""
    sweep = picture.sweep
    facts = [[tag("b", name), value] for name, value in sweep.facts.items()]
    command = None
    if sweep.command:
        command = tag("div", tag("code", sweep.command), copy_button(), class_="command")
    return section(
        "again",
        "How to repeat it",
        command,
        table([], facts, "facts") if facts else None,
        tag(
            "details",
            tag("summary", "the workflow file"),
            tag("div", copy_button(), tag("pre", tag("code", highlight(sweep.workflow))),
                class_="listing"),
            open=True,
        ) if sweep.workflow else None,
        wide=True,
    )  # fmt: skip
