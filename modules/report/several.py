"""One report over several sweeps of the same objective: one HTML file that opens anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping

from diel import format_value

from .figures import comparison_figures
from .markup import Markup, section, show, table, tag, with_unit, words
from .page import document
from .picture import Picture
from .sections import figure_section
from .sweep import TRIAL


def comparison_page(pictures: Mapping[str, Picture], written: str = "") -> str:
    """Return a report over several sweeps, by their names, as HTML.

    Their objectives and directions are the same.
    """
    first = next(iter(pictures.values())).sweep
    better = first.direction
    content = [
        tag(
            "header",
            tag(
                "div",
                tag("h1", f"{len(pictures)} sweeps: {better} {words(first.objective)}"),
                tag("button", "dark", type="button", id="theme", hidden=True),
                class_="title",
            ),
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
        gathered, best = picture.gathered, picture.best or {}
        lost = f", {gathered.lost:,} without a result" if gathered.lost else ""
        spent = picture.numbers(first.cost, picture.top[:1])
        rows.append(
            [
                name,
                show(best.get(first.objective)),
                show(best.get(TRIAL)),
                f"{gathered.count:,}{lost}",
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
