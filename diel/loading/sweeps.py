"""Sweeps of a run, for whoever looks at them: by reporters, which installed packages offer.

What a sweep is, is known to its reporter alone: here it has plain values, and figures as Plotly has
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from diel.errors import RunDirectoryError
from diel.loading.reports import reporting
from diel.run.directory import RunDirectory


class WatchedSweep(Protocol):
    """A sweep, as far as its files tell it.

    Attributes
    ----------
    name : str
        Tells it from others of the run: group and module.
    complaint : str
        What was wrong with its files so far, in a line; empty if nothing was.
    """

    name: str
    complaint: str

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything: then there may be more.

        Raises
        ------
        OSError, ValueError
            If its files cannot be read.
        """

    def summary(self) -> dict[str, Any]:
        """Return how it stands.

        ``objective``, ``maximise``, ``parameters``; ``trials``, ``expected`` (or None), ``failed``,
        ``diverged``, ``stopped``; ``best``: a row, or None; ``running``: numbers of trials under
        way that have reported something.
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
                while one.refresh():
                    pass
            name = directory.path.name
            if name in found:  # of another folder
                name = str(directory.path)
            found[name if len(watched) == 1 else f"{name} {one.name}"] = one
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
