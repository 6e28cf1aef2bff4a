"""The messages between a master and its trainers, through the tuple space.

::

    master  ── "sweep", session ──>  trainers     SweepOrder: read, never taken
            ── "lease" ──────────>                Lease, under a claim; SaveModel; End
            <── "outcome" ────────                Outcome of a lease; IntermediateReport; ModelSaved
            ── "verdict", copy ──>                whether the trial shall go on: a bool
                                                  (several trials of a lease need neither: it has
                                                  what they are judged by)
            ── "stops" ──────────>                Stops: trials that are to end; read, never taken

Where trials have different numbers of ranks, leases have no claim, and each rank has its own::

    master  ── "lease", copy, rank ──>  rank      Lease, SaveModel: each rank of its group; End
            <── "outcome" ────────                CopyReady, also to be read under "ready", copy;
                                                  CopyFailed

All tags begin with the group and the trainer's module, so that they lie on one server, where the
tuples of a trainer are seen in the order in which it put them.

Each start of a master has a session of its own. Messages of an earlier session, in a checkpoint
from which the run goes on or of a master that started again, are recognised by it and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from diel import ANY

from ..objective import Aim
from ..strategies import Cutoffs
from ..trial import StopCause, Trial
from .rank_queues import Ranks

Tag: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True)
class Tags:
    """The tags of the messages of one sweep."""

    group: str
    trainer: str
    """The group and the trainer's module."""

    def sweep(self, session: str) -> Tag:
        """Return the tag of a `SweepOrder`."""
        return (self.group, self.trainer, "sweep", session)

    @property
    def lease(self) -> Tag:
        """The tag of leases."""
        return (self.group, self.trainer, "lease")

    def lease_of(self, copy_index: int, rank: int) -> Tag:
        """Return the tag of the orders of one rank, where trials differ in their ranks."""
        return (self.group, self.trainer, "lease", copy_index, rank)

    def ready(self, copy_index: int) -> Tag:
        """Return the tag of a `CopyReady`."""
        return (self.group, self.trainer, "ready", copy_index)

    @property
    def outcome(self) -> Tag:
        """The tag of outcomes and reports."""
        return (self.group, self.trainer, "outcome")

    @property
    def of_earlier_sessions(self) -> tuple[Any, ...]:
        """Tags of the tuples that a master removes when it starts: orders first, then leases."""
        any_order = (self.group, self.trainer, "sweep", ANY)
        # Not the leases of ranks: ranks of one group may have taken theirs.
        any_verdict = (self.group, self.trainer, "verdict", ANY)
        return any_order, self.lease, self.outcome, self.stops, any_verdict

    def verdict(self, copy_index: int) -> Tag:
        """Return the tag of a verdict for one trainer."""
        return (self.group, self.trainer, "verdict", copy_index)

    @property
    def stops(self) -> Tag:
        """The tag of the `Stops`."""
        return (self.group, self.trainer, "stops")

    def point(self, copy_index: int, session: str, rank: int) -> Tag:
        """Return the tag of the next order for one rank of a trainer with several ranks.

        It has a session, since a copy that failed may have left orders that no rank took.
        """
        return (self.group, self.trainer, "point", copy_index, session, rank)

    def ended(self, copy_index: int, session: str, rank: int) -> Tag:
        """Return the tag of how a trial has ended on one rank of a trainer with several ranks."""
        return (self.group, self.trainer, "ended", copy_index, session, rank)


@dataclass(frozen=True)
class SweepOrder:
    """The facts of a sweep that a trainer needs: it reads them once."""

    session: str
    seed: int
    """From which the seed of each trial follows."""
    strategy: Any
    """A stateless strategy, which the trainers ask themselves; None for any other."""
    wants_reports: bool = False
    """Whether intermediate reports go to the master, which may stop a trial."""
    quarantined: frozenset[int] = frozenset()
    """Trials that may have killed a rank in an earlier session: to be run in another process."""
    not_to_try: frozenset[int] = frozenset()
    """Quarantined trials that trainers of several ranks, without a child process, do not run."""
    run_session: str = ""
    """Session of the run in which the order holds: in another session it is from a checkpoint."""
    aim: Aim | None = None
    """What the sweep is for; None if trainers need not know it."""
    checkpoints: Path | None = None
    """The folder for the checkpoints of trials from which others may go on; None if none does."""


@dataclass(frozen=True)
class Stops:
    """The trials that are to end."""

    session: str
    trials: frozenset[int] = frozenset()
    """Those that a user has asked to end."""
    time: StopCause = StopCause.NO
    """`TIME` or `TIME_ONCE_REPORTED` if the time of the sweep is over: then all trials end."""

    def cause(self, trial: int) -> StopCause:
        """Return why a trial is to end."""
        return StopCause.REQUESTED if trial in self.trials else self.time


@dataclass(frozen=True)
class Lease:
    """Trials for one trainer."""

    session: str
    number: int
    """Number of the lease."""
    start: int
    stop: int
    """The trials, from `start` to ``stop - 1``."""
    points: list[dict[str, Any]] | None = None
    """The parameters of each; None where the strategy gives them."""
    attempt: int = 1
    """From 1: how often these trials have been run, this time included."""
    cutoffs: list[Cutoffs] | None = None
    """What several trials are judged by where they run; None if the master alone can judge."""
    cohorts: list[int] | None = None
    """For each trial, which of the cutoffs it has; those with the same ones are compared too."""
    parents: list[int | None] | None = None
    """For each trial the one from whose end it goes on; None if none does."""
    ranks: Ranks | None = None
    """Which ranks run the trials, where trials differ in their ranks."""


@dataclass(frozen=True)
class CopyReady:
    """The ranks of a copy have begun, and take orders of their own."""

    session: str
    """A new one each time."""
    run_session: str
    iteration: tuple[int, ...]
    copy_index: int


@dataclass(frozen=True)
class CopyFailed:
    """The ranks of a copy take no more orders: it has failed, and may begin again."""

    session: str
    copy_index: int


@dataclass(frozen=True)
class End:
    """There are no more trials in this iteration of the group."""

    iteration: tuple[int, ...]


@dataclass
class Outcome:
    """The results of a lease: a list for each column, an entry for each trial that was run."""

    session: str
    lease: int
    start: int
    trainer: int
    """The copy that ran the trials."""
    points: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Metrics of each trial; of a trial that failed, those that it had reported."""
    started_s: list[float] = field(default_factory=list)
    """Seconds since 1970."""
    seconds: list[float] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why trials have failed."""
    stopped: set[int] = field(default_factory=set)
    """Trials that the master had stopped early."""
    out_of_time: set[int] = field(default_factory=set)
    """Those of them that were stopped since the time of the sweep was over."""
    untried: set[int] = field(default_factory=set)
    """Trials that have not begun, for the same reason."""
    at_once: int = 1
    """How many trials this trainer runs together."""
    kept_trial: int | None = None
    """The trial whose network this trainer keeps: the best that it has run."""
    saves_models: bool = False
    """Whether this trainer can write the model of a trial."""
    facts: dict[str, str] = field(default_factory=dict)
    """Device, precision and versions, as of `Compute.facts`; empty if the trainer has none."""
    reports: dict[int, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    """What trials have reported, but for what the master has had in an `IntermediateReport`."""
    worker: str = ""
    """The worker of another run that ran the trials; empty if this run did."""


@dataclass(frozen=True)
class SaveModel:
    """Order to write the model of the best trial to a file whose name begins with `path`."""

    session: str
    trial: Trial
    path: Path
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the trial comes from: `Report.provenance`."""
    holder: int | None = None
    """The trainer that keeps the network: others pass the order on; None if none does."""
    passed_by: tuple[int, ...] = ()
    most_passes: int = 0
    """After so many, whoever has the order trains the network again."""
    ranks: Ranks | None = None
    """Which ranks carry the order out, where trials differ in their ranks."""

    def is_for(self, trainer: int) -> bool:
        """Whether a trainer carries the order out, and does not pass it on."""
        return self.holder in (None, trainer) or len(self.passed_by) >= self.most_passes


@dataclass(frozen=True)
class ModelSaved:
    """The file of the model of the best trial; or why there is none."""

    session: str
    path: Path | None
    reason: str = ""


@dataclass(frozen=True)
class IntermediateReport:
    """What a trial has reported so far; its trainer waits for the verdict."""

    session: str
    trial: int
    trainer: int
    step: int
    metrics: dict[str, Any]
