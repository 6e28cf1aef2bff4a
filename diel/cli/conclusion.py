"""Print how a run ended: its best results, returned values, times of ranks, and failures."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from diel.cli.output import aligned, console, warn
from diel.errors import RunDirectoryError
from diel.executive.run_losses import find_loss
from diel.exit_codes import FAILED
from diel.loading.reports import explain_lost_ranks
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.records import (
    DEADLOCK,
    DeadlockFound,
    Failure,
    JournalLost,
    LeaveIgnored,
    ModuleFailed,
    RanksLost,
    WhenFailed,
)
from diel.run.results import best_of_table, best_row, rank_rows
from diel.run.view import ResultsView, RunView, time_table
from diel.text import format_times, format_value, some_of

TABLE_ROWS: Final = 10
_RETURNED_SHOWN: Final = 10
_RETURNED_CHARACTERS: Final = 200
_BYTES: Final = re.compile(r"(bytearray\()?b['\"]")
_GIVEN_UP_SHOWN: Final = 10


def print_conclusion(
    view: RunView,
    directory: RunDirectory,
    launcher_status: int,
    *,
    on_terminal: bool = False,
    table_rows: int = TABLE_ROWS,
) -> int:
    """Print how a run ended; return its exit code, from the journal if that has one.

    ``launcher_status`` is the exit status of mpiexec, for a run that could not write its own.
    ``on_terminal`` says that standard output is a terminal for certain: under a bare mpirun that of
    rank 0 may look like a terminal and be a file.
    """
    if view.exit_code is None or (view.lost is not None and view.failure is None):
        print_lost(view, directory, launcher_status)
        return FAILED
    if view.refusal:
        print(f"\ndiel: {view.refusal}", file=sys.stderr, flush=True)
        return view.exit_code
    tables = print_rankings(view, directory, table_rows, on_terminal=on_terminal)
    _print_returned(view, after_table=tables)
    _print_given_up(view)
    _print_failed_tasks(view)
    for line in rank_times_lines(view):
        print(line)
    if view.up_to_date:
        names = some_of(dict.fromkeys(name for _, name in view.up_to_date))
        print(f"up to date, and not run: {names}")
    seconds = view.lasted_s(view.ended_s)
    verdict = {0: "finished", FAILED: "failed"}.get(view.exit_code, "was stopped")
    again = f", restarted {format_times(view.restarts)}" if view.restarts else ""
    part = f" ({view.part})" if view.part else ""
    print(f"{view.name}{part} {verdict} after {seconds:.1f} s on {view.ranks} ranks{again}")
    _print_refusal(view)
    for report in directory.reports():
        print(f"report: {report}")
    for table in map(directory.table_of_elements, view.arrays):
        if table.is_file():
            print(f"elements: {table}")
    is_lost = isinstance(view.failure, JournalLost)
    if view.exit_code != 0 and not is_lost:
        print(f"to go on with it: diel run --resume {directory.path}")
    elif any(array.failed for array in view.arrays.values()) or any(
        failed.is_repeatable for failed in view.failed_tasks.values()
    ):
        print(f"to repeat what failed: diel run --resume {directory.path}")
    if directory.path.is_dir():
        label = "what is left of it" if is_lost else "everything about it"
        print(f"{label}: {directory.path}", flush=True)
    return view.exit_code


def print_rankings(
    view: RunView, directory: RunDirectory, rows: int = TABLE_ROWS, *, on_terminal: bool = False
) -> bool:
    """Print the best rows of each table of results; return whether there were any results."""
    tables = [results for results in view.results.values() if results.rows]
    for results in tables:
        ranked: Sequence[Mapping[str, Any]]
        ranked = rank_rows(results.rows, results.objective, results.maximise)
        # Of a run that was killed, or goes on, the journal may lack the last rows.
        if results.file and (view.exit_code is None or len(ranked) < min(rows, results.count)):
            file = directory.path / results.file
            try:
                ranked = best_of_table(file, results.objective, results.maximise, rows)
            except RunDirectoryError as error:
                warn(f"what the journal has is shown: {error}")
        if not ranked:
            continue
        name = results.module if len(tables) > 1 else ""
        _print_ranking(name, results, ranked[:rows], on_terminal=on_terminal)
    without = [result for result in view.results.values() if result.unranked and not result.rows]
    for results in without:
        print(f"\n{results.module}: no result among {results.count:,}: {results.unranked_text}")
        for note in results.notes:
            print(note)
    return bool(tables or without)


def _print_returned(view: RunView, *, after_table: bool) -> None:
    """Print the values that copies have returned, except the best row of a table that was shown."""
    best = [
        best_row(results.rows, results.objective, results.maximise)
        for results in view.results.values()
        if results.rows
    ]
    returned = [(name, value) for name, value in view.returned if not _is_row(value, best)]
    if returned and after_table:
        print()
    # Modules in the order in which the first of their copies ended, copies by number.
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in returned))
    place = {module: number for number, module in enumerate(modules)}
    returned.sort(key=lambda pair: (place[(parts := pair[0].rpartition("."))[0]], int(parts[2])))
    for name, value in returned[:_RETURNED_SHOWN]:
        print(f"{name} returned {_in_a_line(value)}")
    if len(returned) > _RETURNED_SHOWN:
        print(f"... and {len(returned) - _RETURNED_SHOWN:,} more, in the journal")


def _is_row(value: Any, rows: Sequence[Mapping[str, Any]]) -> bool:
    return isinstance(value, dict) and any(
        all(name in value and value[name] == cell for name, cell in row.items()) for row in rows
    )


def _in_a_line(value: Any) -> str:
    """Return a value as a short line: characters are escaped if not printable, bytes counted."""
    text = str(value)
    length = len(text)
    if length > _RETURNED_CHARACTERS and _BYTES.match(text) and "\\x" in text:
        return f"bytes ({length:,} characters, in the journal)"
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:_RETURNED_CHARACTERS]
    )
    if max(length, len(shown)) <= _RETURNED_CHARACTERS:
        return shown
    return f"{shown[:_RETURNED_CHARACTERS]} ... ({length:,} characters, in the journal)"


def _print_given_up(view: RunView) -> None:
    if not view.given_up:
        return
    count = len(view.given_up)
    copies = f"{count} copies" if count > 1 else "a copy"
    print(f"warning: the run went on without {copies} that failed:")
    for record in view.given_up[:_GIVEN_UP_SHOWN]:
        where = f"group {record.group}"
        if view.is_repeated(record.group):
            group = view.groups[record.group]
            where += f", {group.describe_iteration(record.iteration)}"
        tries = f", {record.attempt} attempts" if record.attempt > 1 else ""
        print(f"  {record.name} ({where}{tries}): {record.error}")
    if count > _GIVEN_UP_SHOWN:
        print(f"  ... and {count - _GIVEN_UP_SHOWN} more, in the journal")


def _print_failed_tasks(view: RunView) -> None:
    for (_, iteration, _), failed in view.failed_tasks.items():
        where = failed.group
        if view.is_repeated(failed.group):
            where += f", {view.groups[failed.group].describe_iteration(iteration)}"
        print(f"warning: {failed.module} (group {where}): {failed}")


def _print_ranking(
    name: str, results: ResultsView, shown: Sequence[Mapping[str, Any]], *, on_terminal: bool
) -> None:
    """Print the best rows of a table of results, with the module's name if there are several."""
    from rich import box
    from rich.table import Table

    direction = "highest" if results.maximise else "lowest"
    constants = _constants(results) if results.count > 1 else {}
    table = Table(box=box.SIMPLE_HEAD)
    columns = [column for column in results.columns if column not in constants]
    table.add_column("#", justify="right", style="dim")
    for column in columns:
        is_number = isinstance(shown[0].get(column), (int, float))
        style = "bold" if column == results.objective else ""
        header = column.replace("_", " ")
        table.add_column(header, justify="right" if is_number else "left", style=style)
    for place, row in enumerate(shown, start=1):
        table.add_row(
            str(place), *(format_value(row.get(column, ""), longest=100) for column in columns)
        )
    prefix = f"{name}: " if name else ""
    by = f"by {direction} {results.objective}"
    if results.unranked:
        by += f"; of {results.count:,}: {results.unranked_text}"
    print(f"\n{prefix}{len(shown)} best of {results.ranked} {by}")
    if on_terminal:
        console().print(table)
    else:
        # A file has no width: wide enough not to cut a number, without Rich's padding.
        text = io.StringIO()
        console(width=240, file=text, color_system=None, force_terminal=False).print(table)
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
    if constants:
        print("for all: " + ", ".join(f"{name} {value}" for name, value in constants.items()))
    for note in results.notes:
        print(note)


def _constants(results: ResultsView) -> dict[str, str]:
    """Return the columns with the same value in every row, which a line below the table shows."""
    first = results.rows[0]
    if results.file:
        return {name: format_value(value, longest=100) for name, value in results.constants.items()}
    return {
        column: format_value(first[column], longest=100)
        for column in results.columns
        if column != results.objective and all(row[column] == first[column] for row in results.rows)
    }


def rank_times_lines(view: RunView) -> list[str]:
    """Return what ranks spent their time on: a line for each, or for each module of many ranks."""
    table = time_table(view)
    return ["", *(f"  {line}" for line in aligned(table)), ""] if table else []


# -- failures and lost runs -----------------------------------------------------------------------

_EXPLAINED: Final[dict[type[Record], str]] = {
    DeadlockFound: DEADLOCK,
    LeaveIgnored: "a copy that had failed could not be ended",
    RanksLost: "ranks are lost",
    WhenFailed: "a group's condition has no value",
}


def print_failure(failure: Failure) -> None:
    """Print the root cause of a failure to standard error: who, where and why."""
    if isinstance(failure, JournalLost):
        print(f"\ndiel: {failure.explanation}\n", file=sys.stderr, flush=True)
        return
    if not isinstance(failure, ModuleFailed):
        print(f"\ndiel: {_EXPLAINED[type(failure)]}", file=sys.stderr)
        for line in failure.explanation.splitlines():
            print(f"  {line}", file=sys.stderr)
        print(file=sys.stderr, flush=True)
        return
    if failure.rank is None:
        where = f"ranks {', '.join(map(str, failure.ranks))}"
    else:
        where = f"rank {failure.rank} (rank {failure.copy_rank} of the copy), host {failure.host}"
    tries = f", attempt {failure.attempt}" if failure.attempt > 1 else ""
    print(
        f"\ndiel: module {failure.module!r} failed: {failure.error}\n"
        f"  copy {failure.copy}, {where}, group {failure.group!r}{tries}\n",
        file=sys.stderr,
    )
    for line in failure.detail.splitlines():
        print(f"  {failure.name} | {line}", file=sys.stderr)
    print(file=sys.stderr, flush=True)


def print_lost(view: RunView, directory: RunDirectory, launcher_status: int) -> None:
    """Print what is known of a run whose ranks were killed."""
    loss = find_loss(view, directory, launcher_status)
    print(f"\ndiel: {loss.explanation}", file=sys.stderr)
    for line in loss.lines:
        print(f"  {line}", file=sys.stderr)
    copies = {
        copy.name for copy in view.running.values() if not {*loss.ranks}.isdisjoint(copy.ranks)
    }
    for line in explain_lost_ranks(directory, copies):
        print(f"  {line}", file=sys.stderr)
    _print_refusal(view)
    if view.started_s:
        print(f"to go on with it: diel run --resume {directory.path}", file=sys.stderr)
    print(f"everything about it: {directory.path}", file=sys.stderr, flush=True)


def _print_refusal(view: RunView) -> None:
    """Print why a run that has lost ranks was not started again, where restarts were asked for."""
    if view.lost is not None and view.lost.refusal:
        print(f"not started again: {view.lost.refusal}", file=sys.stderr, flush=True)
