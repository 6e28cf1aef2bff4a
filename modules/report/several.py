"""One report over several sweeps of the same objective: one HTML file that opens anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping

from diel import format_value

from .markup import Markup, join, section, show, table, tag, with_unit, words
from .page import document
from .picture import Picture
from .plot import LinearScale, LogScale, Plot, Scale, dots, focus, is_logarithmic, stairs
from .sweep import TRIAL

_WIDTH = 1140.0
_HEIGHT = 360.0
_COLOURS = 7


def comparison_page(pictures: Mapping[str, Picture], written: str = "") -> str:
    """Return a report over several sweeps, by their names, as HTML.

    Their objectives and directions are the same.
    """
    first = next(iter(pictures.values())).sweep
    better = first.direction
    keys = [
        tag("span", tag("i", class_=f"key r{number % _COLOURS}"), name)
        for number, name in enumerate(pictures)
    ]
    content = [
        tag(
            "header",
            tag(
                "div",
                tag("h1", f"{len(pictures)} sweeps: {better} {words(first.objective)}"),
                tag("button", "dark", type="button", id="theme", hidden=True),
                class_="title",
            ),
            tag("div", *keys, class_="keys"),
        ),
        _best_section(pictures),
        section("history", "History", tag("figure", _draw_history(pictures)), wide=True,
                note=f"The {better} {words(first.objective)} so far."),
        _front_section(pictures),
        _parameters_section(pictures),
        tag("footer", f"Written {written}." if written else ""),
    ]  # fmt: skip
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


def _draw_history(pictures: Mapping[str, Picture]) -> Markup:
    first = next(iter(pictures.values())).sweep
    values = [
        picture.objective_of(row) for picture in pictures.values() for row in picture.steps
    ] or [0.0]
    most = max(picture.gathered.count for picture in pictures.values())
    plot = Plot(
        _WIDTH, _HEIGHT, LinearScale(0.0, float(max(1, most))), focus(values, first.maximise),
        "trials, in order of completion", with_unit(first.objective),
    )  # fmt: skip
    lines = []
    for number, picture in enumerate(pictures.values()):
        points = [
            at
            for row in picture.steps
            if (at := plot.at(picture.orders[row] + 1, picture.objective_of(row)))
        ]
        end = plot.at(picture.gathered.count, values[0])
        lines.append(stairs(points, end[0] if end else 0.0, f"run-line r{number % _COLOURS}"))
    return plot.draw(*lines, label=f"{first.direction} {first.objective} so far, of each sweep")


def _front_section(pictures: Mapping[str, Picture]) -> Markup | None:
    """Draw the fronts of quality against cost; None if no sweep has one."""
    first = next(iter(pictures.values())).sweep
    fronts = {
        name: [pair for row in picture.front if (pair := picture.against_cost.get(row))]
        for name, picture in pictures.items()
    }
    pairs = [pair for front in fronts.values() for pair in front]
    if not pairs:
        return None
    costs = [cost for cost, _ in pairs]
    x: Scale = LinearScale(min(0.0, *costs), max(0.0, *costs) * 1.03 or 1.0)
    if is_logarithmic(costs):
        x = LogScale(min(costs) * 0.9, max(costs) * 1.1)
    y = focus([quality for _, quality in pairs], first.maximise_quality)
    plot = Plot(_WIDTH, _HEIGHT, x, y, with_unit(first.cost), with_unit(first.quality))
    drawn = []
    for number, front in enumerate(fronts.values()):
        places = [at for pair in front if (at := plot.at(*pair)) is not None]
        style = f"r{number % _COLOURS}"
        end = max((across for across, _ in places), default=0.0)
        drawn.append(stairs(places, end, f"run-line {style}"))
        drawn.append(dots([(0, *at) for at in places], f"run-dots {style}"))
    label = f"fronts of {words(first.quality)} against {words(first.cost)}, of each sweep"
    return section(
        "cost",
        f"{words(first.quality).capitalize()} against {words(first.cost)}",
        tag("figure", plot.draw(join(*drawn), label=label, kind="several")),
        note="Of each sweep the Pareto front: none of its trials is both better and cheaper.",
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
