"""The main function of rank 0: check the file, assign ranks, run the workflow, conclude."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diel.comm import tags
from diel.comm.devices import no_gpu_remedy
from diel.comm.mailbox import Mailbox
from diel.comm.mpi import can_survive_losses, library_name
from diel.errors import CheckpointError, DielError, LaunchError, RunDirectoryError
from diel.executive.driver import Driver, RunObserver
from diel.executive.messages import Goodbye, Leave, Report
from diel.executive.placement.gpus import nodes_of
from diel.executive.placement.planning import assign_ranks, plan_run, spread_servers
from diel.executive.plans import RunPlan, recorded
from diel.exit_codes import BAD_INPUT
from diel.loading.deadline import time_left_of_run
from diel.loading.environment import set_thread_environment
from diel.run.directory import RunDirectory
from diel.run.journal import Recorder
from diel.run.part import Part
from diel.run.records import Node as NodeRecord
from diel.run.records import RunRefused, RunStarted
from diel.run.resumption import Resumption, check_elements, resumption

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.executive.binding import Binding
    from diel.executive.placement.assignment import RankAssignment
    from diel.executive.placement.gpus import Node
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


class NullObserver(RunObserver):
    """Shows nothing; used where the process that launched the ranks shows the run."""


def run_rank0(
    parent: Parent,
    file: str,
    *,
    observer_for: Callable[[RunDirectory], RunObserver],
    runs: Path,
    run_dir: Path | None = None,
    resumes: bool = False,
    is_launched: bool = False,
    ranks: int | None = None,
    provided: Mapping[str, FunctionLocation] | None = None,
    given: Sequence[str] = (),
    part: Part | None = None,
    makes_all: bool = False,
    traces_all: bool = False,
) -> int:
    """Run a workflow file as rank 0; the other ranks call `diel.executive.worker.run_worker`.

    Parameters
    ----------
    parent : Parent
    file : str
        The workflow file.
    observer_for : callable
        Makes the observer once the run directory is known.
    runs : Path
        The folder in which a new run directory is made.
    run_dir : Path, optional
        An existing run directory to use instead.
    resumes : bool, optional
        Whether the run in `run_dir` goes on from its last checkpoint; `order_resumption` was
        called.
    is_launched : bool, optional
        Whether ``diel run`` has started the ranks: it has left a plan of the checked file in
        `run_dir`, and it writes ``trace.json`` and concludes reports itself.
    ranks : int, optional
        The number that the user expects.
    provided : mapping of str to FunctionLocation, optional
        By module, functions that the workflow file need not name.
    given : sequence of str, optional
        Settings ``KEY=VALUE`` of a new run; one that has a directory was given its own.
    part : Part, optional
        Which groups of the workflow a new run is limited to; default: none.
    makes_all : bool, optional
        Whether copies run whose outputs are current.
    traces_all : bool, optional
        Whether to keep every single call of the tuple space for the trace.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    DielError
        If the workflow cannot be run at all; the other ranks have been dismissed.
    """
    directory = None if run_dir is None else RunDirectory(run_dir)
    try:
        _check_size(parent, ranks)
        plan, draft = None, None
        part = (part or Part()) if directory is None else directory.chosen_part()
        if is_launched and directory is not None:
            plan = RunPlan.take(directory.plan, file, parent.size)
        if plan is None:
            given = directory.given() if directory is not None else given
            plan, draft = _checked(
                file, provided, given, part, parent.size, directory, resumes=resumes
            )
            plan = plan.replace(makes_all=makes_all)
        set_thread_environment(plan.max_threads)
        warning = _warning(plan, is_launched=is_launched)
        plan, assignment = _complete(plan, parent, file)
        plan = plan.replace(time_left_s=time_left_of_run(os.environ, time.time()))
        if draft is not None and all(host == parent.host for host, _ in parent.hosts_and_gpus):
            from diel.loading.functions import missing_here

            # Other machines may have other files and packages.
            missing = []
            if not resumes:
                missing = draft.missing_inputs(draft.finish().limited_to(part))
            draft.finish([*missing_here(draft), *missing])
        if directory is None:
            directory = RunDirectory.create(
                runs, plan.name, Path(plan.file), private=plan.private, given=plan.given, part=part
            )
        beginning = resumption(directory) if resumes else None
        beginning = beginning or Resumption(plan.file, {}, None, 0)
        if resumes and not is_launched and plan.elements:
            check_elements(directory, plan.elements)
        recorder = Recorder(directory)
    except DielError:
        dismiss_all(parent)
        raise
    observer = observer_for(directory)
    binding = _binding(parent, is_launched=is_launched)
    driver = Driver(parent, recorder, plan, assignment, observer, beginning, binding)
    try:
        started = _run_started(parent, plan, assignment.nodes, beginning, part)
        exit_code = driver.run(started, warning, traces_all=traces_all)
    except CheckpointError as error:
        refusal = f"{directory.path} cannot be resumed: {error}"
        recorder.record(RunRefused(error=refusal, exit_code=BAD_INPUT))
        recorder.close()
        dismiss_all(parent)
        raise RunDirectoryError(refusal) from error
    except LaunchError as error:
        recorder.record(RunRefused(error=str(error), exit_code=BAD_INPUT))
        recorder.close()
        dismiss_all(parent)
        raise
    observer.conclude()
    if not is_launched:
        _write_outputs(directory)
    driver.abort_missing(exit_code)
    return exit_code


def _check_size(parent: Parent, ranks: int | None) -> None:
    if ranks not in (None, parent.size):
        raise LaunchError(
            f"-n {ranks} was asked for, but the MPI launcher started {parent.size} "
            f"rank{'s' if parent.size > 1 else ''}: leave out diel's -n"
        )


def _checked(
    file: str,
    provided: Mapping[str, FunctionLocation] | None,
    given: Sequence[str],
    part: Part,
    ranks: int,
    directory: RunDirectory | None,
    *,
    resumes: bool,
) -> tuple[RunPlan, Draft]:
    """Check a workflow file; return its plan and the draft that was read."""
    from diel.loading.functions import check_options
    from diel.workflow.load import read_draft

    draft = read_draft(file, provided, given)
    draft.run_dir = directory.path if directory is not None and resumes else None
    # Before any code of a module is imported, which may import NumPy.
    set_thread_environment(max((module.threads for _, module in draft.modules), default=1))
    workflow = check_options(draft).limited_to(part)
    only = None if directory is None else directory.limits()
    if only is not None:
        workflow = workflow.only(*only)
    return plan_run(workflow, draft, ranks), draft


def _warning(plan: RunPlan, *, is_launched: bool) -> str:
    """Return which settings of a plan have no effect as the ranks were started; empty if none."""
    warnings = [_NO_RESTARTS] if plan.restarts and not is_launched else []
    if plan.survives_loss and not can_survive_losses(os.environ):
        warnings.append(_CANNOT_SURVIVE)
    return "; ".join(warnings)


def _complete(plan: RunPlan, parent: Parent, shown_as: str) -> tuple[RunPlan, RankAssignment]:
    """Complete a plan for the ranks that were started; return it, and which ranks copies take."""
    hosts = [host for host, _ in parent.hosts_and_gpus]
    if not can_survive_losses(os.environ):
        plan = plan.replace(survives_loss=False)
    elif plan.replicas:
        from diel.tuples.replication import choose_tails

        servers = spread_servers(len(plan.server_ranks), hosts)
        tails = choose_tails([hosts[rank] for rank in servers])
        twins = tuple(servers[tail] for tail in tails)
        plan = plan.replace(server_ranks=servers, tail_ranks=twins)
    nodes = nodes_of((rank, *parent.hosts_and_gpus[rank]) for rank in plan.pool)
    groups, assignment = assign_ranks(
        plan.groups, plan.needs, nodes, shown_as, no_gpu_remedy(os.environ)
    )
    return plan.replace(groups=tuple(groups)), assignment


def _binding(parent: Parent, *, is_launched: bool) -> Binding | None:
    if not parent.bound_cores:
        return None
    from diel.executive.binding import Binding

    hosts = [host for host, _ in parent.hosts_and_gpus]
    return Binding(parent.bound_cores, hosts, os.environ, launched_by_diel=is_launched)


def _run_started(
    parent: Parent, plan: RunPlan, nodes: Sequence[Node], beginning: Resumption, part: Part
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
        **recorded(plan.groups),
        servers=plan.server_ranks,
        threads={name: spec.threads for name, spec in plan.specs.items()},
        nodes=[NodeRecord(node.host, node.ranks, node.gpus) for node in nodes],
        parameters=plan.parameters,
        resources=plan.resources,
        finished=beginning.finished,
        outcomes=beginning.outcomes,
        part=part.flags,
    )


def _write_outputs(directory: RunDirectory) -> None:
    """Write the trace and conclude the reports of a run that has ended."""
    from diel.loading.reports import conclude_reports
    from diel.run.trace import save_trace

    for complaint in (save_trace(directory), conclude_reports(directory)):
        if complaint:
            print(f"diel: {complaint}", file=sys.stderr, flush=True)


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
