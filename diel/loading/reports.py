"""Reports on tables of results: drawn by the module that comes with diel, from plain values.

The module is imported when there is a report to write: it takes NumPy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diel.errors import RunDirectoryError
from diel.loading.functions import import_shipped
from diel.run.directory import RunDirectory, open_regular
from diel.run.history import summarize
from diel.run.journal import JournalReader, Record
from diel.run.results import read_rows
from diel.run.view import RunView

_SHIPPED: Final = "report"
_EXPORT: Final = "sweep.export"
_NEITHER: Final = frozenset({"trial", "trainer", "seed", "state", "reason"})
"""Columns that are neither parameters nor metrics."""
_LONGEST_WORKFLOW_BYTES: Final = 2**22
_FACTS: Final = {
    "diel": "diel",
    "Python": "python",
    "MPI": "mpi",
    "host": "host",
    "ranks": "ranks",
}


@dataclass
class _Run:
    """What a journal says that reports need.

    Attributes
    ----------
    tables : dict
        By the name of each table's file, the record that declares it last, with the time at which
        it was declared first.
    complaint : str
        What is damaged; empty if nothing is.
    """

    view: RunView = field(default_factory=RunView)
    started: Record = field(default_factory=dict)
    tables: dict[str, Record] = field(default_factory=dict)
    complaint: str = ""

    @classmethod
    def read(cls, directory: RunDirectory) -> _Run:
        """Read a journal.

        Raises
        ------
        RunDirectoryError
            If it cannot be read at all.
        """
        run, reader = cls(), JournalReader(directory.journal)
        numbers: dict[tuple[str, frozenset[str]], int] = {}
        for record in reader.new_records():
            run.view.apply(record)
            if record["event"] == "RunStarted":
                run.started = record
            elif record["event"] == "ResultsDeclared":
                name = record["module"], frozenset(record["columns"])
                number = numbers.setdefault(name, len(numbers) + 1)
                file = record["file"] or directory.results_table(number).name
                first = run.tables.get(file, record)
                run.tables[file] = {**record, "time_s": first["time_s"]}
        run.complaint = reader.complaint
        return run

    @property
    def accounts(self) -> list[dict[str, Any]]:
        """How the ranks spent their time; empty until the run has ended."""
        return [] if self.view.accounts is None else list(self.view.accounts["ranks"])

    @property
    def facts(self) -> dict[str, str]:
        """What the run ran on."""
        return {name: str(self.started[key]) for name, key in _FACTS.items() if key in self.started}


def conclude_reports(directory: RunDirectory) -> str:
    """Add to the reports of a run that has ended how it did so, and where its time went.

    Returns
    -------
    str
        Why that cannot be done; empty if it was, or there are none.
    """
    reports = directory.reports()
    if not reports:
        return ""
    try:
        accounts = _Run.read(directory).accounts
        for report in reports:
            import_shipped(_SHIPPED).conclude_report(report, _state(directory), accounts)
    except (OSError, ValueError) as error:
        return f"the report cannot be concluded: {error}"
    return ""


def write_reports(
    directory: RunDirectory, warn: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write a report on each table of results in a run directory.

    Parameters
    ----------
    directory : RunDirectory
    warn : callable, optional
        Told what is damaged and had to be left out.

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, there are no results, or no report could be written.
    """
    run = _Run.read(directory)
    if not run.tables:
        raise RunDirectoryError(run.complaint or f"{directory.path} holds no results to report on")
    complaints = [run.complaint] if run.complaint else []
    written = []
    for file, declared in run.tables.items():
        report = directory.report_of(file)
        try:
            _write(directory, run, declared, directory.path / file, report)
        except OSError as error:
            complaints.append(f"no report on {file}: {error}")
        else:
            written.append(report)
    if not written:
        raise RunDirectoryError("\n".join(complaints))
    for complaint in complaints:
        warn(complaint)
    return written


def _write(directory: RunDirectory, run: _Run, declared: Record, table: Path, report: Path) -> None:
    shipped = import_shipped(_SHIPPED)
    parameters = declared.get("parameters", [])
    chosen = {*parameters, *_NEITHER}
    workflow = directory.workflow
    sweep = shipped.Sweep(
        name=run.view.name or directory.path.name,
        objective=declared["objective"],
        maximise=declared["maximise"],
        parameters=parameters,
        metrics=[name for name in declared["columns"] if name not in chosen],
        expected=declared["expected"],
        workflow=_text_of(workflow),
        command="diel run workflow.toml",
        facts={"run": directory.path.name, **run.facts},
        about=f"module {declared['module']}",
    )
    ended_s = run.view.ended_s or table.stat().st_mtime
    moment = shipped.Moment(
        state=_state(directory),
        elapsed_s=max(0.0, ended_s - declared["time_s"]),
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        accounts=[shipped.RankAccount.of(account) for account in run.accounts],
    )
    shipped.write_report(report, sweep, _with_curves(directory, table), moment)


def _state(directory: RunDirectory) -> str:
    """Return how a run ended, or that it goes on."""
    return summarize(directory.path, time.time()).state


def _with_curves(directory: RunDirectory, table: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; with learning curves, if it is of a sweep that has some.

    A ledger has its records in the order of the rows.
    """
    curves: Iterator[tuple[int, Any]] = iter(())
    export = import_shipped(_EXPORT)
    for ledger in sorted((directory.path / "sweeps").glob("*/trials.jsonl")):
        with contextlib.suppress(OSError, ValueError):  # raised by one that is damaged
            if export.about_of(ledger).get("table") == table.name:
                curves = export.curves_of(ledger, directory.path)
    trial, curve = None, None
    for row in read_rows(table):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while trial != row.get("trial"):
                trial, curve = next(curves, (row.get("trial"), None))
        yield {**row, "learning curve": curve} if curve else row


def _text_of(file: Path) -> str:
    """Return what a file says; nothing if it is not there, or nothing to read."""
    try:
        with open_regular(file) as source:
            return source.read(_LONGEST_WORKFLOW_BYTES).decode(errors="replace")
    except OSError:
        return ""
