"""A run as its journal tells it: what every command shows.

``RunView.apply(record)`` is a pure function of the records, so a reader may start late, or after
the end, and shows the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diel.run.journal import Record
from diel.run.records import StoredValue
from diel.run.results import TableName, table_name


@dataclass
class GroupView:
    """One group: its state, the iteration that it is in, and the copies that still work.

    Attributes
    ----------
    inside : str
        The group around it, if there is one.
    iterations : int or None
        How many there are at most in a row; None for any number.
    has_until : bool
        Whether a tuple may end it sooner.
    iteration : tuple of int
        Counted from 0: a number for each group around, outermost first, and one for itself.
    """

    name: str
    inside: str = ""
    iterations: int | None = 1
    has_until: bool = False
    iteration: tuple[int, ...] = ()
    state: str = "waiting"  # waiting, running, finished, stopped
    copies: int = 0
    copies_finished: int = 0
    started_s: float = 0.0
    finished_s: float = 0.0

    @property
    def repeats(self) -> bool:
        """Whether it may run more than once in a row."""
        return self.iterations != 1

    def describe_iteration(self, iteration: Sequence[int]) -> str:
        """Say which iteration one is, as people count: ``iteration 3 of 5, in iteration 1``."""
        *around, own = iteration
        of = "" if self.iterations is None else f" of {self.iterations}"
        within = f", in iteration {'.'.join(str(one + 1) for one in around)}" if around else ""
        return f"iteration {own + 1}{of}{within}"


@dataclass
class ResultsView:
    """The rows that a module added under the same columns.

    Attributes
    ----------
    file : str
        Of a table that a module writes itself; then `rows` are the best ones alone, and `shown`
        says how many there are.
    constants : dict
        Columns of such a table that are the same in all its rows.
    notes : list of str
        What its module says of it: lines to stand below.
    unranked : dict of str to int
        How many rows of such a table are no result to be ranked, by why.
    """

    module: str
    columns: list[str]
    objective: str
    maximise: bool
    expected: int | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    file: str = ""
    shown: int = 0
    constants: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unranked: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.shown if self.file else len(self.rows)

    @property
    def ranked(self) -> int:
        """How many of them are results."""
        return max(0, self.count - sum(self.unranked.values()))

    @property
    def unranked_text(self) -> str:
        """The others in words: ``2 diverged, 1 failed``."""
        return ", ".join(f"{count:,} {why}" for why, count in self.unranked.items())


@dataclass
class CopyView:
    """A copy of a module that runs: of which group, on which ranks, since when."""

    name: str
    group: str
    ranks: list[int]
    started_s: float
    attempt: int = 1


@dataclass(frozen=True)
class _Saved:
    """What a view held at a checkpoint: of each table, the rows expected and those there."""

    number: int
    tables: dict[TableName, tuple[int | None, int]]
    returned: dict[tuple[str, str], Any]


@dataclass
class RunView:
    """A run, as far as its journal has been read.

    Attributes
    ----------
    file : str
        The workflow file that it was started with; empty if that is not known.
    """

    name: str = ""
    file: str = ""
    ranks: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    groups: dict[str, GroupView] = field(default_factory=dict)
    results: dict[TableName, ResultsView] = field(default_factory=dict)
    progress: dict[str, tuple[float, float | None, str]] = field(default_factory=dict)
    given_up: list[Record] = field(default_factory=list)
    messages: list[tuple[str, str, str]] = field(default_factory=list)
    placement: dict[int, str] = field(default_factory=dict)
    running: dict[str, CopyView] = field(default_factory=dict)
    accounts: Record | None = None
    failure: Record | None = None
    exit_code: int | None = None
    resumed: int = 0
    refusal: str = ""
    own_files: set[str] = field(default_factory=set)
    _returned: dict[tuple[str, str], Any] = field(default_factory=dict)
    _saved: _Saved = field(default_factory=lambda: _Saved(0, {}, {}))

    @property
    def returned(self) -> list[tuple[str, Any]]:
        """What each copy has returned, by ``module.copy``: the last time, in each of its groups."""
        return [(who, value) for (_, who), value in self._returned.items()]

    def is_repeated(self, group: str) -> bool:
        """Whether a group may run more than once in the run, by itself or with one around it."""
        view = self.groups[group]
        return view.repeats or (bool(view.inside) and self.is_repeated(view.inside))

    def who_is_on(self, rank: int) -> str:
        """Say in words what a rank does."""
        if rank == 0:
            return "the executive"
        return self.placement.get(rank, "a tuple server, or waiting for work")

    def apply(self, record: Record) -> None:
        """Take one record into account; records of unknown events are passed over."""
        handler = getattr(self, f"_on_{record['event']}", None)
        if handler is not None:
            handler(record)

    # Each method below is named after the event of the journal that it handles.

    def _on_RunCreated(self, record: Record) -> None:
        self.file = record["file"]

    def _on_RunStarted(self, record: Record) -> None:
        self.name, self.ranks = record["workflow"], record["ranks"]
        self.file = record.get("file") or self.file
        self.started_s = record["time_s"]
        iterations, inside = record.get("iterations", {}), record.get("inside", {})
        until = record.get("until", [])
        self.groups = {
            name: GroupView(name, inside.get(name, ""), iterations.get(name, 1), name in until)
            for name in record["groups"]
        }
        for name, (iteration, is_last) in record.get("finished", {}).items():
            if is_last:
                self.groups[name].state = "finished"
            self.groups[name].iteration = tuple(iteration)

    def _on_CheckpointSaved(self, record: Record) -> None:
        tables = {name: (table.expected, len(table.rows)) for name, table in self.results.items()}
        # A resumption goes back to the last one, so no other is kept.
        self._saved = _Saved(record["number"], tables, dict(self._returned))

    def _on_RunResumed(self, record: Record) -> None:
        """Return to a checkpoint: what came later will come again."""
        saved = self._saved
        if saved.number != record["checkpoint"]:
            saved = _Saved(0, {}, {})
        self.results = {name: self.results[name] for name in saved.tables}
        for name, (expected, rows) in saved.tables.items():
            if not self.results[name].file:  # whoever writes its own knows what is in it
                self.results[name].expected = expected
                del self.results[name].rows[rows:]
        self._returned = dict(saved.returned)
        self.progress.clear()
        self.placement.clear()
        self.running.clear()
        self.accounts = None
        self.failure, self.exit_code, self.ended_s, self.refusal = None, None, 0.0, ""
        self.resumed += 1

    def _on_RunRefused(self, record: Record) -> None:
        self.refusal, self.exit_code = record["error"], record["exit_code"]

    def _on_GroupStarted(self, record: Record) -> None:
        group = self.groups[record["group"]]
        group.state, group.started_s = "running", record["time_s"]
        group.iteration = tuple(record.get("iteration", ()))
        for who, ranks in record.get("placement", {}).items():
            self.placement.update(dict.fromkeys(ranks, f"module {who}"))
            self.running[who] = CopyView(who, group.name, ranks, record["time_s"])
        group.copies, group.copies_finished = sum(record.get("copies", {}).values()), 0

    def _on_CopyFinished(self, record: Record) -> None:
        self.groups[record["group"]].copies_finished += 1
        who = f"{record['module']}.{record['copy']}"
        self.progress.pop(who, None)
        self.running.pop(who, None)
        returned = record["returned"]
        if record.get("returned_type"):
            returned = StoredValue(
                record["returned_type"], record["returned_bytes"], record["returned_file"]
            )
        if returned is not None:
            self._returned[record["group"], who] = returned

    def _on_GroupFinished(self, record: Record) -> None:
        group = self.groups[record["group"]]
        group.finished_s = record["time_s"]
        # Without a reason to end it goes on with its next iteration.
        group.state = "finished" if record.get("ended_by", "iterations") else "running"

    def _on_ModuleFailed(self, record: Record) -> None:
        if record.get("policy", "stop") == "stop":
            self._note_failure(record)

    def _on_CopyGivenUp(self, record: Record) -> None:
        self.groups[record["group"]].copies_finished += 1
        who = f"{record['module']}.{record['copy']}"
        self.progress.pop(who, None)
        self.running.pop(who, None)
        self.given_up.append(record)

    def _on_CopiesRestarted(self, record: Record) -> None:
        for index in record["copies"]:
            copy = self.running.get(f"{record['module']}.{index}")
            if copy is not None:
                copy.attempt, copy.started_s = record["attempt"], record["time_s"]

    def _on_DeadlockFound(self, record: Record) -> None:
        self._note_failure(record)

    def _on_JournalLost(self, record: Record) -> None:
        self._note_failure(record)

    def _on_LeaveIgnored(self, record: Record) -> None:
        self._note_failure(record)

    def _note_failure(self, record: Record) -> None:
        if self.failure is None:
            self.failure = record

    def _on_ResultsDeclared(self, record: Record) -> None:
        file = record.get("file", "")
        name = table_name(record["module"], [file] if file else record["columns"])
        table = self.results.get(name)
        if file:
            self.own_files.add(file)
        elif table is not None:
            if table.expected is not None and record["expected"] is not None:
                table.expected += record["expected"]
            return
        self.results[name] = ResultsView(
            record["module"],
            record["columns"],
            record["objective"],
            record["maximise"],
            record["expected"],
            file=file,
        )

    def _on_ResultsShown(self, record: Record) -> None:
        table = self.results.get(table_name(record["module"], [record["file"]]))
        if table is None:
            return
        table.shown = record["count"]
        if record.get("best") is not None:
            table.rows, table.constants = record["best"], record["constants"]
        table.notes = record.get("notes") or table.notes
        table.unranked = record.get("unranked") or table.unranked

    def _on_ResultAdded(self, record: Record) -> None:
        table = self.results.get(table_name(record["module"], record["row"]))
        if table is not None:
            table.rows.append(record["row"])

    def _on_ProgressMade(self, record: Record) -> None:
        who = f"{record['module']}.{record['copy']}"
        self.progress[who] = (record["done"], record["total"], record["text"])

    def _on_MessageLogged(self, record: Record) -> None:
        who = f"{record['module']}.{record['copy']}"
        self.messages.append((record["level"], who, record["text"]))

    def _on_TimeAccounted(self, record: Record) -> None:
        self.accounts = record

    def _on_RunEnded(self, record: Record) -> None:
        self.running.clear()
        self.exit_code, self.ended_s = record["exit_code"], record["time_s"]
        for group in self.groups.values():
            if group.state == "running":
                group.state = "stopped"
