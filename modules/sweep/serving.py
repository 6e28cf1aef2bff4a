"""A trainer's loop: claim a lease, try its trials, say what they gave."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from ..trial import trial_seed
from .leases import TARGET_S
from .messages import End, Keep, Kept, Lease, Outcome, Report, SweepOrder, Tags
from .trying import Hear, Tried, reason_of

if TYPE_CHECKING:
    from pathlib import Path

    from diel import Context

GIVE_BACK_AFTER_S = 4 * TARGET_S
"""A lease that takes longer goes back with what is left of it, for others to do."""
_SHOWN_FAILURES = 5


class Trier(Protocol):
    """Tries one point."""

    def __call__(
        self, trial: int, parameters: dict[str, Any], seed: int, attempt: int, hear: Hear | None
    ) -> Tried:
        """Try it; `hear` takes what the trial says meanwhile."""
        ...


def serve(
    ctx: Context,
    tags: Tags,
    trier: Trier,
    careful: Callable[[frozenset[int]], AbstractContextManager[Trier]] | None = None,
) -> int:
    """Try what the master gives out until there is no more; return how many trials it was.

    Parameters
    ----------
    ctx : Context
    tags : Tags
    trier : Trier
    careful : function, optional
        Gives a trier that is careful with some trials: they may have killed a rank before.
    """
    at_once = getattr(trier, "at_once", 1)
    trials = failures = 0
    orders: dict[str, SweepOrder] = {}
    while True:
        with ctx.tuples.claim(tags.lease) as claim:
            lease: Lease | Keep | End = claim.value
            if isinstance(lease, End):
                if lease.iteration == tuple(ctx.iteration):
                    return trials
                continue  # of an iteration whose trainer was given up
            if isinstance(lease, Keep):
                ctx.tuples.tput(tags.outcome, _keep(lease, trier))
                continue
            order = orders.get(lease.session) or _order(ctx, tags, lease.session)
            if order is None:
                continue  # of a master that is no more
            orders = {order.session: order}
            hear = _hearing(ctx, tags, order) if order.hears_reports else None
            fuses = trier if at_once > 1 and lease.stop - lease.start > 1 and not hear else None
            suited: AbstractContextManager[Trier] = nullcontext(trier)
            if careful and any(lease.start <= one < lease.stop for one in order.suspects):
                suited, fuses = careful(order.suspects), None
            with suited as tries:
                outcome, details = _try_lease(lease, order, ctx.copy_index, tries, hear, fuses)
            outcome.at_once, outcome.keeps = at_once, getattr(trier, "keeps", False)
            # Put before the claim ends: a lease is out, or its outcome is there.
            ctx.tuples.tput(tags.outcome, outcome)
        trials += len(outcome.metrics)
        for trial, detail in details:
            failures += 1
            if failures <= _SHOWN_FAILURES:
                ctx.log.warning("trial %d failed: %s", trial, outcome.reasons[trial])
                if detail:
                    print(detail, flush=True)


def _try_lease(
    lease: Lease,
    order: SweepOrder,
    copy_index: int,
    trier: Trier,
    hear: Hear | None,
    fuses: Any = None,
) -> tuple[Outcome, list[tuple[int, str]]]:
    """Return what the trials of a lease gave, and of those that failed the details."""
    trials = range(lease.start, lease.stop)
    points = lease.points if lease.points is not None else points_of(order.strategy, trials)
    outcome = Outcome(lease.session, lease.number, lease.start, copy_index, points)
    details: list[tuple[int, str]] = []
    add_metrics, add_start = outcome.metrics.append, outcome.started_s.append
    add_seconds, clock = outcome.seconds.append, time.perf_counter
    seed, attempt = order.seed, lease.attempt
    ended_s = clock()
    since_1970_s = time.time() - ended_s
    together: list[Tried | None] = []
    share_s = 0.0
    if fuses is not None:
        began_s = ended_s
        together = fuses.try_together(
            lease.start,
            [(point, trial_seed(seed, trial)) for trial, point in zip(trials, points, strict=True)],
        )
        # Of what all took together each has an equal part, one after the other.
        share_s = (clock() - began_s) / max(1, sum(one is not None for one in together))
    give_back_s = clock() + GIVE_BACK_AFTER_S
    for place, (trial, point) in enumerate(zip(trials, points, strict=True)):
        started_s = ended_s
        done = together[place] if together else None
        if done is not None:
            tried, ended_s = done, ended_s + share_s
        else:
            began_s = clock()
            tried = trier(trial, point, trial_seed(seed, trial), attempt, hear)
            ended_s += clock() - began_s
        add_metrics(tried.metrics)
        add_start(since_1970_s + started_s)
        add_seconds(ended_s - started_s)
        if tried.reports and hear is None:  # else the master has heard them
            outcome.reports[trial] = tried.reports
        if tried.reason:
            outcome.reasons[trial] = tried.reason
            details.append((trial, tried.detail))
        elif tried.is_stopped:
            outcome.stopped.add(trial)
        if ended_s > give_back_s and not together:
            break
    del points[len(outcome.metrics) :]
    return outcome, details


def _keep(wanted: Keep, trier: Any) -> Kept:
    try:
        path: Path = trier.keep(wanted.trial, wanted.parameters, wanted.seed, wanted.path)
    except Exception as error:  # the sweep is good all the same
        return Kept(wanted.session, None, reason_of(error))
    return Kept(wanted.session, path)


def points_of(strategy: Any, trials: Sequence[int]) -> list[dict[str, Any]]:
    """Return the parameters of trials, by a strategy that needs to be told nothing."""
    return [strategy.ask(trial) for trial in trials]


def _order(ctx: Context, tags: Tags, session: str) -> SweepOrder | None:
    from diel.errors import TupleTimeout

    # It is put before the first lease, to the same server: without it the session is over.
    try:
        order: SweepOrder = ctx.tuples.tread_nowait(tags.sweep(session))
    except TupleTimeout:
        return None
    return order


def _hearing(ctx: Context, tags: Tags, order: SweepOrder) -> Callable[..., bool]:
    def hear(trial: int, step: int, metrics: dict[str, Any]) -> bool:
        report = Report(order.session, trial, ctx.copy_index, step, metrics)
        ctx.tuples.tput(tags.outcome, report)
        goes_on: bool = ctx.tuples.tget(tags.verdict(ctx.copy_index))
        return goes_on

    return hear
