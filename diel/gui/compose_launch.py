"""The pane of the page that composes, to start a workflow: on this machine, or as a batch job."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from nicegui import run, ui

from diel.errors import DielError, LaunchError, PageError
from diel.executive.batch_scripts import SCHEDULERS, batch_script, job_for, scheduler_here
from diel.executive.launch import available_cores
from diel.gui.inspection import Inspection, Places, places
from diel.gui.processes import (
    exit_code_of,
    in_words_of_the_page,
    last_words,
    start_command,
    wait_for,
)
from diel.gui.site import (
    RUNS,
    FailureBox,
    Site,
    address,
    confirmed,
    errors_shown,
    text_table,
)
from diel.run.directory import RunDirectory
from diel.run.journal import is_run_of
from diel.run.part import Part, words_of_choices
from diel.workflow.document import Document
from diel.workflow.model import Workflow
from diel.workflow.parameters import Parameter, as_text

_AS_ROOT: Final = "--allow-run-as-root"
_LOG: Final = "diel-run.log"
_START_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.2
_PLACES_EVERY_S: Final = 0.3
_SUBMIT_S: Final = 60.0
_LONGEST_ANSWER: Final = 4000
_found: set[Path] = set()
"""Run directories that `start_run` has returned, so that each is returned once."""


class Launcher:
    """The pane that starts the composed workflow, and writes a batch script for it.

    Parameters
    ----------
    site : Site
    document : Document
    saved : callable
        Saves the file if it has edits, and returns its path, None if it was not saved.
    changed : callable
        Called when other values of parameters are given: then the text is to be checked again.
    """

    def __init__(
        self,
        site: Site,
        document: Document,
        saved: Callable[[], Awaitable[Path | None]],
        changed: Callable[[], None],
    ) -> None:
        self._site, self._document, self._saved, self._changed = site, document, saved, changed
        self._declared: dict[str, Parameter] = {}
        self._values: dict[str, Any] = {}  # the elements to enter them
        self._found = Inspection()
        self._is_starting = False
        self._shown: Any = None
        self._is_placing = False
        self._wanted: Any = None  # the text and numbers for places at the last look
        self._placed: Any = None  # the text and numbers of the places that are shown
        with (
            ui.element("section")
            .classes("compose-pane compose-launch")
            .props('aria-label="Launch"')
        ):
            ui.label("Launch").props('role="heading" aria-level="2"').classes("compose-heading")
            with ui.element("div").classes("compose-bar"):
                self._ranks = _number("MPI ranks")
                self._per_node = _number("ranks per node")
                self._start = ui.button("Start here", icon="play_arrow")
                self._start.on_click(lambda: self._run()).props("no-caps")
            self._parameters = ui.element("div").classes("compose-bar")
            with ui.expansion("A part of it").classes("compose-more").props("dense"):
                self._build_part()
            self._failure = FailureBox()
            self._as_root = self._failure.add_button("Start as root", lambda: self._run(_AS_ROOT))
            self._needs = ui.label().classes("compose-hint").props('role="status"')
            with ui.expansion("Where ranks would be").classes("compose-more") as self._where:
                self._where.props("dense")
                self._places = ui.element("div").classes("compose-places")
            ui.timer(_PLACES_EVERY_S, self._place)
            with ui.expansion("Batch script").classes("compose-more").props("dense"):
                self._build_script()

    def show(self, found: Inspection, *, is_known: bool) -> None:
        """Show the ranks that the workflow needs, once its text is known to be valid."""
        self._found = found
        self._show_parameters()
        shown = (found.source, is_known, self._is_starting)
        if shown == self._shown:
            return
        self._shown = shown
        needs = found.needs if is_known else None
        if found.workflow is not None:
            self._show_groups(found.workflow)
        self._start.set_enabled(needs is not None and not self._is_starting)
        if needs is None:
            count = len(found.problems)
            self._needs.text = (
                f"{count} problem{'' if count == 1 else 's'} to mend before it can run."
                if is_known
                else "Checking ..."
            )
            return
        self._needs.text = (
            f"Ranks, those of the executive and the tuple space included: {needs.minimum} at "
            f"least, {needs.moment} at the largest moment, {needs.total} in sum. "
            f"This machine has {available_cores()} cores."
        )
        if not self._ranks.value:
            self._ranks.props["placeholder"] = str(needs.moment)

    # -- parameters -------------------------------------------------------------------------------

    def _show_parameters(self) -> None:
        """Show a field for each parameter of the file, anew where these have changed."""
        declared = self._document.draft.parameters
        if declared == self._declared:
            return
        kept = {name: field.value for name, field in self._values.items()}
        self._declared, self._values = dict(declared), {}
        self._parameters.clear()
        with self._parameters:
            for name, parameter in declared.items():
                self._values[name] = _field(name, parameter, kept.get(name))
                self._values[name].on_value_change(self._take_values)
        self._take_values()

    def _take_values(self) -> None:
        """Give the run what was entered."""
        entered = {name: field.value for name, field in self._values.items()}
        given = [f"{name}={text}" for name, text in entered.items() if text not in (None, "")]
        if self._document.given != (*given,):
            self._document.given = (*given,)
            self._changed()

    # -- a part of it -----------------------------------------------------------------------------

    def _build_part(self) -> None:
        with ui.element("div").classes("compose-bar"):
            self._only, self._from = _groups("only these groups"), _groups("these and what follows")
            self._force = ui.checkbox("also what is up to date")

    def _show_groups(self, workflow: Workflow) -> None:
        """Offer the groups of the workflow, and leave chosen those that are still there."""
        names = [group.name for group in workflow.groups]
        for field in (self._only, self._from):
            if field.options != names:
                field.set_options(names, value=[name for name in field.value if name in names])

    def _chosen(self) -> tuple[Part, list[str]]:
        """Return the chosen part of the workflow, and the words of the command that say it all."""
        part = Part(tuple(self._only.value), tuple(self._from.value))
        return part, words_of_choices(self._document.given, part, force=self._force.value)

    # -- where ranks would be ---------------------------------------------------------------------

    async def _place(self) -> None:
        """Show where ranks would be, once text and numbers have not changed since the last look.

        Nothing is computed while the section is closed.
        """
        found = self._found
        wanted = found.source, self._ranks.value, self._per_node.value
        is_new, self._wanted = wanted != self._wanted, wanted
        if is_new or wanted == self._placed or self._is_placing or not self._where.value:
            return
        self._is_placing = True
        shown: Places | DielError | None = None
        try:
            if found.workflow is not None and found.needs is not None:
                ranks = _whole(self._ranks.value) or found.needs.moment
                per_node = _whole(self._per_node.value) or ranks
                name = self._document.file.name
                shown = await run.io_bound(
                    places, found.workflow, ranks=ranks, per_node=per_node, shown_as=name
                )
        except DielError as error:
            shown = error
        finally:
            self._is_placing = False
        self._placed = wanted
        self._show_places(shown)

    def _show_places(self, shown: Places | DielError | None) -> None:
        self._places.clear()
        if shown is None:
            return
        with self._places:
            if isinstance(shown, DielError):
                ui.label(in_words_of_the_page(str(shown))).classes("compose-error")
                return
            text_table(shown.columns, shown.rows, "Places").classes("compose-layers")
            if shown.note:
                ui.label(shown.note)

    # -- here -------------------------------------------------------------------------------------

    async def _run(self, *flags: str) -> None:
        path = await self._saved()
        if path is None or self._is_starting:
            return
        folder = self._site.folder
        arguments = ["run", str(path), "--runs", str(folder / RUNS), *flags]
        if ranks := _whole(self._ranks.value):
            arguments += ["--ranks", str(ranks)]
        arguments += self._chosen()[1]
        self._is_starting = True
        self._start.set_enabled(False)
        self._failure.hide()
        try:
            self._site.folder_of_runs()
            ui.notify("starting ...")
            started = await wait_for(start_run, arguments, folder, path)
            ui.navigate.to(address("/run", path=self._site.name_of(started)))
        except DielError as error:
            self._as_root.set_visibility(_AS_ROOT in str(error))
            words = in_words_of_the_page(str(error))
            self._failure.show("The run has not started", words)
        finally:
            self._is_starting = False
            self._start.set_enabled(True)

    # -- as a batch job ---------------------------------------------------------------------------

    def _build_script(self) -> None:
        self._written_for = ""  # the scheduler of the script
        with ui.element("div").classes("compose-bar"):
            names = {word: each.name for word, each in SCHEDULERS.items()}
            self._scheduler = ui.select(names, value=_first_scheduler(), label="batch scheduler")
            self._scheduler.props("outlined dense options-dense").classes("compose-number")
            self._nodes = _number("nodes")
            self._time = ui.input("time limit", placeholder="2:00:00").props("outlined dense")
            self._queue = ui.input("queue or partition").props("outlined dense")
            self._account = ui.input("account").props("outlined dense")
            ui.button("Write script", on_click=self._write_script).props("flat no-caps")
        self._script = ui.code("", language="bash").classes("compose-script")
        self._script.set_visibility(False)
        with ui.element("div").classes("compose-bar") as self._with_script:
            ui.button("Download", icon="download", on_click=self._download).props("flat no-caps")
            self._submitting = ui.button("Submit", icon="send", on_click=self._submit)
            self._submitting.props("flat no-caps")
        self._with_script.set_visibility(False)

    async def _write_script(self) -> None:
        with errors_shown():
            workflow = self._found.workflow
            if workflow is None or self._found.source != self._document.text:
                raise LaunchError("the workflow has problems, or is being checked: mend it first")
            path = await self._saved()
            if path is None:
                return
            part, choices = self._chosen()
            job = job_for(
                workflow.limited_to(part),
                str(path),
                ranks=_whole(self._ranks.value),
                nodes=_whole(self._nodes.value),
                per_node=_whole(self._per_node.value),
                time_limit=self._time.value or None,
                queue=self._queue.value or None,
                account=self._account.value or None,
            )
            self._written_for = str(self._scheduler.value)
            text = batch_script(job, str(path), scheduler=self._written_for, choices=choices)
            self._script.content = text
            submits = SCHEDULERS[self._written_for].submit_stdin
            self._submitting.set_visibility(shutil.which(submits[0]) is not None)
            self._script.set_visibility(True)
            self._with_script.set_visibility(True)

    def _download(self) -> None:
        ui.download.content(self._script.content, f"{self._document.file.stem}.sh", "text/plain")

    async def _submit(self) -> None:
        scheduler = SCHEDULERS[self._written_for]
        if await confirmed(f"Submit this script to {scheduler.name}?", "Submit"):
            with errors_shown():
                answer = await wait_for(
                    submit, scheduler.submit_stdin, self._script.content, self._site.folder
                )
                ui.notify(answer or "submitted", type="positive")


def start_run(arguments: list[str], folder: Path, file: Path) -> Path:
    """Start ``diel run`` and return the directory of its run, once that is there.

    The output of the command goes to ``logs/diel-run.log`` of the run's directory.

    Raises
    ------
    PageError
        If the command ends before it has made a run directory, with its last output; or if that
        takes too long, while the command goes on.
    """
    runs = folder / RUNS
    try:
        runs.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=runs, prefix=".starting-", suffix=".log")
        os.close(descriptor)
    except OSError as error:
        raise PageError(f"{runs} cannot be written: {error.strerror}") from error
    log = Path(name)
    known = set(runs.iterdir())
    process = start_command(arguments, folder, log)
    end_s = time.monotonic() + _START_S
    goes_on = False
    try:
        while time.monotonic() < end_s:
            for place in set(runs.iterdir()) - known:
                if _is_new_run_of(place, file):
                    with contextlib.suppress(OSError):
                        log.rename(place / "logs" / _LOG)
                    return place
            if exit_code_of(process) is not None:
                words = last_words(log)
                raise PageError(words or f"diel run {file.name} has ended without a word")
            time.sleep(_LOOK_EVERY_S)
        goes_on = True
        raise PageError(
            f"diel run {file.name} has made no run directory for {_START_S:g} s, but goes on, as "
            f"process {process}: its run will be among those of this folder. What it says is "
            f"written to {log}. {last_words(log)}".rstrip()
        )
    finally:
        if not goes_on:
            log.unlink(missing_ok=True)


def _is_new_run_of(place: Path, file: Path) -> bool:
    """Whether a folder is the directory of a run of a file, and was not returned before."""
    is_ours = place not in _found and is_run_of(RunDirectory(place), file)
    if is_ours:
        _found.add(place)
    return is_ours


def _first_scheduler() -> str:
    """Return the batch scheduler of this machine, or else the first in `SCHEDULERS`."""
    try:
        return scheduler_here()
    except LaunchError:
        return next(iter(SCHEDULERS))


def submit(command: Sequence[str], script: str, folder: Path) -> str:
    """Submit a batch script through standard input of a command; return the command's output.

    Raises
    ------
    PageError
        If the command fails, or does not end in time.
    """
    try:
        done = subprocess.run(
            command,
            input=script,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SUBMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PageError(f"{command[0]} does not answer: {error}") from error
    if done.returncode:
        raise PageError(f"{command[0]} refuses: {done.stderr.strip()[-_LONGEST_ANSWER:]}")
    return done.stdout.strip()


def _field(name: str, parameter: Parameter, value: Any) -> Any:
    """Return the element to enter a parameter: empty where its default is meant."""
    choices = [as_text(choice) for choice in parameter.choices]
    if parameter.kind == "boolean":
        choices = ["true", "false"]
    field: Any = (
        ui.select(choices, value=value if value in choices else None, label=name, clearable=True)
        if choices
        else ui.input(name, value=value or "")
    )
    default = "" if parameter.default is None else as_text(parameter.default)
    field.props("outlined dense options-dense stack-label").classes("compose-number")
    field.props["placeholder"] = default
    if choices and default:
        field.props["display-value"] = value or default
    if parameter.text:
        field.tooltip(parameter.text)
    return field


def _groups(label: str) -> ui.select:
    field = ui.select([], value=[], multiple=True, clearable=True, label=label)
    return field.props("outlined dense options-dense use-chips").classes("compose-number")


def _number(label: str) -> ui.input:
    return ui.input(label).props('outlined dense inputmode="numeric"').classes("compose-number")


def _whole(text: Any) -> int | None:
    """Convert a text to a positive whole number; None if it is none."""
    text = str(text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10**7 else None
