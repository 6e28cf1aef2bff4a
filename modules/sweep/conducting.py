"""The master's loop: give out leases, write down what comes back, tell the strategy.

There is no barrier: each outcome makes room for the next lease. A trial counts when its line is in
the ledger; the table, the best rows and the strategy hear of it after that.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from diel.errors import ModuleFailed

from ..strategies import Wait
from ..trial import trial_seed
from .leases import LeaseBook, Pace
from .ledger import FAILED, Ledger, about_of, has_begun, ledger_path, trials_of
from .messages import End, Keep, Kept, Lease, Outcome, Report, SweepOrder, Tags
from .recording import Recording
from .showing import Showing
from .under_way import take_left_over

if TYPE_CHECKING:
    from diel import Context

    from ..search import Search

_AHEAD: Final = 2
"""Leases for each trainer that are out at a time: one to work on, one to find at once."""
_MOST_TOLD_AT_ONCE: Final = 16
"""Trials in a lease of a strategy that is told results: it shall not know too little."""
_HOPELESS: Final = 20
"""If so many trials fail before one succeeds, the sweep ends: it is not the points."""
_UNRANKED_SHOWN: Final = 3
"""Of so many trials the master says at once that their metrics do not give the objectives."""


class SweepFailed(ModuleFailed):
    """No trial of a sweep has succeeded; a traceback of the master would explain nothing."""


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do.

    Attributes
    ----------
    search : Search
        Chooses the trials, and knows what their metrics mean.
    seed : int
        From which each trial's follows.
    retries : int
        How often a trial that failed is tried again.
    about : dict
        What the file asks for, in plain values: the first line of the ledger.
    """

    search: Search
    seed: int
    retries: int = 0
    about: dict[str, Any] = field(default_factory=dict)


def conduct(ctx: Context, tags: Tags, plan: Plan, trainers: int) -> dict[str, Any]:
    """Run a sweep, or what is left of it; return the row of its best trial.

    Parameters
    ----------
    ctx : Context
    tags : Tags
    plan : Plan
    trainers : int
        How many copies there are.

    Raises
    ------
    SweepFailed
        If no trial has succeeded.
    LedgerError
        If the run directory holds the ledger of another sweep.
    """
    sweep = _Sweep(ctx, tags, plan, trainers)
    state = "stopped"
    try:
        sweep.recall()
        sweep.run()
        state = "finished"
    finally:
        sweep.close(state)
    return sweep.conclude()


class _Sweep:
    """One life of a master."""

    def __init__(self, ctx: Context, tags: Tags, plan: Plan, trainers: int) -> None:
        self._ctx = ctx
        self._tags = tags
        self._plan = plan
        self._trainers = trainers
        self._session = uuid.uuid4().hex
        self._search = plan.search
        self._asks_here = not plan.search.is_stateless
        self._hears_reports = hasattr(plan.search.strategy, "report")
        self._book = LeaseBook(plan.search.size)
        self._asked = 0
        self._points: dict[int, dict[str, Any]] = {}
        self._pace = Pace()
        self._keeps: bool | None = None
        self._model = ""
        self._suspects: frozenset[int] = frozenset()
        self._failed_before = self._unranked = 0
        self._started_s = time.monotonic()
        self._path = ledger_path(ctx.run_dir, ctx.group, ctx.module, ctx.iteration)
        if has_begun(self._path):
            file = ctx.run_dir / str(about_of(self._path).get("table", "results.csv"))
        else:
            file = ctx.results.new_file()
        self._recording = Recording(plan.search, plan.seed)
        self._standing = self._recording.standing
        self._showing = Showing(ctx, plan.search, self._book, self._recording, plan.seed, file)
        self._ledger = Ledger(self._path, {**plan.about, "table": file.name})

    def recall(self) -> None:
        """Take in what the ledger holds already."""
        for rows in self._recording.recall(self._path, self._book.recorded):
            self._showing.add(rows)
        self._failed_before = self._recording.failed
        for tag in (self._tags.lease, self._tags.outcome):
            self._ctx.tuples.collect(tag)
        left_over = take_left_over(self._ctx.run_dir, self._tags)
        for left in left_over:
            self._ctx.log.warning("%s when the run was ended: it is tried with care", left)
        self._suspects = frozenset(trial for left in left_over for trial in left.trials)
        if len(self._book.recorded):
            self._showing.resume()
            self._ctx.log.info("%d trials are recorded already", len(self._book.recorded))

    def run(self) -> None:
        """Give out trials and take what they gave, until there are no more."""
        order = SweepOrder(
            self._session,
            self._plan.seed,
            None if self._asks_here else self._search.strategy,
            hears_reports=self._hears_reports,
            suspects=self._suspects,
        )
        self._showing.declare()
        tuples, tag = self._ctx.tuples, self._tags.outcome
        tuples.tput(self._tags.sweep(self._session), order)
        self._fill()
        while self._book.leases_out:
            self._showing.show()
            message: Outcome | Report = tuples.tget(tag)
            if message.session != self._session:
                continue
            if isinstance(message, Report):
                self._answer(message)
            else:
                self._take(message)
                self._fill()
        # Of a sweep that was recorded already, nobody has said yet whether they keep models.
        if self._standing.best and self._keeps is not False:
            self._keep_best()
        tuples.tget(self._tags.sweep(self._session))
        for _ in range(self._trainers):
            tuples.tput(self._tags.lease, End(tuple(self._ctx.iteration)))

    def _keep_best(self) -> None:
        """Have a trainer write the model of the best trial.

        It trains it again: the same network, bit for bit, and a hundred thousand others need not
        be written for the sake of one.
        """
        best = self._standing.best[0]
        parameters = self._recording.parameters_of(best)
        path = self._path.with_name("best")
        seed = trial_seed(self._plan.seed, best["trial"])
        keep = Keep(self._session, best["trial"], parameters, seed, path)
        self._ctx.tuples.tput(self._tags.lease, keep)
        while True:
            kept = self._ctx.tuples.tget(self._tags.outcome)
            if isinstance(kept, Kept) and kept.session == self._session:
                break
        if kept.path is not None:
            self._model = f"the model of trial {best['trial']}: {kept.path}"
        elif self._keeps:
            self._ctx.log.warning("the best model was not kept: %s", kept.reason)

    def _fill(self) -> None:
        """Give out leases, as far as trainers are about to need them."""
        while self._book.leases_out < _AHEAD * self._trainers and not self._has_ended():
            count = self._pace.size(self._book.to_give, self._trainers)
            points = None
            if self._asks_here:
                points = self._ask(min(count, _MOST_TOLD_AT_ONCE))
                count = len(points)
            grant = self._book.take(count)
            if grant is None:
                return
            lease = Lease(
                self._session, grant.lease, grant.start, grant.stop, points, grant.attempt
            )
            self._ctx.tuples.tput(self._tags.lease, lease)

    def _ask(self, count: int) -> list[dict[str, Any]]:
        """Ask the strategy for the parameters of the next trials, as far as it has some."""
        points: list[dict[str, Any]] = []
        for trial in range(*self._book.upcoming(count)):
            point = self._points.get(trial)
            if point is None:
                while self._asked < trial:  # recorded in an earlier life; strategies count
                    self._search.ask(self._asked)
                    self._asked += 1
                asked = self._search.ask(trial)
                if isinstance(asked, Wait):
                    break
                if asked is None:
                    self._book.total = trial
                    break
                self._asked = trial + 1
                self._points[trial] = point = asked
            points.append(point)
        return points

    def _has_ended(self) -> bool:
        """Whether nothing more is to be given out, though there may be more."""
        self._search.clock(time.monotonic() - self._started_s)
        # Of this life: what made all fail in an earlier one may have been mended since.
        failed = self._recording.failed - self._failed_before
        hopeless = not self._recording.succeeded and failed >= _HOPELESS
        return hopeless or self._search.reason is not None

    def _answer(self, report: Report) -> None:
        goes_on = self._recording.hear(report)
        self._ctx.tuples.tput(self._tags.verdict(report.trainer), goes_on)

    def _take(self, outcome: Outcome) -> None:
        """Write down what a lease gave."""
        grant = self._book.is_out(outcome.lease)
        if grant is None:
            return
        done = len(outcome.metrics)
        self._pace.observe(done, sum(outcome.seconds))
        self._pace.at_once, self._keeps = outcome.at_once, outcome.keeps
        records = self._recording.records_of(outcome, grant.attempt)
        retried = set()
        if grant.attempt <= self._plan.retries and outcome.reasons:
            retried = {one["trial"] for one in records if one["state"] == FAILED}
            records = [one for one in records if one["trial"] not in retried]
        self._book.came_back(outcome.lease, done, retried)
        if records:
            self._ledger.write(records)
            for record in records:
                self._points.pop(record["trial"], None)
                self._say_if_unranked(record, outcome)
            self._showing.add([self._recording.take_in(record) for record in records])
        self._stop_if_enough()

    def _say_if_unranked(self, record: dict[str, Any], outcome: Outcome) -> None:
        """Say why a trial has failed that its trainer took for a good one."""
        if record["state"] != FAILED or record["trial"] in (outcome.reasons or ()):
            return
        self._unranked += 1
        if self._unranked <= _UNRANKED_SHOWN:
            self._ctx.log.warning("trial %d failed: %s", record["trial"], record["reason"])

    def _stop_if_enough(self) -> None:
        if self._has_ended():
            for _, lease in self._ctx.tuples.collect(self._tags.lease):
                self._book.came_back(lease.number, 0)

    def close(self, state: str) -> None:
        """Bring everything to the disk; `state` is how the sweep has ended."""
        self._showing.close(state)
        self._ledger.close()

    def conclude(self) -> dict[str, Any]:
        """Show how the sweep has ended; return its best row."""
        self._showing.show(at_once=True)
        self._showing.show_notes([self._model] if self._model else [])
        if self._recording.failed:
            self._ctx.log.warning(
                "%d of %d trials failed: see %s, and tracebacks in %s",
                self._recording.failed,
                len(self._book.recorded),
                self._path,
                self._ctx.run_dir / "logs",
            )
        if self._recording.diverged:
            self._ctx.log.warning(
                "%d of %d trials diverged: their training, or %s, came to NaN or infinity, and "
                "they are not ranked",
                self._recording.diverged,
                len(self._book.recorded),
                " or ".join(objective.text for objective in self._search.objectives),
            )
        if not self._standing.best:
            unranked = self._recording.unranked
            counts = ", ".join(f"{count} {why}" for why, count in unranked.items())
            reason = next(
                (one["reason"] for one in trials_of(self._path) if "reason" in one), "none was run"
            )
            raise SweepFailed(f"no trial has succeeded ({counts or 'none'}); the first: {reason}")
        return self._standing.best[0]
