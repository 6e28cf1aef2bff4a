"""Commands about run directories: ``diel runs``, ``trace``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import json
import time
from typing import Final

from diel.cli.output import aligned, warn
from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.history import DEFAULT_RUNS, RunSummary, is_run, list_runs, shown_parameters
from diel.run.trace import merge_trace
from diel.text import format_duration, format_value

_LONGEST_REASON: Final = 100


def runs(options: argparse.Namespace) -> int:
    """Print the runs in a folder, as a table or a JSON list; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such folder.
    """
    folder = options.folder or DEFAULT_RUNS
    is_first_time = options.folder is None and not folder.exists()
    found = [] if is_first_time else list_runs(folder)
    if options.json:
        rows = [run.as_dict() | {"path": str(run.path.absolute())} for run in found]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif found:
        head = ("started", "took", "ranks", "state", "run", "parameters", "")
        table: list[tuple[str, ...]] = [head, *map(_row, found)]
        if not any(run.parameters for run in found):
            table = [(*row[:5], row[6]) for row in table]
        print("\n".join(aligned(table)))
    else:
        print(f"no runs in {folder}: diel run makes a folder for each")
    return 0


def _row(run: RunSummary) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_s))
    took = "" if run.duration_s is None else format_duration(run.duration_s)
    reason = " ".join(run.shown_reason.split())
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[: _LONGEST_REASON - 3]}..."
    ranks = "" if run.ranks is None else str(run.ranks)
    return started, took, ranks, run.state, str(run.path), shown_parameters(run.parameters), reason


def trace(options: argparse.Namespace) -> int:
    """Write trace.json of a run; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run, or its directory cannot be written.
    """
    try:
        path = merge_trace(RunDirectory(options.run_dir), warn)
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"the trace cannot be written: {error}") from error
    print(f"{path}: open it at https://ui.perfetto.dev")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print a table of the sweeps of several runs, and write a report; return the exit code.

    Raises
    ------
    RunDirectoryError
        If a directory is no run or has no sweep, objectives differ, or the report cannot be
        written.
    """
    from diel.loading.sweeps import compare_sweeps, named_sweeps, write_comparison

    for path in options.run_dirs:
        if not is_run(path):
            raise RunDirectoryError(f"{path} is no run's directory")
    sweeps = named_sweeps([RunDirectory(path) for path in options.run_dirs])
    if len(sweeps) < 2:
        raise RunDirectoryError(f"{next(iter(sweeps))} is one sweep: name the runs to compare")
    rows = compare_sweeps(sweeps)["rows"]
    columns = dict.fromkeys(column for row in rows for column in row)
    shown = [tuple(columns)]
    shown += [tuple(format_value(row.get(column, "")) for column in columns) for row in rows]
    print("\n".join(aligned(shown)))
    for path in write_comparison(sweeps, options.report):
        print(path)
    return 0


def report(options: argparse.Namespace) -> int:
    """Write the reports of a run's tables of results; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run, it has no results, or its directory cannot be written.
    """
    from diel.loading.reports import write_reports

    for path in write_reports(RunDirectory(options.run_dir), warn):
        print(path)
    return 0
