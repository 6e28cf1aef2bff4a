"""``diel run``: outside of MPI it starts the ranks and shows the run; inside MPI it is a rank."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from diel.cli.output import protect_standard_streams
from diel.comm.mpi import (
    abort,
    check_that_tasks_are_ranks,
    finalize_and_exit,
    under_mpi,
    world,
)
from diel.errors import DielError, LaunchError
from diel.exit_codes import BAD_INPUT, INTERNAL_ERROR
from diel.run.directory import RunDirectory
from diel.run.files import locked_file
from diel.run.part import Part, words_of_choices
from diel.text import describe_error, describe_traceback, is_short_of_memory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from diel.cli.display import Display
    from diel.comm.parent import Parent
    from diel.executive.driver import RunObserver
    from diel.executive.launch import Launched, LauncherSignals
    from diel.executive.plans import RunPlan
    from diel.executive.rank_launcher import Mpiexec
    from diel.executive.signals import StopSignals
    from diel.run.records import RunStarted
    from diel.workflow.load import Draft
    from diel.workflow.model import Workflow


_RANKS_A_CORE = 64
_RANK = "from diel.cli.run import start_rank; import sys; start_rank(sys.argv[-1])"


class RankOptions(NamedTuple):
    """The options of ``diel run`` that its ranks need.

    Attributes
    ----------
    file, resume : str or None
        The workflow file, or the directory of the run to resume.
    trace : bool
    run_dir : str or None
        The run's directory, where the launcher has made it.
    ranks : int or None
        The number that the user expects.
    runs : str
        Where a new run directory is made.
    takes_part : dict or None
        The sweep of several runs that it takes part in, if diel has not started the ranks itself.
    given : sequence of str
        Settings ``KEY=VALUE``, if diel has not started the ranks itself.
    only, from_groups : sequence of str
        The part of the workflow to run, if diel has not started the ranks itself; of a run that is
        resumed, the groups to repeat.
    makes_all : bool
        Whether copies run whose outputs are current, if diel has not started the ranks itself.
    """

    file: str | None
    resume: str | None
    trace: bool
    run_dir: str | None = None
    ranks: int | None = None
    runs: str = ""
    takes_part: dict[str, Any] | None = None
    given: Sequence[str] = ()
    only: Sequence[str] = ()
    from_groups: Sequence[str] = ()
    makes_all: bool = False


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
    if options.run_dir is not None and options.resume is not None:
        raise LaunchError(f"--run-dir {options.run_dir} goes on with a run by itself: no --resume")
    if options.resume is not None and getattr(options, "share", None) is not None:
        raise LaunchError("--share is said when a run begins: --resume goes on as it began")
    if options.resume is not None and given_settings(options):
        raise LaunchError(
            "--set is said when a run begins: --resume goes on with what it was given"
        )
    if options.resume is not None and chosen_part(options).only:
        raise LaunchError(
            "--only is said when a run begins: --resume goes on with that part; --from GROUP "
            "repeats a group and all that depends on it"
        )
    if getattr(options, "share", None) is not None:
        _make_shared_folder(options.share)
    if options.file is None and options.resume is None:
        raise LaunchError("say what to run: a workflow file, or --resume and a run's directory")
    if under_mpi():
        if options.restarts:
            raise LaunchError(
                "--restarts is for the diel run that starts mpiexec: without mpirun or srun before "
                "it, with --launcher srun where Slurm is to start the ranks"
            )
        if options.run_dir is not None:
            raise LaunchError("--run-dir is for diel run that starts the ranks itself, not a rank")
        resume = options.resume and str(options.resume)
        _run_as_rank(
            RankOptions(
                options.file,
                resume,
                options.trace,
                ranks=options.ranks,
                runs=str(options.runs),
                takes_part=shared_sweep_of(options),
                given=given_settings(options),
                only=chosen_part(options).only,
                from_groups=chosen_part(options).from_groups,
                makes_all=getattr(options, "force", False),
            )
        )
    check_that_tasks_are_ranks(os.environ)
    directory = None
    if options.run_dir is not None and RunDirectory(options.run_dir).journal.exists():
        options.resume = options.run_dir
        begun_with = RunDirectory(options.run_dir).given()
        if given_settings(options) not in ([], begun_with):
            raise LaunchError(
                f"{options.run_dir} was begun with "
                f"{shlex.join(words_of_choices(begun_with)) or 'no --set'}, and goes on with that: "
                "leave --set out, or take another directory"
            )
        if chosen_part(options) not in (Part(), RunDirectory(options.run_dir).chosen_part()):
            raise LaunchError(
                f"{options.run_dir} was begun with another part of the workflow: leave "
                f"{chosen_part(options).flags} out, or take another directory"
            )
        options.from_groups = []
    if options.resume is not None:
        from diel.run.resumption import order_resumption

        directory = RunDirectory(options.resume)
        # Each job of a chain gives the same --run-dir: a finished run is finished for these.
        repeats_failed = options.run_dir is None
        resumption = order_resumption(
            directory,
            repeats=chosen_part(options).from_groups,
            repeats_failed=repeats_failed,
        )
        if resumption is None:
            return _nothing_to_resume(directory)
        options.file = resumption.file
    return _launch(options, directory)


def _make_shared_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"cannot share a sweep in {folder}: {error.strerror}; choose another folder with "
            "--share DIR"
        ) from error


def shared_sweep_of(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the sweep of several runs that the command line asks to take part in, if any."""
    share = getattr(options, "share", None)
    if share is None:
        return None
    return {"share": str(share.absolute()), "silence_s": options.silence}


def given_settings(options: argparse.Namespace) -> list[str]:
    """Return the settings ``KEY=VALUE`` of the command line."""
    return list(getattr(options, "set", None) or ())


def chosen_part(options: argparse.Namespace) -> Part:
    """Return which groups of the workflow the command line chooses."""
    only, start = (getattr(options, name, None) for name in ("only_groups", "from_groups"))
    return Part(tuple(only or ()), tuple(start or ()))


def _nothing_to_resume(directory: RunDirectory) -> int:
    print(f"diel: {directory.path} has finished: nothing is left to run", flush=True)
    return 0


# -- outside of MPI -------------------------------------------------------------------------------


def _launch(options: argparse.Namespace, directory: RunDirectory | None) -> int:
    from diel.comm.devices import no_gpu_remedy
    from diel.executive import launch
    from diel.executive.placement import planning
    from diel.executive.rank_launcher import find_rank_launcher
    from diel.loading.deadline import time_left_of_run
    from diel.loading.functions import check_options, missing_here
    from diel.run.resumption import check_elements
    from diel.workflow.load import read_draft

    given = given_settings(options) if directory is None else directory.given()
    draft = read_draft(options.file, given=given)
    draft.run_dir = None if directory is None else directory.path
    workflow = check_options(draft)
    part = chosen_part(options) if directory is None else directory.chosen_part()
    workflow = workflow.limited_to(part)
    only = getattr(options, "only", None) or (directory and directory.limits())
    if only:
        workflow = workflow.only(*only)
    cores = launch.available_cores()
    ranks = options.ranks or planning.needs(workflow, cores).moment
    plan = planning.plan_run(workflow, draft, ranks)
    if directory is not None and plan.elements:
        check_elements(directory, plan.elements)
    time_left_of_run(os.environ, time.time())  # which rank 0 would refuse, if it is no time
    plan = plan.replace(makes_all=getattr(options, "force", False))
    if launch.is_one_machine(os.environ):  # else only the ranks themselves can tell
        if plan.pins:
            launch.check_pins(plan)
        if any(need.gpus for need in plan.needs.values()):
            node = launch.node_of_all(plan.pool, os.environ)
            planning.assign_ranks(
                plan.groups, plan.needs, [node], options.file, no_gpu_remedy(os.environ)
            )
        missing = draft.missing_inputs(workflow) if directory is None else []
        draft.finish([*missing_here(draft), *missing])
    if options.ranks is None and ranks > _RANKS_A_CORE * cores:
        raise LaunchError(
            f"{options.file} can use {ranks:,} ranks at once, and there are {cores} cores: "
            f"say -n {ranks} if you mean it, or run it on a cluster"
        )
    mpiexec = find_rank_launcher(
        options.launcher,
        os.environ,
        threads=plan.max_threads,
        allow_run_as_root=options.allow_run_as_root,
    )
    mpiexec.line(ranks)  # raises, if at all, before a run directory is made
    if options.launcher or not launch.is_one_machine(os.environ):
        print(f"{ranks} ranks are started by {mpiexec}", flush=True)
    resumes = directory is not None
    if directory is None:
        directory = RunDirectory.create(
            *(options.runs, plan.name, workflow.file),
            private=plan.private,
            at=options.run_dir,
            given=plan.given,
            part=part,
        )
        if only:
            directory.limit_to(*only)
        if takes_part := getattr(options, "takes_part", None) or shared_sweep_of(options):
            from diel.loading.sweeps import record_participation

            record_participation(directory, takes_part)
    options.directory = directory
    launched = _LaunchedRun(options, workflow, draft, directory, mpiexec)
    return launched.run_to_its_end(plan, resumes=resumes)


class _LaunchedRun:
    """A run whose ranks this process starts, and starts again if they die."""

    def __init__(
        self,
        options: argparse.Namespace,
        workflow: Workflow,
        draft: Draft,
        directory: RunDirectory,
        mpiexec: Mpiexec,
    ) -> None:
        self._options = options
        self._workflow = workflow
        self._draft = draft
        self._directory = directory
        self._mpiexec = mpiexec

    def run_to_its_end(self, plan: RunPlan, *, resumes: bool) -> int:
        """Start the ranks, show the run, and restart it if ranks die; return its exit code."""
        from diel.executive.launch import LauncherSignals

        with locked_file(self._directory.launcher_log):
            start = partial(self._start, plan, resumes=resumes)
            launched = start()
            # While the ranks start:
            from diel.cli.display import display_for
            from diel.executive.leftovers import remove_leftovers
            from diel.gui.addresses import watch_words
            from diel.loading.reports import conclude_reports
            from diel.run.trace import save_trace

            remove_leftovers()
            words = watch_words(self._directory.path, is_private=sys.stdout.isatty())
            if words:
                print(f"watch it: {words}", flush=True)
            top = getattr(self._options, "top", None)
            with display_for(self._directory, top) as display, LauncherSignals() as signals:
                status = self._wait(launched, start, display, signals)
                status = self._restart_if_lost(plan, status, display, signals)
        exit_code = display.conclude(status)
        for complaint in (save_trace(self._directory), conclude_reports(self._directory)):
            if complaint:
                print(f"diel: {complaint}", file=sys.stderr, flush=True)
        return exit_code

    def _restart_if_lost(
        self, plan: RunPlan, status: int, display: Display, signals: LauncherSignals
    ) -> int:
        """Restart the ranks while they die and restarts are left; return mpiexec's last status."""
        from diel.executive.restarts import Restarts, after_loss, is_lost, record_stop
        from diel.run.resumption import order_resumption

        directory, most = self._directory, self._options.restarts
        restarts = Restarts(plan.restarts if most is None else most)
        while is_lost(display.view, directory, status) and not self._is_asked_to_stop(signals):
            restart = after_loss(
                restarts,
                display.view,
                directory,
                status,
                ranks=plan.ranks,
                hosts=self._answering_hosts,
                fits=self._why_unfit,
            )
            display.refresh()
            if restart is None:
                break
            if self._is_asked_to_stop(signals):
                with contextlib.suppress(FileNotFoundError):  # reported by display.conclude
                    if signals.is_asked:
                        signals.request_stop(directory)
                    record_stop(directory, restart.number - 1)
                display.refresh()
                break
            order_resumption(directory, restart.number)
            plan = self._plan_for(restart.ranks).replace(makes_all=plan.makes_all)
            start = partial(self._start, plan, resumes=True, hosts=restart.hosts)
            status = self._wait(start(), start, display, signals)
        return status

    def _start(
        self, plan: RunPlan, *, resumes: bool, hosts: Sequence[tuple[str, int]] = ()
    ) -> Launched:
        from diel.executive.launch import Launched
        from diel.processes import python_command

        plan.save(self._directory.plan, self._draft.source)
        run_dir = str(self._directory.path)
        # Passed to the ranks as JSON: parsing the command line would cost each of them time.
        given = RankOptions(
            None if resumes else str(self._options.file),
            run_dir if resumes else None,
            self._options.trace,
            run_dir,
            makes_all=plan.makes_all,
        )
        launcher = self._mpiexec.line(plan.ranks, hosts, survives_loss=plan.survives_loss)
        line = [*launcher, *python_command(_RANK), "run"]
        return Launched(
            [*line, json.dumps(given)],
            self._directory,
            plan.max_threads,
            plan.log_size_bytes,
            self._mpiexec.variables,
        )

    def _wait(
        self,
        launched: Launched,
        start: Callable[[], Launched],
        display: Display,
        signals: LauncherSignals,
    ) -> int:
        """Wait for mpiexec to end; start it again, a few times, if it has not started any rank."""
        from diel.executive.launch import ATTEMPTS, failed_before_ranks

        status = launched.wait(display.refresh, signals)
        for _ in range(ATTEMPTS - 1):
            if not failed_before_ranks(self._directory):
                break
            status = start().wait(display.refresh, signals)
        return status

    def _is_asked_to_stop(self, signals: LauncherSignals) -> bool:
        """Whether a person has asked the run to stop, not a rank after ranks were lost."""
        directory = self._directory
        return signals.is_asked or (directory.stop_requested() and not directory.is_lost_or_ended())

    def _answering_hosts(self, started: RunStarted) -> dict[str, bool]:
        """Return whether each host of a run still answers; empty if all ranks are on this host."""
        from diel.executive.launch import is_one_machine

        hosts = list(dict.fromkeys([started.host, *(node.host for node in started.nodes)]))
        return {} if is_one_machine(os.environ) else self._mpiexec.answering(hosts)

    def _plan_for(self, ranks: int) -> RunPlan:
        from diel.executive.placement.planning import plan_run

        return plan_run(self._workflow, self._draft, ranks)

    def _why_unfit(self, ranks: int) -> str:
        """Return why the workflow cannot run on so many ranks; empty if it can."""
        try:
            self._plan_for(ranks)
        except DielError as error:
            return f"{ranks} ranks are left, and {error}"
        return ""


# -- inside MPI -----------------------------------------------------------------------------------


def start_rank(options_json: str) -> NoReturn:
    """Run as one of the ranks that `diel run` has started, with `RankOptions` as JSON."""
    protect_standard_streams()
    _run_as_rank(RankOptions(*json.loads(options_json)))


def _run_as_rank(options: RankOptions) -> NoReturn:
    comm, parent = world(finalizes_at_exit=False), None
    try:
        from diel.comm.parent import Parent
        from diel.executive.signals import StopSignals

        parent = Parent(comm)
        signals = StopSignals()
        check_that_tasks_are_ranks(os.environ, parent.size)
        exit_code = _run_rank(parent, options, signals)
    except DielError as error:
        print(f"diel: {error}", file=sys.stderr, flush=True)
        exit_code = BAD_INPUT
    except SystemExit as ended:
        exit_code = int(ended.code or 0)
    except BaseException as error:  # of diel itself: no rank may be left waiting for this one
        abort(comm, INTERNAL_ERROR, partial(_end_in_words, parent, error, comm.rank, options))
        raise
    if parent is not None:
        parent.close()
    ranks_have_died = parent is not None and bool(parent.dead_ranks.ranks)
    finalize_and_exit(exit_code, ranks_have_died=ranks_have_died)


def _end_in_words(
    parent: Parent | None, error: BaseException, rank: int, options: RankOptions
) -> None:
    """Print why a rank ends its run: in words if the system lacks something, else a traceback."""
    if parent is not None:
        parent.wakeup.remove()
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"diel: {error.strerror}: {error.filename or options.run_dir}"
    elif is_short_of_memory(error):
        text = (
            f"diel: rank {rank} on {platform.node()} has no memory left ({describe_error(error)}), "
            "so the run ends: give it more, or start fewer ranks on a host"
        )
    else:
        text = describe_traceback(error)
    print(text, file=sys.stderr, flush=True)


def _run_rank(parent: Parent, options: RankOptions, signals: StopSignals) -> int:
    if parent.rank != parent.EXECUTIVE_RANK:
        from diel.executive.worker import run_worker

        return run_worker(parent)
    from diel.executive.rank0 import NullObserver, run_rank0

    def observer_for(directory: RunDirectory) -> RunObserver:
        signals.set_stop_request(directory.request_stop)
        if options.takes_part is not None:
            from diel.loading.sweeps import record_participation

            record_participation(directory, options.takes_part)
        if launched_by_us:
            return NullObserver()
        from diel.cli.display import PlainDisplay

        return PlainDisplay(directory)

    launched_by_us = options.run_dir is not None  # then the launcher shows the run
    file, run_dir = options.file, options.run_dir
    part = Part(options.only, options.from_groups)
    if options.resume is not None:
        run_dir = options.resume
        file = _file_to_resume(parent, RunDirectory(run_dir), launched_by_us, part.from_groups)
    if file is None:
        return 0
    return run_rank0(
        parent,
        file,
        observer_for=observer_for,
        runs=Path(options.runs),
        run_dir=None if run_dir is None else Path(run_dir),
        resumes=options.resume is not None,
        is_launched=launched_by_us,
        ranks=options.ranks,
        given=options.given,
        part=part,
        makes_all=options.makes_all,
        traces_all=options.trace,
    )


def _file_to_resume(
    parent: Parent, directory: RunDirectory, launched_by_us: bool, repeats: Sequence[str]
) -> str | None:
    """Return the workflow file of a run to resume; dismiss all ranks if it cannot be resumed.

    None if the run has finished: then nothing is left to run.
    """
    from diel.executive.rank0 import dismiss_all
    from diel.run.resumption import order_resumption, resumption

    try:
        found = (
            resumption(directory)
            if launched_by_us
            else order_resumption(directory, repeats=repeats)
        )
    except DielError:
        dismiss_all(parent)
        raise
    if found is None:
        dismiss_all(parent, exit_code=0)
        _nothing_to_resume(directory)
        return None
    return found.file
