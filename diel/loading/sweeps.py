"""Sweeps of a run, for whoever looks at them: by reporters, which installed packages offer.

What a sweep is, is known to its reporter alone: here it has plain values, and figures as Plotly has
them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Protocol

from diel.errors import LaunchError, RunDirectoryError
from diel.loading.reports import reporting
from diel.run.directory import RunDirectory
from diel.run.history import summarize
from diel.run.resuming import has_ended, is_behind

_LIVE: Final = ("pause", "resume", "stop")
"""What can be asked only of a sweep that has not come to its end."""


class WatchedSweep(Protocol):
    """A sweep, as far as its files tell it.

    Attributes
    ----------
    name : str
        Tells it from others of the run: group and module.
    space : mapping
        What each parameter may be, as in a workflow file.
    complaint : str
        What was wrong with its files so far, in a line; empty if nothing was.
    """

    name: str
    space: Mapping[str, Any]
    complaint: str

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything: then there may be more.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def catch_up(self) -> None:
        """Read everything that its files hold by now; what is written meanwhile may be left.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def summary(self) -> dict[str, Any]:
        """Return how it stands.

        ``objective``, ``maximise``, ``parameters``; ``trials``, ``expected`` (or None), ``failed``,
        ``diverged``, ``stopped``; ``best``: a row, or None; ``running``: numbers of trials under
        way that have reported something; ``table``: the file of its table of results.
        """

    def columns(self) -> list[str]:
        """Return the columns of the table of trials; more may come with new rows."""

    def rows(self, start: int = 0) -> list[dict[str, Any]]:
        """Return rows of the table from one on: numbers, words, or None, by column."""

    def trials(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each trial that has ended: all of them, as many as there are.

        ``curve``: its learning curve, a list of ``[step, objective]``, perhaps empty.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def figures(self, theme: str = "light") -> dict[str, dict[str, Any]]:
        """Return Plotly figures by name, those that have something to show.

        ``theme`` is ``light`` or ``dark``.
        """

    def within(self, ranges: Mapping[str, tuple[float, float]]) -> list[int]:
        """Return the trials of the table within ranges of the axes of the figure ``parallel``.

        By an axis' label: its lowest and highest place, 0 to 1; axes that there are not are left
        out.
        """

    def point_of(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a point with the values that were chosen, and what is wrong, by parameter.

        Values of parameters that a condition switches off are left out.
        """

    def trial(self, number: int, theme: str = "light") -> dict[str, Any] | None:
        """Return what is known of a trial; None if it has not been heard of.

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

    Nothing if no installed package has sweeps.

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
    """Compare sweeps, by names that tell them apart, as far as they have been read.

    Returns
    -------
    dict
        ``objective``, ``maximise``; ``rows``: of each sweep ``run``, its name; ``trials``; the
        objective of its best trial; ``trial``, its number; and its parameters; ``figures``: Plotly
        figures by name.

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
    """Write a report over several sweeps; return its files. A RunDirectoryError if that fails."""
    try:
        return [write(sweeps, path) for write in reporting("write_comparison")]
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be written: {error}") from error


def named_sweeps(directories: Sequence[RunDirectory]) -> dict[str, WatchedSweep]:
    """Return the sweeps of runs, read as far as they go, each by a name of its own.

    Raises
    ------
    RunDirectoryError
        If a run has none.
    """
    found: dict[str, WatchedSweep] = {}
    for directory in directories:
        watched = watch_sweeps(directory)
        if not watched:
            raise RunDirectoryError(f"{directory.path} holds no sweep: there is nothing to compare")
        for one in watched:
            with contextlib.suppress(OSError, ValueError):
                one.catch_up()
            which = "" if len(watched) == 1 else f" {one.name}"
            # A run of that name in another folder, or the same one once more.
            names = [f"{directory.path.name}{which}", f"{directory.path}{which}"]
            again = (f"{names[1]} ({number})" for number in count(2))
            found[next(name for name in chain(names, again) if name not in found)] = one
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
    """Ask a sweep for something while it runs, or for what it is to do when it is resumed.

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
        For each: ``kind``, ``accepted`` (None: not answered yet, it is kept), ``answer``, and
        ``trial``, the number of one that was enqueued, or None.

    Raises
    ------
    LaunchError
        If there is no such sweep, or something asked for makes no sense: nothing has been asked.
    """
    state = summarize(directory.path, time.time()).state
    given = [dict(each) for each in asked]
    if state == "finished" and (late := [each["kind"] for each in given if each["kind"] in _LIVE]):
        raise LaunchError(f"{directory.path} has finished: there is nothing to {late[0]}")
    for steer in reporting("steer_sweep"):
        try:
            name, requests = steer(directory.path, given, sweep)
            if reason := _why_too_late(directory, state, name):
                raise LaunchError(reason)
            if state == "finished":
                directory.request_more()
            answers: list[dict[str, Any]] = requests(wait_s if state == "running" else 0.0)
        except (OSError, ValueError) as error:
            raise LaunchError(str(error)) from error
        too_late = ""
        if state == "running" and any(each["accepted"] is None for each in answers):
            # It may have ended since, with nobody left to answer.
            state = summarize(directory.path, time.time()).state
            too_late = _why_too_late(directory, state, name)
            kept = [each for each in answers if each["accepted"] is None]
            if not too_late and state == "finished":
                if any(each["kind"] not in _LIVE for each in kept):
                    directory.request_more()
                else:
                    too_late = f"{directory.path} has finished meanwhile"
        if too_late:
            answers = [
                {**each, "accepted": False, "answer": too_late}
                if each["accepted"] is None
                else each
                for each in answers
            ]
        elif state != "running":
            later = f"kept: diel run --resume {directory.path} does it"
            answers = [
                {**each, "answer": later if each["accepted"] is None else each["answer"]}
                for each in answers
            ]
        return answers
    raise LaunchError("no installed package knows of sweeps")


def take_part(directory: RunDirectory, said: Mapping[str, Any]) -> None:
    """Say of a run that has not begun in what sweep it takes part; reporters know what to say.

    Raises
    ------
    LaunchError
        If that cannot be written.
    """
    for say in reporting("take_part"):
        try:
            say(directory.path, said)
        except OSError as error:
            raise LaunchError(f"{directory.path} cannot be written: {error}") from error


def find_joinable(directory: RunDirectory, sweep: str = "") -> dict[str, Any]:
    """Return the sweep of a run that others may join.

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
        If there is none, or several.
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
    left = [one for one in found if not has_ended(directory, one["group"])]
    wanted = [one for one in left if sweep in ("", one["name"])]
    if len(wanted) != 1:
        names = ", ".join(one["name"] for one in left) or "none any more"
        raise LaunchError(f"say which sweep is to be joined, with --sweep: there are {names}")
    return wanted[0]


def list_workers(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return the workers of other runs that take part in the sweeps of a run, or did.

    Each has ``sweep``, ``worker``, ``host``, ``pid``, ``job``, ``run_dir``, ``trainers``,
    ``trials``, ``state`` and ``heard_s``.
    """
    return [worker for found in reporting("list_workers") for worker in found(directory.path)]


def _why_too_late(directory: RunDirectory, state: str, sweep: str) -> str:
    """Say why a sweep answers no request any more; nothing if it does, now or when resumed."""
    group = sweep.partition(".")[0]
    if state == "running":
        if has_ended(directory, group):
            return f"sweep {sweep} has come to its end, and the run goes on without it"
    elif is_behind(directory, group):
        return (
            f"sweep {sweep} lies before the run's last checkpoint, where diel run --resume goes "
            "on: start the workflow again, with warm_start"
        )
    return ""
