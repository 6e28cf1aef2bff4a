"""What all pages share: the folder that they may show, and the frame around them."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request, Response
from nicegui import app, context, ui

from diel.errors import DielError, PageError, RunDirectoryError
from diel.gui.security import LOG
from diel.run.directory import open_regular
from diel.run.history import RunSummary, is_run, list_runs

_HERE: Final = Path(__file__).parent
_FILES: Final = {name: _HERE / name for name in ("style.css", "page.js")}
_NAVIGATION: Final = (("Runs", "/"), ("Compose", "/compose"))
_DARK_COOKIE: Final = "diel-dark"
_DARK: Final = {"on": True, "off": False}
_MOST_FOLDERS: Final = 2000
_DEEPEST: Final = 4
_FIRST_BYTES: Final = 256 * 1024
_WORKFLOW: Final = re.compile(rb"^\s*\[\[?\s*(workflow|module|group)\s*\]", re.MULTILINE)


class Site:
    """The folder that the pages may show.

    Parameters
    ----------
    folder : path
        No page shows or writes anything outside of it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve(strict=True)
        for name, file in _FILES.items():
            app.add_static_file(local_file=file, url_path=f"/diel/{name}", max_cache_age=0)

    def resolve(self, text: str) -> Path:
        """Return the path that a request names, with its symbolic links followed.

        Parameters
        ----------
        text : str
            Relative to the folder, or absolute within it.

        Raises
        ------
        PageError
            If it lies outside of the folder, or is no path at all.
        """
        try:
            path = (self.folder / text).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise PageError(f"{_shown(text)} is no path: {error}") from error
        if path != self.folder and self.folder not in path.parents:
            raise PageError(f"{_shown(text)} is outside of the folder of this page, {self.folder}")
        return path

    def resolve_run(self, text: str) -> Path:
        """Return the run directory that a request names.

        Raises
        ------
        DielError
            If it is outside of the folder, or no run's directory.
        """
        path = self.resolve(text)
        if not text or not is_run(path):
            raise RunDirectoryError(f"{_shown(text)} is no run's directory")
        return path

    def name_of(self, path: Path) -> str:
        """Return a path as pages write it, relative to the folder."""
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def runs(self) -> list[RunSummary]:
        """Return all runs in the folder and those below it, newest first. Reads many files."""
        if is_run(self.folder):
            return list_runs(self.folder)
        found: list[RunSummary] = []
        for folder in self._folders():
            found += list_runs(folder)
        return sorted(found, key=lambda run: (-run.started_s, run.path.name))

    def workflow_files(self) -> list[Path]:
        """Return all workflow files in the folder and those below it. Reads many files."""
        return sorted(
            file
            for folder in self._folders()
            for file in folder.glob("*.toml")
            if _is_workflow(file) and self.folder in file.resolve().parents
        )

    def _folders(self) -> Iterator[Path]:
        """Iterate over the folders that may hold runs or workflow files, as deep as makes sense."""
        waiting, seen = [(self.folder, 0)], 0
        while waiting and seen < _MOST_FOLDERS:
            folder, depth = waiting.pop(0)
            seen += 1
            yield folder
            if depth == _DEEPEST:
                continue
            try:
                inside = sorted(
                    entry.name
                    for entry in os.scandir(folder)
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "_"))
                )
            except OSError:  # somebody else's
                continue
            for name in inside:
                below = folder / name
                if not (below / "pyvenv.cfg").exists() and not _holds_run(below):
                    waiting.append((below, depth + 1))


def _holds_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except RunDirectoryError:
        return True  # it cannot be entered


def _is_workflow(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            return _WORKFLOW.search(opened.read(_FIRST_BYTES)) is not None
    except OSError:
        return False


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 200 else f"{text[:200]} ...")


def address(page: str, **query: str) -> str:
    """Return the address of a page: ``address("/run", path="runs/a")``."""
    return f"{page}?{urlencode(query)}" if query else page


def page(route: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that builds a page: what diel refuses in it is said to the reader."""

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(build)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = build(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            except DielError as error:
                LOG.log(logging.WARNING, "refused: %s: %s", route, error)
                return _refusal(str(error))

        ui.page(route)(guarded)
        return guarded

    return decorate


def _refusal(words: str) -> Response:
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>diel</title>'
        '<link rel="stylesheet" href="/diel/style.css"></head><body class="diel-refusal">'
        f'<p role="alert">{escape(words)}</p><p><a href="/">All runs and files</a></p>'
        "</body></html>"
    )
    return Response(body, status_code=404, media_type="text/html; charset=utf-8")


@contextmanager
def frame(site: Site, title: str) -> Iterator[None]:
    """Build a page within the frame that all share: navigation, light and dark, common style."""
    request: Request = context.client.request
    ui.page_title(f"{title} - diel")
    ui.add_head_html('<link rel="stylesheet" href="/diel/style.css">')
    ui.add_head_html('<script src="/diel/page.js" defer></script>')
    dark = ui.dark_mode(_DARK.get(request.cookies.get(_DARK_COOKIE, "")))
    here = request.url.path
    with ui.element("header").classes("diel-header"):
        ui.link("diel", "/").classes("diel-brand")
        with ui.element("nav").props('aria-label="Pages"'):
            for name, target in _NAVIGATION:
                link = ui.link(name, target)
                if target == here:
                    link.props('aria-current="page"')
        ui.label(str(site.folder)).classes("diel-folder").tooltip("the folder of this page")
        ui.button(icon="contrast", on_click=lambda: _switch(dark)).props(
            'flat round dense aria-label="Light or dark"'
        ).classes("diel-dark-switch")
    with ui.element("main").classes("diel-main"):
        ui.label(title).props('role="heading" aria-level="1"').classes("diel-title")
        yield


async def _switch(dark: ui.dark_mode) -> None:
    """Change between light and dark, and have the browser remember it."""
    now = dark.value
    if now is None:
        now = await ui.run_javascript("return document.body.classList.contains('body--dark')")
    dark.value = not now
    words = next(word for word, value in _DARK.items() if value is dark.value)
    ui.run_javascript(
        f"document.cookie = '{_DARK_COOKIE}={words}; path=/; max-age=31536000; samesite=strict'"
    )
