"""The first page: the runs of the folder, and its workflow files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

from nicegui import run, ui

from diel.gui.compose_files import NEW_SWEEP
from diel.gui.processes import in_words_of_the_page
from diel.gui.site import Site, address, frame, page, printable
from diel.run.history import RunSummary, shown_parameters
from diel.text import format_duration

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
_Rows: TypeAlias = "tuple[list[dict[str, Any]], list[dict[str, Any]]]"
_LINK: Final = '<q-td :props="props"><a :href="props.row.link || null">{{ props.value }}</a></q-td>'
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
            runs = _table(
                "Runs",
                [
                    _column("workflow", "workflow"),
                    _column("state", "state"),
                    _column("started", "started"),
                    _column("duration", "duration"),
                    _column("ranks", "ranks"),
                    _column("parameters", "parameters"),
                    _column("folder", "directory"),
                    _column("reason", "why"),
                ],
                "No run yet: compose a workflow and start it, or say diel run FILE.",
            )
            runs.add_slot("body-cell-workflow", _LINK)
            runs.add_slot("body-cell-state", _STATE)
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
                for table, rows in zip((runs, files), found, strict=True):
                    if table.rows != rows:
                        table.rows = rows

            ui.timer(_LOOK_EVERY_S, look)


class _Listing:
    """The rows of both tables, read once for all browsers that show them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._reading: asyncio.Future[_Rows | None] | None = None
        self._ended_s = 0.0

    async def latest(self) -> _Rows | None:
        """Return the rows of both tables, read anew if they are old; None if the server ends."""
        is_old = time.monotonic() - self._ended_s >= _LOOK_EVERY_S / 2
        if self._reading is None or (self._reading.done() and is_old):
            self._reading = asyncio.ensure_future(self._read())
        return await asyncio.shield(self._reading)  # other browsers wait for it too

    async def _read(self) -> _Rows | None:
        try:
            return await run.io_bound(lambda: (run_rows(self._site), file_rows(self._site)))
        finally:
            self._ended_s = time.monotonic()


def run_rows(site: Site) -> list[dict[str, Any]]:
    """Return a row for each run, newest first."""
    return [_row(site, summary) for summary in site.runs()]


def _row(site: Site, summary: RunSummary) -> dict[str, Any]:
    name = site.name_of(summary.path)
    lasted = "" if summary.duration_s is None else format_duration(summary.duration_s)
    return {
        "workflow": printable(summary.workflow),
        "state": summary.state,
        "kind": summary.state.replace(" ", "-"),
        "mark": _MARKS[summary.state],
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.started_s)),
        "duration": lasted,
        "ranks": summary.ranks,
        "parameters": printable(shown_parameters(summary.parameters)[:200]),
        "folder": name,
        "reason": printable(in_words_of_the_page(summary.shown_reason)[:200]),
        **_leading_to("/run", summary.path, path=name),
    }


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
