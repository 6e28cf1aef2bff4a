"""The page of a trial: its parameters, metrics and curve, and the command that repeats it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from nicegui import run, ui

from diel.errors import PageError
from diel.gui.cards import (
    FIGURES,
    FigureElement,
    copy_button,
    fact,
    follow_theme,
    heading,
    links_of_run,
)
from diel.gui.site import Site, frame, page, printable
from diel.loading.reporter import WatchedSweep
from diel.loading.sweeps import watch_sweeps
from diel.run.directory import RunDirectory
from diel.text import format_duration, format_value, shortened

_LONGEST: Final = 5000


def add_pages(site: Site) -> None:
    """Add the page of a trial."""

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
            plot = _show_trial(record, watched.summary())

            async def draw(theme: str) -> None:
                again = await run.io_bound(_trial_of, watched, int(trial), theme)
                if again and again["figure"] and plot is not None:
                    plot.show(again["figure"])

            follow_theme(draw)


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


def _show_trial(record: Mapping[str, Any], summary: Mapping[str, Any]) -> FigureElement | None:
    """Show the record of a trial; return the element of its curve, if it has one."""
    plot = None
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
            with ui.element("section").classes("sweep-card sweep-wide"):
                heading("Learning curve")
                plot = FigureElement("Learning curve")  # shown once the browser tells its theme
        if record["command"]:
            with ui.element("section").classes("sweep-card sweep-wide"):
                heading("How to repeat it")
                ui.label("It is tried here once more, and compared with what it gave.").classes(
                    "sweep-note"
                )
                with ui.element("div").classes("sweep-command"):
                    ui.label(record["command"]).classes("sweep-command-text")
                    copy_button(record["command"])
    return plot


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
    return printable(shortened(text, _LONGEST, "the file of results"))
