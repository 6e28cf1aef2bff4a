"""Python objects sent between ranks without blocking: instructions and reports, not payloads."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from diel.comm.dead_ranks import dead_ranks_of
from diel.comm.waiting import wait_for
from diel.comm.wakeup import wakeup_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpi4py import MPI

Incoming = TypeVar("Incoming")


# Sends are tested for completion only when there are many: where ranks share cores, MPI yields the
# core at each test that fails.
_KEPT_MESSAGES: Final = 16
_KEPT_BYTES: Final = 1 << 20


@dataclass
class _Arrival:
    source: int
    buffer: bytearray
    request: MPI.Request


class Mailbox(Generic[Incoming]):
    """Sends and receives objects, in order for each pair of ranks; each way has an MPI tag.

    All ranks are of one run, so objects are pickled. A large one is received piece by piece while
    the caller goes on polling: a sender that computes in between cannot hold up the receiver.
    """

    def __init__(self, comm: MPI.Intracomm, *, sends: int, receives: int) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._dead_ranks = dead_ranks_of(comm)
        self._wakeup = wakeup_of(comm)
        self._wakeup.sending.append(self._is_under_way)
        self._send_tag = sends
        self._receive_tag = receives
        self._sending: deque[tuple[MPI.Request, bytes]] = deque()
        self._kept_bytes = 0
        self._arriving: deque[_Arrival] = deque()

    def send(self, message: object, destination: int) -> None:
        """Send a message to one rank, without waiting."""
        self.send_to_all(message, (destination,))

    def send_to_all(self, message: object, destinations: Iterable[int]) -> None:
        """Send the same message to several ranks, without waiting."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for destination in destinations:
            try:
                request = self._comm.Isend([data, self._mpi.BYTE], destination, self._send_tag)
            except self._mpi.Exception as error:
                self._dead_ranks.note(error)  # a dead rank needs no message
                continue
            self._sending.append((request, data))
            self._kept_bytes += len(data)
            self._wakeup.wake(destination)
        if len(self._sending) > _KEPT_MESSAGES or self._kept_bytes > _KEPT_BYTES:
            self._forget_sent()

    def poll(self) -> tuple[int, Incoming] | None:
        """Return (source, message) of the next message that is here whole, or None."""
        status = self._mpi.Status()
        try:
            message = self._comm.Improbe(self._mpi.ANY_SOURCE, self._receive_tag, status)
        except self._mpi.Exception as error:
            self._dead_ranks.note(error)
            message = None
        if message is not None:
            buffer = bytearray(status.Get_count(self._mpi.BYTE))
            request = message.Irecv([buffer, self._mpi.BYTE])
            self._arriving.append(_Arrival(status.Get_source(), buffer, request))
        return self._next_whole() if self._arriving else None

    def wait(
        self, timeout_s: float | None = None, safe_point: Callable[[], None] | None = None
    ) -> tuple[int, Incoming] | None:
        """Wait for the next message, as `wait_for` does; None after the timeout."""
        return wait_for(self.poll, timeout_s, safe_point, wakeup=self._wakeup)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was sent has left; False after `timeout_s` seconds."""
        return wait_for(lambda: self._forget_sent() or None, timeout_s) is not None

    def _is_under_way(self) -> bool:
        return bool(self._arriving) or not self._forget_sent()

    def _next_whole(self) -> tuple[int, Any] | None:
        unfinished_sources = set()
        for index, arrival in enumerate(self._arriving):
            # A message behind an unfinished one of the same source has to wait its turn.
            try:
                is_whole = arrival.source not in unfinished_sources and arrival.request.Test()
            except self._mpi.Exception as error:  # its sender has died in the middle of it
                self._dead_ranks.note(error)
                del self._arriving[index]
                return None
            if is_whole:
                del self._arriving[index]
                return arrival.source, pickle.loads(arrival.buffer)
            unfinished_sources.add(arrival.source)
        return None

    def _forget_sent(self) -> bool:
        while self._sending and self._dead_ranks.is_done(self._sending[0][0]):
            self._kept_bytes -= len(self._sending.popleft()[1])
        return not self._sending
