"""The main function of rank 0: check the file, assign ranks, run the workflow, conclude."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from diel.comm import tags
from diel.comm.devices import no_gpu_remedy
from diel.comm.mailbox import Mailbox
from diel.comm.mpi import can_survive_losses, library_name
from diel.errors import CheckpointError, DielError, LaunchError, RunDirectoryError
from diel.executive.driver import Driver
from diel.executive.messages import Goodbye, Leave, Report, Welcome
from diel.executive.placement.gpus import nodes_of
from diel.executive.placement.planning import assign_ranks, spread_servers
from diel.executive.plans import recorded
from diel.executive.run_plan import RunPlan
from diel.exit_codes import BAD_INPUT
from diel.loading.environment import set_thread_environment
from diel.run.directory import RunDirectory
from diel.run.recorder import Recorder
from diel.run.records import Node as NodeRecord
from diel.run.records import RunRefused, RunStarted
from diel.run.resumption import resumption

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.executive.binding import Binding
    from diel.executive.placement.gpus import Node
    from diel.executive.plans import GroupPlan
    from diel.run.records import Failure
    from diel.workflow.functions import FunctionLocation
    from diel.workflow.load import Draft

_DISMISSAL_TIMEOUT_S = 5.0
_CANNOT_SURVIVE = (
    'on_rank_loss = "continue" needs Open MPI 5 and mpiexec --with-ft ulfm, which diel run says by '
    "itself: here the run ends when a rank dies"
)
_NO_RESTARTS = (
    "restarts in [workflow] needs a diel run that starts the ranks itself, by mpiexec or with "
    "--launcher srun: if ranks die, this run ends"
)


class RunObserver(Protocol):
    """Shows a run to a person while rank 0 drives it."""

    def refresh(self) -> object:
        """Show new events; called a few times a second."""

    def announce(self, failure: Failure) -> None:
        """Show the root cause of a failure at once."""

    def conclude(self) -> object:
        """Show how the run ended; the journal is complete."""


class NullObserver:
    """Shows nothing; used where the process that launched the ranks shows the run."""

    def refresh(self) -> None:
        """Show nothing."""

    def announce(self, failure: Failure) -> None:
        """Show nothing."""

    def conclude(self) -> None:
        """Show nothing."""


def run_rank0(
    parent: Parent,
    file: str,
    *,
    ranks: int | None,
    runs: Path,
    run_dir: Path | None,
    resumes: bool = False,
    plan_file: Path | None = None,
    provided: Mapping[str, FunctionLocation] | None = None,
    traces_all: bool = False,
    merges_trace: bool = True,
    observer_for: Callable[[RunDirectory], RunObserver],
) -> int:
    """Run a workflow file as rank 0; the other ranks call `diel.executive.worker.run_worker`.

    Parameters
    ----------
    parent : Parent
    file : str
        The workflow file.
    ranks : int or None
        The number that the user expects, if any.
    runs : Path
        The folder in which a new run directory is made.
    run_dir : Path or None
        An existing run directory to use instead.
    resumes : bool
        Whether the run in `run_dir` goes on from its last checkpoint; `order_resumption` was
        called.
    plan_file : Path, optional
        The file in which the launcher has left the plan of the checked workflow file.
    provided : mapping of str to FunctionLocation, optional
        By module, functions that the workflow file need not name.
    traces_all : bool, optional
        Whether to keep every single call of the tuple space for the trace.
    merges_trace : bool, optional
        Whether to write ``trace.json`` and conclude reports; the process that launched the ranks
        may do that instead.
    observer_for : callable
        Makes the observer once the run directory is known.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    DielError
        If the workflow cannot be run at all; the other ranks have been dismissed.
    """
    try:
        if ranks not in (None, parent.size):
            raise LaunchError(
                f"-n {ranks} was asked for, but the MPI launcher started {parent.size} "
                f"rank{'s' if parent.size > 1 else ''}: leave out diel's -n"
            )
        plan, draft = None, None
        if plan_file is not None:
            plan = RunPlan.take(plan_file, file, parent.size)
        if plan is None:
            going_on = Path(run_dir) if resumes and run_dir is not None else None
            only = None if run_dir is None else RunDirectory(run_dir).limits()
            plan, draft = _checked(file, provided, parent.size, going_on, only)
        set_thread_environment(plan.max_threads)
        server_ranks, tail_ranks = _servers(plan, [host for host, _ in parent.hosts_and_gpus])
        pool = [rank for rank in range(1, parent.size) if rank not in server_ranks]
        nodes = nodes_of((rank, *parent.hosts_and_gpus[rank]) for rank in pool)
        groups, assignment = assign_ranks(
            plan.groups, plan.needs, nodes, file, no_gpu_remedy(os.environ)
        )
        if draft is not None and all(host == parent.host for host, _ in parent.hosts_and_gpus):
            from diel.loading.functions import missing_here

            draft.finish(missing_here(draft))  # other machines may have other files and packages
        if run_dir is not None:
            directory = RunDirectory(run_dir)
        else:
            directory = RunDirectory.create(runs, plan.name, Path(plan.file), private=plan.private)
        resumed = resumption(directory) if resumes else None
        recorder = Recorder(directory)
    except DielError:
        dismiss_all(parent)
        raise
    observer = observer_for(directory)
    driver = Driver(
        parent,
        recorder,
        groups=groups,
        assignment=assignment,
        server_ranks=server_ranks,
        tail_ranks=tail_ranks,
        pool=pool,
        heartbeat_timeout_s=plan.heartbeat_timeout_s,
        announce=observer.announce,
        housekeeping=observer.refresh,
        resumption=resumed,
        checkpoint_every_s=plan.checkpoint_every_s,
        survives_loss=plan.on_rank_loss == "continue" and can_survive_losses(os.environ),
        binding=_binding(parent, launched_by_diel=not merges_trace),
    )
    welcome = Welcome(
        run_dir=str(directory.path),
        folder=str(Path(plan.file).parent),
        max_threads=plan.max_threads,
        log_size_bytes=plan.log_size_bytes,
        returned_size_bytes=plan.returned_size_bytes,
        returned_total_bytes=plan.returned_total_bytes,
        server_memory_bytes=plan.server_memory_bytes,
        refuse_when_full=plan.refuse_when_full,
        spill=plan.spill,
        server_ranks=server_ranks,
        tail_ranks=tail_ranks,
        specs=plan.specs,
        groups=tuple(groups),
        boundaries=plan.boundaries,
        traces_all=traces_all,
        survives_loss=plan.on_rank_loss == "continue",
        session=os.urandom(4).hex(),
        states=() if resumed is None else tuple(resumed.states),
    )
    try:
        warnings = [_NO_RESTARTS] if plan.restarts and merges_trace else []
        if plan.on_rank_loss == "continue" and not can_survive_losses(os.environ):
            warnings.append(_CANNOT_SURVIVE)
        warning = "; ".join(warnings)
        started = _run_started(parent, plan, groups, nodes, server_ranks)
        exit_code = driver.run(welcome, started, warning)
    except CheckpointError as error:
        refusal = f"{directory.path} cannot be resumed: {error}"
        recorder.record(RunRefused(error=refusal, exit_code=BAD_INPUT))
        recorder.close()
        dismiss_all(parent)
        raise RunDirectoryError(refusal) from error
    observer.conclude()
    if merges_trace:
        from diel.loading.reports import conclude_reports
        from diel.run.trace import save_trace

        for complaint in (save_trace(directory), conclude_reports(directory)):
            if complaint:
                print(f"diel: {complaint}", file=sys.stderr, flush=True)
    driver.abort_missing(exit_code)
    return exit_code


def _checked(
    file: str,
    provided: Mapping[str, FunctionLocation] | None,
    ranks: int,
    run_dir: Path | None,
    only: tuple[str, list[str]] | None,
) -> tuple[RunPlan, Draft]:
    """Check a workflow file; return its plan and the draft that was read.

    `run_dir` is that of a resumed run; `only` names a group and its modules, if not all of the
    file is to run.
    """
    from diel.loading.functions import check_options
    from diel.workflow.load import read_draft

    draft = read_draft(file, provided)
    draft.run_dir = run_dir
    # Before any code of a module is imported, which may import NumPy.
    set_thread_environment(max((module.threads for _, module in draft.modules), default=1))
    workflow = check_options(draft)
    if only is not None:
        workflow = workflow.only(*only)
    return RunPlan.of(workflow, draft, ranks), draft


def _servers(plan: RunPlan, hosts: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the tuple servers, and the ranks of their twins, empty without twins."""
    if not plan.replicas or not can_survive_losses(os.environ):
        return plan.server_ranks, ()
    from diel.tuples.replication import choose_tails

    servers = spread_servers(plan.servers, hosts)
    tails = choose_tails([hosts[rank] for rank in servers])
    return servers, tuple(servers[tail] for tail in tails)


def _binding(parent: Parent, *, launched_by_diel: bool) -> Binding | None:
    if not parent.bound_cores:
        return None
    from diel.executive.binding import Binding

    hosts = [host for host, _ in parent.hosts_and_gpus]
    return Binding(parent.bound_cores, hosts, os.environ, launched_by_diel=launched_by_diel)


def _run_started(
    parent: Parent,
    plan: RunPlan,
    groups: list[GroupPlan],
    nodes: list[Node],
    server_ranks: Sequence[int],
) -> RunStarted:
    from diel import __version__

    return RunStarted(
        workflow=plan.name,
        ranks=parent.size,
        file=plan.file,
        host=parent.host,
        diel=__version__,
        python=platform.python_version(),
        mpi=library_name(),
        **recorded(groups),
        servers=server_ranks,
        threads={name: spec.threads for name, spec in plan.specs.items()},
        nodes=[NodeRecord(node.host, node.ranks, node.gpus) for node in nodes],
    )


def dismiss_all(parent: Parent, exit_code: int = BAD_INPUT) -> None:
    """Dismiss every other rank, where there is nothing to run."""
    mailbox: Mailbox[Report] = Mailbox(
        parent.comm, sends=tags.EXECUTIVE_TO_WORKER, receives=tags.WORKER_TO_EXECUTIVE
    )
    for rank in range(1, parent.size):
        mailbox.send(Leave(exit_code), rank)
    for _ in range(1, parent.size):
        arrival = mailbox.wait(_DISMISSAL_TIMEOUT_S)
        if arrival is None or not isinstance(arrival[1], Goodbye):
            break
