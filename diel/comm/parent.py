"""The communicator from which everything else is made.

It is one replaceable object: nothing but this file holds it for long, nobody names COMM_WORLD,
so that a smaller communicator can take its place when a rank is lost.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from diel.comm import tags
from diel.comm.dead_ranks import DeadRanks
from diel.comm.dead_ranks import attach as attach_dead_ranks
from diel.comm.devices import visible_gpus
from diel.comm.mpi import yield_when_idle
from diel.comm.waiting import wait_for
from diel.comm.wakeup import Wakeup, attach
from diel.errors import RunStopped

if TYPE_CHECKING:
    from mpi4py import MPI


class Parent:
    """One rank's end of the parent communicator.

    Parameters
    ----------
    world : MPI.Intracomm
        Duplicated, so that a module's own messages on COMM_WORLD never meet ours. Collective:
        every rank of it makes its Parent at start-up.

    Attributes
    ----------
    comm : MPI.Intracomm
    rank, size : int
    host : str
    hosts_and_gpus : list of (str, tuple of str)
        On rank 0: for each rank its host and the GPUs that it sees; empty elsewhere.
    pids_here : dict of int to int
        The processes of all ranks of this host.
    is_beside_rank0 : bool
        Whether rank 0 is on this host too.
    beside : list
        Processes that serve all ranks of this host, and live as long.
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
        # Beside the duplication the only collective, and here for the same reason: nobody can be
        # missing yet.
        token = os.urandom(8).hex() if self.rank == self.EXECUTIVE_RANK else ""
        gathered = self.comm.allgather((self.host, visible_gpus(), token, os.getpid()))
        self.hosts_and_gpus: list[tuple[str, tuple[str, ...]]] = (
            [rank[:2] for rank in gathered] if self.rank == self.EXECUTIVE_RANK else []
        )
        self.pids_here: dict[int, int] = {
            rank: pid for rank, (host, *_, pid) in enumerate(gathered) if host == self.host
        }
        self.is_beside_rank0: bool = self.EXECUTIVE_RANK in self.pids_here
        self.beside: list[object] = []
        self.dead_ranks = DeadRanks(self.comm)
        attach_dead_ranks(self.dead_ranks, self.comm)
        self.wakeup = Wakeup(self.rank, self.size)
        attach(self.wakeup, self.comm)
        with contextlib.suppress(OSError):  # it polls more often then
            self.wakeup.open(gathered[self.EXECUTIVE_RANK][2])
        yield_when_idle(False)  # from here on nothing of ours blocks in MPI

    def close(self) -> None:
        """Give back what the rank has outside of MPI."""
        yield_when_idle(True)
        self.wakeup.close()

    def let_module_block(self, may_block: bool) -> None:
        """Say whether a module of this rank has a communicator of its own.

        Then it may block in MPI, where an idle rank gives its core away. And it may have messages
        under way while it waits in diel, which MPI moves only while it is called: it does not sleep
        for long.
        """
        self.wakeup.sleeps_long = not may_block
        yield_when_idle(may_block)

    def create_communicator(self, ranks: Sequence[int], serial: int) -> MPI.Intracomm:
        """Make a communicator of some ranks; collective over these alone.

        Parameters
        ----------
        ranks : sequence of int
            Ranks of the parent communicator; rank i of the result is ``ranks[i]``.
        serial : int
            The same on all of them and different for communicators that are being made at the
            same time by overlapping ranks.
        """
        if len(ranks) == 1:
            return self._mpi.COMM_SELF.Dup()
        group = self.comm.Get_group()
        members = group.Incl(list(ranks))
        yielded = yield_when_idle(True)  # it blocks until all of them are here
        try:
            return self.comm.Create_group(members, tag=tags.for_group(serial))
        finally:
            yield_when_idle(yielded)
            members.Free()
            group.Free()

    def retire_communicator(
        self, comm: MPI.Intracomm, safe_point: Callable[[], None] | None = None
    ) -> int:
        """Wait until all its ranks are done with a communicator, empty it and free it.

        Emptying matters: MPICH reuses context ids, and a message that nobody received would
        reach the next communicator with the same id.

        Parameters
        ----------
        comm : MPI.Intracomm
        safe_point : callable, optional
            Asked during the wait; default: `raise_if_stopped`.

        Returns
        -------
        int
            Messages that were sent on it and never received.
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
        """End a wait if the run is stopping: the safe point of every wait of ours.

        Raises
        ------
        RunStopped
            If rank 0 has told this rank that the run is stopping. The message stays where it
            is, so that every further wait ends too.
        """
        if self.stop_was_announced():
            raise RunStopped("the run is stopping: another module failed, or a stop was asked for")

    def abort(self, exit_code: int) -> None:
        """End all ranks at once; what MPI's launcher prints about it comes after our own words."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.wakeup.remove()
        self.comm.Abort(exit_code)
