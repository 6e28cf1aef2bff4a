"""Reports as HTML pages, on one sweep or several: files that load nothing and need no network."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from diel import format_duration, format_value

from ..trial import OUT_OF_TIME
from .comparison import comparison_figures
from .data import INFEASIBLE, REASON, TRIAL, RankAccount, RowSelection, SweepView
from .figure import FULL, HALF, Figure
from .figures import figures_of
from .importance import Importance, importance
from .markup import (
    Markup,
    as_number,
    asset,
    bar_row,
    between,
    copy_button,
    figure,
    highlight,
    join,
    marks,
    section,
    show,
    table,
    tag,
    with_unit,
    words,
)

if TYPE_CHECKING:
    from ..evaluation import BiasReport

_OF_BIAS: Final = ("bias", "honest", "caution")
"""Regions of a report that show the selection bias."""
_LEARN_AGAIN: Final = 1.5
"""Importances are computed again when there are so many times as many trials."""
_TRAINERS: Final = 32
_RANKS_LISTED: Final = 32
_PARTS: Final = ("working", "waiting", "communicating")


def analyse(view: SweepView) -> Importance | None:
    """Return the importance of parameters, from the sampled trials; None if it is not known.

    It does not depend on the order in which the trials were finished.
    """
    names, rows = view.sweep.parameters, view.by_number(view.sampled)
    points = [{name: view.rows[row].get(name) for name in names} for row in rows]
    objective = [view.objective_of(row) for row in rows]
    return importance(points, objective, view.sweep.maximise)


class GrowingImportance:
    """The importance of parameters in a sweep that goes on, learned again as it grows."""

    def __init__(self) -> None:
        self._found: Importance | None = None
        self._learned_from = 0

    def of(self, view: SweepView, *, at_once: bool = False) -> Importance | None:
        """Return it as of a view, or an earlier one with not many fewer trials unless `at_once`."""
        good = view.selection.good
        if at_once or good >= _LEARN_AGAIN * self._learned_from:
            self._found, self._learned_from = analyse(view), good
        return self._found


def page(view: SweepView, found: Importance | None) -> str:
    """Return the report as HTML; `found` is from `analyse`, of this view or an earlier one.

    All that came from outside is escaped, and the page forbids itself by its content security
    policy to run any script but its own or to load anything.
    """
    sweep, moment = view.sweep, view.moment
    header = tag(
        "header",
        _title(
            sweep.name,
            between("state", _state(moment.state)),
            tag("span", sweep.about, class_="about") if sweep.about else None,
        ),
        _headline(view),
    )
    content = [
        header,
        between("live", _live(moment.reload_s)),
        *map(_figure_section, figures_of(view, found).values()),
        between("bias", _bias_section(moment.bias) if moment.bias is not None else Markup("")),
        _trials_section(view),
        _failures_section(view),
        between("ranks", _ranks_section(moment.accounts, view)),
        _model_section(view),
        _again_section(view),
        _footer(view),
    ]  # fmt: skip
    return document(f"{sweep.name}: report", content, _data(view))


def _title(name: str, *about: str | None) -> Markup:
    theme = tag("button", "dark", type="button", id="theme", hidden=True)
    return tag("div", tag("h1", name), *about, theme, class_="title")


def document(title: str, content: Sequence[str | None], data: str) -> str:
    """Return an HTML page with our style and script; `data` is the JSON that the script reads."""
    script = asset("figures.js") + asset("report.js")
    style = asset("report.css") + asset("figures.css")
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = join(
        tag("main", *content),
        tag("script", Markup(data), type="application/json", id="data"),
        tag("script", Markup(script)),
    )
    whole = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def concluded(document: str, state: str, accounts: Sequence[RankAccount]) -> str:
    """Return a report with the state in which its run has ended, and the times of its ranks.

    Without accounts, the section on ranks stays as it is. A ValueError if the document is no
    report.
    """
    document = _replaced(document, "state", _state(state))
    document = _replaced(document, "live", Markup(""))
    return _replaced(document, "ranks", _ranks_section(accounts)) if accounts else document


def with_bias_of(document: str, earlier: str) -> str:
    """Return a report with the selection bias that an earlier report shows, if it shows any.

    A ValueError if one of the documents is no report.
    """
    start, end = _region(earlier, "bias")
    if start == end:
        return document
    for name in _OF_BIAS:
        if marks(name)[0] in earlier:  # an old report has no caution
            start, end = _region(earlier, name)
            document = _replaced(document, name, Markup(earlier[start:end]))
    return document


def _replaced(document: str, name: str, content: Markup) -> str:
    start, end = _region(document, name)
    return document[:start] + content + document[end:]


def _region(document: str, name: str) -> tuple[int, int]:
    first, last = marks(name)
    start, end = document.find(first), document.find(last)
    if start < 0 or end < start:
        raise ValueError("this is no report of a sweep")
    return start + len(first), end


def _state(state: str) -> Markup:
    return tag("span", state, class_=f"state {state}")


def _live(reload_s: float | None) -> Markup:
    if reload_s is None:
        return Markup("")
    box = tag("input", type="checkbox", id="reload", checked=True)
    label = tag("label", box, f" read again every {reload_s:g} s")
    return tag("p", label, class_="note live", hidden=True)


def _footer(view: SweepView) -> Markup:
    selection = view.selection
    if selection.shows_all:
        shown = f"All {view.trials_text} with a result are shown."
    else:
        shown = (
            f"Of {selection.good:,} trials with a result {len(view.rows):,} are shown: the "
            f"{len(view.top)} best, those that improved the best, the Pareto front and "
            f"{len(view.sampled):,} by chance, from which the importances are learned. "
            "Counts, the best and the front are of all."
        )
    if len(view.lines) < len(view.sampled):
        shown += f" {len(view.lines):,} of them are drawn as lines."
    when = f"Written {view.moment.written}. " if view.moment.written else ""
    return tag("footer", f"{when}{shown} Every trial is in results.csv, beside this file.")


def _data(view: SweepView) -> str:
    columns = view.columns()
    data = {
        "names": [words(name) for name in columns],
        "keys": columns,
        "objective": view.sweep.objective,
        "reload_s": view.moment.reload_s,
        "rows": [view.cells(row, columns) for row in range(len(view.rows))],
        "numbers": [
            all(as_number(row.get(name)) is not None for row in view.rows) for name in columns
        ],
    }
    # "<" cannot end the script element then, nor begin a comment.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: str) -> str:
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


# -- sections -------------------------------------------------------------------------------------


def _headline(view: SweepView) -> Markup:
    """Show the best result, the number of trials and the time: the head of a report."""
    sweep, bias, best = view.sweep, view.moment.bias, view.best
    count, figures, chips, progress = view.selection.count, [], [], None
    if best is not None:
        number = best.get(TRIAL)
        which = f"trial {show(number)}" if number is not None else ""
        name = f"{sweep.direction} {words(sweep.objective)}"
        figures.append(figure(name, show(best.get(sweep.objective)), which, "chosen"))
        chips = [
            tag("span", tag("span", words(name)), tag("b", show(best[name])), class_="chip")
            for name in view.varying
            if best.get(name) is not None
        ]
    honest = Markup("")
    if bias is not None and bias.honest is not None:
        honest = figure(f"honest {words(bias.objective)}", show(bias.honest), bias.method)
    figures += [between("honest", honest), *_counts(view)]
    if sweep.expected and sweep.expected > count:
        done = tag("i", style=f"width:{count / sweep.expected:.2%}")
        progress = tag("div", done, class_="progress")
    nothing = "No trial has a result yet."
    if view.selection.infeasible:
        nothing = "No trial keeps the constraints."
    return join(
        tag("div", *figures, class_="figures"),
        tag("p", nothing, class_="nothing") if best is None else None,
        between("caution", _caution(bias)),
        progress,
        tag("div", *chips, class_="chips") if chips else None,
    )


def _counts(view: SweepView) -> Iterator[Markup]:
    """Yield how many trials there are, how many of them are lost, and how long they took."""
    expected, selection, moment = view.sweep.expected, view.selection, view.moment
    done = f"of {expected:,}" if expected else "so far"
    if expected == selection.count:
        done = "all of them"
    yield figure("trials", f"{selection.count:,}", done)
    lost = _lost(selection)
    yield from (figure(kind, f"{many:,}", "see below", "bad") for kind, many in lost if many)
    if selection.stopped:
        yield figure("stopped", f"{selection.stopped:,}", "early")
    if selection.out_of_time:
        yield figure(OUT_OF_TIME, f"{selection.out_of_time:,}", "count with their best")
    if moment.elapsed_s:
        name = "time" if not moment.earlier else "time since it went on"
        rate = (selection.count - moment.earlier) / moment.elapsed_s
        about = f"{rate:,.3g} trials a second" if rate >= 1 else ""
        if 0 < rate < 1:
            about = f"{1 / rate:,.3g} s a trial"
        yield figure(name, format_duration(moment.elapsed_s), about)


def _lost(selection: RowSelection) -> list[tuple[str, int]]:
    """Return how many trials do not count, by the word for why."""
    return [
        ("failed", selection.failed),
        ("diverged", selection.diverged),
        (INFEASIBLE, selection.infeasible),
    ]


def _caution(bias: BiasReport | None) -> Markup:
    """Return the warning that the best score must not be reported as it is; empty if none."""
    if bias is None or not bias.warning:
        return Markup("")
    text = f"{words(bias.objective)} {show(bias.naive)}: {bias.warning}. "
    link = tag("a", "Is the best as good as it looks?", href="#bias")
    return tag("p", text, link, class_="warning")


def _figure_section(drawn: Figure) -> Markup:
    """Show a figure."""
    width = FULL if drawn.is_wide else HALF
    content = drawn.draw(width, with_unit, with_tips=False)
    return section(drawn.name, drawn.title, content, note=drawn.note, wide=drawn.is_wide)


def _bias_section(report: BiasReport) -> Markup:
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


def _trials_section(view: SweepView) -> Markup | None:
    """Show the table of the best trials; None if there are none."""
    if not view.top:
        return None
    columns = view.columns()
    heads = [tag("th", "#", data_kind="number", aria_sort="ascending")]
    for name in columns:
        numbers = view.numbers(name, view.top)
        kind = "number" if len(numbers) == len(view.top) else "word"
        style = "chosen" if name == view.sweep.objective else None
        heads.append(tag("th", words(name), data_kind=kind, class_=style, title=name))
    body = []
    for rank, row in enumerate(view.top, start=1):
        cells = [tag("td", str(rank))]
        for name in columns:
            value = view.rows[row].get(name)
            style = "chosen" if name == view.sweep.objective else None
            cells.append(tag("td", show(value), data_v=_sortable(value), class_=style))
        body.append(tag("tr", *cells, data_row=row))
    ranking = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), class_="sortable")
    good = view.selection.good
    which = f"The {len(view.top)} best of {good:,}" if len(view.top) < good else "All trials"
    return section(
        "trials", "Best trials", _filter(), tag("div", ranking, class_="scrolls tall", tabindex=0),
        note=f"{which} by {view.sweep.direction} {words(view.sweep.objective)}. "
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


def _failures_section(view: SweepView) -> Markup | None:
    """Show trials without a result, by reason."""
    selection = view.selection
    if not selection.lost:
        return None
    reasons = [[f"{many:,}", reason] for reason, many in selection.reasons.most_common()]
    names = [TRIAL, *view.varying, REASON]
    known = [name for name in names if any(name in row for _, row in selection.failures)]
    examples = [[show(row.get(name)) for name in known] for _, row in selection.failures]
    of = f"{selection.lost:,} of {selection.count:,} trials have no result"
    of += " that counts." if selection.infeasible else "."
    if selection.diverged:
        of += (
            f" Of {selection.diverged:,} the training, or the objective, came to NaN or infinity: "
            "they diverged."
        )
    if selection.infeasible:
        subject = "They" if selection.infeasible == selection.lost else f"{selection.infeasible:,}"
        of += f" {subject} break a constraint: they are infeasible."
    kinds = [kind for kind, many in _lost(selection) if many]
    kinds = ["are infeasible" if kind == INFEASIBLE else kind for kind in kinds]
    title = f"Trials that {' or '.join(kinds)}"
    return section(
        "failures",
        title,
        table(["trials", "reason"], reasons, "facts"),
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


def _again_section(view: SweepView) -> Markup:
    """Show how to repeat the sweep: the command, the workflow file, what it ran on."""
    sweep = view.sweep
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


def _model_section(view: SweepView) -> Markup | None:
    """Show where the model of the best trial is, and how to score new rows with it."""
    model = view.sweep.model
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


def _ranks_section(accounts: Sequence[RankAccount], view: SweepView | None = None) -> Markup:
    """Show where the time of each rank went; while a run goes on, what each trainer has done."""
    title = "Where the time went"
    if not accounts:
        trainers = _trainers(view)
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


def _trainers(view: SweepView | None) -> list[Markup]:
    trainers = view.selection.trainers if view is not None else {}
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


# -- several sweeps -------------------------------------------------------------------------------


def comparison_page(views: Mapping[str, SweepView], written: str = "") -> str:
    """Return a report over several sweeps, by their names, as HTML.

    Their objectives and directions are the same.
    """
    first = next(iter(views.values())).sweep
    content = [
        tag(
            "header",
            _title(f"{len(views)} sweeps: {first.direction} {words(first.objective)}"),
        ),
        _best_section(views),
        *map(_figure_section, comparison_figures(views).values()),
        _parameters_section(views),
        tag("footer", f"Written {written}." if written else ""),
    ]
    # The script expects the rows that a report of one sweep has: here there are none.
    data = json.dumps({"names": [], "keys": [], "objective": "", "reload_s": None, "rows": []})
    return document(f"{len(views)} sweeps: report", content, data)


def _best_section(views: Mapping[str, SweepView]) -> Markup:
    first = next(iter(views.values())).sweep
    rows = []
    for name, view in views.items():
        selection, best = view.selection, view.best or {}
        lost = f", {selection.lost:,} without a result" if selection.lost else ""
        spent = view.numbers(first.cost, view.top[:1])
        rows.append(
            [
                name,
                show(best.get(first.objective)),
                show(best.get(TRIAL)),
                f"{selection.count:,}{lost}",
                show(spent[0]) if spent else "–",
            ]
        )
    heads = ["run", words(first.objective), "trial", "trials", with_unit(first.cost)]
    return section(
        "best",
        "The best of each",
        tag("div", table(heads, rows), class_="scrolls", tabindex=0),
        wide=True,
    )


def _parameters_section(views: Mapping[str, SweepView]) -> Markup:
    names = dict.fromkeys(name for view in views.values() for name in view.sweep.parameters)
    rows = []
    for name in names:
        cells = []
        for view in views.values():
            if name not in view.sweep.parameters:
                cells.append("no such parameter")
                continue
            best = show((view.best or {}).get(name))
            cells.append(f"{best} of {_range_of(view, name)}")
        rows.append([words(name), *cells])
    return section(
        "parameters",
        "Parameters",
        tag("div", table(["", *views], rows), class_="scrolls", tabindex=0),
        note="Of the best trial, and what the sweep has tried.",
        wide=True,
    )


def _range_of(view: SweepView, name: str) -> str:
    """Return the range or the values of a parameter that a sweep has tried, as text."""
    places = range(len(view.rows))
    numbers = view.numbers(name, places)
    if numbers and len(numbers) == len(view.rows) and min(numbers) < max(numbers):
        return f"{show(min(numbers))} to {show(max(numbers))}"
    values = dict.fromkeys(show(row.get(name)) for row in view.rows)
    return format_value(", ".join(values), longest=60)
