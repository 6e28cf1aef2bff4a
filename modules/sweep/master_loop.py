"""The master's loop: give out leases, record what comes back, pass it to the strategy.

There is no barrier: each outcome makes room for the next lease. A trial counts when its line is in
the ledger; the table, the best rows and the strategy get it after that.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from diel.errors import ModuleFailed, TupleTimeout

from ..objective import Aim
from ..trial import StopCause, trial_seed
from .best_model import BestModel
from .clock import HOPELESS, SweepClock
from .dispatcher import Dispatcher
from .in_flight import forget_running_curves, note_interrupted, take_in_flight
from .joined_workers import JoinedWorkers, WorkerChange
from .leases import TrialQueue
from .ledger import (
    FAILED,
    STOPPED,
    Ledger,
    about_of,
    decisions_of,
    has_begun,
    ledger_path,
    table_of,
    trials_of,
)
from .lineage import FOLDER as CHECKPOINTS
from .lineage import TrialCheckpoints
from .messages import (
    CopyFailed,
    CopyReady,
    End,
    IntermediateReport,
    Outcome,
    Stops,
    SweepOrder,
    Tags,
)
from .output import SweepOutput
from .rank_queues import RankQueues
from .results import COMPUTED_BY, SweepResults, note_on_rounding
from .steering import RequestReader, Steering
from .warm_start import EarlierResults

if TYPE_CHECKING:
    from pathlib import Path

    from diel import Context, TrialLog

    from ..search import Search
    from ..trial_ranks import TrialRanks
    from .shared import Leader

Message: TypeAlias = "Outcome | IntermediateReport | CopyReady | CopyFailed"

_LOOK_FOR_REQUESTS_EVERY_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 1e6
"""Timeout of a wait while the sweep is paused: a wait that has one is not taken for a deadlock."""
_PAUSED: Final = "paused: diel sweep RUN_DIR --resume goes on"
_LOGGED_WITHIN_S: Final[Mapping[str, float]] = {"finished": 60.0, "stopped": 5.0}
"""How long the log of trials may take after the last trial, by how the sweep has ended."""
_UNRANKED_SHOWN: Final = 3
"""Number of trials of which the log says at once that their metrics do not give the objectives."""


class SweepFailed(ModuleFailed):
    """No trial of a sweep has succeeded; the message says it all, no traceback is printed."""


@dataclass(frozen=True)
class SweepPlan:
    """The search, the seed and the settings of a sweep."""

    search: Search
    """Chooses the trials, and evaluates their metrics."""
    seed: int
    """From which the seed of each trial follows."""
    retries: int = 0
    """How often a trial that failed is tried again."""
    about: dict[str, Any] = field(default_factory=dict)
    """Options of the sweep as plain values: the first line of the ledger."""
    warm_start: str | None = None
    """An earlier sweep whose results count, as the file names it."""
    log: tuple[str, ...] = ()
    """Reporters on request that take each trial as it ends."""
    ranks_of: TrialRanks | None = None
    """How many ranks of a copy a trial has; None if all have all. Each rank is a trainer then."""


def run_master(
    ctx: Context, tags: Tags, plan: SweepPlan, trainers: int, leads: Leader | None = None
) -> dict[str, Any]:
    """Run a sweep, or what is left of it, on so many trainers; return the row of its best trial.

    `leads` is given if this master is one of several. `SweepFailed` if no trial has succeeded, a
    `LedgerError` if the run directory holds the ledger of another sweep, `LedgerReplaced` if
    another master leads now.
    """
    sweep = _MasterLoop(ctx, tags, plan, trainers, leads)
    state = "stopped"
    try:
        sweep.resume()
        sweep.run()
        state = "finished"
    finally:
        sweep.close(state)
    return sweep.conclude()


def conclude_sweep(ctx: Context, tags: Tags, plan: SweepPlan, trainers: int) -> dict[str, Any]:
    """Show the results of a sweep whose ledger is complete; return the row of its best trial."""
    sweep = _MasterLoop(ctx, tags, plan, trainers)
    try:
        sweep.resume()
        sweep.declare()
        dismiss_trainers(ctx, tags, trainers, plan.ranks_of)
    finally:
        sweep.close("finished")
    return sweep.conclude()


def dismiss_trainers(
    ctx: Context, tags: Tags, trainers: int, ranks_of: TrialRanks | None = None
) -> None:
    """Tell the trainers of this run that there are no more trials."""
    for trainer in range(trainers):
        tag = tags.lease if ranks_of is None else tags.lease_of(*divmod(trainer, ranks_of.most))
        ctx.tuples.tput(tag, End(tuple(ctx.iteration)))


class _MasterLoop:
    """The loop of a master, in one session."""

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        plan: SweepPlan,
        trainers: int,
        leads: Leader | None = None,
    ) -> None:
        self._leadership = leads
        self._ctx = ctx
        self._tags = tags
        self._plan = plan
        self._trainers = trainers
        self._session = uuid.uuid4().hex
        self._search = plan.search
        self._queue = TrialQueue(plan.search.size)
        self._known_trainers: set[int] = set()
        self._is_other_device = False
        self._quarantined: frozenset[int] = frozenset()
        self._not_to_try: frozenset[int] = frozenset()
        self._failed_before = self._unranked = 0
        self._steering = Steering(plan.search, self._queue)
        self._choice_said = ""
        self._look_s = 0.0
        self._path = ledger_path(ctx.run_dir, ctx.group, ctx.module, ctx.iteration)
        if leads is not None:
            self._path = leads.ledger
        if has_begun(self._path):
            file = ctx.run_dir / table_of(about_of(self._path))
        else:
            file = ctx.results.new_file()
        self._results = SweepResults(plan.search, plan.seed, in_groups=plan.ranks_of is not None)
        self._output = SweepOutput(ctx, plan.search, self._queue, self._results, plan.seed, file)
        self._ledger = Ledger(
            self._path,
            {**plan.about, "table": file.name},
            is_led=None if leads is None else leads.goes_on,
        )
        term = None if leads is None else leads.term
        self._workers = JoinedWorkers(self._path, self._order, trainers, term)
        self._requests = RequestReader(self._path)
        self._clock = SweepClock(plan.search, trainers, ctx.ranks_of(tags.trainer), self._joined)
        self._time = StopCause.NO
        self._log: TrialLog | None = None
        self._earlier: EarlierResults | None = None
        if plan.warm_start is not None:
            search = plan.search
            self._earlier = EarlierResults(
                *(plan.warm_start, ctx.folder, self._path, search.space),
                search.objectives,
                search.constraints,
            )
        self._checkpoints: TrialCheckpoints | None = None
        if plan.search.has_parents:
            folder = self._path.with_name(CHECKPOINTS)
            self._checkpoints = TrialCheckpoints(folder, plan.search.possible_parents)
        self._queues: RankQueues | None = None
        if plan.ranks_of is not None:
            self._queues = RankQueues(trainers // plan.ranks_of.most, plan.ranks_of.most)
        self._model = BestModel(
            *(ctx, tags, self._session, trainers, plan.search.objectives[0].text),
            *(plan.seed, self._path, self._results, self._folder_of_checkpoints),
            *(plan.ranks_of, self._queues, self._follow_copy),
        )
        self._dispatcher = Dispatcher(
            ctx,
            tags,
            trainers,
            self._session,
            plan.search,
            self._queue,
            self._steering,
            self._workers,
            self._earlier,
            record=lambda record: self._write([record]),
            reason_to_end=self._why_over,
            left_s=self._clock.left_s,
            ranks_of=plan.ranks_of,
            queues=self._queues,
        )

    def resume(self) -> None:
        """Read the ledger, and which trials were in flight when an earlier session was ended."""
        if self._earlier is not None:
            for earlier in self._earlier.records:
                self._search.learn(earlier["parameters"], earlier["metrics"])
            self._ctx.log.info("%d results of an earlier sweep count", len(self._earlier.records))
        for decision in decisions_of(self._path):
            self._steering.apply(decision)
        for rows in self._results.read(self._path, self._queue.recorded):
            self._output.add(rows)
        self._failed_before = self._results.failed
        # What earlier sessions have taken: the time between their trials is not known.
        self._clock.add_trials(self._results.seconds)
        for tag in self._tags.of_earlier_sessions:
            self._ctx.tuples.collect(tag)
        left_over = take_in_flight(self._ctx.run_dir, self._tags)
        forget_running_curves(self._ctx.run_dir, self._tags)
        found = frozenset(trial for left in left_over for trial in left.trials)
        self._not_to_try = note_interrupted(self._path.parent, found)
        self._quarantined = found | self._not_to_try
        # A trainer of several ranks has no child process.
        on_several_ranks = {left.trainer for left in left_over if left.rank or self._queues}
        for left in {str(left): left for left in left_over}.values():
            care = "it is tried in a process of its own first"
            if left.trainer in on_several_ranks:
                is_last = self._not_to_try.issuperset(left.trials)
                care = "it is not tried again" if is_last else "it is tried once more"
            self._ctx.log.warning("%s when the run was ended: %s", left, care)
        if len(self._queue.recorded):
            self._output.report.resume()
            self._ctx.log.info("%d trials are recorded already", len(self._queue.recorded))
            self._output.add_facts(self._results.computed_by)

    def _order(self) -> SweepOrder:
        objective = self._search.objectives[0]
        return SweepOrder(
            self._session,
            self._plan.seed,
            self._search.strategy if self._search.is_stateless else None,
            wants_reports=self._search.wants_reports,
            quarantined=self._quarantined,
            not_to_try=self._not_to_try,
            run_session=self._ctx.session,
            aim=Aim(
                objective.text,
                objective.maximise,
                has_time_limit=self._search.left_s(0.0) is not None,
                constraints=tuple(each.text for each in self._search.constraints),
            ),
            checkpoints=self._folder_of_checkpoints,
        )

    def _say_choice(self) -> None:
        """Say what was chosen for a file that names no strategy, once it is known."""
        chosen = self._search.chosen
        if chosen == self._choice_said:
            return
        self._choice_said = chosen
        self._ctx.log.info("strategy: %s", chosen)
        if self._search.is_chosen:
            self._output.add_facts({"strategy": chosen})

    @property
    def _folder_of_checkpoints(self) -> Path | None:
        return None if self._checkpoints is None else self._path.with_name(CHECKPOINTS).absolute()

    def declare(self) -> None:
        """Declare the columns of the table, and say what was chosen for the sweep."""
        self._say_choice()
        self._output.declare()

    def run(self) -> None:
        """Give out trials and record their outcomes, until there are no more."""
        from diel import TrialLog

        self.declare()
        if self._checkpoints is not None:
            self._checkpoints.prepare()
        tuples, recorded = self._ctx.tuples, len(self._queue.recorded)
        self._drop_stopped()
        if self._steering.is_paused:
            self._show_pause()
            self._ctx.log.warning("the sweep is %s", _PAUSED)
        self._steer(at_once=True)
        # Only now: what is asked for may be a limit of time, which trainers are to know of.
        self._steering.takes_time = self._search.left_s(0.0) is not None
        tuples.tput(self._tags.sweep(self._session), self._order())
        for copy in range(0 if self._queues is None else self._queues.copies):
            with suppress(TupleTimeout):  # it has yet to begin, and will say so
                self._follow_copy(tuples.tread_nowait(self._tags.ready(copy)))
        self._dispatcher.give_out()
        # Only now, as it takes some milliseconds to find reporters: trainers have work meanwhile.
        name, asked = self._path.parent.name, self._plan.log
        self._log = TrialLog(self._ctx.run_dir, name, recorded, asked)
        while self._goes_on():
            self._output.show()
            self._warn(self._log.new_problems())
            message = self._next_message()
            self._end_in_time()
            if self._steer() or message is None:
                self._dispatcher.give_out()
            if isinstance(message, WorkerChange):
                self._follow_worker(message)
                self._dispatcher.give_out()
            elif isinstance(message, CopyReady | CopyFailed):
                self._follow_copy(message)
                self._dispatcher.give_out()
            elif isinstance(message, IntermediateReport):
                self._answer(message)
            elif message is not None and message.session == self._session:
                self._record(message)
                self._dispatcher.give_out()
        tuples.collect(self._tags.stops)
        self._ledger.sync()
        self._workers.dismiss()
        if self._leadership is not None:
            self._leadership.finish()
        usage = self._model.save()
        if usage is not None:
            self._output.report.add_model(usage)
        self._steer(at_once=True, reason_to_end="the sweep is at its end")
        tuples.tget(self._tags.sweep(self._session))
        dismiss_trainers(self._ctx, self._tags, self._trainers, self._plan.ranks_of)

    # -- requests to the sweep, and messages ------------------------------------------------------

    def _goes_on(self) -> bool:
        """Whether trials are out, or are kept back by a pause; else look for requests once more."""
        if self._queue.leases_out:
            return True
        if self._steer(at_once=True):
            self._dispatcher.give_out()
        start, stop = self._queue.upcoming(1)
        is_over = start >= stop or bool(self._why_over())
        is_to_come = self._queues is not None and not self._queues.are_known
        is_kept_back = self._steering.is_paused or is_to_come
        return bool(self._queue.leases_out) or (is_kept_back and not is_over)

    def _follow_copy(self, change: CopyReady | CopyFailed) -> None:
        """Count on a copy that has begun, or no more; leases that it had before go to others."""
        if self._queues is None:
            return
        copy, session, ctx = change.copy_index, change.session, self._ctx
        lost: list[int] = []
        if isinstance(change, CopyFailed):
            lost = self._queues.end(copy, session)
        elif (change.run_session, change.iteration) == (ctx.session, tuple(ctx.iteration)):
            lost = self._queues.begin(copy, session)
        for lease in lost:
            self._queue.came_back(lease, 0)

    def _next_message(self) -> Message | WorkerChange | None:
        """Wait for a message of a trainer; None if a request to the sweep has come before."""
        self._look_at_other_runs()  # short waits do not check whether they are interrupted
        if (received := self._workers.next_message()) is not None:
            return received
        # With nothing out no message would come: only a wait without a timeout is a deadlock.
        is_to_come = self._queues is not None and not self._steering.is_paused
        timeout_s = None if self._dispatcher.leases_here or is_to_come else _LONGEST_PAUSE_S
        try:
            message: Message = self._ctx.tuples.tget_unless(
                self._tags.outcome, self._is_interrupted, timeout=timeout_s
            )
        except TupleTimeout:
            return self._workers.next_message()
        return message

    def _is_interrupted(self) -> bool:
        """Whether there is something to be done before a message of a trainer here comes."""
        is_over = self._queue.leases_out and self._clock.cause() != self._time
        return self._look_at_other_runs() or bool(is_over) or self._has_requests()

    def _look_at_other_runs(self) -> bool:
        """Do what is due for other runs; return whether one of their workers has sent a message."""
        if self._leadership is not None:
            self._leadership.look()
        return self._queues is None and self._workers.look()

    def _follow_worker(self, change: WorkerChange) -> None:
        """Record a change in the part that a worker of another run takes."""
        for lease in change.leases:
            self._queue.came_back(lease, 0)
        if change.text:
            trials = f"; its {len(change.leases)} leases go to others" if change.leases else ""
            say = self._ctx.log.warning if change.is_loss else self._ctx.log.info
            say("%s%s", change.text, trials)
            self._dispatcher.take_back_unclaimed()  # so that all have something to do
            here = self._workers.here
            shown = (
                f"with {len(here)} joined workers, {sum(here.values())} trainers" if here else ""
            )
            self._ctx.progress(len(self._queue.recorded), self._queue.expected, shown)

    def _joined(self) -> int:
        return sum(self._workers.here.values())

    def _has_requests(self) -> bool:
        """Whether there are new requests to the sweep; the file is looked at twice a second."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return False
        self._look_s = now_s + _LOOK_FOR_REQUESTS_EVERY_S
        if not self._requests.has_more():
            return False
        self._look_s = 0.0  # it is read as soon as the wait has ended
        return True

    def _steer(self, *, at_once: bool = False, reason_to_end: str = "") -> bool:
        """Decide on new requests to the sweep; return whether there were any.

        `reason_to_end` says why no further trial begins, if `_why_over` does not.
        """
        if not at_once and not self._has_requests():
            return False
        was_paused, steering = self._steering.is_paused, self._steering
        requests = [
            request for request in self._requests.new_requests() if not steering.is_known(request)
        ]
        for request in requests:
            decision = steering.decide(request, self._why_over() or reason_to_end)
            self._ledger.write([decision])
            steering.apply(decision)
            is_accepted = decision["accepted"]
            if request.kind == "time" and is_accepted:
                self._clock.restart()
            text = "asked: %s: %s" if is_accepted else "asked: %s, which is refused: %s"
            level = logging.INFO if is_accepted else logging.WARNING  # who asked may have left
            self._ctx.log.log(level, text, request.kind, decision["answer"])
        if requests:
            self._drop_stopped()
            self._output.declare()
        if steering.is_paused != was_paused:
            self._show_pause()
        return bool(requests)

    def _show_pause(self) -> None:
        paused = _PAUSED if self._steering.is_paused else ""
        self._ctx.progress(len(self._queue.recorded), self._queue.expected, paused)

    def _drop_stopped(self) -> None:
        """End the trials that are to stop: trainers end those that are out."""
        waiting = {trial for trial in self._steering.stopped if trial not in self._queue.recorded}
        if not waiting:
            return
        self._dispatcher.take_back_unclaimed()
        for trial in sorted(waiting):
            if not self._queue.is_trial_out(trial):
                self._record_untried(trial)
        self._put_stops()

    def _put_stops(self) -> None:
        """Tell all trainers which trials are to end."""
        left = (trial for trial in self._steering.stopped if trial not in self._queue.recorded)
        stops = Stops(self._session, frozenset(left), self._time)
        self._ctx.tuples.collect(self._tags.stops)
        self._ctx.tuples.tput(self._tags.stops, stops)
        self._workers.stop(stops)

    def _end_in_time(self) -> None:
        """End the trials that are out, if the time of the sweep is over and one has a result."""
        cause = self._clock.cause()
        if cause == self._time or not self._queue.leases_out:
            return
        self._time = cause
        if cause == StopCause.TIME:
            self._ctx.log.info("%s: trials under way end", self._why_over())
            self._stop_if_enough()
        elif cause == StopCause.TIME_ONCE_REPORTED:
            self._ctx.log.warning(
                "its time is over, and no trial has a result: trials go on until the first one has"
            )
        self._put_stops()

    def _record_untried(self, trial: int) -> None:
        """Record a trial that has not begun as stopped."""
        point = self._dispatcher.point_of(trial)
        if point is None:
            return
        self._queue.drop(trial)
        record = {
            "trial": trial,
            "state": STOPPED,
            "parameters": point,
            "metrics": {},
            "seed": trial_seed(self._plan.seed, trial),
            "reason": "stopped before it began",
        }
        self._write([record])

    def _why_over(self) -> str:
        """Return why no more trials are given out, though there may be more; empty if they are."""
        self._clock.cause()
        # Failures of this session: the cause of those in an earlier one may have been mended.
        failed = self._results.failed - self._failed_before
        hopeless = self._results.best is None and not self._results.succeeded
        hopeless = hopeless and failed >= HOPELESS
        if hopeless:
            return f"{failed} trials have failed, and none has succeeded"
        words = {
            "objective": "the objective is reached",
            "time": "its time is over",
            "core hours": "its core hours are used up",
        }
        return words.get(self._search.reason or "", "")

    def _answer(self, report: IntermediateReport) -> None:
        if report.trainer >= self._trainers:
            self._workers.answer(report.trainer, goes_on=self._results.add_report(report))
            return
        # No master waits for a trial of an earlier session any more.
        goes_on = report.session == self._session and self._results.add_report(report)
        self._ctx.tuples.tput(self._tags.verdict(report.trainer), goes_on)

    def _record(self, outcome: Outcome) -> None:
        """Record the outcome of a lease."""
        grant = self._queue.grant_of(outcome.lease)
        if grant is None:
            return
        done, pace = len(outcome.metrics), self._dispatcher.pace_of(outcome.lease)
        self._dispatcher.came_back(outcome.lease)
        pace.observe(done - len(outcome.untried), sum(outcome.seconds))
        pace.at_once = outcome.at_once
        if not outcome.worker:
            self._model.note(outcome)
        records = self._results.records_of(outcome, grant.attempt)
        retried = set()
        if grant.attempt <= self._plan.retries and outcome.reasons:
            retried = {record["trial"] for record in records if record["state"] == FAILED}
            records = [record for record in records if record["trial"] not in retried]
        self._queue.came_back(outcome.lease, done, retried, outcome.untried)
        if self._time == StopCause.TIME_ONCE_REPORTED:
            self._clock.late_tries += len(records)
        if records:
            self._record_facts(outcome, records[0])
            self._write(records)
            for record in records:
                self._log_if_unranked(record, outcome)
        self._stop_if_enough()

    def _write(self, records: list[dict[str, Any]]) -> None:
        """Write records to the ledger; then pass them to the strategy and the table."""
        self._ledger.write(records)
        for record in records:
            self._dispatcher.forget(record["trial"])
        self._output.add([self._results.add(record) for record in records])
        if self._search.chosen != self._choice_said:  # the first trials have decided
            self.declare()
        if self._checkpoints is not None:
            best = [row["trial"] for row in self._results.best_rows.best[:1]]
            self._checkpoints.recorded((record["trial"] for record in records), best)

    def _record_facts(self, outcome: Outcome, record: dict[str, Any]) -> None:
        """Record the device facts of a trainer with its first outcome in this session."""
        now, before = outcome.facts, self._results.computed_by
        if not now or outcome.trainer in self._known_trainers:
            return
        record[COMPUTED_BY] = now
        if not before and not self._known_trainers:
            self._output.add_facts(now)
        self._known_trainers.add(outcome.trainer)
        text = note_on_rounding(before, now)
        if text and not self._is_other_device:
            self._is_other_device = True
            self._ctx.log.warning("%s", text)
            self._output.add_facts({"note": text})

    def _log_if_unranked(self, record: dict[str, Any], outcome: Outcome) -> None:
        """Log why a trial has failed that ended well for its trainer, but cannot be ranked."""
        if record["state"] != FAILED or record["trial"] in (outcome.reasons or ()):
            return
        self._unranked += 1
        if self._unranked <= _UNRANKED_SHOWN:
            self._ctx.log.warning("trial %d failed: %s", record["trial"], record["reason"])

    def _stop_if_enough(self) -> None:
        if self._why_over():
            self._dispatcher.take_back_unclaimed()
            self._workers.recall()

    def close(self, state: str) -> None:
        """Bring everything to the disk; `state` is how the sweep has ended."""
        self._workers.close()
        self._output.close(state)
        self._ledger.close()
        try:
            self._search.finalize()
        except Exception as error:  # a user's strategy may fail with any: the results are there
            self._ctx.log.warning("the strategy did not end: %s: %s", type(error).__name__, error)
        if self._log is not None:
            self._warn(self._log.close(_LOGGED_WITHIN_S[state]))

    def _warn(self, problems: list[str]) -> None:
        for problem in problems:
            self._ctx.log.warning("%s", problem)

    def conclude(self) -> dict[str, Any]:
        """Show how the sweep has ended; return its best row, as `SweepResults.best`."""
        self._output.show(at_once=True)
        chosen = [f"strategy, as chosen: {self._search.chosen}"] if self._search.is_chosen else []
        best = self._results.best_rows.best[:1]
        lineage = [line for row in best for line in self._results.lineage.lines(row["trial"])]
        self._output.show_notes(
            [*chosen, *lineage, *([self._model.text] if self._model.text else [])]
        )
        self._output.log_unranked(self._path)
        if self._results.best is None:
            unranked = self._results.unranked
            counts = ", ".join(f"{count} {why}" for why, count in unranked.items())
            reason = next(
                (record["reason"] for record in trials_of(self._path) if "reason" in record),
                "none was run",
            )
            raise SweepFailed(f"no trial has succeeded ({counts or 'none'}); the first: {reason}")
        return self._results.best
