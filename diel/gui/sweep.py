"""The pages of a sweep, with its best trial, figures and a table, and of each of its trials."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import run, ui

from diel.errors import PageError
from diel.gui.cards import (
    FIGURES,
    FigureCard,
    call_script,
    copy_button,
    fact,
    follow_theme,
    heading,
    links_of_run,
)
from diel.gui.site import Site, address, frame, page, printable
from diel.gui.steering import SteeringPanel
from diel.loading.reporter import WatchedSweep
from diel.loading.sweeps import watch_sweeps
from diel.run.directory import RunDirectory
from diel.run.json_values import is_number
from diel.text import format_duration, format_value, shortened

_LOOK_EVERY_S: Final = 1.0
_DRAW_EVERY_S: Final = 5.0
"""Figures are drawn anew at most so often, and less often where that takes long."""
_DRAW_SHARE: Final = 0.1
_ROWS_AT_ONCE: Final = 1000
"""Rows of the table in one message, so that no message keeps the browser busy for long."""
_LONGEST_CELL: Final = 300
_LONGEST: Final = 5000  # of a value on the page of a trial
_WHERE: Final = "the file of results"


def add_pages(site: Site) -> None:
    """Add the page of a sweep, and that of a trial."""

    @page("/sweep")
    def sweep(path: str = "", name: str = "") -> None:
        directory = RunDirectory(site.resolve_run(path))
        with frame(site, f"Sweep of {site.name_of(directory.path)}", FIGURES, "sweep.js"):
            view = _SweepView(site, directory, name)
            ui.timer(_LOOK_EVERY_S, view.look)

    @page("/trial")
    async def trial(path: str = "", trial: str = "", name: str = "") -> None:
        directory = RunDirectory(site.resolve_run(path))
        if not trial.isdecimal() or len(trial) > 12:
            raise PageError(f"{trial[:40]!a} is no number of a trial")
        watched = await run.io_bound(_read, directory, name)
        if watched is None:
            raise PageError(f"{site.name_of(directory.path)} has no such sweep")
        record = await run.io_bound(_trial_of, watched, int(trial))
        if record is None:
            raise PageError(f"{watched.name} has no trial {trial} so far")
        with frame(site, f"Trial {trial} of {site.name_of(directory.path)}", FIGURES):
            links_of_run(site, directory, watched.name)
            card = _show_trial(record, watched.summary())
            _link_files(site.name_of(directory.path), record.get("files", ()))

            async def draw(theme: str) -> None:
                again = await run.io_bound(_trial_of, watched, int(trial), theme)
                if again and again["figure"] and card is not None:
                    card.show(again["figure"])

            follow_theme(draw)


class _SweepView:
    """The page of a sweep in one browser."""

    def __init__(self, site: Site, directory: RunDirectory, name: str) -> None:
        self._site, self._directory, self._name = site, directory, name
        self._path = site.name_of(directory.path)
        self._watched: WatchedSweep | None = None
        self._columns: list[str] = []
        self._shown = 0
        self._theme = self._drawn_theme = ""
        follow_theme(self._take_theme)
        self._due_s = 0.0
        self._is_new = True
        self._model: Mapping[str, str] = {}
        self._is_looking = False
        links_of_run(site, directory, name)
        self._sweep_links = ui.element("nav").classes("sweep-links").props('aria-label="Sweeps"')
        self._summary = ui.element("div").classes("sweep-facts")
        self._complaint = ui.label("").classes("sweep-warning").props('role="status"')
        self._complaint.visible = False
        self._steering = SteeringPanel(directory, lambda: self._watched)
        ui.label(
            "A click on a trial in a figure opens it; one on a key hides what the key stands for."
        ).classes("sweep-note")
        self._cards = ui.element("div").classes("sweep-cards")
        self._card_of: dict[str, FigureCard] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        ui.on("diel_ranges", lambda event: self._take_ranges(event.args))
        ui.on("diel_point", lambda event: self._open_trial(event.args))
        with ui.element("section").classes("sweep-card sweep-wide"):
            heading("Trials")
            ui.label(
                "A click on a column's head sorts by it. The field filters: by words, and by "
                "comparisons such as accuracy>0.9."
            ).classes("sweep-note")
            self._chosen = ui.label("").classes("sweep-note").props('role="status"')
            self._none = ui.label("No trial has ended yet: the first one is shown here.")
            self._none.classes("sweep-note")
            self._none.visible = False
            ui.element("div").classes("sweep-table").props('data-part="trials"')

    async def look(self) -> None:
        """Read and show new trials; a second call meanwhile does nothing."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            await self._look()
        finally:
            self._is_looking = False

    async def _look(self) -> None:
        if self._watched is None:
            found = await run.io_bound(watch_sweeps, self._directory)
            names = [sweep.name for sweep in found or ()]
            chosen = [sweep for sweep in found or () if self._name in ("", sweep.name)]
            if not chosen:
                self._say("No sweep has begun in this run.")
                return
            self._watched = chosen[0]
            self._link_sweeps(names)
        watched = self._watched
        try:
            self._is_new |= bool(await run.io_bound(watched.refresh))
        except (OSError, ValueError) as error:
            self._say(f"cannot be read: {error}")
            return
        self._say(watched.complaint)
        summary = watched.summary()
        if summary["model"] != self._model:  # written after the last trial
            self._model, self._is_new = summary["model"], True
        if self._is_new:
            self._show_summary(summary)
            self._steering.begin()
            self._show_rows(watched)
            if self._ranges:
                await self._choose()
        await self._draw(watched)

    def _take_theme(self, theme: str) -> None:
        self._theme = theme

    def _say(self, text: str) -> None:
        self._complaint.text = printable(text)
        self._complaint.visible = bool(text)

    def _link_sweeps(self, names: Sequence[str]) -> None:
        if len(names) < 2:
            return
        assert self._watched is not None
        with self._sweep_links:
            for name in names:
                link = ui.link(name, address("/sweep", path=self._path, name=name))
                if name == self._watched.name:
                    link.props('aria-current="page"')

    def _show_summary(self, summary: Mapping[str, Any]) -> None:
        self._summary.clear()
        with self._summary:
            objective, best = summary["objective"], summary["best"]
            if best is not None:
                which = "highest" if summary["maximise"] else "lowest"
                with fact(f"{which} {objective}", format_value(best[objective]), "sweep-best"):
                    ui.link(f"trial {best['trial']}", self._trial_address(best["trial"]))
            expected = summary["expected"]
            with fact("trials", f"{summary['trials']:,}"):
                ui.label(f"of {expected:,}" if expected else "so far")
            for name in ("failed", "diverged", "infeasible", "stopped"):
                if summary.get(name):
                    with fact(name, f"{summary[name]:,}"):
                        pass
            if summary["running"]:
                with fact("under way", f"{len(summary['running']):,}"):
                    ui.label("that have reported")
            if best is not None:
                with ui.element("div").classes("sweep-chips"):
                    for name in summary["parameters"]:
                        if best.get(name) is not None:
                            text = printable(f"{name}: {format_value(best[name])}")
                            ui.label(text).classes("sweep-chip")
            if self._model:
                with ui.element("div").classes("sweep-command").props('data-part="model"'):
                    ui.label(self._model["command"]).classes("sweep-command-text")
                    copy_button(self._model["command"])
                ui.label(
                    "scores new rows with the best network; in Python: "
                    + self._model["python"].replace("\n\n", "; ").replace("\n", "; ")
                ).classes("sweep-note")

    def _trial_address(self, trial: object = "") -> str:
        assert self._watched is not None
        return address("/trial", path=self._path, name=self._watched.name, trial=str(trial))

    # -- the table --------------------------------------------------------------------------------

    def _show_rows(self, watched: WatchedSweep) -> None:
        """Send the rows that the browser does not have yet; all rows if columns are new."""
        columns = watched.columns()
        if columns != self._columns:
            self._columns, self._shown = columns, 0
            call_script("diel.sweep.columns", columns, self._trial_address())
        new = watched.rows(self._shown)
        self._shown += len(new)
        self._none.visible = self._shown == 0
        for start in range(0, len(new), _ROWS_AT_ONCE):
            part = new[start : start + _ROWS_AT_ONCE]
            rows = [[_as_cell(row.get(name)) for name in columns] for row in part]
            call_script("diel.sweep.rows", rows)

    # -- the figures ------------------------------------------------------------------------------

    async def _draw(self, watched: WatchedSweep) -> None:
        theme = self._theme
        now_s = time.monotonic()
        if not theme or (
            theme == self._drawn_theme and not (self._is_new and now_s >= self._due_s)
        ):
            return
        self._drawn_theme, self._is_new = theme, False
        figures = await run.io_bound(watched.figures, theme)
        took_s = time.monotonic() - now_s
        self._due_s = time.monotonic() + max(_DRAW_EVERY_S, took_s / _DRAW_SHARE)
        for place, (name, figure) in enumerate((figures or {}).items()):
            if name not in self._card_of:
                with self._cards:
                    self._card_of[name] = FigureCard(name, figure, opens_trials=True)
                if place + 1 < len(self._card_of):
                    self._card_of[name].element.move(target_index=place)
            self._card_of[name].show(figure)

    async def _take_ranges(self, ranges: Any) -> None:
        self._ranges = _as_ranges(ranges)
        await self._choose()

    async def _choose(self) -> None:
        """Let the table show the trials within the chosen ranges, or all trials without ranges."""
        if self._watched is None:
            return
        trials = await run.io_bound(self._watched.within, self._ranges) if self._ranges else None
        call_script("diel.sweep.choose", trials)
        self._chosen.text = "" if trials is None else f"{len(trials):,} trials in the chosen ranges"

    def _open_trial(self, trial: Any) -> None:
        if isinstance(trial, int) and self._watched is not None:
            ui.navigate.to(self._trial_address(trial))


def _as_cell(value: Any) -> Any:
    """Return a value of the table as it is sent; the page of its trial has more of a long text."""
    is_short = value is None or isinstance(value, (int, float))
    return value if is_short else shortened(str(value), _LONGEST_CELL, _WHERE)


def _as_ranges(message: Any) -> dict[str, tuple[float, float]]:
    """Return the chosen ranges that a browser has sent, without those that are malformed."""
    entries = message.items() if isinstance(message, dict) else ()
    return {
        name: (float(ends[0]), float(ends[1]))
        for name, ends in entries
        if isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    }


# -- a trial --------------------------------------------------------------------------------------


def _read(directory: RunDirectory, name: str) -> WatchedSweep | None:
    """Return the sweep with a name, or the first one, with all that it has recorded."""
    for watched in watch_sweeps(directory):
        if name in ("", watched.name):
            watched.catch_up()
            return watched
    return None


def _trial_of(watched: WatchedSweep, number: int, theme: str = "light") -> dict[str, Any] | None:
    try:
        return watched.trial(number, theme)
    except (OSError, ValueError) as error:
        raise PageError(str(error)) from error


def _show_trial(record: Mapping[str, Any], summary: Mapping[str, Any]) -> FigureCard | None:
    """Show the record of a trial; return the card of its curve, if it has one."""
    card = None
    metrics = record["metrics"]
    with ui.element("div").classes("sweep-facts"):
        with fact("state", str(record["state"]), f"diel-{record['state']}"):
            if record["reason"]:
                ui.label(_short(str(record["reason"])))
        if summary["objective"] in metrics:
            with fact(summary["objective"], format_value(metrics[summary["objective"]])):
                pass
        if record["seconds"] is not None:
            with fact("took", format_duration(record["seconds"])):
                where = "" if record["trainer"] is None else f" on trainer {record['trainer']}"
                ui.label(f"the whole trial{where}, with data and scores")
        if record["started_s"] is not None:
            when = time.localtime(record["started_s"])
            with fact("began", time.strftime("%H:%M:%S", when)):
                ui.label(time.strftime("%Y-%m-%d", when))
        if record["seed"] is not None:
            with fact("seed", str(record["seed"])):
                pass
    with ui.element("div").classes("sweep-cards"):
        _values("Parameters", record["parameters"])
        _values("What it gave", metrics)
        if record["figure"] is not None:
            card = FigureCard("curve", record["figure"])  # shown once the browser tells its theme
        if record["command"]:
            with ui.element("section").classes("sweep-card sweep-wide"):
                heading("How to repeat it")
                ui.label("It is tried here once more, and compared with what it gave.").classes(
                    "sweep-note"
                )
                with ui.element("div").classes("sweep-command"):
                    ui.label(record["command"]).classes("sweep-command-text")
                    copy_button(record["command"])
    return card


def _link_files(path: str, files: Sequence[str]) -> None:
    """Show links to the files of a trial."""
    if not files:
        return
    with ui.element("section").classes("sweep-card"):
        heading("Logs and files")
        ui.label("A log has all that the trainer of this trial has printed.").classes("sweep-note")
        with ui.element("div").classes("diel-links"):
            for name in files:
                ui.link(printable(name), address("/file", path=path, name=name), new_tab=True)


def _values(title: str, values: Mapping[str, Any]) -> None:
    with ui.element("section").classes("sweep-card"):
        heading(title)
        with ui.element("dl").classes("sweep-values"):
            for name, value in values.items():
                with ui.element("dt"):
                    ui.label(_short(name))
                with ui.element("dd"):
                    ui.label(_short(format_value(value, digits=7)))


def _short(text: str) -> str:
    return printable(shortened(text, _LONGEST, _WHERE))
