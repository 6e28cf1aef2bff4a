"""Reports on runs, made by the reporters of installed packages.

A reporter is the object that an entry point of the group ``diel.reporters`` names, often a module.
It has some of the functions of `Reporter`, and is imported when there is something to report on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from diel.errors import PluginError, RunDirectoryError
from diel.plugins import REPORTERS, installed_plugins, load_installed
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.history import summarize
from diel.run.journal import JournalReader
from diel.run.records import ResultsDeclared, RunStarted
from diel.run.results import read_rows
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


@dataclass(frozen=True)
class ResultsTable:
    """A table of results, and the facts about its run that a report shows.

    Attributes
    ----------
    run_dir : Path
    file : Path
        The table, CSV.
    report : Path
        ``report.html`` beside it; a reporter that writes another kind changes the suffix.
    run : str
        The name of the run.
    module : str
        The module that declared the table.
    columns, parameters, metrics : sequence of str
        All columns; those whose values were chosen; those whose values were computed.
    objective : str
        The column that ranks the rows.
    maximise : bool
        Whether a larger value of it is better.
    expected : int or None
        How many rows there will be, where that is known.
    workflow : str
        The text of the workflow file.
    facts : mapping of str to str
        Versions, host and ranks of the run, and the module's own ``declare(facts=...)``.
    state : str
        ``running``, ``finished``, ``failed`` or ``stopped``.
    elapsed_s : float
        From the declaration of the table to the end of the run.
    accounts : sequence of mapping
        The times of each rank, as in the journal; empty until the run has ended.
    """

    run_dir: Path
    file: Path
    report: Path
    run: str
    module: str
    columns: Sequence[str]
    parameters: Sequence[str]
    metrics: Sequence[str]
    objective: str
    maximise: bool
    expected: int | None
    workflow: str
    facts: Mapping[str, str]
    state: str
    elapsed_s: float
    accounts: Sequence[Mapping[str, Any]]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table: a dictionary by column each."""
        yield from read_rows(self.file)


class Reporter(Protocol):
    """The functions that a reporter may have; it can leave out any of them."""

    def write_report(self, table: ResultsTable) -> Path | None:
        """Write a report on a table of results; return its file, if there is one.

        Raises
        ------
        OSError, ValueError
            If it cannot be written.
        """

    def conclude_report(
        self, report: Path, state: str, accounts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add the run's final state, and the times of its ranks, to a report that a module wrote.

        Raises
        ------
        OSError, ValueError
            If it cannot be read or written.
        """

    def explain_lost_ranks(self, run_dir: Path, copies: Collection[str]) -> Iterable[str]:
        """Return lines on a run that the death of ranks has ended.

        Parameters
        ----------
        run_dir : Path
        copies : collection of str
            The copies whose ranks have died, as ``trainer.0``; empty if that is not known.
        """

    def watch_sweeps(self, run_dir: Path) -> Iterable[Any]:
        """Return the sweeps of a run that have begun: `diel.loading.sweeps.WatchedSweep`."""

    def record_participation(self, run_dir: Path, said: Mapping[str, Any]) -> None:
        """Write for a run that has not begun which sweep it takes part in.

        Parameters
        ----------
        run_dir : Path
        said : mapping
            ``share``: a folder that runs share; or ``join``: the ``ledger`` of a joinable sweep;
            ``silence_s``; ``leave_after_s``, or None.
        """

    def joinable_sweeps(self, run_dir: Path) -> Iterable[Mapping[str, Any]]:
        """Return the sweeps of a run: see `diel.loading.sweeps.find_joinable`."""

    def list_workers(self, run_dir: Path) -> Iterable[Mapping[str, Any]]:
        """Return workers of other runs in these sweeps: see `diel.loading.sweeps.list_workers`."""

    def find_model(self, run_dir: Path, sweep: str, trial: int | None) -> Mapping[str, Any]:
        """Return where the model of a trial is, by default of the best one.

        ``sweep``, ``trial``, and ``file``; an empty name means the only sweep. Where the trial has
        to be trained again, ``file`` is None, and there are ``parameters``, ``seed``,
        ``provenance`` and ``path``, as ``save_model`` of the trainer's file takes them.

        Raises
        ------
        OSError, ValueError
            If there is no such sweep, trial or model.
        """

    def load_model(self, file: Path) -> Any:
        """Load a trained model: `diel.loading.models.TrainedModel`.

        Raises
        ------
        OSError, ValueError, ImportError
            If it cannot be read.
        """

    def compare_sweeps(self, sweeps: Mapping[str, Any], theme: str) -> dict[str, Any]:
        """Compare sweeps that `watch_sweeps` gave, as `diel.loading.sweeps.compare_sweeps` says.

        Raises
        ------
        ValueError
            If their objectives differ.
        """

    def write_comparison(self, sweeps: Mapping[str, Any], path: Path) -> Path:
        """Write one report over sweeps, given as to `compare_sweeps`; return its file.

        Raises
        ------
        OSError, ValueError
            If it cannot be written, or objectives differ.
        """

    def export_formats(self) -> Iterable[str]:
        """Return the formats in which it can export a sweep, for ``diel completion``."""

    def describe_machine(self) -> Iterable[tuple[str, str]]:
        """Return facts about this machine for `diel doctor`: a name and a text each.

        It must not take long, and raises nothing.
        """


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
            for conclude in reporting("conclude_report"):
                conclude(report, _state(directory), accounts)
    except (OSError, ValueError) as error:
        return f"the report cannot be concluded: {error}"
    return ""


def explain_lost_ranks(directory: RunDirectory, copies: Collection[str]) -> list[str]:
    """Return the lines of text of reporters on a run that the death of ranks has ended."""
    lines: list[str] = []
    try:
        for explain in reporting("explain_lost_ranks"):
            lines += explain(directory.path, copies)
    except (OSError, ValueError) as error:
        lines.append(f"what was lost cannot be told: {error}")
    return lines


def reporting(function: str) -> Iterator[Callable[..., Any]]:
    """Yield a function, by name, of every reporter that has it; PluginError if one is broken."""
    for name in installed_plugins(REPORTERS):
        reporter = load_installed(REPORTERS, name)
        if hasattr(reporter, function):
            yield getattr(reporter, function)


def export_formats() -> Iterator[str]:
    """Yield the formats in which reporters can export a sweep."""
    for formats in reporting("export_formats"):
        yield from formats()


def describe_machine() -> Iterator[tuple[str, str]]:
    """Yield the facts of reporters about this machine: a name and a text each."""
    for describe in reporting("describe_machine"):
        yield from describe()


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
            for write_report in reporting("write_report"):
                report = write_report(table)
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
