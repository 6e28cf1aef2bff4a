"""The messages between rank 0 and the other ranks: orders from rank 0, reports to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diel.comm.meter import NO_TIMES, Times
from diel.coupling.address import CopyRanks, Peers
from diel.coupling.messages import NO_MESSAGES, MessageCounts
from diel.executive.plans import CopyPlan, Iteration, ModulePlacement, RunPlan
from diel.frozen import Frozen
from diel.loading.module_spec import ModuleSpec
from diel.run.tasks import ProgramEnd

if TYPE_CHECKING:
    from diel.comm.cores import Topology
    from diel.executive.heartbeats import HeartbeatAddress
    from diel.run.fields import Record

# -- from rank 0, EXECUTIVE_TO_WORKER ---------------------------------------------------------


class Welcome(Frozen):
    """The first order of a run: its plan, which a rank needs before it imports NumPy.

    Attributes
    ----------
    plan : RunPlan
        As rank 0 has completed it for the ranks that were started.
    run_dir : str
    session : str
        An id that differs each time that a run is begun or resumed.
    traces_all : bool
        Whether every single call of the tuple space is to be kept for the trace.
    states : sequence of str
        The files with the states from which modules go on in a resumed run.
    heartbeat : HeartbeatAddress or None
        Where the heartbeats of other hosts than rank 0's go.
    gpus : tuple of str, or None
        The receiver's GPUs for the whole run, as in ``CUDA_VISIBLE_DEVICES``; None if that
        variable stays as it is.
    """

    plan: RunPlan
    run_dir: str
    session: str
    traces_all: bool = False
    states: tuple[str, ...] = ()
    heartbeat: HeartbeatAddress | None = None
    gpus: tuple[str, ...] | None = None


class RunGroup(NamedTuple):
    """Order to run a rank's copy in an iteration of a group.

    The same for all ranks of the group, so that it is serialized once: each rank finds its own
    copy by `place_modules`.

    Attributes
    ----------
    group : int
        The index of the group in `RunPlan.groups`.
    iteration : tuple of int
    ranks : tuple of int
        The ranks of all its copies, in order.
    first_serial : int
        As in `place_modules`.
    gpus : tuple, or None
        For each copy `RunCopy.gpus`; None if no module asks for GPUs.
    cpus : tuple, or None
        For each copy `RunCopy.cpus`; None if no module of the group is pinned.
    """

    group: int
    iteration: Iteration
    ranks: tuple[int, ...]
    first_serial: int
    gpus: tuple[tuple[str, ...] | None, ...] | None = None
    cpus: tuple[tuple[tuple[int, ...] | None, ...] | None, ...] | None = None


class RunCopy(Frozen):
    """Order to run a rank's part of one copy of a module that is started again.

    Attributes
    ----------
    plan : CopyPlan
    copies_of : dict
        The number of copies of each module in the group.
    peers : Peers
        The ranks that the copy can send messages to.
    gpus : tuple of str, or None
        The GPUs that the copy's program may see if the module is an executable; None if
        ``CUDA_VISIBLE_DEVICES`` stays as it is.
    cpus : tuple, or None
        For each rank of the copy the CPUs to which it, or the program that it starts, is bound;
        None if the module is not pinned.
    """

    plan: CopyPlan
    copies_of: dict[str, int]
    peers: Peers
    gpus: tuple[str, ...] | None = None
    cpus: tuple[tuple[int, ...] | None, ...] | None = None

    def cpus_of(self, rank: int) -> tuple[int, ...] | None:
        """Return the CPUs to which a rank of the copy is bound; None for those that it has."""
        return None if self.cpus is None else self.cpus[self.plan.ranks.index(rank)]


class MakeModuleComm(Frozen):
    """Order to all ranks of a module to make its communicator; all of them have asked for it."""

    serial: int


class Leave(Frozen):
    """Order to finalize MPI and exit with the run's exit code: there is no more work.

    Attributes
    ----------
    exit_code : int
    dead : tuple of int
        Ranks that have died: MPI cannot be finalized without them.
    """

    exit_code: int = 0
    dead: tuple[int, ...] = ()


class ForgetRanks(Frozen):
    """Notice that ranks have died, to tuple servers, where MPI may not report it.

    It goes to the pool too, with the tag of `LeaveCopy`, if servers with twins have died.
    """

    ranks: tuple[int, ...]


Order: TypeAlias = "Welcome | RunGroup | RunCopy | MakeModuleComm | ForgetRanks | Leave"


class Stop(Frozen):
    """Notice that the run is stopping, and with which exit code; it has an MPI tag of its own."""

    reason: str
    exit_code: int = 1


class LeaveCopy(Frozen):
    """Order to leave a copy that has failed; it has an MPI tag of its own."""

    serial: int


# -- to rank 0, WORKER_TO_EXECUTIVE -----------------------------------------------------------
# `rank` is the sender's, in the parent communicator. `times` is how the sender spent its time, on a
# copy or, in a goodbye, since its welcome. Reports with a rank are events of the scheduler.


class RankFinished(Frozen):
    """A rank's part of a copy is done.

    Rank 0 of the copy sends the value that was `returned`, or how its `program` has finished.
    """

    serial: int
    rank: int
    returned: Any = None
    leftover_messages: int = 0
    counts: MessageCounts = NO_MESSAGES
    times: Times = NO_TIMES
    program: ProgramEnd | None = None


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
    """A rank's part of a copy ended because the run is stopping, not by a failure of its own."""

    serial: int
    times: Times = NO_TIMES


class RankLeft(Frozen):
    """A rank has left a copy, as `LeaveCopy` ordered."""

    serial: int
    rank: int
    counts: MessageCounts = NO_MESSAGES
    times: Times = NO_TIMES


COPY_ENDED = (RankFinished, RankFailed, RankStopped, RankLeft)
"""The reports that end a rank's part of a copy."""


class ModuleCommAsked(Frozen):
    """A rank of a copy waits for the communicator of all copies of its module."""

    serial: int
    rank: int


class LossAllowed(Frozen):
    """The group can go on without the sender's copy, a copy of one rank, if that rank dies."""

    serial: int


class WaitOver(Frozen):
    """The sender's wait is over; sent only after `Waiting`."""

    serial: int


class Waiting(Frozen):
    """The report of a wait of the sender that has lasted a while.

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
        Whether the sender waits for a tuple server; otherwise it waits for other ranks.
    puts : tuple of int
        How many puts the sender has sent to each server.
    waited_s : float
    request : int
        Serial of the sender's latest request to a tuple server.
    counts : MessageCounts
        The sender's messages to and from other modules, and whether it waits for a message.
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
    """A record for the journal."""

    record: Record


class CoresFound(NamedTuple):
    """The cores of the sender's host; sent first, by one rank of each, if modules are pinned."""

    topology: Topology


class StateSaved(NamedTuple):
    """A module has saved its state to a file, after its puts had reached the tuple servers."""

    name: str


class Goodbye(Frozen):
    """The sender is about to finalize MPI; `tuples_left` is for servers: tuples never taken."""

    tuples_left: int = 0
    times: Times = NO_TIMES


class ServerStatus(Frozen):
    """How many tuples and bytes a tuple server holds; sent at intervals, if changed."""

    tuples: int
    size_bytes: int
    capacity_bytes: int


def starting_peers(
    group: str, modules: Sequence[ModulePlacement], specs: Mapping[str, ModuleSpec]
) -> Peers:
    """Return the ranks of all modules of a group that starts, as its modules address them."""
    functions: dict[str, tuple[CopyRanks, ...]] = {}
    programs = []
    by_mpi = []
    for placement in modules:
        spec = specs[placement.plan.module]
        if spec.function is None:
            programs.append(spec.own_name)
        else:
            functions[spec.own_name] = tuple(
                CopyRanks(placement.serial + 1 + index, placement.ranks_of(index))
                for index in range(placement.plan.copies)
            )
            if spec.function.mpi:
                by_mpi.append(spec.own_name)
    return Peers(group, functions, tuple(programs), tuple(by_mpi))


def peers_of(group: str, copies: Sequence[CopyPlan], specs: Mapping[str, ModuleSpec]) -> Peers:
    """Return the peers, as by `starting_peers`, once copies of the group were started again."""
    found: dict[str, list[CopyRanks]] = {}
    for plan in sorted(copies, key=lambda plan: plan.copy_index):
        found.setdefault(plan.module, []).append(CopyRanks(plan.serial, plan.ranks))
    functions = {name: specs[name] for name in found if specs[name].function is not None}
    return Peers(
        group,
        {spec.own_name: tuple(found[name]) for name, spec in functions.items()},
        tuple(specs[name].own_name for name in found if name not in functions),
        tuple(spec.own_name for spec in functions.values() if spec.function and spec.function.mpi),
    )


Report: TypeAlias = (
    "RankFinished | RankFailed | RankStopped | RankLeft | ModuleCommAsked | LossAllowed | Waiting "
    "| WaitOver | Recorded | CoresFound | StateSaved | Goodbye | ServerStatus"
)
