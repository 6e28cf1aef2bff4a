"""``diel run``: outside of MPI it starts mpiexec and watches; inside it is a rank."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from diel.comm.mpi import finalize_and_exit, under_mpi, world
from diel.errors import DielError, LaunchError

if TYPE_CHECKING:
    from diel.comm.parent import Parent

_INTERNAL_ERROR = 70
_BAD_INPUT = 2
_RANKS_A_CORE = 64
# Not ``python -m diel``: that would let every file in the current folder hide a module of ours
# or of Python's.
_RANK = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from diel.cli.main import main; main()"
)


def run(options: argparse.Namespace) -> int:
    """Run a workflow file; return the exit code.

    Raises
    ------
    DielError
        If the workflow cannot be run at all.
    """
    if under_mpi():
        _run_as_rank(options)
    return _launch(options)


# -- outside of MPI -------------------------------------------------------------------------------


def _launch(options: argparse.Namespace) -> int:
    from diel.cli.display import display_for
    from diel.executive import launch, placement
    from diel.executive.arrangement import arrange
    from diel.loading.checking import finish
    from diel.run.directory import RunDirectory
    from diel.workflow.load import read_draft

    workflow = finish(read_draft(options.file))
    cores = launch.available_cores()
    ranks = options.ranks or placement.needs(workflow, cores).moment
    plans = placement.plan_groups(workflow, ranks, options.file)
    if any(module.gpus for module in workflow.modules):
        node = launch.node_of_all(placement.pool_ranks(workflow, ranks), os.environ)
        if node is not None:  # else only the ranks themselves can tell
            arrange(workflow, plans, [node], options.file)
    if options.ranks is None and ranks > _RANKS_A_CORE * cores:
        raise LaunchError(
            f"{options.file} can use {ranks:,} ranks at once, and there are {cores} cores: "
            f"say -n {ranks} if you mean it, or run it on a cluster"
        )
    mpiexec = launch.find_mpiexec()
    line = launch.mpiexec_line(
        mpiexec,
        launch.mpi_implementation(mpiexec),
        ranks=ranks,
        cores=cores,
        as_root=os.geteuid() == 0,
        allow_run_as_root=options.allow_run_as_root,
        environment=os.environ,
    )
    directory = RunDirectory.create(options.runs, workflow.name, workflow.file)
    rank_line = [sys.executable, "-c", _RANK, "run", options.file, "--run-dir", directory.path]
    with display_for(directory) as display:
        launched = launch.Launched([*line, *map(str, rank_line)], directory, workflow.max_threads)
        status = launched.wait(display.refresh)
    return display.conclude(status)


# -- inside MPI -----------------------------------------------------------------------------------


def _run_as_rank(options: argparse.Namespace) -> NoReturn:
    from diel.comm.parent import Parent

    parent = Parent(world())
    try:
        exit_code = _lead_or_follow(parent, options)
    except DielError as error:
        print(f"diel: {error}", file=sys.stderr, flush=True)
        exit_code = _BAD_INPUT
    except BaseException:  # ours: no rank may be left waiting for this one
        traceback.print_exc()
        parent.abort(_INTERNAL_ERROR)
        raise
    finalize_and_exit(exit_code)


def _lead_or_follow(parent: Parent, options: argparse.Namespace) -> int:
    if parent.rank != parent.EXECUTIVE_RANK:
        from diel.executive.worker import follow

        follow(parent)
        return 0
    from diel.cli.display import face_for_rank_0
    from diel.executive.lead import lead

    launched_by_us = options.run_dir is not None  # then the launcher shows the run
    return lead(
        parent,
        options.file,
        ranks=options.ranks,
        runs=options.runs,
        run_dir=options.run_dir,
        face_for=lambda directory: face_for_rank_0(directory, silent=launched_by_us),
    )
