"""A tuple server: receives requests, hands them to the store, sends the replies.

It never blocks on one client: payloads are transferred in the background. Messages of a client that
arrive during its own payload are held back until that is complete, so that order is kept.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from diel.comm import tags
from diel.comm.dead_ranks import dead_ranks_of
from diel.comm.meter import ServerMeter
from diel.comm.waiting import Backoff
from diel.comm.wakeup import LINE, wakeup_of
from diel.tuples.codec import np
from diel.tuples.protocol import (
    APART,
    LONGEST_SEAL_BYTES,
    MESSAGE_BYTES,
    Outs,
    Payload,
    chunks,
    payload_bytes,
)
from diel.tuples.store import TupleStore

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.tuples.replication import ReplicatedStores


_Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_IDLE_BYTES: Final = 256 * 2**20
_SIZES_AN_OCTAVE: Final = 8

# So many polls in a row, about 50 us, without other work, which would delay the next message.
_POLLS: Final = range(400)
# If no message came in these, or payloads are being transferred, other work is done more often. Not
# much more often: MPI transfers payloads during these polls, and other work delays it.
_FEW_POLLS: Final = range(60)
# After so many messages, timeouts and large payloads are handled, even if more messages wait.
_MESSAGES_IN_A_ROW: Final = 64


@dataclass
class _Transfer:
    """A payload that is being received, and the messages that its client has sent since."""

    message: bytes
    payload: Payload
    pieces: list[MPI.Request]
    held_back: deque[bytes] = field(default_factory=deque)


class TupleServer:
    """Serves a tuple store to the clients on a communicator.

    The meter measures the time without work, and the time when only payloads are transferred.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        store: TupleStore | ReplicatedStores | None = None,
        meter: ServerMeter | None = None,
    ) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._meter = meter if meter is not None else ServerMeter()
        self._pool = BlockPool()
        self._transfers: dict[int, _Transfer] = {}
        self._sending: deque[tuple[MPI.Request, Payload]] = deque()
        self._wakeup = wakeup_of(comm)
        self._dead_ranks = dead_ranks_of(comm)
        self._forgotten: set[int] = set()
        self.store = store if store is not None else TupleStore()

    def serve(
        self, should_leave: Callable[[], bool], at_intervals: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `should_leave` returns true; it is called when there is nothing else to do.

        `at_intervals` is called at intervals, also under load.
        """
        MPI, meter = self._mpi, self._meter
        # One receive is always open, so that messages go to memory that is allocated and mapped.
        buffer = bytearray(MESSAGE_BYTES + LONGEST_SEAL_BYTES)
        receive = self._comm.Recv_init([buffer, MPI.BYTE], MPI.ANY_SOURCE, tags.CLIENT_TO_SERVER)
        status = MPI.Status()
        receive.Start()
        view, byte, reply_tag = memoryview(buffer), MPI.BYTE, tags.SERVER_TO_CLIENT
        # For the path of a small tuple, looked up once, since each attribute lookup takes time.
        handle, clock, test, start = self.store.handle, time.monotonic, receive.Test, receive.Start
        count_of, source_of, isend = status.Get_count, status.Get_source, self._comm.Isend
        transfers, forgotten, failure = self._transfers, self._forgotten, MPI.Exception
        backoff = Backoff(wakeup=self._wakeup)
        flags, wake = self._wakeup.flags, self._wakeup.wake
        polls, handled, now_s = _POLLS, 0, clock()
        try:
            while True:
                try:
                    for _ in polls:
                        if is_here := test(status):
                            break
                except failure as error:
                    is_here = self._dead_ranks.message_came(error, receive, status)
                if not is_here:
                    polls = _FEW_POLLS
                    if self._has_paused(backoff, now_s):
                        at_intervals()
                        if should_leave():
                            return
                    continue
                message = view[: count_of(byte)].tobytes()
                client = source_of()
                start()
                if client in forgotten:
                    continue  # a dead client receives no reply and would never end its claims
                if message[APART] or transfers:
                    self._accept(client, message)
                else:  # nearly always
                    for receiver, reply, payload in handle(client, message, now_s := clock()):
                        try:
                            sending = isend(reply, receiver, reply_tag)
                            if not sending.Test():
                                self._sending.append((sending, reply))
                        except failure as error:
                            self._dead_ranks.note(error)
                            continue
                        if flags[LINE * receiver]:
                            wake(receiver)
                        if payload is not None:
                            self._send_payload(receiver, payload)
                            del payload  # so that its block is freed once it has been sent
                if transfers or self._sending:
                    polls = _FEW_POLLS
                elif polls is _FEW_POLLS:
                    polls = _POLLS
                    backoff.reset()
                    meter.work()
                handled += 1
                if handled >= _MESSAGES_IN_A_ROW:
                    handled = 0
                    self._finish_transfers()
                    self._expire()
                    at_intervals()
        finally:
            backoff.end()
            meter.work()
            self._dead_ranks.give_back(receive)

    def _has_paused(self, backoff: Backoff, since_s: float) -> bool:
        """Do what else there is to do; without it pause, and return whether that was a sleep."""
        if self._dead_ranks.ranks != self._forgotten:
            self._forget_dead()
        if self._finish_transfers() or self._expire():
            backoff.reset()
        elif self._is_transferring():
            self._meter.move()
            os.sched_yield()  # the client may be on the same core
        else:
            self._meter.wait(since_s)
            return backoff.pause(self.store.next_deadline_s() - time.monotonic())
        return False

    def forward(self, rank: int, message: bytes, payload: Payload = None) -> None:
        """Send a request to another server, as a client would."""
        self._send_one(rank, message, payload, tags.CLIENT_TO_SERVER, tags.CLIENT_TO_SERVER_PAYLOAD)

    def _accept(self, client: int, message: bytes) -> None:
        """Apply a request, begin to receive its payload, or hold it back."""
        if self._transfers and client in self._transfers:
            self._transfers[client].held_back.append(message)
            return
        if not message[APART]:
            replies = self.store.handle(client, message, time.monotonic())
            if replies:
                self._send(replies)
            return
        self._meter.work()  # ends the time without work
        self._is_transferring()  # frees blocks that have been sent, so that cached memory is reused
        size = payload_bytes(message)
        self._meter.moved(size)
        payload = self._pool.take(size)
        pieces = [
            self._comm.Irecv([piece, self._mpi.BYTE], client, tags.CLIENT_TO_SERVER_PAYLOAD)
            for piece in chunks(payload)
        ]
        self._transfers[client] = _Transfer(message, payload, pieces)

    def _finish_transfers(self) -> bool:
        """Apply the requests whose payload is complete; return whether there was any."""
        if not self._transfers:
            return False
        finished = [
            client
            for client, transfer in list(self._transfers.items())
            if self._is_whole(client, transfer)
        ]
        for client in finished:
            transfer = self._transfers.pop(client)
            message, payload = transfer.message, transfer.payload
            transfer.payload = None
            self._send(self.store.handle(client, message, time.monotonic(), payload))
            while transfer.held_back and client not in self._transfers:
                self._accept(client, transfer.held_back.popleft())
            if transfer.held_back:
                self._transfers[client].held_back = transfer.held_back
        return bool(finished)

    def _is_whole(self, client: int, transfer: _Transfer) -> bool:
        try:
            return self._mpi.Request.Testall(transfer.pieces)
        except self._mpi.Exception as error:  # its client has died during the payload
            self._dead_ranks.note(error)
            self._transfers.pop(client, None)
            return False

    def _forget_dead(self) -> None:
        """Drop the requests of clients that have died, and give their claims back."""
        for client in sorted(self._dead_ranks.ranks - self._forgotten):
            self._forgotten.add(client)
            self._transfers.pop(client, None)
            self._send(self.store.client_died(client, time.monotonic()))

    def _expire(self) -> bool:
        if self.store.next_deadline_s() > (now_s := time.monotonic()):
            return False
        self._send(self.store.expire(now_s))
        return True

    def _is_transferring(self) -> bool:
        """Whether this server sends or receives: MPI transfers data only during calls."""
        while self._sending and self._dead_ranks.is_done(self._sending[0][0]):
            self._sending.popleft()
        return bool(self._transfers or self._sending)

    def _send(self, replies: Outs) -> None:
        for client, message, payload in replies:
            self._send_one(
                client, message, payload, tags.SERVER_TO_CLIENT, tags.SERVER_TO_CLIENT_PAYLOAD
            )

    def _send_one(
        self, rank: int, message: bytes, payload: Payload, tag: int, payload_tag: int
    ) -> None:
        try:
            request = self._comm.Isend(message, rank, tag)
        except self._mpi.Exception as error:
            self._dead_ranks.note(error)
            return
        if not self._dead_ranks.is_done(request):
            self._sending.append((request, message))
        self._wakeup.wake(rank)
        if payload is not None:
            self._send_payload(rank, payload, payload_tag)

    def _send_payload(
        self, rank: int, payload: Payload, tag: int = tags.SERVER_TO_CLIENT_PAYLOAD
    ) -> None:
        self._meter.moved(len(payload or b""))
        for piece in chunks(payload):
            try:
                request = self._comm.Isend([piece, self._mpi.BYTE], rank, tag)
            except self._mpi.Exception as error:
                self._dead_ranks.note(error)
                return
            self._sending.append((request, piece))


# -- memory for large payloads --------------------------------------------------------------------


class BlockPool:
    """A pool of memory blocks for large payloads; a block returns when nothing refers to it.

    Blocks are reused, since to touch fresh pages costs more than to copy into them. At most
    `idle_bytes` of unused blocks are kept.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._room_bytes = idle_bytes
        self._idle: dict[int, list[_Bytes]] = defaultdict(list)
        self._lent: dict[int, tuple[weakref.ref[_Bytes], _Bytes]] = {}

    def __len__(self) -> int:
        """Return the number of unused blocks that are kept."""
        return sum(map(len, self._idle.values()))

    def take(self, size_bytes: int) -> memoryview:
        """Return writable memory of this size, which returns to the pool once unreferenced."""
        rounded = _round_up(size_bytes)
        idle = self._idle[rounded]
        if idle:
            array = idle.pop()
            self._room_bytes += rounded
        else:
            array = np.empty(rounded, np.uint8)
        block = array[:size_bytes]  # a new object, so that a weak reference sees the end of its use
        end = weakref.ref(block, self._give_back)
        self._lent[id(end)] = end, array
        return block.data

    def _give_back(self, end: weakref.ref[_Bytes]) -> None:
        _, array = self._lent.pop(id(end))
        if array.nbytes <= self._room_bytes:
            self._room_bytes -= array.nbytes
            self._idle[array.nbytes].append(array)


def _round_up(size_bytes: int) -> int:
    """Round up to one of eight sizes per power of two, so that similar sizes share blocks."""
    step = max(1, 1 << max(0, size_bytes.bit_length() - 1 - _SIZES_AN_OCTAVE.bit_length() + 1))
    return -(-size_bytes // step) * step
