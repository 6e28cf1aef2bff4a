"""Parts of the display of a run on a terminal, each drawn from a `RunView`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from diel.run.records import ModuleFailed
from diel.run.status import StatusView
from diel.run.view import CopyView, GroupView, RunView
from diel.run.watched_run import latest_progress
from diel.text import format_bytes, format_duration, format_times

if TYPE_CHECKING:
    from rich.console import RenderableType

_COPIES_SHOWN: Final = 16
_RANKS_NAMED: Final = 4


def head(view: RunView, state: str = "running", now_s: float | None = None) -> RenderableType:
    """Draw a run's name, ranks, duration, restarts and state, in a line."""
    from rich.text import Text

    seconds = view.lasted_s(view.ended_s or now_s or time.time())
    said = "" if state == "running" else f", {state}"
    again = f", restarted {format_times(view.restarts)}" if view.restarts else ""
    return Text.assemble(
        (view.name, "bold"), f" on {view.ranks} ranks, {seconds:.1f} s{again}{said}"
    )


def failure(view: RunView) -> list[RenderableType]:
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


def groups(view: RunView, *, is_lively: bool = True) -> RenderableType:
    """Draw the groups: which run, in which iteration, with how many copies."""
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    marks: dict[str, RenderableType] = {
        "waiting": Text("·", style="dim"),
        "running": Spinner("dots", style="cyan") if is_lively else Text("▸"),
        "finished": Text("✓", style="green"),
        "stopped": Text("✗", style="red"),
    }
    table = Table.grid(padding=(0, 1))
    for group in view.groups.values():
        done = f"{group.copies_finished} of {group.copies} copies finished" if group.copies else ""
        state = group.state
        if state == "running" and group.repeats:
            state = group.describe_iteration(group.iteration[-1:])
        name = "  " * _depth(group, view) + group.name
        table.add_row(marks[group.state], name, Text(state, style="dim"), Text(done))
    return table


def _depth(group: GroupView, view: RunView) -> int:
    return 1 + _depth(view.groups[group.inside], view) if group.inside else 0


def bars(view: RunView, status: StatusView) -> list[RenderableType]:
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


def copies(view: RunView, status: StatusView, now_s: float) -> list[RenderableType]:
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


def servers(status: StatusView) -> list[RenderableType]:
    """Draw how many tuples and bytes each tuple server holds, in a line for each."""
    from rich.text import Text

    return [
        Text(
            f"  tuple server on rank {server.rank}: {server.tuples:,} tuples, "
            f"{format_bytes(server.size_bytes)} of {format_bytes(server.capacity_bytes)}"
        )
        for server in status.servers
    ]
