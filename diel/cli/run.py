"""``diel run``: outside of MPI it starts mpiexec and watches; inside it is a rank."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from diel.cli.output import protect_standard_streams
from diel.comm.mpi import check_that_tasks_are_ranks, finalize_and_exit, under_mpi, world
from diel.errors import DielError, LaunchError
from diel.run.directory import RunDirectory

if TYPE_CHECKING:
    import argparse

    from diel.comm.parent import Parent
    from diel.executive.rank0 import RunObserver
    from diel.executive.signals import StopSignals


_INTERNAL_ERROR = 70
_BAD_INPUT = 2
_RANKS_A_CORE = 64
# Not ``python -m diel``: that would let every file in the current folder hide a module of ours
# or of Python's.
_RANK = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from diel.cli.run import start_rank; start_rank(sys.argv[-1])"
)


class RankOptions(NamedTuple):
    """What ``diel run`` was asked for, as far as ranks need it.

    Attributes
    ----------
    file, resume : str or None
        The workflow file, or the directory of the run that goes on.
    trace : bool
    run_dir : str or None
        The run's directory, where the launcher has made it.
    ranks : int or None
        The number that the user expects.
    runs : str
        Where a new run directory is made.
    """

    file: str | None
    resume: str | None
    trace: bool
    run_dir: str | None = None
    ranks: int | None = None
    runs: str = ""


def run(options: argparse.Namespace) -> int:
    """Run a workflow file; return the exit code.

    Raises
    ------
    DielError
        If the workflow cannot be run at all.
    """
    if options.file is not None and options.resume is not None:
        raise LaunchError(
            f"--resume {options.resume} and {options.file}: name one, the directory of the run "
            "to go on with, or a workflow file to begin with"
        )
    if options.file is None and options.resume is None:
        raise LaunchError("say what to run: a workflow file, or --resume and a run's directory")
    if under_mpi():
        resume = options.resume and str(options.resume)
        _run_as_rank(
            RankOptions(
                options.file, resume, options.trace, ranks=options.ranks, runs=str(options.runs)
            )
        )
    check_that_tasks_are_ranks(os.environ)
    directory = None
    if options.resume is not None:
        from diel.run.resuming import order_resumption

        directory = RunDirectory(options.resume)
        resumption = order_resumption(directory)
        if resumption is None:
            return _nothing_to_resume(directory)
        options.file = resumption.file
    return _launch(options, directory)


def _nothing_to_resume(directory: RunDirectory) -> int:
    print(f"diel: {directory.path} has finished: nothing is left to run", flush=True)
    return 0


# -- outside of MPI -------------------------------------------------------------------------------


def _launch(options: argparse.Namespace, directory: RunDirectory | None) -> int:
    from diel.comm.devices import remedy_for_none
    from diel.executive import launch
    from diel.executive.placement import planning
    from diel.executive.run_plan import RunPlan
    from diel.loading.functions import check_options, missing_here
    from diel.workflow.load import read_draft

    draft = read_draft(options.file)
    draft.run_dir = None if directory is None else directory.path
    workflow = check_options(draft)
    cores = launch.available_cores()
    ranks = options.ranks or planning.needs(workflow, cores).moment
    plan = RunPlan.of(workflow, draft, ranks)
    if launch.is_one_machine(os.environ):  # else only the ranks themselves can tell
        if any(need.gpus for need in plan.needs.values()):
            node = launch.node_of_all(plan.pool, os.environ)
            planning.assign_ranks(
                plan.groups, plan.needs, [node], options.file, remedy_for_none(os.environ)
            )
        draft.finish(missing_here(draft))
    if options.ranks is None and ranks > _RANKS_A_CORE * cores:
        raise LaunchError(
            f"{options.file} can use {ranks:,} ranks at once, and there are {cores} cores: "
            f"say -n {ranks} if you mean it, or run it on a cluster"
        )
    mpiexec = launch.find_mpiexec()
    implementation = launch.mpi_implementation(mpiexec)
    line = launch.mpiexec_line(
        mpiexec,
        implementation,
        ranks=ranks,
        cores=cores,
        as_root=os.geteuid() == 0,
        allow_run_as_root=options.allow_run_as_root,
        environment=os.environ,
    )
    resumes = directory is not None
    if directory is None:
        directory = RunDirectory.create(
            options.runs, plan.name, workflow.file, private=plan.private
        )
    options.directory = directory
    plan.save(directory.plan)
    # Passed to the ranks as JSON: the parser of all commands would cost each of them time.
    run_dir = str(directory.path)
    rank_options = RankOptions(
        None if resumes else str(options.file), run_dir if resumes else None, options.trace, run_dir
    )
    rank_line = [sys.executable, "-c", _RANK, "run", json.dumps(rank_options)]

    def start() -> launch.Launched:
        return launch.Launched(
            [*line, *rank_line], directory, plan.max_threads, plan.log_size_bytes
        )

    launched = start()
    # While the ranks start:
    from diel.cli.display import display_for
    from diel.executive.leftovers import remove_leftovers
    from diel.gui.addresses import watch_words
    from diel.loading.reports import conclude_reports
    from diel.run.trace import save_trace

    remove_leftovers()
    words = watch_words(directory.path, is_private=sys.stdout.isatty())
    if words:
        print(f"watch it: {words}", flush=True)
    with display_for(directory, getattr(options, "top", None)) as display:
        status = launched.wait(display.refresh)
        for _ in range(launch.ATTEMPTS - 1):
            if not launch.started_nothing(directory):
                break
            status = start().wait(display.refresh)
    exit_code = display.conclude(status)
    for complaint in (save_trace(directory), conclude_reports(directory)):
        if complaint:
            print(f"diel: {complaint}", file=sys.stderr, flush=True)
    return exit_code


# -- inside MPI -----------------------------------------------------------------------------------


def start_rank(options_json: str) -> NoReturn:
    """Run as one of the ranks that `diel run` has started, with `RankOptions` as JSON."""
    protect_standard_streams()
    _run_as_rank(RankOptions(*json.loads(options_json)))


def _run_as_rank(options: RankOptions) -> NoReturn:
    from diel.comm.parent import Parent
    from diel.executive.signals import StopSignals

    parent = Parent(world())
    signals = StopSignals()
    try:
        check_that_tasks_are_ranks(os.environ, parent.size)
        exit_code = _run_rank(parent, options, signals)
    except DielError as error:
        print(f"diel: {error}", file=sys.stderr, flush=True)
        exit_code = _BAD_INPUT
    except SystemExit as ended:
        exit_code = int(ended.code or 0)
    except BaseException as error:  # ours: no rank may be left waiting for this one
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"diel: {error.strerror}: {error.filename or options.run_dir}", file=sys.stderr)
        else:
            import traceback

            traceback.print_exc()
        parent.abort(_INTERNAL_ERROR)
        raise
    parent.close()
    finalize_and_exit(exit_code)


def _run_rank(parent: Parent, options: RankOptions, signals: StopSignals) -> int:
    if parent.rank != parent.EXECUTIVE_RANK:
        from diel.executive.worker import run_worker

        return run_worker(parent)
    from diel.executive.rank0 import NullObserver, run_rank0

    def observer_for(directory: RunDirectory) -> RunObserver:
        signals.stop_with(directory.request_stop)
        if launched_by_us:
            return NullObserver()
        from diel.cli.display import PlainDisplay

        return PlainDisplay(directory)

    launched_by_us = options.run_dir is not None  # then the launcher shows the run
    file, run_dir = options.file, options.run_dir
    if options.resume is not None:
        run_dir = options.resume
        file = _file_to_resume(parent, RunDirectory(run_dir), launched_by_us)
    if file is None:
        return 0
    return run_rank0(
        parent,
        file,
        ranks=options.ranks,
        runs=Path(options.runs),
        run_dir=None if run_dir is None else Path(run_dir),
        resumes=options.resume is not None,
        plan_file=RunDirectory(run_dir).plan if launched_by_us and run_dir else None,
        traces_all=options.trace,
        merges_trace=not launched_by_us,
        observer_for=observer_for,
    )


def _file_to_resume(parent: Parent, directory: RunDirectory, launched_by_us: bool) -> str | None:
    """Return the workflow file of a run that goes on; None, and the others let go, if it cannot."""
    from diel.executive.rank0 import dismiss_all
    from diel.run.resuming import order_resumption, resumption

    try:
        found = resumption(directory) if launched_by_us else order_resumption(directory)
    except DielError:
        dismiss_all(parent)
        raise
    if found is None:
        dismiss_all(parent, exit_code=0)
        _nothing_to_resume(directory)
        return None
    return found.file
