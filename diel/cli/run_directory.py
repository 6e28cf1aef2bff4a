"""Commands about run directories: ``diel runs``, ``diff``, ``trace``, ``compare``, ``report``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from diel.cli.output import aligned, warn
from diel.errors import RunDirectoryError
from diel.run.differences import differences
from diel.run.directory import RunDirectory
from diel.run.history import DEFAULT_RUNS, find_run, is_run, list_runs, summarize
from diel.run.listing import (
    ListedRun,
    choose,
    common_objective,
    listed,
    parameter_columns,
    shown_best,
)
from diel.run.scores import ScoreReader
from diel.run.trace import merge_trace
from diel.text import format_duration, format_value

_LONGEST_REASON: Final = 100


def runs(options: argparse.Namespace) -> int:
    """Print the runs in a folder, as a table or a JSON list; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such folder.
    ConditionError
        If the condition that is to choose runs is wrong.
    """
    folder = options.folder or DEFAULT_RUNS
    is_first_time = options.folder is None and not folder.exists()
    found = listed([] if is_first_time else list_runs(folder), ScoreReader())
    there = len(found)
    if options.where is not None:
        found = choose(found, options.where)
    if options.json:
        print(json.dumps(list(map(_as_plain, found)), indent=2, ensure_ascii=False))
    elif found:
        print("\n".join(aligned(_table(found))))
    elif there:
        print(f"none of {there} runs in {folder} fits: {options.where}")
    else:
        print(f"no runs in {folder}: diel run makes a folder for each")
    return 0


def _as_plain(run: ListedRun) -> dict[str, Any]:
    scores = [score.as_dict() for score in run.scores]
    return run.summary.as_dict() | {"path": str(run.summary.path.absolute()), "scores": scores}


def _table(found: Sequence[ListedRun]) -> list[tuple[str, ...]]:
    """Return the rows of the list below their head, without columns that are empty."""
    common, columns = common_objective(found), parameter_columns(found)
    head = ["started", "took", "ranks", "state", "run", f"best {common}".rstrip()]
    rows = [[*head, *columns, "parameters", ""]]
    for run in found:
        summary = run.summary
        took = "" if summary.duration_s is None else format_duration(summary.duration_s)
        reason = " ".join(summary.shown_reason.split())
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 3]}..."
        ranks = "" if summary.ranks is None else str(summary.ranks)
        cells = [run.started, took, ranks, summary.state, str(summary.path)]
        cells += [shown_best(run, common)]
        cells += [format_value(summary.parameters.get(name)) for name in columns]
        rows.append([*cells, run.parameters_but(columns), reason])
    kept = [at for at, column in enumerate(zip(*rows, strict=True)) if at < 5 or any(column[1:])]
    return [tuple(row[at] for at in kept) for row in rows]


def diff(options: argparse.Namespace) -> int:
    """Print what differs between two runs, as a table or a JSON list; return the exit code.

    Raises
    ------
    RunDirectoryError
        If one is no run, or its workflow file cannot be read.
    """
    now_s, reader = time.time(), ScoreReader()
    first, second = listed((summarize(find_run(path), now_s) for path in options.run_dirs), reader)
    found = differences(first, second)
    if options.json:
        plain = [each.as_dict() for each in found]
        print(json.dumps(plain, indent=2, ensure_ascii=False, default=str))
        return 0
    names = str(first.summary.path), str(second.summary.path)
    if found:
        print("\n".join(aligned([("", "key", *names), *(each.texts() for each in found)])))
    else:
        print(f"{' and '.join(names)} differ in nothing")
    return 0


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
