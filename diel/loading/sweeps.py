"""Access to the sweeps of a run, through the reporters of installed packages.

Only the reporter of a sweep can read its files: see `diel.loading.reporter.WatchedSweep`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from diel.errors import LaunchError, RunDirectoryError
from diel.loading.reporter import WatchedSweep, first_answer, reporters
from diel.run.directory import RunDirectory
from diel.run.history import summarize
from diel.run.resumption import has_ended, is_finished_at_checkpoint

_LIVE: Final = ("pause", "resume", "stop")
"""Kinds of requests that only a sweep that has not ended can fulfil."""


def compare_sweeps(sweeps: Mapping[str, WatchedSweep], theme: str = "light") -> dict[str, Any]:
    """Compare sweeps, given by unique names, as far as they have been read.

    Returns what `diel.loading.reporter.Reporter.compare_sweeps` does. A RunDirectoryError if
    objectives or their directions differ.
    """
    try:
        compared = first_answer(lambda reporter: reporter.compare_sweeps(sweeps, theme))
    except ValueError as error:
        raise RunDirectoryError(str(error)) from error
    if compared is None:
        raise RunDirectoryError("no installed package can compare sweeps")
    return compared


def write_comparison(sweeps: Mapping[str, WatchedSweep], path: Path) -> list[Path]:
    """Write a report over several sweeps; return its files, or raise RunDirectoryError."""
    try:
        found = [reporter.write_comparison(sweeps, path) for reporter in reporters()]
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be written: {error}") from error
    return [file for file in found if file is not None]


def named_sweeps(directories: Sequence[RunDirectory]) -> dict[str, WatchedSweep]:
    """Return the sweeps of several runs, read to their present ends, by unique names.

    A RunDirectoryError if a run has no sweep.
    """
    found: dict[str, WatchedSweep] = {}
    for directory in directories:
        watched = watch_sweeps(directory)
        if not watched:
            raise RunDirectoryError(f"{directory.path} holds no sweep: there is nothing to compare")
        for sweep in watched:
            with contextlib.suppress(OSError, ValueError):
                sweep.catch_up()
            suffix = "" if len(watched) == 1 else f" {sweep.name}"
            # A run of that name may be in another folder, or the same run be given again.
            names = [f"{directory.path.name}{suffix}", f"{directory.path}{suffix}"]
            again = (f"{names[1]} ({number})" for number in count(2))
            found[next(name for name in chain(names, again) if name not in found)] = sweep
    return found


def watch_sweeps(directory: RunDirectory) -> list[WatchedSweep]:
    """Return the sweeps of a run that have begun; none, if there are none.

    A PluginError if a reporter cannot be imported.
    """
    found: list[WatchedSweep] = []
    for reporter in reporters():
        with contextlib.suppress(OSError, ValueError):
            found += reporter.watch_sweeps(directory.path)
    return found


def steer_sweep(
    directory: RunDirectory,
    asked: Sequence[Mapping[str, Any]],
    *,
    sweep: str = "",
    wait_s: float = 10.0,
) -> list[dict[str, Any]]:
    """Send requests to a sweep while it runs, or keep them for when it is resumed.

    Each request has ``kind``, one of ``enqueue`` (and ``parameters``), ``pause``, ``resume``,
    ``stop`` (and ``number``, of a trial), ``trials`` (and ``number``, how many there are to be) and
    ``time`` (and ``time_s``, after how many seconds it ends).
    The sweep of several is named as ``group.module``. Answers are waited for so long; not at all
    where the run has ended.

    Returns for each request: ``kind``, ``accepted`` (None: not answered yet, it is kept),
    ``answer``, and ``trial``, the number of a trial that was enqueued, or None. A LaunchError if
    there is no such sweep, or a request makes no sense: then none has been sent.
    """
    state = _state(directory)
    given = [dict(request) for request in asked]
    if state == "finished" and (
        late := [request["kind"] for request in given if request["kind"] in _LIVE]
    ):
        raise LaunchError(f"{directory.path} has finished: there is nothing to {late[0]}")
    try:
        checked = first_answer(lambda reporter: reporter.steer_sweep(directory.path, given, sweep))
        if checked is None:
            raise LaunchError("no installed package knows of sweeps")
        name, send = checked
        if reason := _why_too_late(directory, state, name):
            raise LaunchError(reason)
        if state == "finished":
            directory.request_extension()
        answers = send(wait_s if state == "running" else 0.0)
    except (OSError, ValueError) as error:
        raise LaunchError(str(error)) from error
    if unanswered := [answer for answer in answers if answer["accepted"] is None]:
        _answer_instead(directory, state, name, unanswered)
    return answers


def _answer_instead(
    directory: RunDirectory, state: str, sweep: str, unanswered: Sequence[dict[str, Any]]
) -> None:
    """Say of requests that no master has answered, in place, why they are too late, or are kept."""
    too_late = ""
    if state == "running":
        # The sweep may have ended since, so that no master was left to answer.
        state = _state(directory)
        too_late = _why_too_late(directory, state, sweep)
        if not too_late and state == "finished":
            if all(answer["kind"] in _LIVE for answer in unanswered):
                too_late = f"{directory.path} has finished meanwhile"
            else:
                directory.request_extension()
    for answer in unanswered:
        if too_late:
            answer |= {"accepted": False, "answer": too_late}
        elif state != "running":
            answer["answer"] = f"kept: diel run --resume {directory.path} does it"


def record_participation(directory: RunDirectory, said: Mapping[str, Any]) -> None:
    """Have reporters write for a run that has not begun which sweep it takes part in.

    A LaunchError if that cannot be written.
    """
    try:
        for reporter in reporters():
            reporter.record_participation(directory.path, said)
    except OSError as error:
        raise LaunchError(f"{directory.path} cannot be written: {error}") from error


def find_joinable(directory: RunDirectory, sweep: str = "") -> dict[str, Any]:
    """Return the sweep of a run, as ``group.module`` of several, that other runs may join.

    It has ``name``; ``group``, ``master``, ``trainer``: the modules that a run needs to take part,
    the master followed by a number in an iteration of its group; ``ledger``: its file. A
    LaunchError if there is no such sweep, or several.
    """
    found: list[dict[str, Any]] = []
    try:
        for reporter in reporters():
            found += reporter.joinable_sweeps(directory.path)
    except OSError as error:
        raise LaunchError(f"{directory.path} cannot be read: {error}") from error
    if not found:
        raise LaunchError(f"{directory.path} has no sweep that has begun")
    state = _state(directory)
    if state in ("finished", "failed", "stopped"):
        raise LaunchError(f"{directory.path} has {state}: there is no sweep to join")
    left = [entry for entry in found if not has_ended(directory, entry["group"])]
    wanted = [entry for entry in left if sweep in ("", entry["name"])]
    if len(wanted) != 1:
        names = ", ".join(entry["name"] for entry in left) or "none any more"
        raise LaunchError(f"say which sweep is to be joined, with --sweep: there are {names}")
    return wanted[0]


def _state(directory: RunDirectory) -> str:
    return summarize(directory.path, time.time()).state


def _why_too_late(directory: RunDirectory, state: str, sweep: str) -> str:
    """Return why a sweep answers no request any more; empty if it does, now or when resumed."""
    group = sweep.partition(".")[0]
    if state == "running":
        if has_ended(directory, group):
            return f"sweep {sweep} has come to its end, and the run goes on without it"
    elif is_finished_at_checkpoint(directory, group):
        return (
            f"sweep {sweep} lies before the run's last checkpoint, where diel run --resume goes "
            "on: start the workflow again, with warm_start"
        )
    return ""
