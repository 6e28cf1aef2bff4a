"""What the scheduler is told, in the past tense, and what it answers, in the imperative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from diel.executive.plans import CopyPlan, Iteration

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
class LeaveIgnored:
    """Ranks of a copy were told to leave it a while ago."""

    serial: int


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
    """Somebody has removed or cut the journal: nothing can be kept any more."""


Event: TypeAlias = (
    "CopyRankFinished | CopyRankFailed | CopyRankLeft | TimeLimitPassed | LeaveIgnored "
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
class NoteNestStarted:
    """An iteration of a group of groups begins."""

    group: str
    iteration: Iteration


@dataclass(frozen=True)
class NoteCopyFinished:
    """A copy is done on all its ranks; `returned` is what its rank 0 returned."""

    plan: CopyPlan
    returned: Any


@dataclass(frozen=True)
class NoteCopyFailed:
    """A copy has failed, and what follows.

    Attributes
    ----------
    plan : CopyPlan
    policy : str
        "retry" also where a retry follows only once every rank has left.
    whole_module : bool
        Whether it is for all copies, since they share a communicator.
    rank : int or None
        Of the pool; None for a time limit, which is nobody's failure in particular.
    error, host, detail : str
    """

    plan: CopyPlan
    policy: Policy
    whole_module: bool
    rank: int | None
    error: str
    host: str = ""
    detail: str = ""


@dataclass(frozen=True)
class NoteCopyGivenUp:
    """A copy has failed, all its ranks have left, and the rest goes on without it."""

    plan: CopyPlan
    error: str


@dataclass(frozen=True)
class NoteGroupFinished:
    """An iteration of a group is done; `ended_by` says why there is no further one, if so."""

    group: str
    iteration: Iteration
    ended_by: EndedBy | None = "iterations"


@dataclass(frozen=True)
class StopRun:
    """Tell every rank to stop; `failed` is the copy that caused it, if one did.

    Attributes
    ----------
    failed : CopyPlan or None
    failed_rank : int or None
    reason : str
    is_failure : bool
    deaf_ranks : tuple of int
        Those that did not leave a copy when they were told to, where that is the cause.
    """

    failed: CopyPlan | None
    failed_rank: int | None
    reason: str
    is_failure: bool = True
    deaf_ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class EndRun:
    """Everything is done."""


Instruction: TypeAlias = (
    "StartGroup | RestartCopies | LeaveCopy | MakeModuleComm | LookForTag | NoteNestStarted "
    "| NoteCopyFinished | NoteCopyFailed | NoteCopyGivenUp | NoteGroupFinished | StopRun | EndRun"
)
