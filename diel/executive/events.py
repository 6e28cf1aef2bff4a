"""The scheduler's events, named in the past tense, and its instructions, in the imperative.

The scheduler returns records for the journal too, named in the past tense: `diel.run.records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
    """A copy has exceeded its time limit; `error` is the message."""

    serial: int
    error: str


class LeaveTimedOut(Frozen):
    """Ranks of a copy have not left it within `timeout_s` of the order to leave."""

    serial: int
    timeout_s: float


class TagLooked(Frozen):
    """The answer to `LookForTag`: whether a tuple with the tag exists."""

    group: str
    iteration: Iteration
    is_there: bool


class TuplesRead(Frozen):
    """The answer to `ReadTuples`.

    Attributes
    ----------
    group : str
    iteration : tuple of int
    values : dict
        By tag; None where there is no tuple.
    error : str
        Why a tuple could not be read; empty if all could.
    """

    group: str
    iteration: Iteration
    values: Mapping[str | tuple[str | int, ...], Any]
    error: str = ""


class RanksSilent(Frozen):
    """Ranks have sent no heartbeat for too long.

    Attributes
    ----------
    hosts : dict of int to str
        The host of each of these ranks.
    silent_s : float
    since : str
        The time of day of the last heartbeat.
    """

    hosts: dict[int, str]
    silent_s: float
    since: str


class RanksDied(Frozen):
    """Ranks have died, with an MPI in which the others can go on; `hosts` has the host of each."""

    hosts: dict[int, str]


class StopAsked(Frozen):
    """A stop of the run was requested, with a reason and an exit code."""

    reason: str
    exit_code: int = STOPPED


Event: TypeAlias = (
    "RankFinished | RankFailed | RankLeft | ModuleCommAsked | LossAllowed | TimeLimitPassed "
    "| LeaveTimedOut | TagLooked | TuplesRead | RanksSilent | RanksDied | StopAsked "
    "| DeadlockFound | JournalLost"
)
"""An input of the scheduler: a rank's report, a record of a finding of rank 0, or a class above."""

# -- instructions -------------------------------------------------------------------------------


class StartGroup(Frozen):
    """Order the copies of an iteration of a group of modules to start."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


class RestartCopies(Frozen):
    """Order copies of one module to start again, on the same ranks."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


class AbandonCopy(Frozen):
    """Order ranks to leave a copy that has failed, within a time limit."""

    plan: CopyPlan
    ranks: tuple[int, ...]


class ConnectModule(Frozen):
    """Order the ranks of a module, which all wait for its communicator, to make it."""

    group: str
    iteration: Iteration
    module: str
    serial: int
    ranks: tuple[int, ...]


class LookForTag(Frozen):
    """Find out whether a tuple with this tag is in the tuple space, without taking it."""

    group: str
    iteration: Iteration
    tag: str | tuple[str | int, ...]


class ReadTuples(Frozen):
    """Read the tuples that decide whether a group runs, without waiting and without taking them."""

    group: str
    iteration: Iteration
    tags: tuple[str | tuple[str | int, ...], ...]


class StopRun(Frozen):
    """Notify every rank of the pool that the run stops, with a reason and an exit code."""

    reason: str
    exit_code: int = FAILED


class EndRun(Frozen):
    """End the run: all groups have finished."""


Instruction: TypeAlias = (
    "Record | StartGroup | RestartCopies | AbandonCopy | ConnectModule | LookForTag "
    "| ReadTuples | StopRun | EndRun"
)
"""An output of the scheduler; a record is to be written to the journal."""
