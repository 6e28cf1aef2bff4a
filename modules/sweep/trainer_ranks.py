"""The part that a rank has in its trainer: alone, first or other rank of a copy, or of groups.

Where trials have different numbers of ranks, the ranks of a copy form groups (`rank_queues`), whose
first ranks run leases as the first rank of a copy does, and are followed by the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from diel.errors import RunStopped

from ..trial import OnReport, Trial, TrialResult
from .in_flight import InFlightTrials, RunningCurve
from .messages import CopyFailed, CopyReady, End, Lease, SaveModel, SweepOrder, Tags
from .rank_queues import Ranks
from .runners import (
    AimedRunner,
    Follower,
    InProcessRunner,
    Limits,
    RankGroupRunner,
    Task,
    TrialRunner,
    session_of,
)
from .trainer_loop import Leases, Progress, StopRequests, run_leases, save_model

if TYPE_CHECKING:
    from diel import Context

NOT_TRIED: Final = "was under way twice when the run was ended: not tried again"
"""Reason of failure of a trial that may have killed one of several ranks."""


def run_trainer(ctx: Context, task: Task, limits: Limits, *, in_groups: bool = False) -> int:
    """Run a trainer of the group until the sweep is over; return how many trials it ran.

    `in_groups` says whether its ranks form groups, of different numbers of ranks.
    """
    tags = Tags(ctx.group, ctx.module)
    if not in_groups:
        ctx.allow_loss()  # the lease of a trainer that dies goes to another one
    trainers, own = ctx.copies_of.get(ctx.module, 1), ctx.copy_index
    if in_groups:
        trainers, own = ctx.ranks_of(ctx.module), _trainer_index(ctx)
    curve = RunningCurve(ctx.run_dir, tags, own, trainers)
    with closing(Progress(ctx.progress, curve)) as progress:
        return _run_trainer(ctx, tags, task, limits, progress, in_groups=in_groups)


def _run_trainer(
    ctx: Context, tags: Tags, task: Task, limits: Limits, progress: Progress, *, in_groups: bool
) -> int:
    stops = StopRequests(ctx, tags)
    if limits.needs_process:
        from .subprocess_runner import SubprocessRunner

        with closing(SubprocessRunner(ctx, task, limits, progress, stops)) as runner:
            return run_leases(ctx, tags, runner, stops=stops)
    comm = comm_of(ctx)
    rank = 0 if comm is None else comm.rank
    with InFlightTrials(ctx.run_dir, tags, ctx.copy_index, rank) as in_flight:
        in_process = InProcessRunner(task, comm, in_flight.note, progress if rank == 0 else None)
        if rank == 0:
            in_process.is_to_stop = stops
            for problem in in_process.unread if ctx.copy_index == 0 else ():
                ctx.log.warning("%s", problem)
        if in_groups:
            return _run_in_groups(ctx, tags, in_process, stops, progress)
        if comm is None or comm.size == 1:
            quarantine = partial(_quarantine, ctx, task, in_process, progress)
            return run_leases(ctx, tags, in_process, quarantine, stops)
        if rank > 0:
            return Follower(ctx, tags, in_process).follow()
        group = RankGroupRunner(ctx, tags, in_process)
        trials = run_leases(ctx, tags, group, partial(_pass_over, group), stops)
        group.dismiss()
        return trials


# -- ranks in groups ------------------------------------------------------------------------------


def _trainer_index(ctx: Context) -> int:
    """Return the number of this rank among the ranks of all copies: that of a group's first rank.

    There each rank may be the first of a group, and be known to the master as a trainer.
    """
    comm = comm_of(ctx)
    rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
    return int(ctx.copy_index * ranks + rank)


def _run_in_groups(
    ctx: Context, tags: Tags, runner: InProcessRunner, stops: StopRequests, progress: Progress
) -> int:
    """Carry out the orders of this rank until there are no more; return how many trials it ran.

    The ranks of a group come together asleep, each when it has done what it was to do before.
    """
    from dnn.distributed import communicator_of

    comm, copy = comm_of(ctx), ctx.copy_index
    own_rank, own = 0, None
    if comm is not None:
        own_rank, own = comm.rank, communicator_of(comm)
    session, groups, trials = session_of(own), dict[int, _RankInGroups](), 0
    if own is not None:
        own.close()
    iteration = tuple(ctx.iteration)
    if own_rank == 0:
        ready = CopyReady(session, ctx.session, iteration, copy)
        ctx.tuples.collect(tags.ready(copy))  # of a copy that failed
        ctx.tuples.tput(tags.ready(copy), ready)
        ctx.tuples.tput(tags.outcome, ready)
    while True:
        order: Lease | SaveModel | End = ctx.tuples.tget(tags.lease_of(copy, own_rank))
        if isinstance(order, End):
            if order.iteration == iteration:
                break
            continue  # of an iteration whose trainer was given up
        ranks = order.ranks
        if ranks is None or ranks.session != session:
            continue  # given to these ranks before the copy began again
        if ranks.count not in groups:
            groups[ranks.count] = _RankInGroups(ctx, tags, runner, ranks, stops, progress)
        try:
            trials += groups[ranks.count].carry_out(order)
        except RunStopped:
            raise
        except Exception:
            ctx.tuples.tput(tags.outcome, CopyFailed(session, copy))
            raise
    if own_rank == 0:
        ctx.tuples.collect(tags.ready(copy))
        ctx.tuples.collect(tags.outcome)  # the master was done before this copy was ready
    return trials


class _RankInGroups:
    """The part of a rank in the one group of so many ranks that it is in."""

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        runner: InProcessRunner,
        ranks: Ranks,
        stops: StopRequests,
        progress: Progress,
    ) -> None:
        self._ctx, self._tags, self._runner = ctx, tags, runner
        self._stops, self._progress = stops, progress
        comm, self._group = comm_of(ctx), None
        # A function finds the communicator of its rank alone; networks are trained as on one rank.
        if comm is not None and (ranks.count > 1 or not runner.trains_networks):
            kind = RankGroupRunner if comm.rank == ranks.first else Follower
            self._group = kind(ctx, tags, runner, ranks)
        lead: AimedRunner = self._group if isinstance(self._group, RankGroupRunner) else runner
        self._lead = lead
        index, pass_over = _trainer_index(ctx), partial(_pass_over, lead)
        self._leases = Leases(ctx, tags, lead, index, pass_over, stops)

    def carry_out(self, order: Lease | SaveModel) -> int:
        """Carry an order out together; return how many trials were run."""
        group, runner = self._group, self._runner
        if isinstance(group, Follower):
            group.begin(None, None)
            return group.follow()
        if group is None:
            runner.is_to_stop, runner.progress = self._stops, self._progress
            runner.comm = runner.communicator = None
        else:
            group.meet()
            group.begin(self._stops, self._progress)
        trials = 0
        if isinstance(order, SaveModel):
            self._ctx.tuples.tput(self._tags.outcome, save_model(order, self._lead))
        else:
            trials = self._leases.run(order)
        if group is not None:
            group.dismiss()
        return trials


# -- trials that may have killed a rank -----------------------------------------------------------


@contextmanager
def _quarantine(
    ctx: Context,
    task: Task,
    in_process: TrialRunner,
    progress: Progress,
    order: SweepOrder,
) -> Iterator[TrialRunner]:
    """Return a context with a runner that runs quarantined trials in a child process first.

    A function may need what only a rank has: a trial that fails there, but does not kill the
    process, is run on this rank too.
    """
    from .subprocess_runner import NotReady, SubprocessRunner

    stops = getattr(in_process, "is_to_stop", None)
    with closing(SubprocessRunner(ctx, task, Limits(isolated=True), progress, stops)) as in_child:

        def run(trial: Trial, on_report: OnReport | None) -> TrialResult:
            if trial.number in order.quarantined:
                with suppress(NotReady):
                    result = in_child(trial, on_report)
                    if result.has_died or not result.reason:
                        return result
            return in_process(trial, on_report)

        yield run


def _pass_over(runner: TrialRunner, order: SweepOrder) -> AbstractContextManager[TrialRunner]:
    """Return a context with a runner that fails the trials which are not to be tried again."""

    def run(trial: Trial, on_report: OnReport | None) -> TrialResult:
        if trial.number in order.not_to_try:
            return TrialResult(reason=NOT_TRIED)
        return runner(trial, on_report)

    return nullcontext(run)


def comm_of(ctx: Context) -> Any:
    """Return the communicator of this copy; None in a test without MPI."""
    try:
        return ctx.comm
    except RuntimeError:
        return None
