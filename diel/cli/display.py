"""Show a run while it goes on: by a live display on a terminal, by plain lines otherwise.

``diel run`` shows its own run, ``diel watch`` that of another terminal. Both read the run directory
and nothing else of a run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from diel.cli.conclusion import TABLE_ROWS, print_conclusion, print_failure, rank_times_lines
from diel.cli.output import console, warn
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.history import DEFAULT_RUNS, find_run
from diel.run.journal import JournalReader
from diel.run.records import (
    Failure,
    GroupFinished,
    GroupSkipped,
    GroupStarted,
    JournalLost,
    MessageLogged,
    ModuleFailed,
    OutputsCurrent,
    RanksLost,
    RunLost,
    RunResumed,
    RunStarted,
    StopOrdered,
    TableName,
    TaskFailed,
    TasksFailed,
)
from diel.run.status import StatusView, read_status
from diel.run.tasks import tasks_in_words
from diel.run.view import ArrayView, CopyView, FailedTasks, GroupView, RunView
from diel.run.watched_run import WatchedRun, latest_progress
from diel.text import format_bytes, format_duration, format_times

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType
    from typing_extensions import Self

_PLAIN_PROGRESS_EVERY_S: Final = 2.0
_PLAIN_SILENCE_S: Final = 10.0
"""After so long without a line, one is printed for each of a few copies that report progress."""
_PLAIN_COPIES: Final = 4
_WATCH_EVERY_S: Final = 0.25
_PLAIN_WIDTH: Final = 120
_COPIES_SHOWN: Final = 16
_RANKS_NAMED: Final = 4
_FAILED_TASKS_SHOWN: Final = 10
_ELEMENTS_DRAWN: Final = 8
_LINES_OF_ELEMENTS: Final = 10


def display_for(directory: RunDirectory, table_rows: int | None = None) -> Display:
    """Return a live display if standard output is a terminal, else one that prints plain lines."""
    rows = table_rows or TABLE_ROWS
    return LiveDisplay(directory, rows) if sys.stdout.isatty() else PlainDisplay(directory, rows)


class Display:
    """Shows one run from its start to its end.

    Parameters
    ----------
    directory : RunDirectory
    table_rows : int, optional
        How many of the best rows of results to show at the end.

    Attributes
    ----------
    view : RunView
        As of the last `refresh`.
    """

    _on_terminal = False

    def __init__(self, directory: RunDirectory, table_rows: int = TABLE_ROWS) -> None:
        self._directory = directory
        self._table_rows = table_rows
        self._journal = JournalReader(directory.journal)
        self.view = RunView()
        self._failure_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: Any) -> None:
        """Stop the display."""

    def refresh(self) -> int | None:
        """Show what is new; return the exit code once the run has ended."""
        raise NotImplementedError

    def announce(self, failure: Failure) -> None:
        """Print the root cause of a failure, once."""
        if not self._failure_shown:
            self._failure_shown = True
            print_failure(failure)

    def conclude(self, launcher_status: int = 0) -> int:
        """Print how the run ended; return the exit code."""
        self.refresh()
        if self._journal.complaint and not _is_lost(self.view):
            warn(self._journal.complaint)
        if self.view.failure is not None:
            self.announce(self.view.failure)
        return print_conclusion(
            self.view,
            self._directory,
            launcher_status,
            on_terminal=self._on_terminal,
            table_rows=self._table_rows,
        )


class PlainDisplay(Display):
    """Prints a line for each event of a run: for logs, and for rank 0 under a bare mpirun."""

    def __init__(self, directory: RunDirectory, table_rows: int = TABLE_ROWS) -> None:
        super().__init__(directory, table_rows)
        self._progress_shown_s = 0.0
        self._printed_s = time.monotonic()
        self._rows_shown: dict[TableName, int] = {}
        self._iterations_shown_s: dict[str, float] = {}

    def refresh(self) -> int | None:
        """Print what is new; return the exit code once the run has ended."""
        records = self._journal.new_records()
        news = _after_resumption(records, self.view)
        if len(news) < len(records):
            self._failure_shown = False
        for record in news:
            self.view.apply(record)
            line = _line_for(record, self.view)
            if line and self._is_due(record):
                self._print(line, record.time_s)
            if record is self.view.failure:
                self.announce(self.view.failure)
        self._show_progress()
        return self.view.exit_code

    def _is_due(self, record: Record) -> bool:
        """Whether to print a record; of a repeated group, only one start in a while."""
        if not isinstance(record, GroupStarted) or not self.view.is_repeated(record.group):
            return True
        shown_s = self._iterations_shown_s.get(record.group, 0.0)
        if record.time_s - shown_s < _PLAIN_PROGRESS_EVERY_S:
            return False
        self._iterations_shown_s[record.group] = record.time_s
        return True

    def _show_progress(self) -> None:
        now_s = time.monotonic()
        due = now_s - self._progress_shown_s >= _PLAIN_PROGRESS_EVERY_S
        for table, results in self.view.results.items():
            shown = self._rows_shown.get(table, 0)
            complete = results.count == results.expected
            if results.count != shown and (complete or due):
                self._progress_shown_s = now_s
                self._rows_shown[table] = results.count
                of = f" of {results.expected}" if results.expected is not None else ""
                self._print(f"{results.module}: {results.count}{of} results, {results.best_text}")
        self._show_copies(now_s)

    def _show_copies(self, now_s: float) -> None:
        """Print the progress of copies that report it, after a while without a line."""
        if now_s - self._printed_s < _PLAIN_SILENCE_S:
            return
        progress = [
            copy for copy in read_status(self._directory).progress if copy.copy in self.view.running
        ]
        for copy in progress[:_PLAIN_COPIES]:
            of = "" if copy.total is None else f" of {copy.total:g}"
            self._print(f"{copy.copy}: {copy.text or f'{copy.done:g}{of}'}")
        if len(progress) > _PLAIN_COPIES:
            self._print(f"... and {len(progress) - _PLAIN_COPIES} more copies")
        self._printed_s = now_s

    def _print(self, text: str, time_s: float | None = None) -> None:
        seconds = self.view.lasted_s(time_s or time.time())
        self._printed_s = time.monotonic()
        print(f"[{seconds:7.1f} s] {text}", flush=True)


def _is_lost(view: RunView) -> bool:
    """Whether the run has failed because its journal was lost, and has said so itself."""
    return isinstance(view.failure, JournalLost)


def _after_resumption(records: list[Record], view: RunView) -> list[Record]:
    """Apply the records from before a run was resumed to the view; return those after it."""
    news = records
    for index, record in enumerate(records):
        if isinstance(record, RunResumed):
            news = records[index + 1 :]
    for record in records[: len(records) - len(news)]:
        view.apply(record)
    return news


def _line_for(record: Record, view: RunView) -> str:
    if isinstance(record, RunStarted):
        again = ", resumed" if view.resumed else ""
        text = f"{record.workflow} on {record.ranks} ranks ({record.mpi}){again}"
        if not record.part:
            return text
        space = "" if view.resumed else ", with an empty tuple space"
        return f"{text}, a part of the file ({record.part}){space}"
    if isinstance(record, GroupStarted):
        return _line_for_start(record, view)
    if isinstance(record, GroupFinished):
        return _line_for_finish(record, view)
    if isinstance(record, GroupSkipped):
        if view.groups[record.group].array:
            return _line_for_element(
                view.groups[record.group], view.arrays[view.groups[record.group].array]
            )
        return f"group {record.group} is skipped: {record.reason}"
    if isinstance(record, RanksLost) and not record.stops_run:
        return record.explanation.replace("\n", "; ")
    if isinstance(record, ModuleFailed) and not record.stops_run:
        if record.policy == "continue":
            return f"{record.name} failed, the run goes on without it: {record.error}"
        whole = ", with all copies of the module" if record.whole_module else ""
        return (
            f"{record.name} failed at attempt {record.attempt}, starts again{whole}: {record.error}"
        )
    if isinstance(record, TaskFailed):
        known = view.failed_tasks[record.group, record.iteration, record.module].errors
        if len(known) > _FAILED_TASKS_SHOWN:
            return ""
        return f"{record.name} goes on without task {record.task}: {record.error}"
    if isinstance(record, TasksFailed):
        return f"warning from {record.module}: {tasks_in_words(record.total, record.failed)}"
    if isinstance(record, OutputsCurrent):
        return f"{record.name} is up to date"
    if isinstance(record, MessageLogged):
        return f"{record.level.lower()} from {record.name}: {record.text}"
    if isinstance(record, RunLost) and record.restart:
        on = f"starts again on {record.on_ranks} ranks, restart {record.restart}"
        return f"{record.explanation}: {on}"
    if isinstance(record, StopOrdered) and view.failure is None:
        return f"stopping: {record.reason}"
    return ""


def _line_for_start(record: GroupStarted, view: RunView) -> str:
    name = record.group
    if view.groups[name].array:
        return ""
    if name in view.arrays:
        inside = f"{len(view.arrays[name].rows)} elements"
    elif record.groups:
        inside = ", ".join(record.groups)
    else:
        inside = ", ".join(f"{module} x {count}" for module, count in record.copies.items())
    if not view.is_repeated(name):
        return f"group {name} started: {inside}"
    which = view.groups[name].describe_iteration(record.iteration)
    if not any(record.iteration):
        return f"group {name} started, {which}: {inside}"
    return f"group {name}: {which}"


def _line_for_finish(record: GroupFinished, view: RunView) -> str:
    name = record.group
    group = view.groups[name]
    if record.ended_by is None:
        return ""
    if group.array:
        return _line_for_element(group, view.arrays[group.array])
    if not view.is_repeated(name):
        array = view.arrays.get(name)
        failed = f", {array.failed} of {len(array.rows)} elements failed" if array else ""
        return f"group {name} finished{failed if array and array.failed else ''}"
    if group.inside and view.is_repeated(group.inside):
        return ""  # it starts again with the next iteration of its outer group
    count = record.iteration[-1] + 1
    after = f"after {count} iteration{'s' if count > 1 else ''}"
    tags = {} if view.started is None else view.started.tags
    tag = f", {tags[name]}," if name in tags else ""
    why = ""
    if record.ended_by == "until":
        why = f": the tuple that ends it{tag} is there"
    elif group.has_until:
        why = f", its limit: the tuple that would have ended it{tag} never came"
    return f"group {name} finished {after}{why}"


def _line_for_element(element: GroupView, array: ArrayView) -> str:
    """Return how far a group with ``foreach`` is, where a tenth more of its elements has ended."""
    is_inner = element.inside != element.array
    if is_inner or array.ended % max(1, len(array.rows) // _LINES_OF_ELEMENTS):
        return ""
    return f"group {element.array}: {array}"


class LiveDisplay(Display):
    """A display that redraws itself on a terminal."""

    _on_terminal = True

    def __init__(self, directory: RunDirectory, table_rows: int = TABLE_ROWS) -> None:
        from rich.live import Live

        super().__init__(directory, table_rows)
        self._status = StatusView()
        self._changing = Lock()  # Rich draws from a thread of its own
        # Messages of modules are shown literally: brackets and colons in them are no markup.
        self._live = Live(
            get_renderable=self._render,
            console=console(),
            refresh_per_second=8,
            transient=True,
            redirect_stderr=False,
        )
        self._shown_messages = 0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)

    def refresh(self) -> int | None:
        """Read new records and the ranks' status; the screen is redrawn a few times a second."""
        records = self._journal.new_records()
        with self._changing:
            news = _after_resumption(records, self.view)
            if len(news) < len(records):
                self._failure_shown = False
                self._shown_messages = len(self.view.messages)
            for record in news:
                self.view.apply(record)
            self._status = read_status(self._directory)
        for record in news:
            is_shown = isinstance(record, (TaskFailed, TasksFailed)) or (
                isinstance(record, RunLost) and record.restart
            )
            if is_shown and (line := _line_for(record, self.view)):
                self._live.console.print(line, markup=False)
        for level, name, text in self.view.messages[self._shown_messages :]:
            self._live.console.print(f"{level.lower()} from {name}: {text}")
        self._shown_messages = len(self.view.messages)
        return self.view.exit_code

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        if not self.view.started_s:
            return Text("starting the MPI ranks ...", style="dim")
        with self._changing:
            view = self.view
            return Group(_draw_head(view), _draw_groups(view), *_draw_bars(view, self._status))


# -- diel watch -----------------------------------------------------------------------------------


def watch(options: argparse.Namespace) -> int:
    """Show a run until it ends; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run.
    """
    watched = WatchedRun(RunDirectory(find_run(options.run_dir or DEFAULT_RUNS)))
    if options.once:
        watched.look()
        _print_state(watched)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _watch_live(watched)
        else:
            _watch_plainly(watched)
    return 0


def _draw_run(watched: WatchedRun, *, is_lively: bool = True) -> RenderableType:
    """Draw a run: its state, failure, groups, copies, tuple servers, progress and rank times."""
    from rich.console import Group
    from rich.text import Text

    with watched.unchanged() as view:
        now_s, damage = watched.latest_s(), watched.complaint
        if not view.started_s:
            waits = not watched.has_ended
            words = "starting the MPI ranks ..." if waits else view.refusal or watched.state
            return Text(f"{words}\n{damage}".rstrip(), style="dim")
        parts = [
            _draw_head(view, watched.state, now_s),
            *_draw_failure(view),
            *(Text(f"{each.module}: {each}", style="yellow") for each in _last_failed_tasks(view)),
            _draw_groups(view, is_lively=is_lively and not watched.has_ended),
            *_draw_copies(view, watched.status, now_s),
        ]
        if not watched.has_ended:
            parts += _draw_servers(watched.status)
        parts += _draw_bars(view, StatusView() if watched.has_ended else watched.status)
        if watched.has_ended:
            parts += [Text(line) for line in rank_times_lines(view)]
        if damage:
            parts.append(Text(damage, style="yellow"))
        return Group(*parts)


def _print_state(watched: WatchedRun) -> None:
    printer = console(width=_PLAIN_WIDTH, color_system=None, force_terminal=False)
    with printer.capture() as capture:
        printer.print(_draw_run(watched, is_lively=False))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def _watch_live(watched: WatchedRun) -> None:
    from rich.live import Live

    watched.look()
    with Live(get_renderable=lambda: _draw_run(watched), console=console(), refresh_per_second=8):
        while not watched.has_ended:
            time.sleep(_WATCH_EVERY_S)
            watched.look()


def _watch_plainly(watched: WatchedRun) -> None:
    """Print a line for each event, for an output that cannot be redrawn."""
    display = PlainDisplay(watched.directory)
    watched.look()
    while not watched.has_ended:
        display.refresh()
        time.sleep(_WATCH_EVERY_S)
        watched.look()
    display.refresh()
    _print_state(watched)


# -- parts of a picture of a run ------------------------------------------------------------------


def _draw_head(view: RunView, state: str = "running", now_s: float | None = None) -> RenderableType:
    """Draw a run's name, ranks, duration, restarts and state, in a line."""
    from rich.text import Text

    seconds = view.lasted_s(view.ended_s or now_s or time.time())
    said = "" if state == "running" else f", {state}"
    again = f", restarted {format_times(view.restarts)}" if view.restarts else ""
    part = f" ({view.part})" if view.part else ""
    return Text.assemble(
        (view.name, "bold"), f"{part} on {view.ranks} ranks, {seconds:.1f} s{again}{said}"
    )


def _draw_failure(view: RunView) -> list[RenderableType]:
    """Draw the root cause of a run's failure, or else its last loss of ranks, in a line."""
    from rich.text import Text

    record = view.failure
    if view.losses and record is None:
        return [Text(view.losses[-1].explanation, style="red")]
    if record is None:
        return []
    if isinstance(record, ModuleFailed):
        text = f"{record.name} failed: {record.error}"
    else:
        text = record.explanation.splitlines()[0]
    return [Text(text, style="red")]


def _last_failed_tasks(view: RunView) -> list[FailedTasks]:
    return list(view.failed_tasks.values())[-_FAILED_TASKS_SHOWN:]


def _draw_groups(view: RunView, *, is_lively: bool = True) -> RenderableType:
    """Draw the groups: which run, in which iteration, with how many copies."""
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    marks: dict[str, RenderableType] = {
        "waiting": Text("·", style="dim"),
        "running": Spinner("dots", style="cyan") if is_lively else Text("▸"),
        "finished": Text("✓", style="green"),
        "skipped": Text("○", style="dim"),
        "stopped": Text("✗", style="red"),
    }
    table = Table.grid(padding=(0, 1))
    for group in _groups_to_draw(view):
        done = f"{group.copies_finished} of {group.copies} copies finished" if group.copies else ""
        if group.name in view.arrays:
            done = str(view.arrays[group.name])
        elif group.array in view.arrays and group.inside == group.array:
            done = view.arrays[group.array].values_in_words(group.name)
        state = group.state
        if state == "running" and group.repeats:
            state = group.describe_iteration(group.iteration[-1:])
        if state == "skipped" and group.why_skipped:
            done = group.why_skipped
        name = "  " * _depth(group, view) + group.name
        table.add_row(marks[group.state], name, Text(state, style="dim"), Text(done))
    return table


def _groups_to_draw(view: RunView) -> Iterator[GroupView]:
    """Yield the groups; of elements only some of those that run."""
    shown: Counter[str] = Counter()
    for group in view.groups.values():
        if group.array:
            is_shown = group.state == "running" and group.inside == group.array
            if not is_shown or shown[group.array] >= _ELEMENTS_DRAWN:
                continue
            shown[group.array] += 1
        yield group


def _depth(group: GroupView, view: RunView) -> int:
    return 1 + _depth(view.groups[group.inside], view) if group.inside else 0


def _draw_bars(view: RunView, status: StatusView) -> list[RenderableType]:
    """Draw the progress of results, and of copies that report it."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for results in view.results.values():
        done, total = results.count, results.expected
        table.add_row(
            f"{results.module}: results",
            ProgressBar(total=total, completed=done, width=40),
            f"{done}/{total}" if total is not None else str(done),
            Text(results.best_text),
        )
    for name, (reached, whole, text) in latest_progress(view, status).items():
        bar = ProgressBar(total=whole, completed=reached, width=40)
        table.add_row(name, bar, f"{reached:g}/{whole:g}" if whole else f"{reached:g}", text)
    return [table] if table.row_count else []


def _draw_copies(view: RunView, status: StatusView, now_s: float) -> list[RenderableType]:
    """Draw the copies that run: on which ranks, for how long, and what they wait for."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    shown = list(view.running.values())[:_COPIES_SHOWN]
    for copy in shown:
        attempt = f", attempt {copy.attempt}" if copy.attempt > 1 else ""
        table.add_row(
            f"  {copy.name}",
            Text(_ranks(copy.ranks), style="dim"),
            format_duration(max(0.0, now_s - copy.started_s)) + attempt,
            Text(_waits(copy, status, now_s), style="yellow"),
        )
    if len(view.running) > len(shown):
        table.add_row(f"  ... and {len(view.running) - len(shown)} more copies")
    return [table] if shown else []


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:_RANKS_NAMED]))
    return f"ranks {named}" + (", ..." if len(ranks) > _RANKS_NAMED else "")


def _waits(copy: CopyView, status: StatusView, now_s: float) -> str:
    """Describe what a copy waits for: its first rank that waits, and how many of them wait."""
    waiting = [wait for wait in status.waiting if wait.rank in copy.ranks]
    if not waiting:
        return ""
    first = waiting[0]
    ranks = "" if len(copy.ranks) == 1 else f"{len(waiting)} of {len(copy.ranks)} ranks: "
    return f"waits: {ranks}{first.what}, {format_duration(max(0.0, now_s - first.since_s))}"


def _draw_servers(status: StatusView) -> list[RenderableType]:
    """Draw how many tuples and bytes each tuple server holds, in a line for each."""
    from rich.text import Text

    return [
        Text(
            f"  tuple server on rank {server.rank}: {server.tuples:,} tuples, "
            f"{format_bytes(server.size_bytes)} of {format_bytes(server.capacity_bytes)}"
        )
        for server in status.servers
    ]
