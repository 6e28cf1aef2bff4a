"""Reports on tables of results: drawn by the module that comes with diel, from plain values.

The module is imported when there is a report to write: it takes NumPy.
"""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diel.errors import RunDirectoryError
from diel.loading.functions import import_shipped
from diel.run.directory import RunDirectory
from diel.run.history import summarize
from diel.run.journal import JournalReader, Record
from diel.run.view import RunView

_SHIPPED: Final = "report"
_EXPORT: Final = "sweep.export"
_NEITHER: Final = frozenset({"trial", "trainer", "seed", "state", "reason"})
"""Columns that are neither parameters nor metrics."""
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
    """

    view: RunView = field(default_factory=RunView)
    started: Record = field(default_factory=dict)
    tables: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: RunDirectory) -> _Run:
        """Read a journal.

        Raises
        ------
        RunDirectoryError
            If it is none.
        """
        run = cls()
        numbers: dict[tuple[str, frozenset[str]], int] = {}
        try:
            for record in JournalReader(directory.journal).new_records():
                run.view.apply(record)
                if record["event"] == "RunStarted":
                    run.started = record
                elif record["event"] == "ResultsDeclared":
                    name = record["module"], frozenset(record["columns"])
                    number = numbers.setdefault(name, len(numbers) + 1)
                    file = record.get("file") or directory.results_table(number).name
                    first = run.tables.get(file, record)
                    run.tables[file] = {**record, "time_s": first["time_s"]}
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{directory.journal} is no journal, or damaged") from error
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


def write_reports(directory: RunDirectory) -> list[Path]:
    """Write a report on each table of results in a run directory.

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, there are no results, or a file cannot be read or written.
    """
    run = _Run.read(directory)
    if not run.tables:
        raise RunDirectoryError(f"{directory.path} holds no results to report on")
    written = []
    for file, declared in run.tables.items():
        report = directory.report_of(file)
        try:
            _write(directory, run, declared, directory.path / file, report)
        except OSError as error:
            raise RunDirectoryError(f"no report on {file}: {error}") from error
        written.append(report)
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
        workflow=workflow.read_text(encoding="utf-8") if workflow.exists() else "",
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
    for row in _rows(table):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while trial != row.get("trial"):
                trial, curve = next(curves, (row.get("trial"), None))
        yield {**row, "learning curve": curve} if curve else row


def _rows(table: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, one after another: there may be very many."""
    with table.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            yield {name: _value(cell) for name, cell in row.items() if name is not None}


def _value(cell: str | None) -> Any:
    """Return what a cell stood for: a number where it reads as one."""
    if not cell:
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
