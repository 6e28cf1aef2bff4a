"""What all pages share: the folder that they may show, and the frame around their content."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request, Response
from nicegui import app, context, ui

from diel.errors import DielError, PageError, RunDirectoryError
from diel.gui.processes import in_words_of_the_page
from diel.gui.security import LOG, plain_page
from diel.run.files import open_regular
from diel.run.history import RunSummary, is_run, list_runs

_HERE: Final = Path(__file__).parent
_SCRIPTS: Final = ("page.js", "figures.js", "sweep.js")
_FILES: Final = {name: _HERE / name for name in ("style.css", *_SCRIPTS)}
_NAVIGATION: Final = (("Runs", "/"), ("Compose", "/compose"))
_DARK_COOKIE: Final = "diel-dark"
_DARK: Final = {"on": True, "off": False}
_SWITCH: Final = f"""\
const isDark = !document.body.classList.contains("body--dark");
const word = isDark ? "on" : "off";
document.cookie = `{_DARK_COOKIE}=${{word}}; path=/; max-age=31536000; samesite=strict`;
return isDark;
"""
RUNS: Final = "runs"
"""The folder, inside that of the page, in which the page starts runs."""
_READ_FOLDERS: Final = ("trace", "sweeps")
"""Folders of a run of which pages read any file; in its folder of logs, links are never shown."""
MOST_BOXES: Final = 500
"""The most modules and groups of a picture: a browser is busy for long with more."""
_ANSWER_S: Final = 60.0
"""How long it may take to build a page: file systems can be slow."""
_MOST_FOLDERS: Final = 2000
_DEEPEST: Final = 4
_FIRST_BYTES: Final = 256 * 1024
_WORKFLOW: Final = re.compile(rb"^\s*\[\[?\s*(workflow|module|group)\s*\]", re.MULTILINE)


class Site:
    """The folder that the pages may show.

    Parameters
    ----------
    folder : path
        No page shows or writes anything outside of it, with one exception: on machines with a file
        system for scratch, ``runs`` is often a link. It is followed if this user has made it, and
        before the server has started.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve(strict=True)
        self._linked_runs = _target_of_own_link(self.folder / RUNS)
        for name, file in _FILES.items():
            app.add_static_file(local_file=file, url_path=f"/diel/{name}", max_cache_age=0)
        app.add_exception_handler(404, _no_such_address)

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
        if not self._holds(path):
            raise PageError(f"{_shown(text)} is outside of the folder of this page, {self.folder}")
        return path

    def _holds(self, path: Path) -> bool:
        """Whether a path whose links were followed may be shown."""
        return path.is_relative_to(self.folder) or (
            self._linked_runs is not None and path.is_relative_to(self._linked_runs)
        )

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
        self.check_links(path)
        return path

    def check_links(self, run: Path) -> None:
        """Check that everything that pages read of a run lies within the folder.

        Raises
        ------
        PageError
            If a file or folder of the run is a link that leads outside.
        """
        waiting = [run, *(run / name for name in _READ_FOLDERS)]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:  # the run has no such folder
                continue
            for entry in entries:
                if entry.is_symlink() and not self._holds(Path(entry.path).resolve()):
                    shown = printable(os.path.relpath(entry.path, run))
                    raise PageError(
                        f"{shown} in {self.name_of(run)} is a link that leads outside of the "
                        "folder of this page: put what it stands for in its place"
                    )
                if folder.name == "sweeps" and entry.is_dir():
                    waiting.append(Path(entry.path))

    def folder_of_runs(self) -> Path:
        """Return the folder into which the page starts runs.

        Raises
        ------
        PageError
            If it is a link that the page does not follow.
        """
        runs = self.folder / RUNS
        if not self._holds(runs.resolve()):
            raise PageError(
                f"{RUNS} is a link that leads outside of the folder of this page, and was not "
                "there when diel gui began, or is somebody else's: make your own, and start diel "
                "gui again"
            )
        return runs

    def is_record(self, path: Path) -> bool:
        """Whether a path, with links followed, lies in a run's directory and must not be edited."""
        return any(
            (folder / "journal.jsonl").is_file() for folder in path.parents if self._holds(folder)
        )

    def workflow_of(self, written: str) -> Path | None:
        """Return the workflow file that a run's record names; None if the page cannot show it."""
        try:
            path = self.resolve(written)
        except PageError:
            return None
        if not os.path.isabs(written) or self.is_record(path):
            return None
        return path if path.suffix == ".toml" and path.is_file() else None

    def name_of(self, path: Path) -> str:
        """Return a path as pages write it, relative to the folder, as text that can be sent."""
        if self._linked_runs is not None and path.is_relative_to(self._linked_runs):
            path = self.folder / RUNS / path.relative_to(self._linked_runs)
        return printable(Path(os.path.relpath(path, self.folder)).as_posix())

    def runs(self) -> list[RunSummary]:
        """Return all runs in the folder and those below it, newest first. Reads many files."""
        if is_run(self.folder):
            return list_runs(self.folder)
        found: list[RunSummary] = []
        for folder in self._folders():
            with contextlib.suppress(RunDirectoryError):  # the folder has just been removed
                found += [run for run in list_runs(folder) if self._shows(run.path)]
        return sorted(found, key=lambda run: (-run.started_s, run.path.name))

    def _shows(self, run: Path) -> bool:
        """Whether all files that the summary of a run is made from lie within the folder."""
        read = (run, run / "journal.jsonl", run / "logs", run / "logs" / "launcher.log")
        return all(not place.is_symlink() or self._holds(place.resolve()) for place in read)

    def workflow_files(self) -> list[Path]:
        """Return all workflow files in the folder and those below it. Reads many files."""
        return sorted(
            file
            for folder in self._folders()
            for file in folder.glob("*.toml")
            if _is_workflow(file) and self._holds(file.resolve())
        )

    def _folders(self) -> Iterator[Path]:
        """Yield the folders that may hold runs or workflow files, up to a depth and a number."""
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
                if depth == 0 and self._linked_runs is not None:
                    inside.append(RUNS)
            except OSError:  # a folder that this user cannot read
                continue
            for name in inside:
                below = folder / name
                if not (below / "pyvenv.cfg").exists() and not _holds_run(below):
                    waiting.append((below, depth + 1))


def _target_of_own_link(link: Path) -> Path | None:
    """Return the folder that a link of this user leads to; None if it is anything else."""
    try:
        if link.is_symlink() and link.lstat().st_uid == os.getuid() and link.is_dir():
            return link.resolve(strict=True)
    except (OSError, RuntimeError):
        pass
    return None


def printable(text: str) -> str:
    """Return text that UTF-8 can encode; bytes of names or files that are no text become ``?``."""
    return text.encode("utf-8", "replace").decode()


def _holds_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except RunDirectoryError:
        return True  # the folder cannot be entered


def _is_workflow(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            return _WORKFLOW.search(opened.read(_FIRST_BYTES)) is not None
    except OSError:
        return False


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 200 else f"{text[:200]} ...")


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> ui.element:
    """Build an HTML table of texts in an element that scrolls, and return that element."""
    with ui.element("div").classes("diel-scrolls") as around, ui.element("table") as table:
        around.props('role="group" tabindex="0"')
        around.props["aria-label"] = f"{name}, a table"
        table.props["aria-label"] = name
        for tag, row in [("th", heads), *(("td", row) for row in rows)]:
            with ui.element("tr"):
                for text in row:
                    with ui.element(tag):
                        ui.label(printable(text))
    return around


class FailureBox:
    """A box that says why something has failed, until it is dismissed or all goes well."""

    def __init__(self) -> None:
        with ui.element("section").classes("diel-failure") as self._box:
            self._box.props('role="alert"')
            self._title = ui.label().classes("diel-failure-title")
            self._words = ui.label().classes("diel-failure-words")
            with ui.row() as self._buttons:
                ui.button("Dismiss", on_click=self.hide).props("flat dense no-caps")
        self.hide()

    def show(self, title: str, words: str) -> None:
        """Show a failure, in place of the one before."""
        self._title.text, self._words.text = title, printable(words)
        self._box.set_visibility(True)

    def hide(self) -> None:
        """Hide the box."""
        self._title.text = self._words.text = ""
        self._box.set_visibility(False)

    def add_button(self, text: str, press: Callable[[], Any]) -> ui.button:
        """Add a button that may help."""
        with self._buttons:
            return ui.button(text, on_click=press).props("dense no-caps")


def tell(error: DielError) -> None:
    """Show an error as a notification, until it is closed."""
    ui.notify(
        in_words_of_the_page(printable(str(error))),
        type="warning",
        multi_line=True,
        timeout=0,
        close_button="Close",
    )


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Show an error of a block as a notification."""
    try:
        yield
    except DielError as error:
        tell(error)


def button(text: str, icon: str | None, on_click: Callable[..., Any] | None = None) -> ui.button:
    """Build a flat button, as toolbars have them."""
    return ui.button(text, icon=icon, on_click=on_click).props("flat dense no-caps")


def menu_line(title: str, words: str, on_click: Callable[..., Any]) -> None:
    """Build a menu entry with a line of explanation below its title."""
    with menu_entry("", on_click), ui.item_section():
        ui.item_label(title)
        ui.item_label(words).props("caption").classes("compose-caption")


def menu_entry(text: str, on_click: Callable[..., Any] | None = None) -> ui.menu_item:
    """Build an entry of a menu, of the role that entries of menus have."""
    entry = ui.menu_item(text).props("role=menuitem")
    if on_click is not None:  # after the menu has closed: the action may fill the menu anew
        entry.on_click(on_click)
    return entry


@contextlib.contextmanager
def asked(question: str) -> Iterator[ui.dialog]:
    """Build a dialog that begins with a question, which is its name; elements follow below."""
    with ui.dialog() as dialog, ui.card():
        dialog.props["aria-label"] = question
        ui.label(question)
        yield dialog


async def answer_to(dialog: ui.dialog) -> Any:
    """Open a dialog; return what is submitted, None if it is closed or its page is left."""
    answer = await dialog
    if not dialog.is_deleted:
        dialog.delete()
    return answer


async def confirmed(question: str, yes: str, no: str = "Cancel") -> bool:
    """Ask a question in a dialog with two buttons; return whether the first one was pressed."""
    with asked(question) as dialog, ui.row():
        ui.button(yes, on_click=lambda: dialog.submit(True)).props("no-caps")
        ui.button(no, on_click=lambda: dialog.submit(False)).props("flat no-caps")
    return bool(await answer_to(dialog))


def address(page: str, **query: str) -> str:
    """Return the address of a page: ``address("/run", path="runs/a")``."""
    return f"{page}?{urlencode(query)}" if query else page


def page(route: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that builds a page: its DielError is shown as a page with status 404."""

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(build)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = build(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            except DielError as error:
                LOG.log(logging.WARNING, "refused: %s: %s", route, error)
                return _refusal(str(error))

        ui.page(route, response_timeout=_ANSWER_S)(guarded)
        return guarded

    return decorate


def _no_such_address(request: Request, error: Exception) -> Response:
    return _refusal(f"There is no page {_shown(request.url.path)}.")


def _refusal(words: str) -> Response:
    content = f'<p role="alert">{escape(words)}</p><p><a href="/">All runs and files</a></p>'
    body = plain_page("Not found", content)
    return Response(body, status_code=404, media_type="text/html; charset=utf-8")


@contextlib.contextmanager
def frame(site: Site, title: str, *scripts: str) -> Iterator[None]:
    """Build a page within the frame of all pages: navigation, light and dark, common style.

    `scripts` are files of this package that the page needs beside ``page.js``.
    """
    request: Request = context.client.request
    ui.page_title(f"{title} - diel")
    ui.add_head_html('<link rel="stylesheet" href="/diel/style.css">')
    for script in ("page.js", *scripts):
        ui.add_head_html(f'<script src="/diel/{script}" defer></script>')
    dark = ui.dark_mode(_DARK.get(request.cookies.get(_DARK_COOKIE, "")))
    here = request.url.path
    with ui.element("header").classes("diel-header"):
        ui.link("diel", "/").classes("diel-brand")
        with ui.element("nav").props('aria-label="Pages"'):
            for name, target in _NAVIGATION:
                link = ui.link(name, target)
                if target == here:
                    link.props('aria-current="page"')
        ui.label(printable(str(site.folder))).classes("diel-folder").tooltip(
            "the folder of this page"
        )
        ui.button(icon="contrast", on_click=lambda: _switch(dark)).props(
            'flat round dense aria-label="Light or dark"'
        ).classes("diel-dark-switch")
    with ui.element("div").classes("diel-main"):
        ui.label(title).props('role="heading" aria-level="1"').classes("diel-title")
        yield


async def _switch(dark: ui.dark_mode) -> None:
    """Change between light and dark; the browser remembers it before it shows it."""
    with contextlib.suppress(TimeoutError):  # the page was left
        dark.value = await ui.run_javascript(_SWITCH, timeout=_ANSWER_S)
