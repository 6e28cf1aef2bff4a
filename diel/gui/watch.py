"""The page of a run: how it goes on, from its directory alone."""

from __future__ import annotations

from nicegui import ui

from diel.gui.site import Site, frame, page


def add_pages(site: Site) -> None:
    """Add the page that watches a run."""

    @page("/run")
    def watch(path: str = "") -> None:
        directory = site.resolve_run(path)
        with frame(site, site.name_of(directory)):
            ui.label("")
