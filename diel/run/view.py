"""The state of a run, computed from its journal: every command shows this.

``RunView.apply(record)`` is a pure function of the records, so a reader may start late, or after
the end, and shows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from diel.frozen import Frozen
from diel.run import records
from diel.run.fields import Record
from diel.run.records import Failure, ModuleTimes, RankTimes, TableName
from diel.run.results import best_row
from diel.run.tasks import Place, numbers_in_words, tasks_in_words
from diel.text import format_value, show

_RANKS_SHOWN: Final = 16
_COPIES_NAMED: Final = 2
_PARTS: Final = ("working", "waiting", "communicating")


@dataclass
class GroupView:
    """State of one group: its present iteration, its copies, and how many of them have finished.

    Attributes
    ----------
    inside : str
        The enclosing group; empty if there is none.
    iterations : int or None
        Most iterations in a row; None for any number.
    has_until : bool
        Whether a tuple may end it sooner.
    iteration : tuple of int
        Numbers from 0: one of each enclosing group, outermost first, and then its own.
    ranks : tuple of int
        The ranks of its present iteration, until that has finished.
    when : str
        Its condition; empty if it always runs.
    why_skipped : str
        The condition and what it was judged by, of a group that was skipped.
    """

    name: str
    inside: str = ""
    iterations: int | None = 1
    has_until: bool = False
    iteration: tuple[int, ...] = ()
    state: str = "waiting"  # waiting, running, finished, skipped, stopped
    copies: int = 0
    copies_finished: int = 0
    started_s: float = 0.0
    finished_s: float = 0.0
    ranks: tuple[int, ...] = ()
    when: str = ""
    why_skipped: str = ""
    has_failed: bool = False  # copies of it, or of groups inside, were given up
    array: str = ""  # the group with foreach that it is in

    @property
    def repeats(self) -> bool:
        """Whether the group may run more than once in a row."""
        return self.iterations != 1

    def describe_iteration(self, iteration: Sequence[int]) -> str:
        """Describe an iteration, counted from 1: ``iteration 3 of 5, in iteration 1``."""
        *around, own = iteration
        of = "" if self.iterations is None else f" of {self.iterations}"
        within = (
            f", in iteration {'.'.join(str(number + 1) for number in around)}" if around else ""
        )
        return f"iteration {own + 1}{of}{within}"


@dataclass
class ArrayView:
    """A group with ``foreach``: its elements, and how many have ended in its present iteration.

    Attributes
    ----------
    columns : sequence of str
        The names of their values.
    rows : dict of str to sequence
        The values of each element, by the name of its group.
    ended, failed : int
        Those that failed have ended, too.
    """

    columns: Sequence[str]
    rows: dict[str, Sequence[Any]]
    ended: int = 0
    failed: int = 0

    def __str__(self) -> str:
        text = f"{self.ended} of {len(self.rows)} elements have ended"
        return f"{text}, {self.failed} failed" if self.failed else text

    def values_in_words(self, element: str) -> str:
        """Return the values of an element, such as ``dt = 0.1, cells = 64``."""
        pairs = zip(self.columns, self.rows[element], strict=False)
        return ", ".join(f"{name} = {show(value)}" for name, value in pairs)


@dataclass
class ResultsView:
    """A table of results: the rows that a module added under the same columns.

    Attributes
    ----------
    file : str
        Of a table that a module writes itself; then `rows` are only the best rows, and `shown` is
        the number of all.
    constants : dict
        Columns of such a table that are the same in all its rows.
    notes : list of str
        Lines of its module to show below the table.
    unranked : dict of str to int
        Numbers of rows of such a table that are not ranked, by reason.
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
        """Number of all rows."""
        return self.shown if self.file else len(self.rows)

    @property
    def ranked(self) -> int:
        """Number of rows that are ranked."""
        return max(0, self.count - sum(self.unranked.values()))

    @property
    def best_text(self) -> str:
        """The objective of the best row in a few words, and the numbers of unranked rows."""
        unranked = f" ({self.unranked_text})" if self.unranked else ""
        if not self.rows:
            return f"none yet{unranked}"
        best = best_row(self.rows, self.objective, self.maximise)
        return f"best {self.objective} {format_value(best[self.objective])}{unranked}"

    @property
    def unranked_text(self) -> str:
        """The numbers of unranked rows in words: ``2 diverged, 1 failed``."""
        return ", ".join(f"{count:,} {why}" for why, count in self.unranked.items())


@dataclass
class FailedTasks:
    """The tasks of a module that have failed in an iteration of its group, which goes on.

    Attributes
    ----------
    total : int
        How many tasks the module has.
    errors : dict of int to str
        By task.
    is_settled : bool
        Whether the group has finished without them; else they may be repeated still.
    is_repeatable : bool
        Whether the run, once it has finished, can be resumed to repeat them.
    """

    group: str
    module: str
    total: int
    errors: dict[int, str] = field(default_factory=dict)
    is_settled: bool = False
    is_repeatable: bool = False

    def __str__(self) -> str:
        failed = sorted(self.errors)
        if self.is_settled:
            return tasks_in_words(self.total, failed)
        return f"{len(failed)} of {self.total} tasks failed: {numbers_in_words(failed)}"


@dataclass
class CopyView:
    """A copy of a module that is running: its group, its ranks, and since when."""

    name: str
    group: str
    ranks: Sequence[int]
    started_s: float
    attempt: int = 1


class _Saved(Frozen):
    """A view at a checkpoint: numbers of rows expected and present by table, returned values."""

    number: int
    tables: dict[TableName, tuple[int | None, int]]
    returned: dict[tuple[str, str], Any]


@dataclass
class RunView:
    """State of a run, as far as its journal has been read.

    Attributes
    ----------
    file : str
        The workflow file that it was started with; empty if that is not known.
    started : RunStarted or None
        The record with which it began, or went on.
    losses : list of RunLost
        The records of its launcher about ranks that died.
    lost : RunLost or None
        The last of these, where no restart follows.
    first_group_s : float
        When the first groups were started after that.
    """

    name: str = ""
    file: str = ""
    ranks: int = 0
    started: records.RunStarted | None = None
    started_s: float = 0.0
    first_group_s: float = 0.0
    ended_s: float = 0.0
    groups: dict[str, GroupView] = field(default_factory=dict)
    arrays: dict[str, ArrayView] = field(default_factory=dict)
    results: dict[TableName, ResultsView] = field(default_factory=dict)
    progress: dict[str, tuple[float, float | None, str]] = field(default_factory=dict)
    given_up: list[records.CopyGivenUp] = field(default_factory=list)
    failed_tasks: dict[Place, FailedTasks] = field(default_factory=dict)
    up_to_date: dict[tuple[str, str], None] = field(default_factory=dict)  # groups and copies
    messages: list[tuple[str, str, str]] = field(default_factory=list)
    placement: dict[int, str] = field(default_factory=dict)
    running: dict[str, CopyView] = field(default_factory=dict)
    accounts: records.TimeAccounted | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    resumed: int = 0
    losses: list[records.RunLost] = field(default_factory=list)
    lost: records.RunLost | None = None
    refusal: str = ""
    own_files: set[str] = field(default_factory=set)
    _returned: dict[tuple[str, str], Any] = field(default_factory=dict)
    _saved: _Saved = field(default_factory=lambda: _Saved(0, {}, {}))
    _pinned: _Saved | None = None
    _inside: dict[str, list[str]] = field(default_factory=dict)

    @property
    def returned(self) -> list[tuple[str, Any]]:
        """The last value that each copy has returned in each of its groups, by ``module.copy``."""
        return [(copy, value) for (_, copy), value in self._returned.items()]

    @property
    def returned_in(self) -> dict[tuple[str, str], Any]:
        """The last value that each copy has returned, by its group and ``module.copy``."""
        return self._returned

    @property
    def checkpoint(self) -> int:
        """The number of the last checkpoint; 0 if there is none."""
        return self._saved.number

    @property
    def part(self) -> str:
        """The options that say which groups of the file run; empty if all do."""
        return "" if self.started is None else self.started.part

    @property
    def restarts(self) -> int:
        """How often the launcher has started the run again."""
        return sum(loss.restart > 0 for loss in self.losses)

    def lasted_s(self, until_s: float) -> float:
        """Return the seconds from the start to a moment, at least 0: clocks may be set back."""
        return max(0.0, until_s - self.started_s) if self.started_s else 0.0

    def is_repeated(self, group: str) -> bool:
        """Whether a group may run more than once in the run, by itself or with an outer group."""
        view = self.groups[group]
        return view.repeats or (bool(view.inside) and self.is_repeated(view.inside))

    def element_of(self, group: str) -> GroupView | None:
        """Return the element of ``foreach`` that a group is, or is in; None if it is in none."""
        found = self.groups.get(group)
        while found is not None and found.array and found.inside != found.array:
            found = self.groups.get(found.inside)
        return found if found is not None and found.array else None

    def name_in_file(self, group: str, module: str = "") -> str:
        """Return the name that the workflow file has for a group, or for a module of it."""
        element = self.element_of(group)
        if element is None:
            return module or group
        if not module and element.name == group:
            return element.array
        return (module or group).removesuffix(f"-{element.name.rpartition('-')[2]}")

    def describe_rank(self, rank: int) -> str:
        """Describe what runs on a rank: a copy of a module, the executive or a tuple server."""
        if rank == 0:
            return "the executive"
        if self.started is not None and rank in self.started.servers:
            return "a tuple server"
        waits = "a tuple server, or waiting for work"
        return self.placement.get(rank, waits if self.started else "a rank that was starting")

    def apply(self, record: Record) -> None:
        """Update the view by the next record; records of unknown events are skipped."""
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)

    def _run_created(self, record: records.RunCreated) -> None:
        self.file = record.file

    def _run_started(self, record: records.RunStarted) -> None:
        self.name, self.ranks = record.workflow, record.ranks
        self.file = record.file or self.file
        self.started, self.started_s, self.first_group_s = record, record.time_s, 0.0
        before = self.groups
        self.groups = {
            name: GroupView(
                name,
                record.inside.get(name, ""),
                record.iterations.get(name, 1),
                name in record.until,
                when=record.when.get(name, ""),
            )
            for name in record.groups
        }
        self._inside = {}
        for name, around in record.inside.items():
            self._inside.setdefault(around, []).append(name)
        self.arrays = {}
        for each in record.elements:
            names = self._inside.get(each.group, [])
            self.arrays[each.group] = ArrayView(
                each.columns, dict(zip(names, each.rows, strict=False))
            )
            for name in self._all_inside(each.group):
                self.groups[name].array = each.group
        for name, (iteration, is_last) in record.finished.items():
            if is_last:
                self.groups[name].state = "finished"
            self.groups[name].iteration = iteration
            self.groups[name].has_failed = record.outcomes.get(name) == "failed"
            if name in before:
                self.groups[name].started_s = before[name].started_s
                self.groups[name].finished_s = before[name].finished_s
        for name, outcome in record.outcomes.items():
            if outcome == "skipped" and self.groups[name].state == "finished":
                self._skip(name, before[name].why_skipped if name in before else "")

    def _all_inside(self, group: str) -> Iterator[str]:
        """Yield the groups inside a group, directly or not."""
        for name in self._inside.get(group, ()):
            yield name
            yield from self._all_inside(name)

    def _checkpoint_saved(self, record: records.CheckpointSaved) -> None:
        tables = {name: (table.expected, len(table.rows)) for name, table in self.results.items()}
        # A resumption goes back to the last checkpoint or a pinned one, so no other is kept.
        self._saved = _Saved(record.number, tables, dict(self._returned))
        if record.is_pinned:
            self._pinned = self._saved

    def _run_resumed(self, record: records.RunResumed) -> None:
        """Return to a checkpoint: all that came later will be repeated."""
        saved = self._saved
        if saved.number != record.checkpoint:
            saved = _Saved(0, {}, {})
            if self._pinned is not None and self._pinned.number == record.checkpoint:
                saved = self._pinned
        self._saved = saved
        self.results = {name: self.results[name] for name in saved.tables}
        for name, (expected, rows) in saved.tables.items():
            if not self.results[name].file:  # rows of other files are the module's own concern
                self.results[name].expected = expected
                del self.results[name].rows[rows:]
        self._returned = dict(saved.returned)
        self.failed_tasks = {
            (group, iteration, module): failed
            for (group, iteration, module), failed in self.failed_tasks.items()
            if group in record.finished and iteration <= record.finished[group].iteration
        }
        self.given_up = [
            copy
            for copy in self.given_up
            if copy.group in record.finished
            and copy.iteration <= record.finished[copy.group].iteration
        ]
        self.progress.clear()
        self.placement.clear()
        self.running.clear()
        self.accounts = None
        self.failure, self.exit_code, self.ended_s, self.refusal = None, None, 0.0, ""
        self.lost = None
        self.resumed += 1

    def _run_lost(self, record: records.RunLost) -> None:
        self.losses.append(record)
        self.lost = None if record.restart else record

    def _run_refused(self, record: records.RunRefused) -> None:
        self.refusal, self.exit_code = record.error, record.exit_code

    def _group_started(self, record: records.GroupStarted) -> None:
        group = self.groups[record.group]
        group.state, group.started_s = "running", record.time_s
        self.first_group_s = self.first_group_s or record.time_s
        group.iteration = record.iteration
        group.ranks = tuple(rank for ranks in record.placement.values() for rank in ranks)
        for name, ranks in record.placement.items():
            self.placement.update(dict.fromkeys(ranks, f"module {name}"))
            self.up_to_date.pop((group.name, name), None)
            self.running[name] = CopyView(name, group.name, ranks, record.time_s)
        group.copies, group.copies_finished = sum(record.copies.values()), 0
        group.has_failed = False
        if (array := self.arrays.get(record.group)) is not None:
            # Of elements that an earlier session has finished, those of this iteration count.
            ended = [
                element
                for element in map(self.groups.__getitem__, array.rows)
                if element.state in ("finished", "skipped")
                and element.iteration[:-1] == record.iteration
            ]
            array.ended = len(ended)
            array.failed = sum(element.has_failed for element in ended)

    def _copy_finished(self, record: records.CopyFinished) -> None:
        self._copy_ended(record)
        if (value := record.value) is not None:
            self._returned[record.group, record.name] = value

    def _outputs_current(self, record: records.OutputsCurrent) -> None:
        self.up_to_date[record.group, record.name] = None

    def _copy_given_up(self, record: records.CopyGivenUp) -> None:
        self._copy_ended(record)
        self.given_up.append(record)

    def _copy_ended(self, record: records.CopyFinished | records.CopyGivenUp) -> None:
        self.groups[record.group].copies_finished += 1
        self.progress.pop(record.name, None)
        self.running.pop(record.name, None)

    def _task_failed(self, record: records.TaskFailed) -> None:
        place = (record.group, record.iteration, record.module)
        failed = FailedTasks(record.group, record.module, record.total)
        self.failed_tasks.setdefault(place, failed).errors[record.task] = record.error

    def _tasks_failed(self, record: records.TasksFailed) -> None:
        place = (record.group, record.iteration, record.module)
        known = self.failed_tasks.get(place)
        errors = {} if known is None else known.errors
        self.failed_tasks[place] = FailedTasks(
            record.group,
            record.module,
            record.total,
            {task: errors.get(task, "") for task in record.failed},
            is_settled=True,
            is_repeatable=record.is_repeatable,
        )

    def _group_finished(self, record: records.GroupFinished) -> None:
        for place, failed in list(self.failed_tasks.items()):
            if place[0] == record.group and not failed.is_settled:
                del self.failed_tasks[place]  # a retry has done them
        group = self.groups[record.group]
        group.finished_s, group.ranks = record.time_s, ()
        group.has_failed = record.outcome == "failed"
        # A group without a reason to end goes on with its next iteration.
        group.state = "finished" if record.ended_by else "running"
        if record.ended_by:
            self._note_ended(group)

    def _group_skipped(self, record: records.GroupSkipped) -> None:
        group = self.groups[record.group]
        group.iteration, group.finished_s = record.iteration, record.time_s
        self._skip(record.group, record.reason)
        self._note_ended(group)

    def _note_ended(self, group: GroupView) -> None:
        if (array := self.arrays.get(group.inside)) is not None:
            array.ended += 1
            array.failed += group.has_failed

    def _skip(self, name: str, reason: str) -> None:
        """Mark a group, and those inside it, as skipped."""
        self.groups[name].state, self.groups[name].why_skipped = "skipped", reason
        for inner in self._inside.get(name, ()):
            self._skip(inner, f"inside {name}: {reason}" if reason else "")

    def _copies_restarted(self, record: records.CopiesRestarted) -> None:
        for index in record.copies:
            copy = self.running.get(f"{record.module}.{index}")
            if copy is not None:
                copy.attempt, copy.started_s = record.attempt, record.time_s

    def _module_failed(self, record: records.ModuleFailed | records.RanksLost) -> None:
        if record.stops_run:
            self._run_failed(record)

    def _run_failed(self, record: Failure) -> None:
        if self.failure is None:
            self.failure = record

    def _results_declared(self, record: records.ResultsDeclared) -> None:
        table = self.results.get(record.table)
        if record.file:
            self.own_files.add(record.file)
        elif table is not None:
            if table.expected is not None and record.expected is not None:
                table.expected += record.expected
            return
        self.results[record.table] = ResultsView(
            record.module,
            list(record.columns),
            record.objective,
            record.maximise,
            record.expected,
            file=record.file,
        )

    def _results_shown(self, record: records.ResultsShown) -> None:
        table = self.results.get(record.table)
        if table is None:
            return
        table.shown = record.count
        if record.best is not None:
            table.rows, table.constants = list(record.best), record.constants
        table.notes = list(record.notes) or table.notes
        table.unranked = record.unranked or table.unranked

    def _result_added(self, record: records.ResultAdded) -> None:
        table = self.results.get(record.table)
        if table is not None:
            table.rows.append(record.row)

    def _progress_made(self, record: records.ProgressMade) -> None:
        self.progress[record.name] = (record.done, record.total, record.text)

    def _message_logged(self, record: records.MessageLogged) -> None:
        self.messages.append((record.level, record.name, record.text))

    def _time_accounted(self, record: records.TimeAccounted) -> None:
        self.accounts = record

    def _run_ended(self, record: records.RunEnded) -> None:
        self.running.clear()
        self.exit_code, self.ended_s = record.exit_code, record.time_s
        for group in self.groups.values():
            group.ranks = ()
            if group.state == "running":
                group.state = "stopped"


_HANDLERS: Final[dict[type[Record], Callable[[RunView, Any], None]]] = {
    records.RunCreated: RunView._run_created,
    records.RunStarted: RunView._run_started,
    records.RunResumed: RunView._run_resumed,
    records.RunLost: RunView._run_lost,
    records.RunRefused: RunView._run_refused,
    records.GroupStarted: RunView._group_started,
    records.CopyFinished: RunView._copy_finished,
    records.ModuleFailed: RunView._module_failed,
    records.CopiesRestarted: RunView._copies_restarted,
    records.CopyGivenUp: RunView._copy_given_up,
    records.TaskFailed: RunView._task_failed,
    records.TasksFailed: RunView._tasks_failed,
    records.OutputsCurrent: RunView._outputs_current,
    records.GroupFinished: RunView._group_finished,
    records.GroupSkipped: RunView._group_skipped,
    records.CheckpointSaved: RunView._checkpoint_saved,
    records.DeadlockFound: RunView._run_failed,
    records.JournalLost: RunView._run_failed,
    records.LeaveIgnored: RunView._run_failed,
    records.WhenFailed: RunView._run_failed,
    records.RanksLost: RunView._module_failed,
    records.ResultsDeclared: RunView._results_declared,
    records.ResultAdded: RunView._result_added,
    records.ResultsShown: RunView._results_shown,
    records.ProgressMade: RunView._progress_made,
    records.MessageLogged: RunView._message_logged,
    records.TimeAccounted: RunView._time_accounted,
    records.RunEnded: RunView._run_ended,
}


# -- the times of ranks, as texts -----------------------------------------------------------------


def time_table(view: RunView) -> list[tuple[str, ...]]:
    """Return a row for each rank, or for each module of many ranks, below a row of headings.

    Empty before the run has ended.
    """
    if view.accounts is None or not view.accounts.ranks:
        return []
    ranks, modules = view.accounts.ranks, view.accounts.modules
    return _by_rank(ranks) if len(ranks) <= _RANKS_SHOWN else _by_module(ranks, modules)


def _by_rank(ranks: Sequence[RankTimes]) -> list[tuple[str, ...]]:
    head = ("rank", "host", "what ran there", *_PARTS, "CPU")
    return [
        head,
        *(
            (str(rank.rank), rank.host, _copies(rank.copies), *_percentages([rank]))
            for rank in ranks
        ),
    ]


def _by_module(ranks: Sequence[RankTimes], modules: Sequence[ModuleTimes]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("what ran", "ranks", *_PARTS, "CPU")]
    servers = [rank for rank in ranks if list(rank.copies) == ["tuple server"]]
    pool = [rank for rank in ranks if rank not in servers]
    if servers:
        rows.append(("tuple server", str(len(servers)), *_percentages(servers)))
    rows += [(times.module, str(times.ranks), *_percentages([times])) for times in modules]
    rows.append(("all, and between modules", str(len(pool)), *_percentages(pool)))
    return rows


def _copies(names: Sequence[str]) -> str:
    """Return the names of the copies that ran on a rank, of many only the first."""
    if not names:
        return "nothing"
    shown = ", ".join(names[:_COPIES_NAMED])
    more = len(names) - _COPIES_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _percentages(times: Sequence[RankTimes | ModuleTimes]) -> list[str]:
    spent_s = [sum(getattr(entry, f"{part}_s") for entry in times) for part in _PARTS]
    total_s = sum(spent_s)
    if not total_s:
        return ["-"] * (len(_PARTS) + 1)
    # CPU time, as a part of the same wall time: where it is well below "working", a rank has slept
    # or waited for a core.
    spent_s.append(sum(entry.cpu_s for entry in times))
    return [f"{seconds / total_s:.0%}".rjust(len("100%")) for seconds in spent_s]
