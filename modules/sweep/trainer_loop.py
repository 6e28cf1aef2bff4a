"""The loop of a trainer, in any run: claim a lease, run its trials, put their outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel import describe_error
from diel.errors import TupleTimeout

from ..metrics import Metrics
from ..objective import Objective, ObjectiveError
from ..strategies import Cohort
from ..trial import (
    LearningCurve,
    OnReport,
    Reports,
    ShowProgress,
    StopCause,
    Trial,
    TrialResult,
    trial_seed,
)
from ..trial_ranks import RANKS
from .in_flight import RunningCurve, take_left_by_dead
from .leases import TARGET_S
from .lineage import checkpoint_of
from .messages import (
    End,
    IntermediateReport,
    Lease,
    ModelSaved,
    Outcome,
    SaveModel,
    Stops,
    SweepOrder,
    Tags,
)
from .runners import (
    AimedRunner,
    TrialRunner,
)

if TYPE_CHECKING:
    from diel import Context

GIVE_BACK_AFTER_S: Final = 4 * TARGET_S
"""Seconds after which a lease goes back with the rest of its trials, for other trainers."""
_SHOWN_FAILURES: Final = 5
_SHOW_EVERY_S: Final = 0.5
_LOOK_FOR_STOPS_EVERY_S: Final = 0.25
_PASS_EVERY_S: Final = 0.02


def run_leases(
    ctx: Context,
    tags: Tags,
    runner: AimedRunner,
    quarantine: Callable[[SweepOrder], AbstractContextManager[TrialRunner]] | None = None,
    stops: StopRequests | None = None,
) -> int:
    """Run the trials that the master gives out until there are no more; return how many.

    `stops` says which of them are requested to end. `quarantine` returns a runner that survives
    trials that may have killed a rank before.
    """
    trials, leases = 0, Leases(ctx, tags, runner, ctx.copy_index, quarantine, stops)
    while True:
        with ctx.tuples.claim(tags.lease) as claim:
            lease: Lease | SaveModel | End = claim.value
            if isinstance(lease, End):
                if lease.iteration == tuple(ctx.iteration):
                    return trials
                continue  # of an iteration whose trainer was given up
            if isinstance(lease, SaveModel):
                if lease.is_for(ctx.copy_index):
                    if lease.holder not in (None, ctx.copy_index):
                        text = "trial %d is trained again: the trainer that kept it has gone"
                        ctx.log.info(text, lease.trial.number)
                    ctx.tuples.tput(tags.outcome, save_model(lease, runner))
                    continue
                if ctx.copy_index in lease.passed_by:
                    time.sleep(_PASS_EVERY_S)  # the others are about to look for it
                passed_by = (*lease.passed_by, ctx.copy_index)
                ctx.tuples.tput(tags.lease, replace(lease, passed_by=passed_by))
                continue
            # Its outcome is put before the claim ends: a lease is out, or its outcome is there.
            trials += leases.run(lease, of_dead=claim.held_by_dead)


class Leases:
    """Runs the leases of one trainer, which is number `index`; the rest is as for `run_leases`."""

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        runner: AimedRunner,
        index: int,
        quarantine: Callable[[SweepOrder], AbstractContextManager[TrialRunner]] | None,
        stops: StopRequests | None,
    ) -> None:
        self._ctx, self._tags, self._runner, self._index = ctx, tags, runner, index
        self._quarantine, self._stops = quarantine, stops
        self._orders: dict[str, SweepOrder] = {}
        self._failures = 0

    def run(self, lease: Lease, *, of_dead: bool = False) -> int:
        """Run a lease, and put its outcome; return how many trials were run.

        `of_dead` says that a rank has died which had it. A lease of a session that has ended is
        passed over.
        """
        ctx, tags, runner, stops = self._ctx, self._tags, self._runner, self._stops
        order = self._orders.get(lease.session) or _order(ctx, tags, lease.session)
        if order is None or order.run_session != ctx.session:
            return 0  # of a session that has ended
        self._orders = {order.session: order}
        if stops is not None:
            stops.session = order.session
        runner.aim = order.aim
        to_master = None
        if order.wants_reports:
            to_master = _ReportsToMaster(ctx, tags, order, self._index, _metrics_of(lease))
        judge = LeaseJudge.of(lease, order)
        is_judged = judge is not None or to_master is None
        several = getattr(runner, "at_once", 1) > 1 and lease.stop - lease.start > 1 and is_judged
        quarantine = self._quarantine
        if quarantine and of_dead:
            numbers = range(lease.start, lease.stop)
            left = take_left_by_dead(ctx.run_dir, tags, ctx.copy_index, numbers)
            ctx.log.warning("%s on a rank that died: in a process of its own", _named(left))
            order = replace(order, quarantined=order.quarantined | left)
        suited: AbstractContextManager[TrialRunner] = nullcontext(runner)
        if quarantine and any(lease.start <= trial < lease.stop for trial in order.quarantined):
            suited, several = quarantine(order), False
        with suited as suited_runner:
            outcome, details = _run_lease(
                *(lease, order, self._index, suited_runner, to_master, judge),
                together=several,
                stops=stops,
            )
        outcome.at_once = getattr(runner, "at_once", 1)
        outcome.facts = getattr(runner, "facts", {})
        outcome.saves_models = getattr(runner, "saves_models", False)
        outcome.kept_trial = getattr(runner, "kept_trial", None)
        if lease.ranks is not None:
            of_reports = [metrics for each in outcome.reports.values() for _, metrics in each]
            for metrics in filter(None, (*outcome.metrics, *of_reports)):
                metrics |= _metrics_of(lease)
        ctx.tuples.tput(tags.outcome, outcome)
        for trial, detail in details:
            self._failures += 1
            if self._failures <= _SHOWN_FAILURES:
                ctx.log.warning("trial %d failed: %s", trial, outcome.reasons[trial])
                if detail:
                    print(detail, flush=True)
        return len(outcome.metrics)


def _metrics_of(lease: Lease) -> dict[str, Any]:
    """Return the metrics of all trials of a lease, beside those that their functions report."""
    return {} if lease.ranks is None else {RANKS: lease.ranks.count}


def _named(trials: frozenset[int]) -> str:
    numbers = sorted(trials)
    if len(numbers) == 1:
        return f"trial {numbers[0]} was under way"
    return f"trials {numbers[0]} to {numbers[-1]} were under way"


def _run_lease(
    lease: Lease,
    order: SweepOrder,
    copy_index: int,
    runner: Any,
    to_master: _ReportsToMaster | None,
    judge: LeaseJudge | None = None,
    *,
    together: bool,
    stops: StopRequests | None = None,
) -> tuple[Outcome, list[tuple[int, str]]]:
    """Run the trials of a lease; return their outcome, and the details of those that failed."""
    numbers = range(lease.start, lease.stop)
    points = lease.points
    if points is None:
        points = [order.strategy.ask(number) for number in numbers]
    parents = lease.parents or [None] * len(points)
    trials = [
        Trial(
            *(number, point, trial_seed(order.seed, number), lease.attempt),
            None if judge is None else judge.steps_of(number),
            *(checkpoint_of(order.checkpoints, each) for each in (number, parent)),
        )
        for number, point, parent in zip(numbers, points, parents, strict=True)
    ]
    outcome = Outcome(lease.session, lease.number, lease.start, copy_index, points)
    details: list[tuple[int, str]] = []
    add_metrics, add_start = outcome.metrics.append, outcome.started_s.append
    add_seconds, clock = outcome.seconds.append, time.perf_counter
    ended_s = clock()
    since_1970_s = time.time() - ended_s
    own = judge if len(trials) > 1 else None
    on_report: OnReport | None = to_master if own is None else own.goes_on
    done_together: list[TrialResult | None] = []
    share_s = 0.0
    if together:
        began_s = ended_s
        done_together = runner.run_together(trials, *() if own is None else (own,))
        # Each trial has an equal part of the time that all took together, one after the other.
        done = sum(result is not None for result in done_together)
        share_s = (clock() - began_s) / max(1, done)
    give_back_s = clock() + GIVE_BACK_AFTER_S
    for place, trial in enumerate(trials):
        started_s = ended_s
        result = done_together[place] if done_together else None
        if result is not None:
            ended_s += share_s
        elif cause := StopCause.NO if stops is None else stops.before(trial.number):
            result = TrialResult(is_stopped=True)
            if cause == StopCause.TIME:
                if not done_together:
                    break
                outcome.untried.add(trial.number)
        else:
            began_s = clock()
            result = runner(trial, on_report)
            ended_s += clock() - began_s
        add_metrics(result.metrics)
        add_start(since_1970_s + started_s)
        add_seconds(ended_s - started_s)
        if stops is not None and result.metrics and not result.reason:
            stops.has_result = True
        reports = result.reports
        if to_master is not None:
            known = [] if own is None else own.reports.get(trial.number, [])
            last_step = known[-1][0] if known else to_master.last_step_of(trial.number)
            reports = [*known, *(point for point in reports[-1:] if point[0] > last_step)]
        if reports:
            outcome.reports[trial.number] = reports
        if result.reason:
            outcome.reasons[trial.number] = result.reason
            details.append((trial.number, result.detail))
        elif result.is_stopped:
            outcome.stopped.add(trial.number)
            if result.is_out_of_time:
                outcome.out_of_time.add(trial.number)
        if ended_s > give_back_s and not done_together:
            break
    del points[len(outcome.metrics) :]
    if stops is not None and len(outcome.untried) == len(outcome.metrics):
        stops.has_result = False  # the master knows it by now, and wants more
    return outcome, details


class LeaseJudge:
    """Judges several trials of a lease, by what the lease has for that, together or one by one.

    A trial that is alone in its lease is judged by the master, which knows more by then.

    Attributes
    ----------
    reports : dict of int to list
        What each trial has reported.
    """

    def __init__(self, lease: Lease, objective: Objective) -> None:
        self._cohorts = [Cohort(cutoffs) for cutoffs in lease.cutoffs or ()]
        trials = range(lease.start, lease.stop)
        self._cohort_of = dict(zip(trials, lease.cohorts or (), strict=True))
        self._objective = objective
        self._of_all = _metrics_of(lease)
        self.reports: dict[int, Reports] = {}

    @classmethod
    def of(cls, lease: Lease, order: SweepOrder) -> LeaseJudge | None:
        """Return the judge of a lease; None if only the master can judge its trials."""
        aim = order.aim
        if aim is None or lease.cutoffs is None or ":" in aim.text:
            return None  # a function of the user's is called by the master alone
        return cls(lease, Objective.parse(aim.text, aim.maximise))

    def steps_of(self, trial: int) -> tuple[int, ...]:
        """Return the steps at which the rule needs reports of a trial."""
        return tuple(self._cohorts[self._cohort_of[trial]].steps)

    def __call__(self, step: int, metrics: Mapping[int, Metrics]) -> set[int]:
        """Record the metrics of trials that have come to a step; return those that are to end."""
        scores: dict[int, dict[int, float]] = {}
        losers: set[int] = set()
        for trial, own in metrics.items():
            reported = {**own, **self._of_all}
            reports = self.reports.setdefault(trial, [])
            while reports and reports[-1][0] >= step:  # of an earlier try
                reports.pop()
            reports.append((step, reported))
            try:
                score = self._objective.score(self._objective.value(reported))
            except ObjectiveError:  # what is wrong is said of the trial when it ends
                losers |= {trial} if self._objective.text_among(reported) else set()
                continue
            of_cohort = scores.setdefault(self._cohort_of[trial], {})
            of_cohort[trial] = math.nan if score is None else score
        each = (self._cohorts[cohort].report(step, of) for cohort, of in scores.items())
        return losers.union(*each)

    def goes_on(self, trial: int, step: int, metrics: Metrics) -> bool:
        """Record the report of a trial that runs alone; return whether it goes on."""
        return trial not in self(step, {trial: metrics})


class StopRequests:
    """The trials that are to end, as the master has put them; read now and then.

    Attributes
    ----------
    has_result : bool
        Whether a trial has ended here with metrics, of which the master need not know yet.
    """

    def __init__(self, ctx: Context, tags: Tags) -> None:
        self._tuples, self._tag = ctx.tuples, tags.stops
        self._due_s = 0.0
        self._stops = Stops("")
        self.session = ""
        self.has_result = False

    def before(self, trial: int) -> StopCause:
        """Return why a trial is not to begin."""
        cause = self(trial)
        if cause == StopCause.TIME_ONCE_REPORTED:
            return StopCause.TIME if self.has_result else StopCause.NO
        return cause

    def __call__(self, trial: int) -> StopCause:
        """Return why a trial is to end."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _LOOK_FOR_STOPS_EVERY_S
            with suppress(TupleTimeout):  # the tuple is being replaced, or not there
                stops: Stops = self._tuples.tread_nowait(self._tag)
                self._stops = stops if stops.session == self.session else Stops("")
        return self._stops.cause(trial)


def save_model(wanted: SaveModel, runner: Any) -> ModelSaved:
    """Have a runner write a model; return its file, or why there is none."""
    try:
        path: Path = runner.save_model(wanted.trial, wanted.path, wanted.provenance)
    except Exception as error:  # the sweep is good all the same
        return ModelSaved(wanted.session, None, describe_error(error))
    return ModelSaved(wanted.session, path)


def _order(ctx: Context, tags: Tags, session: str) -> SweepOrder | None:
    # The order is put before the first lease, to the same server: without it the session is over.
    try:
        order: SweepOrder = ctx.tuples.tread_nowait(tags.sweep(session))
    except TupleTimeout:
        return None
    return order


class _ReportsToMaster:
    """Sends reports to the master, and waits for its verdicts."""

    def __init__(
        self, ctx: Context, tags: Tags, order: SweepOrder, trainer: int, of_all: Metrics
    ) -> None:
        self._ctx, self._tags, self._session = ctx, tags, order.session
        self._trainer, self._of_all = trainer, of_all
        self._last = (-1, 0)

    def __call__(self, trial: int, step: int, metrics: dict[str, Any]) -> bool:
        """Send the report of a trial; return whether the trial goes on."""
        self._last = (trial, step)
        made = IntermediateReport(
            self._session, trial, self._trainer, step, {**metrics, **self._of_all}
        )
        self._ctx.tuples.tput(self._tags.outcome, made)
        goes_on: bool = self._ctx.tuples.tget(self._tags.verdict(self._trainer))
        return goes_on

    def last_step_of(self, trial: int) -> float:
        """Return the last step that a trial has reported; minus infinity if none."""
        return self._last[1] if self._last[0] == trial else -math.inf


class Progress:
    """Shows the progress of a trainer now and then, where trials take long enough."""

    def __init__(
        self,
        show: ShowProgress,
        curve: RunningCurve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._curve, self._clock = show, curve, clock
        self._due_s = clock() + _SHOW_EVERY_S

    def begin(self, trial: int, curve: LearningCurve) -> None:
        """Show a trial that begins; its learning curve grows as the trial reports."""
        self._curve.begin(trial, curve)

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """Show the progress, if it is time for that and there is more to come."""
        now_s = self._clock()
        if now_s >= self._due_s and done != total:
            self._due_s = now_s + _SHOW_EVERY_S
            self._show(done, total, text)
            self._curve.write_if_due()

    def close(self) -> None:
        """Remove the file of the learning curve."""
        self._curve.close()
