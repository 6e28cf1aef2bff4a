"""The page that shows sweeps of several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from nicegui import run, ui

from diel.errors import DielError
from diel.gui.cards import FIGURES, FigureCard, follow_theme, heading
from diel.gui.site import Site, address, frame, page, text_table
from diel.loading.reporter import WatchedSweep
from diel.loading.sweeps import compare_sweeps, named_sweeps
from diel.run.directory import RunDirectory
from diel.text import format_value

_COMPARE_EVERY_S: Final = 3.0
_MOST_COMPARED: Final = 12


def add_pages(site: Site) -> None:
    """Add the page that compares sweeps."""

    @page("/compare")
    def compare(request: Request) -> None:
        given = request.query_params.getlist("path")[:_MOST_COMPARED]
        directories = [RunDirectory(site.resolve_run(path)) for path in given]
        with frame(site, "Compare sweeps", FIGURES):
            comparison = _Comparison(site, directories)
            ui.timer(0, comparison.offer, once=True)
            if directories:
                ui.timer(_COMPARE_EVERY_S, comparison.look)


class _Comparison:
    """The page that compares sweeps of several runs, in one browser."""

    def __init__(self, site: Site, directories: Sequence[RunDirectory]) -> None:
        self._site, self._directories = site, directories
        self._paths = [site.name_of(directory.path) for directory in directories]
        self._choice = ui.element("div").classes("sweep-chips")
        self._problem = ui.label("").classes("sweep-warning").props('role="status"')
        self._problem.visible = False
        self._best = ui.element("section").classes("sweep-card sweep-wide")
        self._best.visible = False
        self._cards = ui.element("div").classes("sweep-cards")
        self._sweeps: dict[str, WatchedSweep] = {}
        self._card_of: dict[str, FigureCard] = {}
        self._theme = self._drawn_theme = ""
        follow_theme(self._take_theme)
        self._is_looking, self._is_new = False, True

    def _take_theme(self, theme: str) -> None:
        self._theme = theme

    async def offer(self) -> None:
        """Show the runs that are compared, and a select to add another run."""
        runs = await run.io_bound(self._site.runs) or []
        names = [self._site.name_of(summary.path) for summary in runs]
        with self._choice:
            other_runs = [name for name in names if name not in self._paths]
            for path in self._paths:
                ui.link(path, address("/run", path=path)).classes("sweep-chip")
            if other_runs and len(self._paths) < _MOST_COMPARED:
                choice = ui.select(other_runs, label="add a run", with_input=True)
                choice.props("dense outlined").classes("sweep-search")
                choice.on_value_change(
                    lambda event: ui.navigate.to(_compare_address([*self._paths, event.value]))
                )

    async def look(self) -> None:
        """Read and show new trials of all sweeps; a second call meanwhile does nothing."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            await self._look()
            self._problem.visible = False
        except (DielError, OSError, ValueError) as error:
            self._problem.text, self._problem.visible = str(error), True
        finally:
            self._is_looking = False

    async def _look(self) -> None:
        if not self._sweeps:
            self._sweeps = await run.io_bound(named_sweeps, self._directories) or {}
        for watched in self._sweeps.values():
            self._is_new |= bool(await run.io_bound(watched.refresh))
        theme = self._theme
        if not self._sweeps or not theme or (theme == self._drawn_theme and not self._is_new):
            return
        self._drawn_theme, self._is_new = theme, False
        found = await run.io_bound(compare_sweeps, self._sweeps, theme)
        if found is None:  # the server ends
            return
        self._show_best(found["rows"])
        for name, figure in found["figures"].items():
            if name not in self._card_of:
                with self._cards:
                    self._card_of[name] = FigureCard(name, figure)
            self._card_of[name].show(figure)

    def _show_best(self, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        self._best.clear()
        self._best.visible = True
        with self._best:
            heading("The best of each")
            cells = [[_shown(row.get(name)) for name in columns] for row in rows]
            text_table(columns, cells, "The best of each").classes("sweep-best-of")


def _shown(value: Any) -> str:
    return "–" if value is None else format_value(value)


def _compare_address(paths: Sequence[str]) -> str:
    return f"/compare?{urlencode([('path', path) for path in paths])}"
