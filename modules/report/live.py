"""Writes the report of a sweep while it runs, and at its end."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel import open_regular, replace_file

from .data import Moment, RankAccount, Row, RowSelection, Sweep, SweepView
from .page import GrowingImportance, analyse, concluded, page, with_bias_of

if TYPE_CHECKING:
    from ..evaluation import BiasReport

_EVERY_S: Final = 3.0
_SHARE: Final = 0.02
"""Largest share of the time that goes into the report while the sweep runs."""


class LiveReport:
    """The report of a running sweep, ``report.html``, rewritten as results come.

    The file is replaced as a whole, so a browser never finds half of it. It is written every few
    seconds at most, and less often where that would take more than a fiftieth of the time. A
    report that cannot be written never ends a sweep: `problem` says why.

    Parameters
    ----------
    path : path
        File of the report; it is there when the constructor returns.
    sweep : Sweep
    bias : callable, optional
        Returns the selection bias of the best score so far, or None.
    every_s : float, optional
        Least seconds before the file is written again.
    clock : callable, optional
        Returns seconds since any fixed moment.

    Attributes
    ----------
    problem : str
        Why the report could not be written the last time; empty if it was.

    Examples
    --------
    ::

        report = LiveReport(ctx.run_dir / "report.html", sweep)
        for row in rows:
            report.add([row])
        report.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sweep: Sweep,
        *,
        bias: Callable[[], BiasReport | None] = lambda: None,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self.problem = ""
        self._selection = RowSelection(sweep)
        self._bias = bias
        self._every_s = every_s
        self._clock = clock
        self._started_s = clock()
        self._due_s = self._started_s
        self._earlier = 0
        self._lost = ""
        self._importance = GrowingImportance()
        self._write_live()

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows in the order in which trials were finished; they must not change later."""
        try:
            self._selection.add(rows)
        except Exception as error:  # as in `_write`
            self._lost = f"{self.path} lacks trials: {_describe(error)}"
            self.problem = self._lost
        if self._clock() >= self._due_s:
            self._write_live()

    def resume(self) -> None:
        """Record that all rows so far are from an earlier session of the sweep."""
        self._earlier = self._selection.count
        self._started_s = self._clock()

    def add_facts(self, facts: Mapping[str, str]) -> None:
        """Add facts about how to repeat the sweep; facts that are there already stay."""
        sweep = self._selection.sweep
        known = {name.lower() for name in sweep.facts}
        new = {name: fact for name, fact in facts.items() if name.lower() not in known}
        self._selection.sweep = replace(sweep, facts={**sweep.facts, **new})

    def add_model(self, usage: Mapping[str, str]) -> None:
        """Add how to use the model of the best trial: see `Sweep.model`."""
        self._selection.sweep = replace(self._selection.sweep, model=usage)

    def expect(self, trials: int | None) -> None:
        """Set how many trials there will be, where that was not known."""
        self._selection.sweep = replace(self._selection.sweep, expected=trials)

    def close(self, state: str = "finished") -> None:
        """Write the report a last time; `state` is ``finished``, ``failed`` or ``stopped``."""
        self._write(state, None)

    def _write_live(self) -> None:
        before_s = self._clock()
        self._write("running", max(5.0, self._every_s))
        now_s = self._clock()
        self._due_s = now_s + max(self._every_s, (now_s - before_s) / _SHARE)

    def _write(self, state: str, reload_s: float | None) -> None:
        elapsed_s = self._clock() - self._started_s
        try:
            moment = Moment(state, elapsed_s, now(), (), self._bias(), self._earlier, reload_s)
            view = SweepView.of(self._selection, moment)
            found = self._importance.of(view, at_once=reload_s is None)
            replace_file(self.path, page(view, found))
            self.problem = self._lost
        except Exception as error:  # a report that cannot be written must not end the sweep
            self.problem = f"{self.path} cannot be written: {_describe(error)}"


def _describe(error: Exception) -> str:
    """Return an error as text, with its line unless it is an error of the operating system."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = "" if isinstance(error, OSError) else f" ({Path(where.filename).name}:{where.lineno})"
    return f"{type(error).__name__}: {error}{at}"


def write_report(
    path: str | os.PathLike[str],
    sweep: Sweep,
    rows: Iterable[Row],
    moment: Moment,
) -> None:
    """Write the report of a sweep from all its rows.

    If `moment` has no selection bias, that of an earlier report in the file is kept.

    Parameters
    ----------
    path : path
    sweep : Sweep
    rows : iterable of mapping
        In the order in which trials were finished; they are iterated over once.
    moment : Moment

    Raises
    ------
    OSError
        If it cannot be written.
    """
    selection = RowSelection(sweep)
    selection.add(rows)
    view = SweepView.of(selection, moment)
    document = page(view, analyse(view))
    file = Path(path)
    if moment.bias is None and file.is_file():
        with contextlib.suppress(ValueError):  # raised if the file is no report of a sweep
            document = with_bias_of(document, _text_of(file))
    replace_file(file, document)


def conclude_report(
    path: str | os.PathLike[str], state: str, accounts: Sequence[Mapping[str, Any]]
) -> None:
    """Add to a report, once the run has ended, how it ended and the times of its ranks.

    `state` is ``finished``, ``failed`` or ``stopped``; `accounts` are those of the ranks, as in the
    journal's record ``TimeAccounted``. An OSError if the file cannot be read or written, a
    ValueError if it is no report.
    """
    document = _text_of(Path(path))
    rank_accounts = [RankAccount.of(account) for account in accounts]
    replace_file(Path(path), concluded(document, state, rank_accounts))


def _text_of(file: Path) -> str:
    with open_regular(file) as report:
        return report.read().decode()


def now() -> str:
    """Return the date and time as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def environment() -> dict[str, str]:
    """Return what the results of a sweep may depend on: versions, and the kind of machine."""
    import numpy

    return {
        "Python": platform.python_version(),
        "NumPy": numpy.__version__,
        "machine": f"{platform.machine()}, {sys.platform}, {os.cpu_count()} cores",
    }
