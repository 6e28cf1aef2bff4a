"""``diel join`` and ``diel workers``: ranks of one run that take part in a sweep of another."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from diel.cli.output import aligned
from diel.comm.mpi import under_mpi
from diel.errors import LaunchError, RunDirectoryError
from diel.loading.reporter import reporters
from diel.loading.sweeps import find_joinable
from diel.run.directory import RunDirectory
from diel.run.history import DEFAULT_RUNS, find_run
from diel.run.resumption import workflow_file_of
from diel.text import format_duration

_ITERATION: Final = re.compile(r"-\d+(\.\d+)*$")


def join(options: argparse.Namespace) -> int:
    """Start a run that takes part in a sweep of another run; return the exit code.

    Raises
    ------
    DielError
        If there is no such sweep, or the run cannot be started.
    """
    if under_mpi():
        raise LaunchError("diel join starts mpiexec itself: start it without mpirun or srun")
    directory = RunDirectory(find_run(options.run_dir))
    found = find_joinable(directory, options.sweep)
    file = workflow_file_of(directory)
    options.set = directory.given()
    options.only = (
        found["group"],
        [_master_of(found["master"], file, options.set), found["trainer"]],
    )
    options.takes_part = {
        "join": found["ledger"],
        "silence_s": options.silence,
        "leave_after_s": options.time,
    }
    options.file, options.resume, options.trace = str(file), None, False
    options.run_dir = None  # a run of its own
    options.runs = options.runs or directory.joined
    from diel.cli.run import run

    return run(options)


def _master_of(name: str, file: Path, given: Sequence[str]) -> str:
    """Return a master's module: its name without the number of an iteration that may follow."""
    from diel.workflow.load import read_draft

    modules = {module.name for _, module in read_draft(str(file), given=given).modules}
    return name if name in modules else _ITERATION.sub("", name)


def workers(options: argparse.Namespace) -> int:
    """Print the workers of other runs that take part in a run's sweeps; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run.
    """
    directory = RunDirectory(find_run(options.run_dir or DEFAULT_RUNS))
    try:
        found = [each for reporter in reporters() for each in reporter.list_workers(directory.path)]
    except OSError as error:
        raise RunDirectoryError(f"{directory.path} cannot be read: {error}") from error
    if not found:
        print(f"no workers of other runs: diel join {directory.path} lets one take part")
        return 0
    rows = [("sweep", "worker", "job", "trainers", "trials", "heard of", "state")]
    rows += [
        (
            worker["sweep"],
            worker["worker"],
            worker["job"],
            str(worker["trainers"]),
            str(worker["trials"]),
            f"{format_duration(worker['heard_s'])} ago",
            worker["state"],
        )
        for worker in found
    ]
    print("\n".join(aligned(rows)))
    return 0
