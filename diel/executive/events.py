"""What the scheduler is told, in the past tense, and what it answers, in the imperative.

What the journal shall say it answers too: records, in the past tense, see `diel.run.records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from diel.executive.plans import CopyPlan, Iteration
from diel.exit_codes import FAILED, STOPPED
from diel.frozen import Frozen

if TYPE_CHECKING:
    from diel.executive.messages import (
        LossAllowed,
        ModuleCommAsked,
        RankFailed,
        RankFinished,
        RankLeft,
    )
    from diel.run.fields import Record
    from diel.run.records import DeadlockFound, JournalLost

Policy: TypeAlias = Literal["stop", "continue", "retry"]
EndedBy: TypeAlias = Literal["iterations", "until"]

# -- events -------------------------------------------------------------------------------------


class TimeLimitPassed(Frozen):
    """A copy has taken longer than it may; `error` says so."""

    serial: int
    error: str


class LeaveTimedOut(Frozen):
    """Ranks of a copy were told to leave it so long ago."""

    serial: int
    timeout_s: float


class TagLooked(Frozen):
    """Whether a tuple with the tag of `LookForTag` is there."""

    group: str
    iteration: Iteration
    is_there: bool


class RanksSilent(Frozen):
    """Ranks have not been heard of for too long.

    Attributes
    ----------
    hosts : dict of int to str
        Where each of them runs.
    silent_s : float
    since : str
        The time of day when they were heard of last.
    """

    hosts: dict[int, str]
    silent_s: float
    since: str


class RanksDied(Frozen):
    """Ranks have died, where MPI lets the others live on; `hosts` says where they ran."""

    hosts: dict[int, str]


class StopAsked(Frozen):
    """Somebody asked the run to stop, and with which exit code."""

    reason: str
    exit_code: int = STOPPED


Event: TypeAlias = (
    "RankFinished | RankFailed | RankLeft | ModuleCommAsked | LossAllowed | TimeLimitPassed "
    "| LeaveTimedOut | TagLooked | RanksSilent | RanksDied | StopAsked | DeadlockFound "
    "| JournalLost"
)
"""What has happened: a report of a rank, a record of what rank 0 has found, or one of the above."""

# -- instructions -------------------------------------------------------------------------------


class StartGroup(Frozen):
    """Order these copies to start: an iteration of a group of modules."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


class RestartCopies(Frozen):
    """Order these copies of one module to start again, on the same ranks."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


class AbandonCopy(Frozen):
    """Tell these ranks to leave a copy that has failed, and watch the clock."""

    plan: CopyPlan
    ranks: tuple[int, ...]


class ConnectModule(Frozen):
    """Tell these ranks, which all wait for it, to make their module's communicator."""

    group: str
    iteration: Iteration
    module: str
    serial: int
    ranks: tuple[int, ...]


class LookForTag(Frozen):
    """Look whether a tuple with this tag is in the tuple space, and leave it there."""

    group: str
    iteration: Iteration
    tag: str | tuple[str | int, ...]


class StopRun(Frozen):
    """Tell every rank to stop, why, and with which exit code."""

    reason: str
    exit_code: int = FAILED


class EndRun(Frozen):
    """Everything is done."""


Instruction: TypeAlias = (
    "Record | StartGroup | RestartCopies | AbandonCopy | ConnectModule | LookForTag | StopRun "
    "| EndRun"
)
"""What to do; a record is to be written to the journal."""
