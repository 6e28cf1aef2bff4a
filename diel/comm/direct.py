"""MPI underneath direct messages: small heads at once, payloads when the receiver asks.

::

    sender                          receiver
    offer(ticket, payload)
    send(head)             ------>  poll() returns heads as they arrive
                                    reads a head, decides where its payload goes
                           ------>  receive(ticket, memory)

A head is small and leaves at once. A payload has a ticket, which is in its head, and leaves when
the receiver asks for it: a synchronous send, completed by the matching receive and never by a
buffer. So large payloads are received into their final place, in any order, and the sender knows
when a payload was received. Nothing here blocks. What a head contains is decided by the packages
that use this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from diel.comm import tags
from diel.comm.dead_ranks import dead_ranks_of
from diel.comm.mpi import is_gpu_aware
from diel.comm.wakeup import Wakeup, wakeup_of

if TYPE_CHECKING:
    from mpi4py import MPI

HEAD_BYTES: Final = 12288
"""The largest head."""
LANES: Final = 4096
"""Between two ranks, for the same two copies."""
CHUNK_BYTES: Final = 2**30
"""MPI counts the bytes of a message in 32 bits."""

Memory: TypeAlias = Any
"""Something that can be sliced and has the buffer protocol: bytes, a memoryview."""
Transfer: TypeAlias = Callable[[], bool]
"""Returns whether a payload has been received whole; has MPI move it on, if it has not."""


class Lane(Protocol):
    """A message that is sent again and again, with the same head and the same payload memory."""

    def start(self) -> None:
        """Send the message with the memory's current content; the previous one was received."""

    def test(self) -> bool:
        """Whether the message has been received whole; has MPI move it on, if it has not."""

    def close(self) -> None:
        """Free the persistent requests that the message is sent by, if there are any."""


class Port(Protocol):
    """One rank's end of the messages between all ranks: sends, offers, receives."""

    rank: int
    gpu_aware: bool
    wakeup: Wakeup | None

    @property
    def handle(self) -> int | None:
        """The communicator as Fortran has it; None within a process."""

    def lane_tag(self, serial: int, number: int) -> int | None:
        """Return the tag of a lane that others than this port use; None if there is none."""

    def send(self, destination: int, head: bytes) -> None:
        """Send a head."""

    def offer(self, destination: int, ticket: int, payload: Memory) -> Transfer:
        """Begin to send a payload, whose memory stays as it is until it has been received."""

    def lane(self, destination: int, head: bytes, ticket: int, payload: Memory) -> Lane:
        """Return a lane, which sends the same head and payload memory again and again."""

    def poll(self) -> tuple[int, bytes] | None:
        """Return (source, head) of the next message, or None."""

    def receive(self, source: int, ticket: int, memory: Memory) -> Transfer:
        """Begin to receive a payload into memory of its size."""


class MpiPort:
    """A `Port` over MPI.

    Parameters
    ----------
    comm : MPI.Intracomm
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._byte = MPI.BYTE
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.gpu_aware = is_gpu_aware()
        self.wakeup: Wakeup | None = wakeup_of(comm)
        self._dead_ranks = dead_ranks_of(comm)
        self._wake = self.wakeup.wake
        self.wakeup.sending.append(self._is_sending)
        self._leaving: deque[tuple[MPI.Request, bytes]] = deque()
        self._status = MPI.Status()
        self._buffer = bytearray(HEAD_BYTES)
        self._view = memoryview(self._buffer)
        # One receive is always open, so that heads arrive in memory that is allocated and mapped.
        self._head = comm.Recv_init([self._buffer, MPI.BYTE], MPI.ANY_SOURCE, tags.DIRECT_HEAD)
        self._head.Start()

    @property
    def handle(self) -> int | None:
        """The communicator as Fortran has it."""
        return int(self._comm.py2f())

    def lane_tag(self, serial: int, number: int) -> int | None:
        """Return the tag of a lane that others than this port use, or None where MPI has too few.

        Lanes of copies with other serials, or with other numbers, below `LANES`, have other tags.
        """
        largest: int = self._comm.Get_attr(self._mpi.TAG_UB) or 0
        room = (largest - tags.LANE_FIRST) // LANES
        return tags.LANE_FIRST + serial % room * LANES + number if room > 1 else None

    def close(self) -> None:
        """Cancel the open receive and free it."""
        self._dead_ranks.give_back(self._head)

    def send(self, destination: int, head: bytes) -> None:
        """Send a head."""
        request = self._comm.Isend([head, self._byte], destination, tags.DIRECT_HEAD)
        if not request.Test():
            self._leaving.append((request, head))
        self._wake(destination)

    def _is_sending(self) -> bool:
        while self._leaving and self._dead_ranks.is_done(self._leaving[0][0]):
            self._leaving.popleft()
        return bool(self._leaving)

    def offer(self, destination: int, ticket: int, payload: Memory) -> Transfer:
        """Begin to send a payload, whose memory stays as it is until it has been received."""
        tag = tags.DIRECT_PAYLOAD_FIRST + ticket
        return self._whole(
            [self._comm.Issend([piece, self._byte], destination, tag) for piece in _chunks(payload)]
        )

    def lane(self, destination: int, head: bytes, ticket: int, payload: Memory) -> Lane:
        """Return a lane, which sends the same head and payload memory again and again."""
        tag, to = tags.DIRECT_PAYLOAD_FIRST + ticket, destination
        requests: list[Any] = [
            self._comm.Ssend_init([piece, self._byte], to, tag) for piece in _chunks(payload)
        ]
        requests.append(self._comm.Send_init([head, self._byte], to, tags.DIRECT_HEAD))
        return _MpiLane(requests, lambda: self._wake(destination))

    def poll(self) -> tuple[int, bytes] | None:
        """Return (source, head) of the next message, or None."""
        if self._leaving:
            self._is_sending()
        status = self._status
        try:
            is_here = self._head.Test(status)
        except self._mpi.Exception as error:
            is_here = self._dead_ranks.message_came(error, self._head, status)
        if not is_here:
            return None
        head = self._view[: status.Get_count(self._byte)].tobytes()
        source = status.Get_source()
        self._head.Start()
        return source, head

    def receive(self, source: int, ticket: int, memory: Memory) -> Transfer:
        """Begin to receive a payload into memory of its size."""
        tag = tags.DIRECT_PAYLOAD_FIRST + ticket
        return self._whole(
            [self._comm.Irecv([piece, self._byte], source, tag) for piece in _chunks(memory)]
        )

    def _whole(self, pieces: list[MPI.Request]) -> Transfer:
        if len(pieces) == 1:
            test: Transfer = pieces[0].Test
            return test
        return lambda: self._mpi.Request.Testall(pieces)


class _MpiLane:
    """A `Lane` of persistent MPI requests, for the payload and its head."""

    def __init__(self, requests: list[MPI.Prequest], wake: Callable[[], None]) -> None:
        self._requests = requests
        self._wake = wake
        self._starts = [request.Start for request in requests]
        self._tests = [request.Test for request in requests]

    def start(self) -> None:
        for start in self._starts:
            start()
        self._wake()

    def test(self) -> bool:
        # One by one: Testall of requests that are mostly complete costs more than it saves.
        return all(test() for test in self._tests)

    def close(self) -> None:
        for request in self._requests:
            request.Free()


def _chunks(memory: Memory) -> Iterator[Memory]:
    """Cut memory into pieces for one message each; empty memory gives one empty piece."""
    size = len(memory)
    if size <= CHUNK_BYTES:
        yield memory
        return
    for start in range(0, size, CHUNK_BYTES):
        yield memory[start : start + CHUNK_BYTES]


class LocalExchange:
    """Heads and payloads under way between the ports of one process, of one or more threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heads: dict[int, deque[tuple[int, bytes]]] = {}
        self.offers: dict[tuple[int, int, int], deque[_Offer]] = {}

    def port(self, rank: int) -> LocalPort:
        """Return the port of a rank."""
        return LocalPort(self, rank)


class _Offer:
    """A payload in its sender's memory, and whether it has been received."""

    def __init__(self, payload: Memory) -> None:
        self.payload = payload
        self.received = False


class LocalPort:
    """A `Port` to the other ports of this process.

    Parameters
    ----------
    exchange : LocalExchange
    rank : int
    """

    def __init__(self, exchange: LocalExchange, rank: int) -> None:
        self._exchange = exchange
        self.rank = rank
        self.gpu_aware = False
        self.wakeup: Wakeup | None = None
        self.handle: int | None = None

    def lane_tag(self, serial: int, number: int) -> int | None:
        """Return None: within a process there are no tags."""
        return None

    def send(self, destination: int, head: bytes) -> None:
        """Send a head."""
        with self._exchange.lock:
            self._exchange.heads.setdefault(destination, deque()).append((self.rank, head))

    def offer(self, destination: int, ticket: int, payload: Memory) -> Transfer:
        """Begin to send a payload, whose memory stays as it is until it has been received."""
        offer = _Offer(payload)
        with self._exchange.lock:
            key = (self.rank, destination, ticket)
            self._exchange.offers.setdefault(key, deque()).append(offer)
        return lambda: offer.received

    def lane(self, destination: int, head: bytes, ticket: int, payload: Memory) -> Lane:
        """Return a lane, which sends the same head and payload memory again and again."""

        def send() -> Transfer:
            transfer = self.offer(destination, ticket, payload)
            self.send(destination, head)
            return transfer

        return _LocalLane(send)

    def poll(self) -> tuple[int, bytes] | None:
        """Return (source, head) of the next message, or None."""
        with self._exchange.lock:
            heads = self._exchange.heads.get(self.rank)
            return heads.popleft() if heads else None

    def receive(self, source: int, ticket: int, memory: Memory) -> Transfer:
        """Receive a payload into memory of its size."""
        with self._exchange.lock:
            offers = self._exchange.offers[(source, self.rank, ticket)]
            offer = offers.popleft()
            if not offers:
                del self._exchange.offers[(source, self.rank, ticket)]
        memoryview(memory)[:] = memoryview(offer.payload)
        offer.received = True
        return lambda: True


class _LocalLane:
    """A `Lane` within this process, which offers its payload and sends its head at each start."""

    def __init__(self, send: Callable[[], Transfer]) -> None:
        self._send = send
        self._transfer: Transfer = lambda: True

    def start(self) -> None:
        self._transfer = self._send()

    def test(self) -> bool:
        return self._transfer()

    def close(self) -> None:
        pass
