"""What the scheduler is told, in the past tense, and what it answers, in the imperative.

What the journal shall say it answers too: records, in the past tense, see `diel.run.records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from diel.executive.plans import CopyPlan, Iteration
from diel.run.records import Record

Policy: TypeAlias = Literal["stop", "continue", "retry"]
EndedBy: TypeAlias = Literal["iterations", "until"]

# -- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyRankFinished:
    """One rank of a copy has finished its part."""

    serial: int
    rank: int
    returned: Any = None


@dataclass(frozen=True)
class CopyRankFailed:
    """One rank of a copy has failed: where it ran, the error in one line, and its traceback."""

    serial: int
    rank: int
    error: str = ""
    host: str = ""
    detail: str = ""


@dataclass(frozen=True)
class CopyRankLeft:
    """One rank has left a copy, as it was told to."""

    serial: int
    rank: int


@dataclass(frozen=True)
class TimeLimitPassed:
    """A copy has taken longer than it may; `error` says so."""

    serial: int
    error: str


@dataclass(frozen=True)
class LeaveTimedOut:
    """Ranks of a copy were told to leave it so long ago."""

    serial: int
    timeout_s: float


@dataclass(frozen=True)
class ModuleCommAsked:
    """One rank of a copy wants the communicator of all copies of its module."""

    serial: int
    rank: int


@dataclass(frozen=True)
class TagLooked:
    """Whether a tuple with the tag of `LookForTag` is there."""

    group: str
    iteration: Iteration
    is_there: bool


@dataclass(frozen=True)
class StopAsked:
    """Somebody asked the run to stop."""

    reason: str


@dataclass(frozen=True)
class DeadlockFound:
    """Every running module waits for another one."""

    explanation: str


@dataclass(frozen=True)
class JournalLost:
    """Somebody has removed or cut the journal: nothing more can be recorded."""

    explanation: str


Event: TypeAlias = (
    "CopyRankFinished | CopyRankFailed | CopyRankLeft | TimeLimitPassed | LeaveTimedOut "
    "| ModuleCommAsked | TagLooked | StopAsked | DeadlockFound | JournalLost"
)

# -- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartGroup:
    """Order these copies to start: an iteration of a group of modules."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


@dataclass(frozen=True)
class RestartCopies:
    """Order these copies of one module to start again, on the same ranks."""

    group: str
    iteration: Iteration
    copies: tuple[CopyPlan, ...]


@dataclass(frozen=True)
class LeaveCopy:
    """Tell these ranks to leave a copy that has failed, and watch the clock."""

    plan: CopyPlan
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MakeModuleComm:
    """Tell these ranks, which all wait for it, to make their module's communicator."""

    group: str
    iteration: Iteration
    module: str
    serial: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LookForTag:
    """Look whether a tuple with this tag is in the tuple space, and leave it there."""

    group: str
    iteration: Iteration
    tag: str | tuple[str | int, ...]


@dataclass(frozen=True)
class StopRun:
    """Tell every rank to stop, and why."""

    reason: str
    is_failure: bool = True


@dataclass(frozen=True)
class EndRun:
    """Everything is done."""


Instruction: TypeAlias = (
    "Record | StartGroup | RestartCopies | LeaveCopy | MakeModuleComm | LookForTag | StopRun "
    "| EndRun"
)
"""What to do; a record is to be written to the journal."""
