"""Trials on all ranks of a trainer's copy: rank 0 takes the leases, the other ranks follow it.

::

    rank 0   ── RunTrial, SaveModel, Renew, None ──>  each other rank    "point", rank
             <── Ended, of the first two ───────────                     "ended", rank

These go through the tuple space, where a rank sleeps while it waits, and wakes up if the run ends.
What a trial's function exchanges goes through communicators. A trial that fails on one rank fails
on all: a rank that waits in the `Communicator` gets an error there. When all ranks have ended the
trial they make a new communicator, in which no message of that trial can be, and go on with the
next trial. A function that waits in MPI itself cannot be interrupted: then the copy fails.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.errors import RunStopped, TupleTimeout

from ..trial import OnReport, Trial, TrialResult, failed_result
from .messages import SaveModel, Tags
from .runners import InProcessRunner

if TYPE_CHECKING:
    from diel import Context

_SETTLING_S: Final = 2.0
"""How long ranks wait for each other after a failure, where one may wait in MPI itself."""
_SETTLING_NETWORKS_S: Final = 60.0
"""The same for networks of dnn: a rank may still compile, and gets the failure afterwards."""


class RankGroupFailed(RuntimeError):
    """A trial failed on some ranks of a copy, and others have not ended it since."""


@dataclass(frozen=True)
class RunTrial:
    """Order to run a trial; if it `may_be_stopped`, rank 0 decides that after each report."""

    trial: Trial
    may_be_stopped: bool


@dataclass(frozen=True)
class Renew:
    """Order to make a new communicator: the trial has failed, and all ranks have ended it."""


@dataclass(frozen=True)
class Ended:
    """How a trial has ended on a rank; `reason` is empty unless it has failed there."""

    reason: str
    detail: str
    is_consequence: bool


class _RankOfGroup:
    """Common base of rank 0 and the other ranks of a copy."""

    def __init__(self, ctx: Context, tags: Tags, runner: InProcessRunner) -> None:
        self._ctx = ctx
        self._runner = runner
        self._renew()
        own_session = uuid.uuid4().hex if ctx.comm.rank == 0 else ""
        session = self._communicator.gather_values(own_session)[0]
        ranks = range(1, ctx.comm.size)
        self._points = {rank: tags.point(ctx.copy_index, session, rank) for rank in ranks}
        self._ends = {rank: tags.ended(ctx.copy_index, session, rank) for rank in ranks}
        # Not for a user's function, which may report on some of its ranks alone.
        if runner.trains_networks:
            self._asked, runner.is_to_stop = runner.is_to_stop, self._agree_to_stop
        self._settling_s = _SETTLING_NETWORKS_S if runner.trains_networks else _SETTLING_S

    def _renew(self) -> None:
        from dnn.distributed import communicator_of

        self._communicator = self._runner.communicator = communicator_of(self._ctx.comm)

    def _run(self, order: RunTrial, on_report: OnReport | None = None) -> TrialResult:
        """Run a trial here; all ranks go on or stop as the master has told rank 0."""

        def report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
            return self._as_on_rank0(on_report is None or on_report(trial, step, metrics))

        return self._runner(order.trial, report if order.may_be_stopped else None)

    def _agree_to_stop(self, trial: int) -> bool:
        """Whether a trial is to stop, as rank 0 knows it: the same on all ranks."""
        return self._as_on_rank0(self._asked is not None and self._asked(trial))

    def _as_on_rank0(self, verdict: bool) -> bool:
        import numpy as np

        told = np.array([verdict], np.int8)
        self._communicator.broadcast(told)
        return bool(told[0])

    def _save(self, order: SaveModel) -> tuple[TrialResult, Path]:
        """Train a trial's network once more; return its file too, which rank 0 has written."""
        try:
            file = self._runner.save_model(order.trial, order.path, order.provenance)
            return TrialResult(), file
        except RunStopped:
            raise
        except Exception as error:
            return failed_result(error), order.path


class RankGroupRunner(_RankOfGroup):
    """Runs trials on all ranks of the copy; for its rank 0, which takes the leases.

    The other ranks call `follow_rank0`. `runner` runs a trial on this rank.
    """

    def __init__(self, ctx: Context, tags: Tags, runner: InProcessRunner) -> None:
        super().__init__(ctx, tags, runner)
        self.facts = runner.facts
        self.saves_models = runner.saves_models

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial on every rank; its metrics are those of this one."""
        order = RunTrial(trial, on_report is not None)
        self._send(order)
        return self._settled(trial, self._run(order, on_report))

    def save_model(self, trial: Trial, path: Path, provenance: Mapping[str, Any]) -> Path:
        """Write the model of a trial; return its file."""
        order = SaveModel("", trial, path, provenance)
        self._send(order)
        result, file = self._save(order)
        if reason := self._settled(trial, result).reason:
            raise RuntimeError(reason)
        return file

    def dismiss(self) -> None:
        """Tell the other ranks that there are no more trials."""
        self._send(None)

    def _send(self, order: RunTrial | SaveModel | Renew | None) -> None:
        for tag in self._points.values():
            self._ctx.tuples.tput(tag, order)

    def _settled(self, trial: Trial, own_result: TrialResult) -> TrialResult:
        """Wait until all ranks have ended the trial; return the result, with the first cause."""
        ends = {
            0: Ended(own_result.reason, own_result.detail, own_result.is_consequence),
            **self._ends_of(own_result),
        }
        failed = {rank: end for rank, end in ends.items() if end.reason}
        if not failed:
            return own_result
        missing = [rank for rank in self._ends if rank not in ends]
        causes = {rank: end for rank, end in failed.items() if not end.is_consequence} or failed
        rank, cause = next(iter(causes.items()))
        alike = len(causes) == len(self._ends) + 1 and len({e.reason for e in causes.values()}) == 1
        reason = cause.reason if alike or cause.is_consequence else f"rank {rank}: {cause.reason}"
        if missing:
            raise RankGroupFailed(
                f"trial {trial.number} failed: {reason}; rank {missing[0]} has not ended it "
                f"{self._settling_s:g} s later: it may wait in MPI, where it cannot be told\n"
                f"{cause.detail}"
            )
        self._send(Renew())
        self._renew()
        return replace(own_result, reason=reason, detail=cause.detail)

    def _ends_of(self, own_result: TrialResult) -> dict[int, Ended]:
        """Return how the trial ended on the other ranks; after a failure they have limited time."""
        ends: dict[int, Ended] = {}
        deadline_s = time.monotonic() + self._settling_s if own_result.reason else None
        for rank, tag in self._ends.items():
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                ends[rank] = self._ctx.tuples.tget(tag, timeout=left_s)
            except TupleTimeout:
                continue
            if ends[rank].reason and deadline_s is None:
                deadline_s = time.monotonic() + self._settling_s
        return ends


class _Follower(_RankOfGroup):
    """A rank other than 0 of the copy, which carries out the orders of rank 0."""

    def follow(self) -> int:
        """Run the trials that rank 0 runs, until there are no more; return how many there were.

        `RankGroupFailed` if a trial has failed here, and rank 0 does not end it.
        """
        rank, trials = self._ctx.comm.rank, 0
        ended = Ended("", "", False)
        while True:
            limit_s = self._settling_s if ended.reason else None
            try:
                order = self._ctx.tuples.tget(self._points[rank], timeout=limit_s)
            except TupleTimeout:
                raise RankGroupFailed(
                    f"a trial failed on rank {rank}: {ended.reason}; rank 0 has not ended it "
                    f"{limit_s:g} s later: it may wait in MPI, where it cannot be told\n"
                    f"{ended.detail}"
                ) from None
            if order is None:
                return trials
            if isinstance(order, Renew):
                ended = Ended("", "", False)
                self._renew()
                continue
            if isinstance(order, SaveModel):
                result, _ = self._save(order)
            else:
                result = self._run(order)
                trials += 1
            ended = Ended(result.reason, result.detail, result.is_consequence)
            self._ctx.tuples.tput(self._ends[rank], ended)


def follow_rank0(ctx: Context, tags: Tags, runner: InProcessRunner) -> int:
    """Run the trials that rank 0 of the copy runs; return how many there were."""
    return _Follower(ctx, tags, runner).follow()
