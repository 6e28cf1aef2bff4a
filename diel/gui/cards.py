"""Elements of the pages of sweeps: numbers with names, cards with figures, and links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from diel.gui.site import Site, address, printable
from diel.loading.reporter import Figure
from diel.run.directory import RunDirectory

FIGURES: Final = "figures.js"
"""The script that a page needs for cards with figures."""
_NARROWEST: Final = 220
_WIDEST: Final = 4000
"""Pixels between which figures are drawn; narrower places scroll, or shrink them."""
_OPEN_POINT: Final = "(event) => emitEvent('diel_point', event.points?.[0]?.customdata)"


@contextmanager
def fact(name: str, value: str, style: str = "") -> Iterator[None]:
    """Show a number with its name above; elements built in the block stand below it."""
    with ui.element("div").classes("sweep-fact"):
        ui.label(printable(name)).classes("sweep-fact-name")
        ui.label(printable(value)).classes(f"sweep-fact-value {style}")
        with ui.element("div").classes("sweep-fact-about"):
            yield


class FigureCard:
    """A card with a figure: its title, a line on what it shows, and a place where it is drawn.

    The browser says how wide the place is while it can be seen: a figure is only drawn then.

    Parameters
    ----------
    name : str
        Tells it from other figures of the page.
    figure : Figure
        Only its title is shown until `show` is called.
    opens_trials : bool
        Whether a click on a trial opens its page.
    """

    def __init__(self, name: str, figure: Figure, *, opens_trials: bool = False) -> None:
        title = name.capitalize() if isinstance(figure, dict) else figure.title
        self._shown: str | dict[str, Any] = ""
        self._figure: Figure | None = None
        self._width, self._opens_trials = 0, opens_trials
        self.element = ui.element("section").classes("sweep-card")
        self.element.props(f'data-figure="{name}"')
        with self.element:
            heading(title)
            self._note = ui.label("").classes("sweep-note")
            self._place = ui.element("div").classes("sweep-plot").props('role="figure"')
        self._place.props["aria-label"] = title
        self._place.on("figurewidth", self._take_width, ["detail"])
        if not isinstance(figure, dict):
            call_script("diel.figures.load", figure.style, figure.script)
        call_script("diel.figures.watch", self._place.html_id)

    def show(self, figure: Figure) -> None:
        """Show a figure, in place of the one before."""
        self._figure = figure
        is_wide = False
        if not isinstance(figure, dict):
            is_wide, self._note.text = figure.is_wide, printable(figure.note)
        add, remove = ("sweep-wide", "") if is_wide else ("", "sweep-wide")
        self.element.classes(add=add, remove=remove)
        if self._width:
            self._draw(figure)

    def _take_width(self, event: GenericEventArguments) -> None:
        width = event.args["detail"]
        is_seen = type(width) is int and width > 0
        self._width = max(_NARROWEST, min(_WIDEST, width)) if is_seen else 0
        if self._width and self._figure is not None:
            self._draw(self._figure)

    def _draw(self, figure: Figure) -> None:
        if isinstance(figure, dict):
            if figure != self._shown:
                self._place.clear()
                with self._place:
                    plot = ui.plotly(figure).classes("sweep-plotly")
                    if self._opens_trials:
                        plot.on("plotly_click", js_handler=_OPEN_POINT)
            self._shown = figure
            return
        drawn = figure.draw(self._width)
        if drawn != self._shown:
            self._shown = drawn
            call_script("diel.figures.show", self._place.html_id, drawn, self._opens_trials)


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
