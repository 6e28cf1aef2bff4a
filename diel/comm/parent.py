"""The parent communicator of a run, from which all others are made.

It is one replaceable object: no other file holds it for long or names COMM_WORLD, so that a smaller
communicator can take its place when a rank is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from diel.comm import tags
from diel.comm.dead_ranks import DeadRanks
from diel.comm.dead_ranks import attach as attach_dead_ranks
from diel.comm.devices import visible_gpus
from diel.comm.mpi import abort, yield_when_idle
from diel.comm.waiting import wait_for
from diel.comm.wakeup import Wakeup, attach
from diel.errors import RunStopped

if TYPE_CHECKING:
    from mpi4py import MPI


class Parent:
    """The parent communicator of one rank, with the rank's host, GPUs and neighbours there.

    Parameters
    ----------
    world : MPI.Intracomm
        Duplicated, so that a module's own messages on COMM_WORLD never match receives of diel.
        Collective: every rank of it makes its Parent at start-up.

    Attributes
    ----------
    comm : MPI.Intracomm
    rank, size : int
    host : str
    hosts_and_gpus : list of (str, tuple of str)
        On rank 0: for each rank its host and the GPUs that it sees; empty elsewhere.
    bound_cores : dict of int to tuple of int
        On rank 0: the cores of each rank that may not use all cores of its host; empty elsewhere.
    pids_here : dict of int to int
        The process ids of all ranks of this host, by rank.
    is_beside_rank0 : bool
        Whether rank 0 is on this host too.
    beside : list
        Helper processes for all ranks of this host, which run as long as the ranks.
    dead_ranks : DeadRanks
        Attached to the communicator.
    wakeup : Wakeup
        Attached to the communicator.
    """

    EXECUTIVE_RANK = 0

    def __init__(self, world: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm: MPI.Intracomm = world.Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self.host: str = MPI.Get_processor_name()
        # Besides the duplication the only collective call, and made here for the same reason: no
        # rank can be missing yet.
        token = os.urandom(8).hex() if self.rank == self.EXECUTIVE_RANK else ""
        gathered = self.comm.allgather(
            (self.host, visible_gpus(), token, _bound_cores(), os.getpid())
        )
        self.hosts_and_gpus: list[tuple[str, tuple[str, ...]]] = (
            [rank[:2] for rank in gathered] if self.rank == self.EXECUTIVE_RANK else []
        )
        self.bound_cores: dict[int, tuple[int, ...]] = {}
        if self.rank == self.EXECUTIVE_RANK:
            self.bound_cores = {rank: each[3] for rank, each in enumerate(gathered) if each[3]}
        self.pids_here: dict[int, int] = {
            rank: pid for rank, (host, *_, pid) in enumerate(gathered) if host == self.host
        }
        self.is_beside_rank0: bool = self.EXECUTIVE_RANK in self.pids_here
        self.beside: list[object] = []
        self.dead_ranks = DeadRanks(self.comm)
        attach_dead_ranks(self.dead_ranks, self.comm)
        self.wakeup = Wakeup(self.rank, self.size)
        attach(self.wakeup, self.comm)
        with contextlib.suppress(OSError):  # then this rank polls more often
            self.wakeup.open(gathered[self.EXECUTIVE_RANK][2])
        yield_when_idle(False)  # from here on diel does not block in MPI

    def close(self) -> None:
        """Restore MPI's yielding and close the wakeup; the communicator stays."""
        yield_when_idle(True)
        self.wakeup.close()

    def let_module_block(self, may_block: bool) -> None:
        """Set whether a module of this rank has a communicator of its own.

        Then the module may block in MPI, which has to give the core away meanwhile. And it may have
        messages under way while it waits in diel, which MPI moves only while it is called: so
        sleeps are short.
        """
        self.wakeup.sleeps_long = not may_block
        yield_when_idle(may_block)

    def create_communicator(self, ranks: Sequence[int], serial: int) -> MPI.Intracomm:
        """Make a communicator of some ranks, in this order; collective over these alone.

        The serial number is the same on all of these ranks, and different for communicators that
        overlapping ranks make at the same time.
        """
        if len(ranks) == 1:
            return self._mpi.COMM_SELF.Dup()
        group = self.comm.Get_group()
        members = group.Incl(list(ranks))
        yielded = yield_when_idle(True)  # Create_group blocks until all members are here
        try:
            return self.comm.Create_group(members, tag=tags.for_group(serial))
        finally:
            yield_when_idle(yielded)
            members.Free()
            group.Free()

    def retire_communicator(
        self, comm: MPI.Intracomm, safe_point: Callable[[], None] | None = None
    ) -> int:
        """Wait until all ranks are done with a communicator, receive what is left, and free it.

        Returns how many messages were sent on it and never received. MPICH reuses context ids: such
        a message would reach the next communicator with the same id. `safe_point` is called during
        the wait; by default it is `raise_if_stopped`.
        """
        MPI = self._mpi
        if comm.Get_size() > 1:
            barrier = comm.Ibarrier()
            wait_for(lambda: barrier.Test() or None, safe_point=safe_point or self.raise_if_stopped)
        leftovers = 0
        while (
            message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status := MPI.Status())
        ) is not None:
            message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
            leftovers += 1
        comm.Free()
        return leftovers

    def stop_was_announced(self) -> bool:
        """Whether rank 0 has told this rank that the run is stopping."""
        try:
            return self.comm.Iprobe(self.EXECUTIVE_RANK, tags.EXECUTIVE_TO_ALL_STOP)
        except self._mpi.Exception as error:
            self.dead_ranks.note(error)
            return False

    def raise_if_stopped(self) -> None:
        """Raise RunStopped if rank 0 has told this rank that the run is stopping.

        It is the safe point of every wait in diel. The message is not received, so that every
        further wait ends too.
        """
        if self.stop_was_announced():
            raise RunStopped("the run is stopping: another module failed, or a stop was asked for")

    def abort(self, exit_code: int) -> None:
        """End all ranks at once."""
        abort(self.comm, exit_code, self.wakeup.remove)


def _bound_cores() -> tuple[int, ...]:
    """Return the cores that this process is bound to; empty if it may use all of its host."""
    cores = os.sched_getaffinity(0)
    return tuple(sorted(cores)) if len(cores) < (os.cpu_count() or 1) else ()
