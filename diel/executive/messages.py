"""What rank 0 and the other ranks say to each other: orders one way, reports the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diel.comm.meter import NO_TIMES, Times
from diel.coupling.address import CopyRanks, Peers
from diel.coupling.messages import NO_MESSAGES, MessageCounts
from diel.executive.plans import CopyPlan, GroupPlan, Iteration, ModulePlacement
from diel.frozen import Frozen
from diel.loading.module_spec import ModuleSpec

if TYPE_CHECKING:
    from diel.executive.heartbeats import HeartbeatAddress
    from diel.run.fields import Record
    from diel.workflow.boundary import Boundary

# -- from rank 0, EXECUTIVE_TO_WORKER ---------------------------------------------------------


class Welcome(Frozen):
    """The workflow is fine: what every rank has to know before it imports NumPy.

    Attributes
    ----------
    run_dir, folder : str
        The run directory, and the folder of the workflow file.
    max_threads : int
        The largest number of BLAS/OpenMP threads that any module asks for.
    server_ranks : tuple of int
        Who serves tuples; all others but rank 0 form the pool.
    tail_ranks : tuple of int
        For each of these its twin; empty if there are none.
    server_memory_bytes : int
        What the tuples of each of them may take.
    refuse_when_full : bool
        Whether a put then raises, rather than waits.
    spill : bool
        Whether large payloads go to files before that.
    specs : dict of str to ModuleSpec
        Of all modules, by name.
    groups : tuple of GroupPlan
        All of them; orders name them by their places here.
    gpus : tuple of str, or None
        What the receiver may use for as long as it lives, as ``CUDA_VISIBLE_DEVICES`` names it;
        None if that is to be left as it is.
    boundaries : tuple of Boundary
        All that the file declares.
    traces_all : bool
        Whether every single call of the tuple space is to be kept for the trace.
    session : str
        Different each time that a run is begun or resumed.
    log_size_bytes : int
        What a log file may grow to.
    returned_size_bytes : int
        What a returned value may take in the journal.
    returned_total_bytes : int
        What the files of all larger ones may take.
    states : sequence of str
        The files with the states from which modules go on, where the run is resumed.
    survives_loss : bool
        Whether the run goes on where a copy is lost that its group can do without.
    heartbeat : HeartbeatAddress or None
        Where ranks of other hosts than rank 0's are to be heard.
    """

    run_dir: str
    folder: str
    max_threads: int
    log_size_bytes: int
    returned_size_bytes: int
    returned_total_bytes: int
    server_ranks: tuple[int, ...]
    server_memory_bytes: int
    refuse_when_full: bool
    spill: bool
    specs: dict[str, ModuleSpec]
    groups: tuple[GroupPlan, ...]
    gpus: tuple[str, ...] | None = None
    boundaries: tuple[Boundary, ...] = ()
    tail_ranks: tuple[int, ...] = ()
    traces_all: bool = False
    session: str = ""
    states: tuple[str, ...] = ()
    survives_loss: bool = False
    heartbeat: HeartbeatAddress | None = None


class RunGroup(NamedTuple):
    """Do your part of an iteration of a group; which one it is follows from the group's plan.

    The same for all ranks of the group, so it is made once.

    Attributes
    ----------
    group : int
        Its place in the welcome's `groups`.
    iteration : tuple of int
    ranks : tuple of int
        Of all its copies, in order.
    first_serial : int
        As in `place_modules`.
    gpus : tuple, or None
        For each copy what `RunCopy` has; None if no module asks for GPUs.
    """

    group: int
    iteration: Iteration
    ranks: tuple[int, ...]
    first_serial: int
    gpus: tuple[tuple[str, ...] | None, ...] | None = None


class RunCopy(Frozen):
    """Do your part of one copy of a module, which is started again.

    Attributes
    ----------
    plan : CopyPlan
    copies_of : dict
        Copies of each module in the group.
    peers : Peers
        The ranks that it can send to.
    gpus : tuple of str, or None
        What the copy's program may see if the module is an executable; None if that is to be left
        as it is.
    """

    plan: CopyPlan
    copies_of: dict[str, int]
    peers: Peers
    gpus: tuple[str, ...] | None = None


class MakeModuleComm(Frozen):
    """All ranks of your module want its communicator: make it, together."""

    serial: int


class Leave(Frozen):
    """There is no more work, and this is the run's exit code; finalize MPI and exit.

    Attributes
    ----------
    exit_code : int
    dead : tuple of int
        Ranks that have died: MPI cannot be finalized without them.
    """

    exit_code: int = 0
    dead: tuple[int, ...] = ()


class ForgetRanks(Frozen):
    """These ranks have died; to tuple servers, whose MPI may not say so.

    To all ranks, with the tag of `LeaveCopy`, where servers have died that have twins.
    """

    ranks: tuple[int, ...]


Order: TypeAlias = "Welcome | RunGroup | RunCopy | MakeModuleComm | ForgetRanks | Leave"


class Stop(Frozen):
    """The run is stopping, with this exit code; sent once to every rank, on a tag of its own."""

    reason: str
    exit_code: int = 1


class LeaveCopy(Frozen):
    """Leave this copy, which has failed; on a tag of its own too."""

    serial: int


# -- to rank 0, WORKER_TO_EXECUTIVE -----------------------------------------------------------
# `rank` is the sender's, in the parent communicator. `times` is what it has spent on a copy or, in
# its goodbye, from its welcome on. Reports with a rank are events of the scheduler.


class RankFinished(Frozen):
    """A rank's part of a copy is done; `returned` is what its function returned on rank 0 of it."""

    serial: int
    rank: int
    returned: Any = None
    leftover_messages: int = 0
    counts: MessageCounts = NO_MESSAGES
    times: Times = NO_TIMES


class RankFailed(Frozen):
    """A rank's part of a copy failed.

    Attributes
    ----------
    serial, rank : int
    error : str
        The exception in one line.
    host : str
    detail : str
        Its traceback, or the last lines that an executable wrote to stderr.
    counts : MessageCounts
    """

    serial: int
    rank: int
    error: str = ""
    host: str = ""
    detail: str = ""
    counts: MessageCounts = NO_MESSAGES
    times: Times = NO_TIMES


class RankStopped(Frozen):
    """A rank's part of a copy ended because the run is stopping: a consequence, never a cause."""

    serial: int
    times: Times = NO_TIMES


class RankLeft(Frozen):
    """A rank has left a copy, as it was told to."""

    serial: int
    rank: int
    counts: MessageCounts = NO_MESSAGES
    times: Times = NO_TIMES


COPY_ENDED = (RankFinished, RankFailed, RankStopped, RankLeft)
"""How a rank's part of a copy may end."""


class ModuleCommAsked(Frozen):
    """A rank of a copy waits for the communicator of all copies of its module."""

    serial: int
    rank: int


class LossAllowed(Frozen):
    """The group can go on if my copy, which has no other rank, dies with me."""

    serial: int


class WaitOver(Frozen):
    """I go on; said only after `Waiting`."""

    serial: int


class Waiting(Frozen):
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
    counts : MessageCounts
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
    counts: MessageCounts = NO_MESSAGES


class Recorded(Frozen):
    """Something for the journal."""

    record: Record


class StateSaved(NamedTuple):
    """A module has saved its state to a file, after its puts had reached the tuple servers."""

    name: str


class Goodbye(Frozen):
    """I am about to finalize MPI; a server tells how many tuples nobody took."""

    tuples_left: int = 0
    times: Times = NO_TIMES


class ServerStatus(Frozen):
    """What I, a tuple server, hold; said now and then, if it has changed."""

    tuples: int
    size_bytes: int
    capacity_bytes: int


def starting_peers(
    group: str, modules: Sequence[ModulePlacement], specs: Mapping[str, ModuleSpec]
) -> Peers:
    """Return the peers in a group that starts."""
    functions: dict[str, tuple[CopyRanks, ...]] = {}
    programs = []
    for placement in modules:
        if specs[placement.plan.module].function is None:
            programs.append(placement.plan.module)
        else:
            functions[placement.plan.module] = tuple(
                CopyRanks(placement.serial + 1 + index, placement.ranks_of(index))
                for index in range(placement.plan.copies)
            )
    return Peers(group, functions, tuple(programs))


def peers_of(group: str, copies: Sequence[CopyPlan], specs: Mapping[str, ModuleSpec]) -> Peers:
    """Return the peers in a group, of which some copies have been started again."""
    found: dict[str, list[CopyRanks]] = {}
    for plan in sorted(copies, key=lambda plan: plan.copy_index):
        found.setdefault(plan.module, []).append(CopyRanks(plan.serial, plan.ranks))
    return Peers(
        group,
        {name: tuple(ones) for name, ones in found.items() if specs[name].function is not None},
        tuple(name for name in found if specs[name].function is None),
    )


Report: TypeAlias = (
    "RankFinished | RankFailed | RankStopped | RankLeft | ModuleCommAsked | LossAllowed | Waiting "
    "| WaitOver | Recorded | StateSaved | Goodbye | ServerStatus"
)
