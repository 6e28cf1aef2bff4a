"""What the pages of sweeps are made of: numbers with names, and cards with figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui

from diel.gui.site import Site, address
from diel.run.directory import RunDirectory

CONFIG: Final = {"displayModeBar": False, "responsive": True}
"""Of every figure, for Plotly."""
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
"""Cards of the whole width."""


@contextmanager
def fact(name: str, value: str, style: str = "") -> Iterator[None]:
    """Show a number with its name above; what is built within stands below."""
    with ui.element("div").classes("sweep-fact"):
        ui.label(name).classes("sweep-fact-name")
        ui.label(value).classes(f"sweep-fact-value {style}")
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


def plot(name: str, figure: dict[str, Any]) -> ui.plotly:
    """Show a figure of a sweep, by its name."""
    return (
        ui.plotly({**figure, "config": CONFIG})
        .classes("sweep-plot")
        .props(f'aria-label="{TITLES.get(name, name)}" role="img"')
    )


def heading(text: str) -> None:
    """Show the title of a card."""
    ui.label(text).props('role="heading" aria-level="2"').classes("sweep-card-title")


def follow_theme(on_change: Callable[[str], Any]) -> None:
    """Tell whether the browser shows the page ``light`` or ``dark``, now and at each change."""
    ui.on("diel_theme", lambda event: on_change("dark" if event.args is True else "light"))
    ui.run_javascript("diel.followTheme()")


def links_of_run(site: Site, directory: RunDirectory, name: str) -> None:
    """Show links to the pages of a run."""
    path = site.name_of(directory.path)
    with ui.element("nav").classes("sweep-links").props('aria-label="This run"'):
        ui.link("run", address("/run", path=path))
        ui.link("sweep", address("/sweep", path=path, name=name))
        ui.link("compare", address("/compare", path=path))
