"""What the scheduler is told, in the past tense, and what it answers, in the imperative.

What the journal shall say it answers too: records, in the past tense, see `diel.run.records`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from diel.executive.plans import CopyPlan, Iteration
from diel.frozen import Frozen
from diel.run.records import Record

Policy: TypeAlias = Literal["stop", "continue", "retry"]
EndedBy: TypeAlias = Literal["iterations", "until"]

# -- events -------------------------------------------------------------------------------------


class CopyRankFinished(Frozen):
    """One rank of a copy has finished its part."""

    serial: int
    rank: int
    returned: Any = None


class CopyRankFailed(Frozen):
    """One rank of a copy has failed: where it ran, the error in one line, and its traceback."""

    serial: int
    rank: int
    error: str = ""
    host: str = ""
    detail: str = ""


class CopyRankLeft(Frozen):
    """One rank has left a copy, as it was told to."""

    serial: int
    rank: int


class TimeLimitPassed(Frozen):
    """A copy has taken longer than it may; `error` says so."""

    serial: int
    error: str


class LeaveTimedOut(Frozen):
    """Ranks of a copy were told to leave it so long ago."""

    serial: int
    timeout_s: float


class ModuleCommAsked(Frozen):
    """One rank of a copy wants the communicator of all copies of its module."""

    serial: int
    rank: int


class TagLooked(Frozen):
    """Whether a tuple with the tag of `LookForTag` is there."""

    group: str
    iteration: Iteration
    is_there: bool


class StopAsked(Frozen):
    """Somebody asked the run to stop."""

    reason: str


class DeadlockFound(Frozen):
    """Every running module waits for another one."""

    explanation: str


class JournalLost(Frozen):
    """Somebody has removed or cut the journal: nothing more can be recorded."""

    explanation: str


Event: TypeAlias = (
    "CopyRankFinished | CopyRankFailed | CopyRankLeft | TimeLimitPassed | LeaveTimedOut "
    "| ModuleCommAsked | TagLooked | StopAsked | DeadlockFound | JournalLost"
)

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


class LeaveCopy(Frozen):
    """Tell these ranks to leave a copy that has failed, and watch the clock."""

    plan: CopyPlan
    ranks: tuple[int, ...]


class MakeModuleComm(Frozen):
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
    """Tell every rank to stop, and why."""

    reason: str
    is_failure: bool = True


class EndRun(Frozen):
    """Everything is done."""


Instruction: TypeAlias = (
    "Record | StartGroup | RestartCopies | LeaveCopy | MakeModuleComm | LookForTag | StopRun "
    "| EndRun"
)
"""What to do; a record is to be written to the journal."""
