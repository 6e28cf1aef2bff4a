"""Elements of the pages of sweeps: numbers with names, cards with figures, and links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui

from diel.gui.site import Site, address, printable
from diel.run.directory import RunDirectory

FIGURES: Final = "figures.js"
TITLES: Final = {
    "history": "History",
    "cost": "Quality against training time",
    "curves": "Learning curves",
    "parallel": "Parameters",
    "importance": "What decides",
    "contour": "Two parameters together",
    "timeline": "When trials ran",
}
WIDE: Final = ("parallel", "timeline")
"""Figures whose cards have the whole width."""


@contextmanager
def fact(name: str, value: str, style: str = "") -> Iterator[None]:
    """Show a number with its name above; elements built in the block stand below it."""
    with ui.element("div").classes("sweep-fact"):
        ui.label(printable(name)).classes("sweep-fact-name")
        ui.label(printable(value)).classes(f"sweep-fact-value {style}")
        with ui.element("div").classes("sweep-fact-about"):
            yield


def card(name: str, note: str) -> ui.element:
    """Show the card of a figure, by its name: its title and a line on what it shows."""
    style = "sweep-card sweep-wide" if name in WIDE else "sweep-card"
    section = ui.element("section").classes(style).props(f'data-figure="{name}"')
    with section:
        heading(TITLES.get(name, name))
        ui.label(note).classes("sweep-note")
    return section


class FigureElement:
    """An element in which figures.js draws a figure, given in the format of Plotly's figures.

    The page has to load the script `FIGURES`.
    """

    def __init__(self, title: str) -> None:
        self._place = ui.element("div").classes("sweep-plot").props(f'aria-label="{title}"')
        self._place.props('role="figure"')
        self._shown: dict[str, Any] | None = None

    def show(self, figure: dict[str, Any]) -> None:
        """Show a figure, in place of the one before."""
        if figure != self._shown:
            self._shown = figure
            call_script("diel.figures.show", self._place.html_id, figure)


def call_script(function: str, *values: Any) -> None:
    """Call a function of a page's scripts in the browser with plain values."""
    ui.run_javascript(f"{function}({', '.join(map(json.dumps, values))})")


def heading(text: str) -> None:
    """Show the title of a card."""
    ui.label(text).props('role="heading" aria-level="2"').classes("sweep-card-title")


def copy_button(text: str) -> None:
    """Show a button that copies a text."""
    button = ui.button("Copy", icon="content_copy").props("flat dense no-caps")
    button.on("click", js_handler=f"(event) => diel.copy(event, {json.dumps(text)})")


def follow_theme(on_change: Callable[[str], Any]) -> None:
    """Call a function with the browser's theme, ``light`` or ``dark``, now and at each change."""
    ui.on("diel_theme", lambda event: on_change("dark" if event.args is True else "light"))
    ui.run_javascript("diel.followTheme()")


def links_of_run(site: Site, directory: RunDirectory, name: str) -> None:
    """Show links to the pages of a run."""
    path = site.name_of(directory.path)
    with ui.element("nav").classes("sweep-links").props('aria-label="This run"'):
        ui.link("run", address("/run", path=path))
        ui.link("sweep", address("/sweep", path=path, name=name))
        reports = [file.name for file in directory.reports()]
        for file in reports or ["report.html"]:
            words = "report" if len(reports) < 2 else file
            ui.link(words, address("/report", path=path, file=file))
        ui.link("compare", address("/compare", path=path))
