"""What rank 0 and the other ranks say to each other: orders one way, reports the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diel.coupling.account import Account
from diel.coupling.address import CopyRanks, Roster
from diel.executive.scheduler import CopyPlan
from diel.loading.spec import ModuleSpec
from diel.workflow.boundary import Boundary

# -- from rank 0, EXECUTIVE_TO_WORKER ---------------------------------------------------------


@dataclass(frozen=True)
class Welcome:
    """The workflow is fine: what every rank has to know before it imports NumPy.

    Attributes
    ----------
    run_dir, folder : str
        The run directory, and the folder of the workflow file.
    max_threads : int
        The largest number of BLAS/OpenMP threads that any module asks for.
    server_ranks : tuple of int
        Who serves tuples; all others but rank 0 form the pool.
    server_memory_bytes : int
        What each of them may hold.
    refuse_when_full : bool
        Whether a put then raises, rather than waits.
    spill : bool
        Whether large payloads go to files before that.
    boundaries : tuple of Boundary
        All that the file declares.
    """

    run_dir: str
    folder: str
    max_threads: int
    server_ranks: tuple[int, ...]
    server_memory_bytes: int
    refuse_when_full: bool
    spill: bool
    boundaries: tuple[Boundary, ...] = ()


@dataclass(frozen=True)
class RunCopy:
    """Do your part of one copy of a module.

    Attributes
    ----------
    plan : CopyPlan
    spec : ModuleSpec
    copies_of : dict
        Copies of each module in the group.
    roster : Roster
        Who can be spoken to.
    """

    plan: CopyPlan
    spec: ModuleSpec
    copies_of: dict[str, int]
    roster: Roster


@dataclass(frozen=True)
class Leave:
    """There is no more work; finalize MPI and exit."""


Order: TypeAlias = "Welcome | RunCopy | Leave"


@dataclass(frozen=True)
class Stop:
    """The run is stopping; sent once to every rank, on a tag of its own."""

    reason: str


# -- to rank 0, WORKER_TO_EXECUTIVE -----------------------------------------------------------


@dataclass(frozen=True)
class RankFinished:
    """My part of a copy is done; `returned` is what the module's function returned here."""

    serial: int
    returned: Any
    leftover_messages: int = 0
    account: Account = field(default_factory=Account)


@dataclass(frozen=True)
class RankFailed:
    """My part of a copy failed.

    Attributes
    ----------
    serial : int
    host : str
    error : str
        The exception in one line.
    detail : str
        Its traceback, or the last lines that an executable wrote to stderr.
    account : Account
    """

    serial: int
    host: str
    error: str
    detail: str
    account: Account = field(default_factory=Account)


@dataclass(frozen=True)
class RankStopped:
    """My part of a copy ended because the run is stopping: a consequence, never a cause."""

    serial: int


@dataclass(frozen=True)
class Waiting:
    """I have been waiting for a while.

    Attributes
    ----------
    serial : int
        Of the copy.
    what : str
        The call, as a person would write it.
    tag : str
        The tag or pattern in it.
    has_timeout : bool
    at_server : bool
        Whether a tuple server has the request; otherwise I wait for other ranks.
    puts : tuple of int
        How many puts I have sent to each server.
    waited_s : float
    request : int
        Serial of my latest request to a tuple server.
    account : Account
        My messages to and from other modules, and whether I wait for one.
    """

    serial: int
    what: str
    tag: str
    has_timeout: bool
    at_server: bool
    puts: tuple[int, ...]
    waited_s: float
    request: int = 0
    account: Account = field(default_factory=Account)


@dataclass(frozen=True)
class Recorded:
    """Something for the journal."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Goodbye:
    """I am about to finalize MPI; a server tells how many tuples nobody took."""

    tuples_left: int = 0


def roster_of(group: str, copies: Sequence[CopyPlan], specs: Mapping[str, ModuleSpec]) -> Roster:
    """Return who can be spoken to in a group that starts."""
    found: dict[str, list[CopyRanks]] = {}
    for plan in sorted(copies, key=lambda one: one.copy_index):
        found.setdefault(plan.module, []).append(CopyRanks(plan.serial, plan.ranks))
    return Roster(
        group,
        {name: tuple(ones) for name, ones in found.items() if specs[name].function is not None},
        tuple(name for name in found if specs[name].function is None),
    )


Report: TypeAlias = "RankFinished | RankFailed | RankStopped | Waiting | Recorded | Goodbye"
