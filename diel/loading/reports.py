"""Reports on runs, made by the reporters of installed packages."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diel.errors import PluginError, RunDirectoryError
from diel.loading.reporter import ResultsTable, reporters
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.history import summarize
from diel.run.journal import JournalReader
from diel.run.records import ResultsDeclared, RunStarted
from diel.run.view import RunView

_OTHER_COLUMNS: Final = frozenset({"trial", "trainer", "seed", "state", "reason"})
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
class _RunFacts:
    """The contents of a run's journal that reports need."""

    view: RunView = field(default_factory=RunView)
    started: RunStarted | None = None
    tables: dict[str, ResultsDeclared] = field(default_factory=dict)
    """By the name of each table's file, the record that declares it last, with the time at which it
    was declared first."""
    complaint: str = ""  # what is damaged

    @classmethod
    def read(cls, directory: RunDirectory) -> _RunFacts:
        """Read the contents from the journal of a run."""
        run, reader = cls(), JournalReader(directory.journal)
        numbers: dict[tuple[str, frozenset[str]], int] = {}
        for record in reader.new_records():
            run.view.apply(record)
            if isinstance(record, RunStarted):
                run.started = record
            elif isinstance(record, ResultsDeclared):
                name = record.module, frozenset(record.columns)
                number = numbers.setdefault(name, len(numbers) + 1)
                file = record.file or directory.results_table(number).name
                first = run.tables.get(file, record)
                run.tables[file] = record.at(first.time_s)
        run.complaint = reader.complaint
        return run

    @property
    def accounts(self) -> list[dict[str, Any]]:
        """The times of each rank; empty until the run has ended."""
        return (
            []
            if self.view.accounts is None
            else [rank.as_dict() for rank in self.view.accounts.ranks]
        )

    @property
    def facts(self) -> dict[str, str]:
        """Versions, host and number of ranks of the run, by name."""
        if self.started is None:
            return {}
        facts = {name: getattr(self.started, key) for name, key in _FACTS.items()}
        return {name: str(fact) for name, fact in facts.items() if fact != ""}


def conclude_reports(directory: RunDirectory) -> str:
    """Add the final state, and the times of ranks, to the reports of a run that has ended.

    Returns why that cannot be done; empty if it was done, or there are no reports.
    """
    reports = directory.reports()
    if not reports:
        return ""
    try:
        accounts = _RunFacts.read(directory).accounts
        for report in reports:
            for reporter in reporters():
                reporter.conclude_report(report, _state(directory), accounts)
    except (OSError, ValueError) as error:
        return f"the report cannot be concluded: {error}"
    return ""


def explain_lost_ranks(directory: RunDirectory, copies: Collection[str]) -> list[str]:
    """Return the lines of text of reporters on a run that the death of ranks has ended."""
    lines: list[str] = []
    try:
        for reporter in reporters():
            lines += reporter.explain_lost_ranks(directory.path, copies)
    except (OSError, ValueError) as error:
        lines.append(f"what was lost cannot be told: {error}")
    return lines


def write_reports(
    directory: RunDirectory, warn: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write a report on each table of results in a run directory.

    Warns of damage in the journal, and of tables without a report. A RunDirectoryError says that it
    is no run's directory, there are no results, or no report could be written.
    """
    run = _RunFacts.read(directory)
    if not run.tables:
        raise RunDirectoryError(run.complaint or f"{directory.path} holds no results to report on")
    complaints = [run.complaint] if run.complaint else []
    written = []
    for file, declared in run.tables.items():
        try:
            table = _table(directory, run, declared, directory.path / file)
            for reporter in reporters():
                report = reporter.write_report(table)
                written += [] if report is None else [report]
        except PluginError:
            raise
        except (OSError, ValueError) as error:
            complaints.append(f"no report on {file}: {error}")
    if not written:
        raise RunDirectoryError("\n".join(complaints))
    for complaint in complaints:
        warn(complaint)
    return written


def _table(
    directory: RunDirectory, run: _RunFacts, declared: ResultsDeclared, file: Path
) -> ResultsTable:
    parameters = list(declared.parameters)
    chosen = {*parameters, *_OTHER_COLUMNS}
    ended_s = run.view.ended_s or file.stat().st_mtime
    return ResultsTable(
        run_dir=directory.path,
        file=file,
        report=directory.report_of(file.name),
        run=run.view.name or directory.path.name,
        module=declared.module,
        columns=list(declared.columns),
        parameters=parameters,
        metrics=[name for name in declared.columns if name not in chosen],
        objective=declared.objective,
        maximise=declared.maximise,
        expected=declared.expected,
        workflow=_text_of(directory.workflow),
        facts={"run": directory.path.name, **run.facts, **declared.facts},
        state=_state(directory),
        elapsed_s=max(0.0, ended_s - declared.time_s),
        accounts=run.accounts,
    )


def _state(directory: RunDirectory) -> str:
    """Return the state of a run: how it ended, or that it goes on."""
    return summarize(directory.path, time.time()).state


def _text_of(file: Path) -> str:
    """Return the text of a file; empty if it is missing or cannot be read."""
    try:
        with open_regular(file) as source:
            return source.read(_LONGEST_WORKFLOW_BYTES).decode(errors="replace")
    except OSError:
        return ""
