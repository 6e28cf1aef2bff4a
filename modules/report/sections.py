"""The sections of a report: each a function from a picture to HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from diel import format_duration

from .figure import FULL, HALF, Figure
from .markup import (
    Markup,
    bar_row,
    between,
    copy_button,
    figure,
    highlight,
    join,
    section,
    show,
    table,
    tag,
    with_unit,
    words,
)
from .rows import Picture
from .sweep import REASON, TRIAL, RankAccount

if TYPE_CHECKING:
    from ..evaluation import BiasReport


def headline(picture: Picture) -> Markup:
    """Show the best result, the number of trials and the time: the head of a report."""
    sweep, bias, best = picture.sweep, picture.moment.bias, picture.best
    count, figures, chips, progress = picture.selection.count, [], [], None
    if best is not None:
        number = best.get(TRIAL)
        which = f"trial {show(number)}" if number is not None else ""
        name = f"{sweep.direction} {words(sweep.objective)}"
        figures.append(figure(name, show(best.get(sweep.objective)), which, "chosen"))
        chips = [
            tag("span", tag("span", words(name)), tag("b", show(best[name])), class_="chip")
            for name in picture.varying
            if best.get(name) is not None
        ]
    honest = Markup("")
    if bias is not None and bias.honest is not None:
        honest = figure(f"honest {words(bias.objective)}", show(bias.honest), bias.method)
    figures += [between("honest", honest), *_counts(picture)]
    if sweep.expected and sweep.expected > count:
        done = tag("i", style=f"width:{count / sweep.expected:.2%}")
        progress = tag("div", done, class_="progress")
    return join(
        tag("div", *figures, class_="figures"),
        tag("p", "No trial has a result yet.", class_="nothing") if best is None else None,
        between("caution", _caution(bias)),
        progress,
        tag("div", *chips, class_="chips") if chips else None,
    )


def _counts(picture: Picture) -> Iterator[Markup]:
    """Yield how many trials there are, how many of them are lost, and how long they took."""
    expected, selection, moment = picture.sweep.expected, picture.selection, picture.moment
    done = f"of {expected:,}" if expected else "so far"
    if expected == selection.count:
        done = "all of them"
    yield figure("trials", f"{selection.count:,}", done)
    lost = [("failed", selection.failed), ("diverged", selection.diverged)]
    yield from (figure(kind, f"{many:,}", "see below", "bad") for kind, many in lost if many)
    if selection.stopped:
        yield figure("stopped", f"{selection.stopped:,}", "early")
    if moment.elapsed_s:
        name = "time" if not moment.earlier else "time since it went on"
        rate = (selection.count - moment.earlier) / moment.elapsed_s
        about = f"{rate:,.3g} trials a second" if rate >= 1 else ""
        if 0 < rate < 1:
            about = f"{1 / rate:,.3g} s a trial"
        yield figure(name, format_duration(moment.elapsed_s), about)


def _caution(bias: BiasReport | None) -> Markup:
    """Return the warning that the best score must not be reported as it is; empty if none."""
    if bias is None or not bias.warning:
        return Markup("")
    text = f"{words(bias.objective)} {show(bias.naive)}: {bias.warning}. "
    link = tag("a", "Is the best as good as it looks?", href="#bias")
    return tag("p", text, link, class_="warning")


def figure_section(drawn: Figure) -> Markup:
    """Show a figure."""
    width = FULL if drawn.is_wide else HALF
    content = drawn.draw(width, with_unit, with_tips=False)
    return section(drawn.name, drawn.title, content, note=drawn.note, wide=drawn.is_wide)


def bias_section(report: BiasReport) -> Markup:
    """Show the naive score of the best beside the honest one."""
    of = f"best of {report.trials:,}" if report.trials else "best"
    spread = f" ± {report.spread:.2g}" if report.spread is not None else ""
    metric = words(report.objective)
    numbers = [figure(f"naive {metric}", show(report.naive), of)]
    if report.honest is not None and report.bias is not None:
        gap = "by which the best looks too good" if report.bias > 0 else "none to be seen"
        value = show(report.honest) + spread
        numbers.insert(0, figure(f"honest {metric}", value, report.method, "chosen"))
        numbers.append(figure("selection bias", f"{report.bias:.2g}", gap))
    return section(
        "bias",
        "Is the best as good as it looks?",
        tag("div", *numbers, class_="figures"),
        note="The best of many trials is partly lucky: its score was used to choose it. "
        "An honest estimate is from rows that had no part in the choice.",
        wide=True,
    )


def trials_section(picture: Picture) -> Markup | None:
    """Show the table of the best trials; None if there are none."""
    if not picture.top:
        return None
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
        body.append(tag("tr", *cells, data_row=row))
    ranking = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), class_="sortable")
    good = picture.selection.good
    which = f"The {len(picture.top)} best of {good:,}" if len(picture.top) < good else "All trials"
    return section(
        "trials", "Best trials", _filter(), tag("div", ranking, class_="scrolls tall", tabindex=0),
        note=f"{which} by {picture.sweep.direction} {words(picture.sweep.objective)}. "
        "A click on a column's head sorts by it. The filter takes words, and a column with >, >=, "
        "<, <= or = and a value.",
        wide=True,
    )  # fmt: skip


def _filter() -> Markup:
    """Return the filter of the table, which the script shows."""
    box = tag(
        "input", type="search", id="filter", placeholder="filter: relu  accuracy>0.9  rate<=0.1",
        aria_label="filter of the table", spellcheck="false",
    )  # fmt: skip
    return tag("p", box, tag("span", "", class_="filtered-count"), class_="filter", hidden=True)


def _sortable(value: Any) -> Any:
    """Return what a cell is sorted by: all digits of a float; None for the text that is shown."""
    return repr(float(value)) if isinstance(value, float) else None


def failures_section(picture: Picture) -> Markup | None:
    """Show trials without a result, by reason."""
    selection = picture.selection
    if not selection.lost:
        return None
    reasons = [[f"{many:,}", reason] for reason, many in selection.reasons.most_common()]
    names = [TRIAL, *picture.varying, REASON]
    known = [name for name in names if any(name in row for _, row in selection.failures)]
    examples = [[show(row.get(name)) for name in known] for _, row in selection.failures]
    of = f"{selection.lost:,} of {selection.count:,} trials have no result."
    if selection.diverged:
        of += (
            f" Of {selection.diverged:,} the training, or the objective, came to NaN or infinity: "
            "they diverged."
        )
    kinds = [("failed", selection.failed), ("diverged", selection.diverged)]
    title = f"Trials that {' or '.join(kind for kind, many in kinds if many)}"
    return section(
        "failures",
        title,
        table(["trials", "reason"], reasons),
        tag(
            "details",
            tag("summary", f"the first {len(examples)}"),
            tag(
                "div",
                table([words(name) for name in known], examples),
                class_="scrolls tall",
                tabindex=0,
            ),
        ),
        note=of,
        wide=True,
    )


def again_section(picture: Picture) -> Markup:
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
            tag("div", copy_button(),
                tag("pre", tag("code", highlight(sweep.workflow)), tabindex=0), class_="listing"),
            open=True,
        ) if sweep.workflow else None,
        wide=True,
    )  # fmt: skip


def model_section(picture: Picture) -> Markup | None:
    """Show where the model of the best trial is, and how to score new rows with it."""
    model = picture.sweep.model
    if not model:
        return None
    return section(
        "model",
        "New rows",
        tag("div", tag("code", model["command"]), copy_button(), class_="command"),
        tag("div", copy_button(), tag("pre", tag("code", model["python"])), class_="listing"),
        note=f"The network of the best trial, with the preparation of rows, is {model['file']}.",
        wide=True,
    )


_TRAINERS: Final = 32
_RANKS_LISTED: Final = 32
_PARTS: Final = ("working", "waiting", "communicating")


def ranks_section(accounts: Sequence[RankAccount], picture: Picture | None = None) -> Markup:
    """Show where the time of each rank went; while a run goes on, what each trainer has done."""
    title = "Where the time went"
    if not accounts:
        trainers = _trainers(picture)
        return section("ranks", title, *trainers, wide=True) if trainers else Markup("")
    keys = [tag("span", tag("i", class_=part), part) for part in _PARTS]
    if len(accounts) > _RANKS_LISTED:
        cells = [
            tag("i", title=f"{_rank_text(account)}: {_share(account, 'working'):.0%} working",
                style=f"--share:{_share(account, 'working'):.2f}")
            for account in accounts
        ]  # fmt: skip
        body = [tag("div", *cells, class_="cells")]
        rows = _by_kind(accounts)
    else:
        body, rows = [], [(_rank_text(account), [account]) for account in accounts]
    for label, group in rows:
        shares = [
            (sum(_share(account, part) for account in group) / len(group), part) for part in _PARTS
        ]
        body.append(bar_row(label, f"{shares[0][0]:.0%}{_cpu(group)}", *shares, title=label))
    return section(
        "ranks",
        title,
        tag("div", *keys, class_="keys"),
        tag("div", *body, class_="bars"),
        note="Of each rank: computing, waiting for tuples, messages or other ranks, and moving "
        "payloads. Trainers should mostly work. CPU time well below that: a wait for a core, a "
        "module that sleeps, or one that runs a program.",
        wide=True,
    )


def _trainers(picture: Picture | None) -> list[Markup]:
    trainers = picture.selection.trainers if picture is not None else {}
    if not trainers:
        return []
    ranked = sorted(trainers.items(), key=lambda entry: (str(type(entry[0])), entry[0]))
    most = max(trainers.values())
    rows = [
        bar_row(f"trainer {show(trainer)}", f"{many:,} trials", (many / most, "working"))
        for trainer, many in ranked[:_TRAINERS]
    ]
    more = len(ranked) - _TRAINERS
    tail = f" {more:,} more trainers are left out." if more > 0 else ""
    return [
        tag("div", *rows, class_="bars"),
        tag("p", f"Each trainer, by trials.{tail} The account of all ranks comes with the end of "
            "the run.", class_="fine"),
    ]  # fmt: skip


def _rank_text(account: RankAccount) -> str:
    ran = ", ".join(account.copies[:2]) or "nothing"
    more = len(account.copies) - 2
    tail = f" and {more} more" if more > 0 else ""
    return f"rank {account.rank} on {account.host}: {ran}{tail}"


def _share(account: RankAccount, part: str) -> float:
    whole = account.working_s + account.waiting_s + account.communicating_s
    spent: float = getattr(account, f"{part}_s")
    return spent / whole if whole else 0.0


def _cpu(accounts: Sequence[RankAccount]) -> str:
    wall_s = sum(
        account.working_s + account.waiting_s + account.communicating_s for account in accounts
    )
    known_s = [account.cpu_s for account in accounts if account.cpu_s is not None]
    return f", CPU {sum(known_s) / wall_s:.0%}" if known_s and wall_s else ""


def _by_kind(accounts: Sequence[RankAccount]) -> list[tuple[str, list[RankAccount]]]:
    """Group the ranks on which copies of the same modules ran."""
    kinds: dict[str, list[RankAccount]] = {}
    for account in accounts:
        names = sorted({copy.rpartition(".")[0] or copy for copy in account.copies})
        kinds.setdefault(", ".join(names) or "nothing", []).append(account)
    return [(f"{len(group):,} ranks: {kind}", group) for kind, group in kinds.items()]
