"""Access to the sweeps of a run, through the reporters of installed packages.

Only the reporter of a sweep can read its files: here a sweep has plain values, and figures that the
reporter draws itself, or gives in Plotly's form.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from diel.errors import LaunchError, RunDirectoryError
from diel.loading.reports import reporting
from diel.run.directory import RunDirectory
from diel.run.history import summarize
from diel.run.resumption import has_ended, is_finished_at_checkpoint

_LIVE: Final = ("pause", "resume", "stop")
"""Kinds of requests that only a sweep that has not ended can fulfil."""


class DrawnFigure(Protocol):
    """A figure that its reporter draws; a reporter may give dictionaries of Plotly instead."""

    title: str
    note: str
    """What it shows, in a line."""
    is_wide: bool
    """Whether it has a row of a page for itself."""

    @property
    def style(self) -> str:
        """A style sheet, the same for all of them."""

    @property
    def script(self) -> str:
        """A script, the same for all of them, that defines ``DielFigures``, a class in JavaScript.

        ``new DielFigures(element, {onOpen, onChoose})`` shows figures in an element: its method
        ``show`` is called with what `draw` has returned. It calls ``onOpen`` with the number of a
        trial that is clicked, and ``onChoose`` with a ``Map`` of ranges, as `WatchedSweep.within`
        takes them.
        """

    def draw(self, width: float) -> str:
        """Return the figure as HTML for a place so many pixels wide; all text in it is escaped."""

    def plotly(self, theme: str = "light") -> dict[str, Any]:
        """Return the figure as a dictionary of Plotly; ``theme`` is ``light`` or ``dark``."""


Figure: TypeAlias = "DrawnFigure | dict[str, Any]"
"""A figure as a reporter gives it: drawn by itself, or for Plotly."""


class WatchedSweep(Protocol):
    """A sweep, as far as its files have been read.

    Attributes
    ----------
    name : str
        Group and module, which tell it from other sweeps of the run.
    space : mapping
        What each parameter may be, as in a workflow file.
    complaint : str
        The damage found in its files so far, in a line; empty if there was none.
    """

    name: str
    space: Mapping[str, Any]
    complaint: str

    def refresh(self) -> bool:
        """Read new lines of its files; return whether there were any: then there may be more.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def catch_up(self) -> None:
        """Read its files to their present ends; lines that are written meanwhile may be left.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def summary(self) -> dict[str, Any]:
        """Return the state of the sweep as a table, with counts of trials and the best of them.

        ``objective``, ``maximise``, ``parameters``; ``trials``, ``expected`` (or None), ``failed``,
        ``diverged``, ``stopped``; ``best``: a row, or None; ``running``: numbers of trials under
        way that have reported something; ``table``: the file of its table of results; ``model``:
        how to use the model of the best trial, ``file``, ``command``, ``python``, or empty.
        """

    def columns(self) -> list[str]:
        """Return the columns of the table of trials; more may come with new rows."""

    def rows(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the rows of the table from a number on: numbers, words, or None, by column."""

    def trials(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each trial that has ended, however many there are.

        ``curve``: its learning curve, a list of ``[step, objective]``, perhaps empty.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def figures(self, theme: str = "light") -> Mapping[str, Figure]:
        """Return the figures that have something to show, by name, in their order.

        ``theme`` is ``light`` or ``dark``.
        """

    def within(self, ranges: Mapping[str, tuple[float, float]]) -> list[int]:
        """Return the trials of the table within ranges of the axes of the figure ``parallel``.

        By an axis' label: its lowest and highest place, 0 to 1; unknown axes are left out.
        """

    def point_of(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a point with the values that were chosen, and what is wrong, by parameter.

        Values of parameters that a condition switches off are left out.
        """

    def trial(self, number: int, theme: str = "light") -> dict[str, Any] | None:
        """Return the data of a trial; None if its files do not name it yet.

        ``trial``, ``state``, ``reason``, ``parameters``, ``metrics``, ``seed``, ``trainer``,
        ``started_s``, ``seconds``, ``attempt``; ``figure``: of its learning curve, or None;
        ``command``: repeats it, empty as long as it runs.

        Raises
        ------
        OSError, ValueError
            If the files cannot be read.
        """


def new_sweep() -> dict[str, Any]:
    """Return the tables of a workflow file with a sweep that is still to be filled in, by title.

    Empty if no installed package has sweeps.

    Raises
    ------
    PluginError
        If a reporter cannot be imported.
    """
    for describe in reporting("new_sweep"):
        tables: dict[str, Any] = describe()
        return tables
    return {}


def compare_sweeps(sweeps: Mapping[str, WatchedSweep], theme: str = "light") -> dict[str, Any]:
    """Compare sweeps, given by unique names, as far as they have been read.

    Returns
    -------
    dict
        ``objective``, ``maximise``; ``rows``: of each sweep ``run``, its name; ``trials``; the
        objective of its best trial; ``trial``, its number; and its parameters; ``figures``: each a
        `Figure`, by name.

    Raises
    ------
    RunDirectoryError
        If objectives or their directions differ.
    """
    try:
        for compare in reporting("compare_sweeps"):
            compared: dict[str, Any] = compare(sweeps, theme)
            return compared
    except ValueError as error:
        raise RunDirectoryError(str(error)) from error
    raise RunDirectoryError("no installed package can compare sweeps")


def write_comparison(sweeps: Mapping[str, WatchedSweep], path: Path) -> list[Path]:
    """Write a report over several sweeps; return its files, or raise RunDirectoryError."""
    try:
        return [write(sweeps, path) for write in reporting("write_comparison")]
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be written: {error}") from error


def named_sweeps(directories: Sequence[RunDirectory]) -> dict[str, WatchedSweep]:
    """Return the sweeps of several runs, read to their present ends, by unique names.

    Raises
    ------
    RunDirectoryError
        If a run has no sweep.
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

    Raises
    ------
    PluginError
        If a reporter cannot be imported.
    """
    found: list[WatchedSweep] = []
    for watch in reporting("watch_sweeps"):
        with contextlib.suppress(OSError, ValueError):
            found += watch(directory.path)
    return found


def steer_sweep(
    directory: RunDirectory,
    asked: Sequence[Mapping[str, Any]],
    *,
    sweep: str = "",
    wait_s: float = 10.0,
) -> list[dict[str, Any]]:
    """Send requests to a sweep while it runs, or keep them for when it is resumed.

    Parameters
    ----------
    directory : RunDirectory
    asked : sequence of mapping
        Each has ``kind``, one of ``enqueue`` (and ``parameters``), ``pause``, ``resume``, ``stop``
        (and ``number``, of a trial) and ``trials`` (and ``number``, how many there are to be).
    sweep : str, optional
        Which of several, as ``group.module``.
    wait_s : float, seconds, optional
        How long to wait for answers; none where the run has ended.

    Returns
    -------
    list of dict
        For each request: ``kind``, ``accepted`` (None: not answered yet, it is kept), ``answer``,
        and ``trial``, the number of a trial that was enqueued, or None.

    Raises
    ------
    LaunchError
        If there is no such sweep, or a request makes no sense: then none has been sent.
    """
    state = summarize(directory.path, time.time()).state
    given = [dict(request) for request in asked]
    if state == "finished" and (
        late := [request["kind"] for request in given if request["kind"] in _LIVE]
    ):
        raise LaunchError(f"{directory.path} has finished: there is nothing to {late[0]}")
    for steer in reporting("steer_sweep"):
        try:
            name, requests = steer(directory.path, given, sweep)
            if reason := _why_too_late(directory, state, name):
                raise LaunchError(reason)
            if state == "finished":
                directory.request_extension()
            answers: list[dict[str, Any]] = requests(wait_s if state == "running" else 0.0)
        except (OSError, ValueError) as error:
            raise LaunchError(str(error)) from error
        too_late = ""
        if state == "running" and any(answer["accepted"] is None for answer in answers):
            # The sweep may have ended since, so that no master was left to answer.
            state = summarize(directory.path, time.time()).state
            too_late = _why_too_late(directory, state, name)
            kept = [answer for answer in answers if answer["accepted"] is None]
            if not too_late and state == "finished":
                if any(answer["kind"] not in _LIVE for answer in kept):
                    directory.request_extension()
                else:
                    too_late = f"{directory.path} has finished meanwhile"
        if too_late:
            answers = [
                {**answer, "accepted": False, "answer": too_late}
                if answer["accepted"] is None
                else answer
                for answer in answers
            ]
        elif state != "running":
            later = f"kept: diel run --resume {directory.path} does it"
            answers = [
                {**answer, "answer": later if answer["accepted"] is None else answer["answer"]}
                for answer in answers
            ]
        return answers
    raise LaunchError("no installed package knows of sweeps")


def record_participation(directory: RunDirectory, said: Mapping[str, Any]) -> None:
    """Have reporters write for a run that has not begun which sweep it takes part in.

    Raises
    ------
    LaunchError
        If that cannot be written.
    """
    for write in reporting("record_participation"):
        try:
            write(directory.path, said)
        except OSError as error:
            raise LaunchError(f"{directory.path} cannot be written: {error}") from error


def find_joinable(directory: RunDirectory, sweep: str = "") -> dict[str, Any]:
    """Return the sweep of a run that other runs may join.

    Parameters
    ----------
    directory : RunDirectory
    sweep : str, optional
        Which of several, as ``group.module``.

    Returns
    -------
    dict
        ``name``; ``group``, ``master``, ``trainer``: the modules that a run needs to take part,
        the master followed by a number in an iteration of its group; ``ledger``: its file.

    Raises
    ------
    LaunchError
        If there is no such sweep, or several.
    """
    found: list[dict[str, Any]] = []
    try:
        for joinable in reporting("joinable_sweeps"):
            found += joinable(directory.path)
    except OSError as error:
        raise LaunchError(f"{directory.path} cannot be read: {error}") from error
    if not found:
        raise LaunchError(f"{directory.path} has no sweep that has begun")
    state = summarize(directory.path, time.time()).state
    if state in ("finished", "failed", "stopped"):
        raise LaunchError(f"{directory.path} has {state}: there is no sweep to join")
    left = [entry for entry in found if not has_ended(directory, entry["group"])]
    wanted = [entry for entry in left if sweep in ("", entry["name"])]
    if len(wanted) != 1:
        names = ", ".join(entry["name"] for entry in left) or "none any more"
        raise LaunchError(f"say which sweep is to be joined, with --sweep: there are {names}")
    return wanted[0]


def list_workers(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return the workers of other runs that take part in the sweeps of a run, or did.

    Each has ``sweep``, ``worker``, ``host``, ``pid``, ``job``, ``run_dir``, ``trainers``,
    ``trials``, ``state`` and ``heard_s``.
    """
    return [worker for found in reporting("list_workers") for worker in found(directory.path)]


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
