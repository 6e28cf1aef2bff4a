"""The page that says what differs between two runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from fastapi import Request
from nicegui import run, ui

from diel.errors import PageError
from diel.gui.site import Site, address, frame, page, text_table
from diel.run.differences import Difference, differences
from diel.run.history import summarize
from diel.run.listing import listed
from diel.run.scores import ScoreReader

_MOST_ROWS: Final = 500


def add_pages(site: Site) -> None:
    """Add the page that says what differs between two runs."""

    @page("/differences")
    async def show(request: Request) -> None:
        given = request.query_params.getlist("path")
        if len(given) != 2:
            raise PageError("choose two runs in the list of runs")
        paths = [site.resolve_run(path) for path in given]
        names = [site.name_of(path) for path in paths]

        def compare() -> list[Difference]:
            now_s = time.time()
            first, second = listed((summarize(path, now_s) for path in paths), ScoreReader())
            return differences(first, second)

        found = await run.io_bound(compare) or []
        with frame(site, "What differs"):
            _show(names, found)


def _show(names: Sequence[str], found: Sequence[Difference]) -> None:
    with ui.element("nav").classes("sweep-links").props('aria-label="These runs"'):
        for name in names:
            ui.link(name, address("/run", path=name))
    if not found:
        ui.label("They differ in nothing.")
        return
    rows = [each.texts() for each in found[:_MOST_ROWS]]
    text_table(("part", "key", *names), rows, "What differs").classes("diel-differences")
    if len(found) > len(rows):
        ui.label(f"and {len(found) - len(rows):,} more: diel diff prints them all")
