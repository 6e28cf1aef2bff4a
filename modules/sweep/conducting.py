"""The master's loop: give out leases, write down what comes back, tell the strategy.

There is no barrier: each outcome makes room for the next lease. A trial counts when its line is in
the ledger; the table, the best rows and the strategy hear of it after that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..evaluation import Evaluated
from ..objective import ObjectiveError
from ..strategies import Wait
from ..trial import trial_seed
from .leases import LeaseBook, Pace
from .ledger import FAILED, FINISHED, STOPPED, Ledger, about_of, records_of
from .messages import (
    End,
    Keep,
    Kept,
    Lease,
    Outcome,
    Report,
    SweepOrder,
    TagBase,
    lease_tag,
    outcome_tag,
    sweep_tag,
    verdict_tag,
)
from .standing import Standing
from .table import Table
from .trying import SPLITS
from .under_way import take_left_over

if TYPE_CHECKING:
    from diel import Context

    from ..search import Search

_AHEAD: Final = 2
"""Leases for each trainer that are out at a time: one to work on, one to find at once."""
_MOST_TOLD_AT_ONCE: Final = 16
"""Trials in a lease of a strategy that is told results: it shall not know too little."""
_SHOW_EVERY_S: Final = 0.5
_HOPELESS: Final = 20
"""If so many trials fail before one succeeds, the sweep ends: it is not the points."""
AFTER_METRICS: Final = ("trainer", "seed", "state")
"""Columns of the table behind the metrics."""


class SweepFailed(RuntimeError):
    """No trial of a sweep has succeeded."""


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


def ledger_path(run_dir: Path, group: str, module: str, iteration: Sequence[int]) -> Path:
    """Return where the ledger of a sweep lies; each iteration of its group has one."""
    again = f"-{'.'.join(str(one + 1) for one in iteration)}" if any(iteration) else ""
    return run_dir / "sweeps" / f"{group}.{module}{again}" / "trials.jsonl"


def conduct(ctx: Context, base: TagBase, plan: Plan, trainers: int) -> dict[str, Any]:
    """Run a sweep, or what is left of it; return the row of its best trial.

    Parameters
    ----------
    ctx : Context
    base : (str, str)
        The group and the trainer's module.
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
    sweep = _Sweep(ctx, base, plan, trainers)
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

    def __init__(self, ctx: Context, base: TagBase, plan: Plan, trainers: int) -> None:
        self._ctx = ctx
        self._base = base
        self._plan = plan
        self._trainers = trainers
        self._session = uuid.uuid4().hex
        self._search = plan.search
        self._objective = plan.search.objectives[0]
        self._absent = dict.fromkeys(plan.search.space.names, "")
        self._asks_here = not plan.search.is_stateless
        self._hears_reports = hasattr(plan.search.strategy, "report")
        self._book = LeaseBook(plan.search.size)
        self._asked = 0
        self._points: dict[int, dict[str, Any]] = {}
        self._reports: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self._pace = Pace()
        self._keeps: bool | None = None
        self._model = ""
        self._standing = Standing(self._objective.text, maximise=self._objective.maximise)
        self._succeeded = self._failed = 0
        self._started_s = time.monotonic()
        path = ledger_path(ctx.run_dir, ctx.group, ctx.module, ctx.iteration)
        self._path = path
        if path.exists() and path.stat().st_size:
            file = ctx.run_dir / str(about_of(path).get("table", "results.csv"))
        else:
            file = ctx.results.new_file()
        self._table_path = file
        from .reporting import open_report  # takes NumPy, which `diel check` can do without

        self._report = open_report(ctx, file, plan.search, plan.seed)
        self._suspects: frozenset[int] = frozenset()
        self._ledger = Ledger(path, {**plan.about, "table": file.name})
        self._table: Table | None = None
        self._untabled: list[dict[str, Any]] = []
        self._shown_s = 0.0
        self._shown_version = -1

    # -- what is behind ---------------------------------------------------------------------------

    def recall(self) -> None:
        """Take in what the ledger holds already."""
        rows: list[dict[str, Any]] = []
        for record in records_of(self._path):
            if not self._book.recorded.add(record["trial"]):
                continue
            for step, metrics in record.get("reports", ()):
                self._search.report(record["trial"], step, metrics)
            rows.append(self._take_in(record))
            if len(rows) >= 1000:
                self._tabulate(rows)
                rows = []
        self._tabulate(rows)
        for tag in (lease_tag(self._base), outcome_tag(self._base)):
            self._ctx.tuples.collect(tag)
        left_over = take_left_over(self._ctx.run_dir, self._base)
        for left in left_over:
            self._ctx.log.warning("%s when the run was ended: it is tried with care", left)
        self._suspects = frozenset(trial for left in left_over for trial in left.trials)
        if len(self._book.recorded):
            self._report.resume()
            self._ctx.log.info("%d trials are recorded already", len(self._book.recorded))

    # -- what is ahead ----------------------------------------------------------------------------

    def run(self) -> None:
        """Give out trials and take what they gave, until there are no more."""
        order = SweepOrder(
            self._session,
            self._plan.seed,
            None if self._asks_here else self._search.strategy,
            hears_reports=self._hears_reports,
            suspects=self._suspects,
        )
        self._declare()
        tuples, tag = self._ctx.tuples, outcome_tag(self._base)
        tuples.tput(sweep_tag(self._base, self._session), order)
        self._fill()
        while self._book.leases_out:
            self._show()
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
        tuples.tget(sweep_tag(self._base, self._session))
        for _ in range(self._trainers):
            tuples.tput(lease_tag(self._base), End(tuple(self._ctx.iteration)))

    def _keep_best(self) -> None:
        """Have a trainer write the model of the best trial.

        It trains it again: the same network, bit for bit, and a hundred thousand others need not
        be written for the sake of one.
        """
        best = self._standing.best[0]
        parameters = {
            name: best[name]
            for name in self._search.space.names
            if name in best and best[name] != self._absent[name]
        }
        path = self._path.with_name("best")
        seed = trial_seed(self._plan.seed, best["trial"])
        keep = Keep(self._session, best["trial"], parameters, seed, path)
        self._ctx.tuples.tput(lease_tag(self._base), keep)
        while True:
            kept = self._ctx.tuples.tget(outcome_tag(self._base))
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
            self._ctx.tuples.tput(lease_tag(self._base), lease)

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
        hopeless = not self._succeeded and self._failed >= _HOPELESS
        return hopeless or self._search.reason is not None

    def _answer(self, report: Report) -> None:
        try:
            goes_on = not self._search.report(report.trial, report.step, report.metrics)
        except ObjectiveError:
            goes_on = True  # that is found out and said at its end
        else:
            self._reports.setdefault(report.trial, []).append((report.step, report.metrics))
        self._ctx.tuples.tput(verdict_tag(self._base, report.trainer), goes_on)

    def _take(self, outcome: Outcome) -> None:
        """Write down what a lease gave."""
        grant = self._book.is_out(outcome.lease)
        if grant is None:
            return
        done = len(outcome.metrics)
        self._pace.observe(done, sum(outcome.seconds))
        self._pace.at_once, self._keeps = outcome.at_once, outcome.keeps
        records = self._records_of(outcome, grant.attempt)
        retried = set()
        if grant.attempt <= self._plan.retries and outcome.reasons:
            retried = {one["trial"] for one in records if one["state"] == FAILED}
            records = [one for one in records if one["trial"] not in retried]
        self._book.came_back(outcome.lease, done, retried)
        if records:
            self._ledger.write(records)
            self._tabulate([self._take_in(record) for record in records])
        self._stop_if_enough()

    def _records_of(self, outcome: Outcome, attempt: int) -> list[dict[str, Any]]:
        seed, trainer = self._plan.seed, outcome.trainer
        records = []
        for trial, point, metrics, started_s, seconds in zip(
            range(outcome.start, outcome.start + len(outcome.metrics)),
            outcome.points,
            outcome.metrics,
            outcome.started_s,
            outcome.seconds,
            strict=True,
        ):
            reason = outcome.reasons.get(trial, "") if outcome.reasons else ""
            if not reason:
                reason = self._what_is_missing(metrics)
            state = FINISHED
            if reason:
                state = FAILED
            elif trial in outcome.stopped:
                state = STOPPED
            record = {
                "trial": trial,
                "state": state,
                "parameters": point,
                "metrics": metrics,
                "seed": trial_seed(seed, trial),
                "trainer": trainer,
                "started_s": started_s,
                "seconds": seconds,
            }
            if attempt > 1:
                record["attempt"] = attempt
            if reason:
                record["reason"] = reason
            if SPLITS in metrics:
                record[SPLITS] = metrics.pop(SPLITS)
            if trial in self._reports:
                record["reports"] = self._reports.pop(trial)
            records.append(record)
        return records

    def _take_in(self, record: dict[str, Any]) -> dict[str, Any]:
        """Let everybody know of a trial whose line is in the ledger; return its row."""
        trial, state, metrics = record["trial"], record["state"], record["metrics"]
        # A parameter that is not there in this point has an empty cell.
        row = {"trial": trial, **self._absent, **record["parameters"], **metrics}
        row["trainer"], row["seed"] = record["trainer"], record["seed"]
        self._points.pop(trial, None)
        if state == FINISHED:
            splits = record.get(SPLITS)
            evaluated = Evaluated.of(metrics, splits) if splits is not None else None
            values = self._search.tell(trial, record["parameters"], metrics, evaluated).values
        else:
            is_stopped = state == STOPPED
            self._search.tell(trial, record["parameters"], None, is_stopped=is_stopped)
            values = ()
        if state == FAILED:
            self._failed += 1
            row["state"] = record["reason"]
            return row
        self._succeeded += 1
        for objective, value in zip(self._search.objectives, values, strict=False):
            row.setdefault(objective.text, value)
        if state == FINISHED:
            self._standing.add(row)
        row["state"] = state
        return row

    def _stop_if_enough(self) -> None:
        if self._has_ended():
            for _, lease in self._ctx.tuples.collect(lease_tag(self._base)):
                self._book.came_back(lease.number, 0)

    def _what_is_missing(self, metrics: Mapping[str, Any]) -> str:
        """Return why the objectives cannot be had from metrics; nothing if they can."""
        try:
            for objective in self._search.objectives:
                objective.value(metrics)
        except ObjectiveError as error:
            return str(error)
        return ""

    # -- what people see --------------------------------------------------------------------------

    def _columns(self, metrics: Sequence[str]) -> list[str]:
        names = ["trial", *self._search.space.names, *metrics]
        texts = (objective.text for objective in self._search.objectives)
        return [*names, *(text for text in texts if text not in names)]

    def _tabulate(self, rows: list[dict[str, Any]]) -> None:
        """Write rows to the table; its columns are known once a trial has succeeded."""
        self._report.add(rows)
        if self._table is None:
            self._untabled += rows
            good = next((row for row in self._untabled if row["state"] in (FINISHED, STOPPED)), {})
            if not good:
                return
            known = {"trial", *self._search.space.names, *AFTER_METRICS}
            self._make_table([name for name in good if name not in known])
            rows, self._untabled = self._untabled, []
        assert self._table is not None
        self._table.write(rows)

    def _make_table(self, metrics: list[str]) -> None:
        columns = self._columns(metrics)
        self._table = Table(self._table_path, [*columns, *AFTER_METRICS])
        if self._shown_s:
            self._declare()

    def _declare(self) -> None:
        """Say what the table looks like, as far as that is known."""
        self._shown_s, self._shown_version = time.monotonic(), -1
        columns = self._columns([])
        if self._table is not None:
            columns = list(self._table.columns[: -len(AFTER_METRICS)])
        self._ctx.results.declare(
            [*columns, "trainer", "seed"],
            objective=self._objective.text,
            maximise=self._objective.maximise,
            expected=self._book.total,
            file=self._table_path,
            parameters=self._search.space.names,
        )

    def _show(self, *, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if not at_once and now_s - self._shown_s < _SHOW_EVERY_S:
            return
        self._shown_s = now_s
        count = len(self._book.recorded)
        if self._standing.version == self._shown_version:
            self._ctx.results.show(count)
            return
        self._shown_version = self._standing.version
        self._ctx.results.show(count, best=self._standing.best, constants=self._standing.constants)

    def _show_notes(self) -> None:
        """Say which trials none other beats, and how far the best score is to be believed."""
        notes = self._search.front_lines()
        report = self._search.bias.report()
        if report is not None:
            notes += report.lines()
        if self._model:
            notes.append(self._model)
        if notes:
            self._ctx.results.show(len(self._book.recorded), notes=notes)

    def close(self, state: str) -> None:
        """Bring everything to the disk; `state` is how the sweep has ended."""
        self._report.expect(self._book.total)
        from .reporting import close_report

        close_report(self._ctx, self._report, state)
        if self._table is not None:
            self._table.close()
        self._ledger.close()

    def conclude(self) -> dict[str, Any]:
        """Show how the sweep has ended; return its best row."""
        self._show(at_once=True)
        self._show_notes()
        if self._failed:
            self._ctx.log.warning(
                "%d of %d trials failed: see %s",
                self._failed,
                len(self._book.recorded),
                self._path,
            )
        if not self._succeeded:
            reason = next(
                (one["reason"] for one in records_of(self._path) if "reason" in one), "none was run"
            )
            raise SweepFailed(f"no trial has succeeded; the first: {reason}")
        return self._standing.best[0]
