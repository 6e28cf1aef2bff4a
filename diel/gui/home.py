"""The first page: the runs of the folder, and its workflow files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from nicegui import run, ui

from diel.errors import ConditionError
from diel.gui.compose_files import NEW_SWEEP
from diel.gui.processes import in_words_of_the_page
from diel.gui.site import Site, address, button, frame, page, printable
from diel.run.json_values import is_number
from diel.run.listing import (
    ListedRun,
    choose,
    common_objective,
    listed,
    parameter_columns,
    shown_best,
)
from diel.run.scores import ScoreReader
from diel.text import format_duration, format_value

_LOOK_EVERY_S: Final = 2.0
_MARKS: Final = {
    "running": "▶",
    "finished": "✓",
    "failed": "✗",
    "stopped": "■",
    "killed": "✗",
    "never started": "·",
    "damaged": "!",
}
_Found: TypeAlias = "tuple[list[ListedRun], list[dict[str, Any]]]"
_EXAMPLE: Final = 'dt < 0.1 and state == "finished"'
_LINK: Final = '<q-td :props="props"><a :href="props.row.link || null">{{ props.value }}</a></q-td>'
_CHOOSE: Final = (
    '<q-checkbox v-model="props.selected" dense :aria-label="`choose ${props.row.folder}`" />'
)
_OF_PARAMETER: Final = "parameter "
"""What the names of the columns of parameters begin with."""
_SORTED: Final = ("duration", "best")
"""Columns that are sorted by other values than the texts that they show, before parameters."""
_STATE: Final = (
    '<q-td :props="props"><span :class="\'diel-state diel-\' + props.row.kind">'
    "{{ props.row.mark }} {{ props.value }}</span></q-td>"
)


def add_pages(site: Site) -> None:
    """Add the first page, which lists runs and workflow files."""
    listing = _Listing(site)

    @page("/")
    async def home() -> None:
        with frame(site, "Runs"):
            with ui.element("p").classes("diel-begin") as begin:
                ui.label("Nothing has run here yet:")
                ui.link("compose a sweep", address("/compose", new=NEW_SWEEP))
                ui.link("or an empty workflow", address("/compose"))
            begin.set_visibility(False)
            runs = _RunTable(site)
            ui.label("Workflow files").props('role="heading" aria-level="2"').classes(
                "diel-heading"
            )
            files = _table(
                "Workflow files",
                [_column("file", "file"), _column("folder", "folder")],
                "No workflow file in this folder yet: Compose begins one, or copies an example.",
            )
            files.add_slot("body-cell-file", _LINK)

            async def look() -> None:
                found = await listing.latest()
                if found is None:  # if the server ends
                    return
                begin.set_visibility(not found[0])
                runs.show(found[0])
                if files.rows != found[1]:
                    files.rows = found[1]

            ui.timer(_LOOK_EVERY_S, look)


class _RunTable:
    """The table of runs in one browser, with a field that chooses some of them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._runs: list[ListedRun] = []
        with ui.element("div").classes("diel-table-bar"):
            self._where = ui.input("only runs of which this is true", placeholder=_EXAMPLE)
            self._where.props("dense outlined clearable debounce=300").classes("diel-where")
            self._where.on_value_change(lambda: self.show(self._runs))
            self._count = ui.label("").classes("diel-count").props('role="status"')
            self._differ = button("What differs", "difference", self._open_differences)
            self._differ.tooltip("between two runs that are chosen in the table")
            self._differ.set_enabled(False)
        self._table = _table(
            "Runs", [], "No run yet: compose a workflow and start it, or say diel run FILE."
        )
        self._table.selection = "multiple"
        self._table.on_select(self._take_selection)
        self._table.add_slot("header-selection", "compare")
        self._table.add_slot("body-selection", _CHOOSE)
        self._table.add_slot("body-cell-workflow", _LINK)
        self._table.add_slot("body-cell-state", _STATE)

    def show(self, runs: list[ListedRun]) -> None:
        """Show the runs that are chosen; all of them where the condition is wrong."""
        self._runs, chosen = runs, runs
        text, self._where.error = str(self._where.value or "").strip(), None
        try:
            chosen = choose(runs, text) if text else runs
        except ConditionError as error:
            self._where.error = printable(str(error))
        self._count.text = f"{len(chosen)} of {len(runs)}" if len(chosen) < len(runs) else ""
        columns, rows = run_table(self._site, chosen)
        if self._table.columns != columns:
            self._table.columns = columns
        if self._table.rows != rows:
            self._table.rows = rows
            keys = {row["key"] for row in rows}
            self._table.selected = [row for row in self._table.selected if row["key"] in keys]
            self._take_selection()

    def _take_selection(self) -> None:
        self._differ.set_enabled(len(self._table.selected) == 2)

    def _open_differences(self) -> None:
        chosen = [("path", row["folder"]) for row in self._table.selected]
        ui.navigate.to(f"/differences?{urlencode(chosen)}")


class _Listing:
    """The runs, and the rows of workflow files, read once for all browsers that show them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._scores = ScoreReader()
        self._reading: asyncio.Future[_Found | None] | None = None
        self._ended_s = 0.0

    async def latest(self) -> _Found | None:
        """Return runs and rows of files, read anew if they are old; None if the server ends."""
        is_old = time.monotonic() - self._ended_s >= _LOOK_EVERY_S / 2
        if self._reading is None or (self._reading.done() and is_old):
            self._reading = asyncio.ensure_future(self._read())
        return await asyncio.shield(self._reading)  # other browsers wait for it too

    async def _read(self) -> _Found | None:
        site = self._site
        try:
            return await run.io_bound(lambda: (listed(site.runs(), self._scores), file_rows(site)))
        finally:
            self._ended_s = time.monotonic()


def run_table(
    site: Site, runs: Sequence[ListedRun]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the columns of a table of runs, and a row for each run, in the same order.

    Columns in which all would be empty are left out.
    """
    common, parameters = common_objective(runs), parameter_columns(runs)
    titles = {
        **{name: name for name in ("workflow", "state", "started", "duration", "ranks")},
        "best": f"best {common}".rstrip(),
        **{_OF_PARAMETER + name: printable(name) for name in parameters},
        **{"parameters": "parameters", "folder": "directory", "reason": "why"},
    }
    rows = [_row(site, run, common, parameters) for run in runs]
    for name in ("best", "parameters"):
        if not any(row[name] for row in rows):
            del titles[name]
    columns = [_column(name, title) for name, title in titles.items()]
    for column in columns:
        if column["name"] in _SORTED or column["name"].startswith(_OF_PARAMETER):
            at = [*_SORTED, *(_OF_PARAMETER + name for name in parameters)].index(column["name"])
            column[":sort"] = f"(a, b, x, y) => diel.order(x.order[{at}], y.order[{at}])"
    return columns, rows


def _row(site: Site, run: ListedRun, common: str, parameters: Sequence[str]) -> dict[str, Any]:
    summary, name = run.summary, site.name_of(run.summary.path)
    lasted = "" if summary.duration_s is None else format_duration(summary.duration_s)
    values = [summary.parameters.get(each) for each in parameters]
    return {
        "workflow": printable(summary.workflow),
        "state": summary.state,
        "kind": summary.state.replace(" ", "-"),
        "mark": _MARKS[summary.state],
        "started": run.started,
        "duration": lasted,
        "ranks": summary.ranks,
        "best": printable(shown_best(run, common)),
        **{
            _OF_PARAMETER + each: printable(format_value(value))
            for each, value in zip(parameters, values, strict=True)
        },
        "parameters": printable(run.parameters_but(parameters)[:200]),
        "folder": name,
        "reason": printable(in_words_of_the_page(summary.shown_reason)[:200]),
        "order": [
            summary.duration_s,
            None if run.best is None else run.best.best,
            *(_sortable(value) for value in values),
        ],
        **_leading_to("/run", summary.path, path=name),
    }


def _sortable(value: Any) -> float | str | None:
    """Return a value of a parameter such that a browser can sort by it."""
    is_plain = value is None or is_number(value)
    return value if is_plain else printable(format_value(value))


def file_rows(site: Site) -> list[dict[str, Any]]:
    """Return a row for each workflow file."""
    rows = []
    for file in site.workflow_files():
        name = site.name_of(file)
        folder, _, own = name.rpartition("/")
        rows.append({"file": own, "folder": folder, **_leading_to("/compose", file, file=name)})
    return rows


def _leading_to(page: str, place: Path, **query: str) -> dict[str, str]:
    """Return the key of a row and its link, which is empty where no address can name the place."""
    is_text = printable(str(place)) == str(place)
    return {"key": ascii(str(place)), "link": address(page, **query) if is_text else ""}


def _column(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "label": label, "field": name, "align": "left", "sortable": True}


def _table(name: str, columns: list[dict[str, Any]], empty: str) -> ui.table:
    table = ui.table(columns=columns, rows=[], row_key="key", pagination=20)
    table.props["no-data-label"] = empty
    table.props["aria-label"] = name
    return table.classes("diel-table").props("flat dense")
