"""A chosen box of the graph on the page of a run: its logs and files, and running it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import StreamingResponse
from nicegui import run, ui

from diel.errors import DielError
from diel.gui.cards import copy_button
from diel.gui.compose_launch import start_run
from diel.gui.processes import in_words_of_the_page, wait_for
from diel.gui.site import FailureBox, Site, address, page, printable
from diel.run.directory import RunDirectory
from diel.run.part import GroupLinks, Part, words_of_choices
from diel.run.shown_files import files_of, logs_of, open_shown
from diel.run.view import RunView
from diel.run.watched_run import WatchedRun
from diel.workflow.load import read_draft

_MOST_LINKS: Final = 60
_AT_ONCE: Final = 2**18
_TEXT: Final = (".csv", ".json", ".jsonl", ".log", ".toml", ".txt", ".crash")
_POLICY: Final = "sandbox; default-src 'none'"


def add_pages(site: Site) -> None:
    """Add the route that returns a file of a run, as text or to be saved."""

    @page("/file")
    def file(path: str = "", name: str = "") -> Response:
        opened = open_shown(RunDirectory(site.resolve_run(path)), name)
        kind, shown = ("application/octet-stream", "attachment")
        if Path(name).suffix in _TEXT:
            kind, shown = ("text/plain; charset=utf-8", "inline")
        headers = {
            "content-security-policy": _POLICY,
            "cache-control": "no-store",
            "content-disposition": f"{shown}; filename*=UTF-8''{quote(Path(name).name, safe='')}",
        }
        return StreamingResponse(_parts(opened), media_type=kind, headers=headers)


def _parts(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        while part := opened.read(_AT_ONCE):
            yield part


def run_again(file: Path, given: Sequence[str], links: GroupLinks, group: str) -> list[str]:
    """Return the arguments of diel that run a group again, by itself, and up to date or not.

    Where others around it repeat it, they run the outermost of these.
    """
    repeating = [name for name in links.around(group) if name in links.repeating]
    only = Part(only=[group, *repeating][-1:])
    return ["run", str(file), *words_of_choices(given, only, force=True)]


class BoxPanel:
    """Shows what a chosen group, or module of a group, has left in the directory of a run.

    Parameters
    ----------
    site : Site
    watched : WatchedRun
    open_log : callable
        Called with the name of a log file to show it.
    """

    def __init__(self, site: Site, watched: WatchedRun, open_log: Callable[[str], object]) -> None:
        self._site, self._watched, self._open_log = site, watched, open_log
        self._directory = watched.directory
        self._place = ui.element("section").classes("diel-box")
        self._place.props('aria-label="The chosen box"').set_visibility(False)
        self._failure = FailureBox()
        ui.on("diel_box", lambda event: self._choose(event.args))

    async def _choose(self, box: Any) -> None:
        """Show the box that a browser has sent; hide the panel where that is none of the run's."""
        said = box if isinstance(box, dict) else {}
        group, module = str(said.get("group", "")), str(said.get("module", ""))
        with self._watched.unchanged() as view:
            chosen = [name for name in view.groups if group in _around(view, name)]
            if not chosen:  # the same group of all elements
                chosen = [name for name in view.groups if view.name_in_file(name) == group]
            there = {} if view.started is None else view.started.copies
            pairs = [
                (name, each)
                for name in chosen
                for each in there.get(name, ())
                if not module
                or (view.name_in_file(name), view.name_in_file(name, each)) == (group, module)
            ]
            state = view.groups.get(group, view.groups[chosen[0]]).state if chosen else ""
            # Of elements only the whole group can be named in a command.
            named = group if group in view.groups or not chosen else view.groups[chosen[0]].array
            file = view.file
            links = GroupLinks() if view.started is None else GroupLinks.of_run(view.started)
        self._place.set_visibility(bool(chosen))
        self._failure.hide()
        if chosen:
            found = await run.io_bound(self._found, pairs)
            again = run_again(Path(file or "workflow.toml"), self._directory.given(), links, named)
            self._show(group, module, state, found or ([], []))
            with self._place:
                self._offer_again(again, self._site.workflow_of(file))

    def _found(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        """Return the logs and the other files of modules, each given behind its group."""
        directories: Mapping[str, str] = {}
        try:
            draft = read_draft(self._directory.workflow, given=self._directory.given())
            directories = {each.name: each.directory for _, each in draft.modules}
        except (DielError, OSError):  # no workflow file that can be read
            pass
        files = {
            file
            for group, module in pairs
            for file in files_of(self._directory, group, module, directories.get(module, ""))
        }
        return logs_of(self._directory, dict.fromkeys(each for _, each in pairs)), sorted(files)

    def _show(
        self, group: str, module: str, state: str, found: tuple[list[str], list[str]]
    ) -> None:
        logs, files = found
        path = self._site.name_of(self._directory.path)
        self._place.clear()
        with self._place:
            title = f"{module} in group {group}" if module else f"Group {group}"
            ui.label(printable(title)).classes("sweep-card-title")
            ui.label(state).classes(f"diel-state diel-{state}")
            with ui.element("div").classes("diel-links"):
                ui.label("Logs:" if logs else "No log: its copies have not started.")
                for name in logs[:_MOST_LINKS]:
                    log = ui.button(printable(name), on_click=partial(self._open_log, name))
                    log.props("flat dense no-caps")
                _say_more(logs)
            with ui.element("div").classes("diel-links"):
                ui.label("Files:" if files else "No file in the run's directory.")
                for name in files[:_MOST_LINKS]:
                    ui.link(printable(name), address("/file", path=path, name=name), new_tab=True)
                _say_more(files)

    def _offer_again(self, arguments: Sequence[str], file: Path | None) -> None:
        """Show the command that runs the group again, and a button if the page may start it."""
        command = printable(shlex.join(["diel", *arguments]))
        with ui.element("div").classes("sweep-command"):
            ui.label(command).classes("sweep-command-text")
            copy_button(command)
        if file is not None:
            again = ui.button("Run this again", icon="replay")
            again.props("flat dense no-caps")
            again.on_click(lambda: self._start(file, arguments))

    async def _start(self, file: Path, arguments: Sequence[str]) -> None:
        folder = self._site.folder
        self._failure.hide()
        try:
            runs = self._site.folder_of_runs()
            ui.notify("starting ...")
            started = await wait_for(start_run, [*arguments, "--runs", str(runs)], folder, file)
            ui.navigate.to(address("/run", path=self._site.name_of(started)))
        except DielError as error:
            self._failure.show("The group has not started", in_words_of_the_page(str(error)))


def _around(view: RunView, group: str) -> Iterator[str]:
    """Yield a group, and the groups that it is inside of."""
    while group:
        yield group
        group = view.groups[group].inside


def _say_more(names: Sequence[str]) -> None:
    if len(names) > _MOST_LINKS:
        ui.label(f"and {len(names) - _MOST_LINKS:,} more")
