"""Reports as HTML pages, on one sweep or several: files that load nothing and need no network."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from diel import format_value

from .figures import comparison_figures, figures_of
from .importance import Importance, importance
from .markup import (
    Markup,
    as_number,
    asset,
    between,
    join,
    marks,
    section,
    show,
    table,
    tag,
    with_unit,
    words,
)
from .rows import Picture
from .sections import (
    again_section,
    bias_section,
    failures_section,
    figure_section,
    headline,
    model_section,
    ranks_section,
    trials_section,
)
from .sweep import TRIAL, RankAccount

_OF_BIAS: Final = ("bias", "honest", "caution")
"""Regions of a report that show the selection bias."""


def analyse(picture: Picture) -> Importance | None:
    """Return the importance of parameters, from the sampled trials; None if it is not known.

    It does not depend on the order in which the trials were finished.
    """
    names, rows = picture.sweep.parameters, picture.by_number(picture.sampled)
    points = [{name: picture.rows[row].get(name) for name in names} for row in rows]
    objective = [picture.objective_of(row) for row in rows]
    return importance(points, objective, picture.sweep.maximise)


def page(picture: Picture, found: Importance | None) -> str:
    """Return the report as HTML; `found` is from `analyse`, of this picture or an earlier one.

    All that came from outside is escaped, and the page forbids itself by its content security
    policy to run any script but its own or to load anything.
    """
    sweep, moment = picture.sweep, picture.moment
    header = tag(
        "header",
        _title(
            sweep.name,
            between("state", _state(moment.state)),
            tag("span", sweep.about, class_="about") if sweep.about else None,
        ),
        headline(picture),
    )
    content = [
        header,
        between("live", _live(moment.reload_s)),
        *map(figure_section, figures_of(picture, found).values()),
        between("bias", bias_section(moment.bias) if moment.bias is not None else Markup("")),
        trials_section(picture),
        failures_section(picture),
        between("ranks", ranks_section(moment.accounts, picture)),
        model_section(picture),
        again_section(picture),
        _footer(picture),
    ]  # fmt: skip
    return document(f"{sweep.name}: report", content, _data(picture))


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
    return _replaced(document, "ranks", ranks_section(accounts)) if accounts else document


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


def _footer(picture: Picture) -> Markup:
    selection = picture.selection
    if selection.shows_all:
        shown = f"All {picture.trials_text} with a result are shown."
    else:
        shown = (
            f"Of {selection.good:,} trials with a result {len(picture.rows):,} are shown: the "
            f"{len(picture.top)} best, those that improved the best, the Pareto front and "
            f"{len(picture.sampled):,} by chance, from which the importances are learned. "
            "Counts, the best and the front are of all."
        )
    if len(picture.lines) < len(picture.sampled):
        shown += f" {len(picture.lines):,} of them are drawn as lines."
    when = f"Written {picture.moment.written}. " if picture.moment.written else ""
    return tag("footer", f"{when}{shown} Every trial is in results.csv, beside this file.")


def _data(picture: Picture) -> str:
    columns = picture.columns()
    data = {
        "names": [words(name) for name in columns],
        "keys": columns,
        "objective": picture.sweep.objective,
        "reload_s": picture.moment.reload_s,
        "rows": [picture.cells(row, columns) for row in range(len(picture.rows))],
        "numbers": [
            all(as_number(row.get(name)) is not None for row in picture.rows) for name in columns
        ],
    }
    # "<" cannot end the script element then, nor begin a comment.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: str) -> str:
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


# -- several sweeps -------------------------------------------------------------------------------


def comparison_page(pictures: Mapping[str, Picture], written: str = "") -> str:
    """Return a report over several sweeps, by their names, as HTML.

    Their objectives and directions are the same.
    """
    first = next(iter(pictures.values())).sweep
    content = [
        tag(
            "header",
            _title(f"{len(pictures)} sweeps: {first.direction} {words(first.objective)}"),
        ),
        _best_section(pictures),
        *map(figure_section, comparison_figures(pictures).values()),
        _parameters_section(pictures),
        tag("footer", f"Written {written}." if written else ""),
    ]
    # The script expects the rows that a report of one sweep has: here there are none.
    data = json.dumps({"names": [], "keys": [], "objective": "", "reload_s": None, "rows": []})
    return document(f"{len(pictures)} sweeps: report", content, data)


def _best_section(pictures: Mapping[str, Picture]) -> Markup:
    first = next(iter(pictures.values())).sweep
    rows = []
    for name, picture in pictures.items():
        selection, best = picture.selection, picture.best or {}
        lost = f", {selection.lost:,} without a result" if selection.lost else ""
        spent = picture.numbers(first.cost, picture.top[:1])
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


def _parameters_section(pictures: Mapping[str, Picture]) -> Markup:
    names = dict.fromkeys(
        name for picture in pictures.values() for name in picture.sweep.parameters
    )
    rows = []
    for name in names:
        cells = []
        for picture in pictures.values():
            if name not in picture.sweep.parameters:
                cells.append("no such parameter")
                continue
            best = show((picture.best or {}).get(name))
            cells.append(f"{best} of {_range_of(picture, name)}")
        rows.append([words(name), *cells])
    return section(
        "parameters",
        "Parameters",
        tag("div", table(["", *pictures], rows), class_="scrolls", tabindex=0),
        note="Of the best trial, and what the sweep has tried.",
        wide=True,
    )


def _range_of(picture: Picture, name: str) -> str:
    """Return the range or the values of a parameter that a sweep has tried, as text."""
    places = range(len(picture.rows))
    numbers = picture.numbers(name, places)
    if numbers and len(numbers) == len(picture.rows) and min(numbers) < max(numbers):
        return f"{show(min(numbers))} to {show(max(numbers))}"
    values = dict.fromkeys(show(row.get(name)) for row in picture.rows)
    return format_value(", ".join(values), longest=60)
