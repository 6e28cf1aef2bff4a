"""Communicators over MPI: nonblocking calls, which are polled until they are done.

MPI's blocking calls poll without a pause, and wait for ever for a rank that has failed. Neither
happens here: a wait sleeps, looks for reports of failures, and has a time limit. MPI advances most
messages only while it is called, so requests are to be tested while a rank computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dnn.backend import Array
from dnn.distributed.allreduce import Routine, Steps
from dnn.distributed.communicator import DEFAULT_TIMEOUT_S, Communicator, Transfer
from dnn.distributed.device_arrays import GPU_AWARE, finish_work, is_gpu_aware
from dnn.distributed.messages import FAILURE_TAG, MessageCommunicator, failure_message
from dnn.distributed.shared_memory import (
    map_file,
    memory_is_ordered,
    new_name,
    paged,
    pieces_of,
    remove_file,
)
from dnn.errors import CommunicationError, ConfigurationError, PeerError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiCommunicator", "communicator_of"]


LARGEST_MESSAGE = 1 << 30
"""Bytes of the largest single message: many MPI libraries count bytes by 32 bits."""
_SMALL_BYTES = 1 << 16


def communicator_of(comm: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Communicator:
    """Return a communicator of dnn over a communicator of mpi4py.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Communicator
        All its ranks call this. It is duplicated, so that messages do not mix with those of other
        users; a `Communicator` is returned as it is.
    timeout_s : float, seconds
        Time limit of each wait.

    Returns
    -------
    Communicator

    Raises
    ------
    ConfigurationError
        If it is neither.
    """
    if hasattr(comm, "gather_values"):
        own: Communicator = comm
        return own
    if not hasattr(comm, "Idup"):
        raise ConfigurationError(
            f"a communicator must be one of mpi4py, such as MPI.COMM_WORLD, not {comm!r}"
        )
    return MpiCommunicator.over(comm, timeout_s)


def _pieces(memory: memoryview) -> list[memoryview]:
    """Cut memory into pieces of the size of a message."""
    starts = range(0, max(1, len(memory)), LARGEST_MESSAGE)
    return [memory[start : start + LARGEST_MESSAGE] for start in starts]


def _all_of(polls: list[Callable[[], bool]]) -> Callable[[], bool]:
    """Return a function that says whether all of some messages are done."""
    if len(polls) == 1:
        return polls[0]

    def poll() -> bool:
        while polls and polls[-1]():
            polls.pop()
        return not polls

    return poll


class _Message:
    """Request of MPI with its memory, which is kept until MPI is done with it.

    The caller may have given up and dropped the memory, which MPI still reads or writes.
    """

    unfinished: ClassVar[set[_Message]] = set()  # of all communicators, as long as the process

    __slots__ = ("failures", "is_receive", "memory", "request")

    def __init__(
        self, request: Any, memory: object, failures: _Failures, is_receive: bool = False
    ) -> None:
        self.request = request
        self.memory = memory
        self.failures = failures
        self.is_receive = is_receive
        self.unfinished.add(self)

    def test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the message is done."""
        is_done: bool = True  # after an error, too
        try:
            is_done = self.request.Test(status)
        finally:
            if is_done:
                self.unfinished.discard(self)
        return is_done

    @classmethod
    def cancel(cls, failures: _Failures) -> None:
        """Cancel open receives of communicators; messages that have begun to arrive are kept."""
        for each in [x for x in cls.unfinished if x.is_receive and x.failures is failures]:
            each.request.Cancel()
            each.test()


class _Failures:
    """Reports of the rank that failed first, for a communicator and all split from it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.comm: MPI.Intracomm | None = None  # set when it can be used
        self.first: dict[str, Any] | None = None
        self.sent: list[Any] = []  # requests with their texts, kept in memory

    def report(self, error: BaseException) -> None:
        message = failure_message(self.rank, error)
        if message is None or self.first is not None or self.comm is None:
            return
        self.first = message
        text = json.dumps(message).encode()  # names of files may be no valid Unicode
        for rank in range(self.size):
            if rank != self.rank:
                self.sent.append((self.comm.Isend(text, rank, FAILURE_TAG), text))

    def look(self) -> PeerError | None:
        from mpi4py import MPI

        if self.first is None and self.comm is not None:
            status = MPI.Status()
            message = self.comm.Improbe(MPI.ANY_SOURCE, FAILURE_TAG, status)
            if message is not None:
                text = bytearray(status.Get_count(MPI.BYTE))
                message.Recv(text)
                self.first = json.loads(text)
        if self.first is None or self.first["rank"] == self.rank:
            return None
        return PeerError(self.first["rank"], self.first["error"])


class MpiCommunicator(MessageCommunicator):
    """Communicator over a communicator of mpi4py that has no other user; `over` makes it."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        size: int,
        nodes: Sequence[int],
        timeout_s: float,
        failures: _Failures,
    ) -> None:
        super().__init__(rank, size, nodes, timeout_s)
        self._comm = comm
        self._failures = failures
        if is_gpu_aware():
            self.device_transport = GPU_AWARE

    @classmethod
    def over(cls, comm: MPI.Intracomm, timeout_s: float) -> MpiCommunicator:
        """Return a communicator over a duplicate of mpi4py's `comm`; all its ranks call it."""
        from mpi4py import MPI

        rank, size = comm.Get_rank(), comm.Get_size()
        failures = _Failures(rank, size)
        own, started = comm.Idup()
        self = cls(own, rank, size, [0] * size, timeout_s, failures)
        Transfer(started.Test, "all other ranks to make the same communicator", self).wait()
        failures.comm = own
        names = self.gather_values(MPI.Get_processor_name())
        hosts = list(dict.fromkeys(names))
        self.nodes = tuple(hosts.index(name) for name in names)
        return self

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        pieces = [(self._comm.Isend(piece, rank, tag), piece) for piece in _pieces(memory)]
        return _all_of([_Message(*each, self._failures).test for each in pieces])

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        return _all_of([self._receive_piece(piece, rank, tag) for piece in _pieces(memory)])

    def _receive_piece(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        from mpi4py import MPI

        message = _Message(self._comm.Irecv(memory, rank, tag), memory, self._failures, True)
        status = MPI.Status()

        def poll() -> bool:
            try:
                if not message.test(status):
                    return False
            except MPI.Exception as error:
                raise CommunicationError(
                    f"rank {self.rank} expects {memory.nbytes:,} bytes from rank {rank} "
                    f"(tag {tag}): {error}"
                ) from error
            self.check_size(status.Get_count(MPI.BYTE), memory.nbytes, rank, tag)
            return True

        return poll

    def _part(self, ranks: Sequence[int], color: int) -> MpiCommunicator:
        group = self._comm.Get_group().Incl(ranks)
        comm = self._comm.Create_group(group, color)
        nodes = [self.nodes[rank] for rank in ranks]
        return MpiCommunicator(
            comm, ranks.index(self.rank), len(ranks), nodes, self.timeout_s, self._failures
        )

    def _allocate(self, size_bytes: int, common: bool = False) -> Sequence[Array] | None:
        host = self.nodes[self.rank]
        members = [rank for rank in range(self.size) if self.nodes[rank] == host]
        whole_bytes = paged(size_bytes) * (1 if common else len(members))
        memory, name = None, ""
        try:
            if self.rank == members[0] and memory_is_ordered():
                name = new_name()
                memory = map_file(name, whole_bytes, create=True)
            names = self.gather_values(name if memory is not None else "")
            if self.rank != members[0] and names[members[0]]:
                memory = map_file(names[members[0]], whole_bytes, create=False)
            if not all(self.gather_values(memory is not None)) or memory is None:
                return None
        finally:
            if name and memory is not None:
                remove_file(name)
        if common:
            return [memory[:size_bytes]] * len(members)
        return pieces_of(memory, size_bytes, len(members))

    def _routines(self, dtype: np.dtype[Any]) -> Mapping[str, Routine]:
        if self._offered is None:
            self._offered = {**super()._routines(dtype), "mpi": self._sum_by_mpi}
        if dtype.itemsize == 2 and dtype.kind == "f":  # float16, which MPI lacks
            return {name: how for name, how in self._offered.items() if name != "mpi"}
        return self._offered

    def sum(self, array: Array, wire: str | None = None, routine: str | None = None) -> None:
        """Replace an array by its sum over ranks; small arrays by a direct call of MPI."""
        is_small = (
            wire is None
            and isinstance(array, np.ndarray)
            and array.nbytes <= _SMALL_BYTES
            and array.flags.c_contiguous
            and array.dtype.char in "fdlq"
            and self.size > 1
        )
        if is_small and self._name_of(array, routine) == "mpi":
            from mpi4py import MPI

            self.check_usable()
            request = self._comm.Iallreduce(MPI.IN_PLACE, array)
            message = _Message(request, array, self._failures)
            Transfer(message.test, f"MPI's own sum of {array.nbytes:,} bytes", self).wait()
        else:
            super().sum(array, wire, routine)

    def _sum_by_mpi(self, array: Array, tag: int) -> Steps:
        from mpi4py import MPI

        request = self._comm.Iallreduce(MPI.IN_PLACE, array)
        message = _Message(request, array, self._failures)
        yield [Transfer(message.test, "MPI's own sum", self)]

    def _device_steps(self, array: Any, wire: str | None, routine: str | None) -> Steps:
        if wire is None and routine is None and self.device_transport == GPU_AWARE:
            finish_work(array)
            return self._sum_by_mpi(array, 0)
        return super()._device_steps(array, wire, routine)

    def _send_failure(self, error: BaseException) -> None:
        self._failures.report(error)

    def _cancel_receives(self) -> None:
        _Message.cancel(self._failures)

    def close(self) -> None:
        """Release shared memory, and free the communicator of MPI unless a rank has failed."""
        super().close()
        if self._failures.first is None:
            self._comm.Free()

    def received_failure(self) -> PeerError | None:
        """Return the failure that another rank has reported, or None."""
        return self._failures.look()
