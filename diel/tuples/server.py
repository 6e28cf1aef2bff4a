"""A tuple server: receives requests, hands them to the store, sends the replies.

It never blocks on one client: payloads come and go in the background, and what a client sends
behind an unfinished payload of its own is held back until that is whole, so that order is kept.
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

# So many polls in a row, about 50 us, and nothing else: what is done between two polls makes the
# next message wait.
_POLLS: Final = range(400)
# Where nothing came in these, or payloads are on their way, the rest gets its turn sooner. Not much
# sooner: MPI moves a payload in these polls, and what is between them holds it up.
_FEW_POLLS: Final = range(60)
# After so many messages timeouts and large payloads get their turn, however many more wait.
_MESSAGES_IN_A_ROW: Final = 64


@dataclass
class _Transfer:
    """A payload on its way in, and what its client has sent since."""

    message: bytes
    payload: Payload
    pieces: list[MPI.Request]
    held_back: deque[bytes] = field(default_factory=deque)


class TupleServer:
    """Serves a store, which has no clock of its own, to the clients on a communicator.

    The meter measures when there is nothing to do, and when payloads alone are under way.
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
        self, should_leave: Callable[[], bool], now_and_then: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `should_leave`, which is asked when there is nothing else to do.

        `now_and_then` is called however much there is to do.
        """
        MPI, meter = self._mpi, self._meter
        # One receive is always open: a message lands in memory that is there and touched.
        buffer = bytearray(MESSAGE_BYTES + LONGEST_SEAL_BYTES)
        receive = self._comm.Recv_init([buffer, MPI.BYTE], MPI.ANY_SOURCE, tags.CLIENT_TO_SERVER)
        status = MPI.Status()
        receive.Start()
        view, byte, reply_tag = memoryview(buffer), MPI.BYTE, tags.SERVER_TO_CLIENT
        # The way of a small tuple: looked up once, since each of these names costs it time.
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
                        if test(status):
                            is_here = True
                            break
                    else:
                        is_here = False
                except failure as error:
                    is_here = self._dead_ranks.message_came(error, receive, status)
                if not is_here:
                    if self._dead_ranks.ranks != self._forgotten:
                        self._forget_dead()
                    polls = _FEW_POLLS
                    if self._finish_transfers() or self._expire():
                        backoff.reset()
                    elif self._moving():
                        meter.move()
                        os.sched_yield()  # to the client, which may be on the same core
                    else:
                        meter.wait(now_s)
                        if backoff.pause(self.store.next_deadline_s() - clock()):
                            now_and_then()
                            if should_leave():
                                return
                    continue
                message = view[: count_of(byte)].tobytes()
                client = source_of()
                start()
                if client in forgotten:
                    continue  # nobody would get the answer, nor give back what was claimed
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
                            del payload  # its block is free when it has been sent
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
                    now_and_then()
        finally:
            backoff.end()
            meter.work()
            self._dead_ranks.give_back(receive)

    def forward(self, rank: int, message: bytes, payload: Payload = None) -> None:
        """Send another server what a client might."""
        self._send_one(rank, message, payload, tags.CLIENT_TO_SERVER, tags.CLIENT_TO_SERVER_PAYLOAD)

    def _accept(self, client: int, message: bytes) -> None:
        """Handle a request, or begin to receive its payload."""
        if self._transfers and client in self._transfers:
            self._transfers[client].held_back.append(message)
            return
        if not message[APART]:
            replies = self.store.handle(client, message, time.monotonic())
            if replies:
                self._send(replies)
            return
        self._meter.work()  # what was not to do is over
        self._moving()  # a block that has been sent, warm still, is the one to use next
        size = payload_bytes(message)
        self._meter.moved(size)
        payload = self._pool.take(size)
        pieces = [
            self._comm.Irecv([piece, self._mpi.BYTE], client, tags.CLIENT_TO_SERVER_PAYLOAD)
            for piece in chunks(payload)
        ]
        self._transfers[client] = _Transfer(message, payload, pieces)

    def _finish_transfers(self) -> bool:
        """Handle the requests whose payload is here whole; say whether there was one."""
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
        except self._mpi.Exception as error:  # its client has died in the middle of it
            self._dead_ranks.note(error)
            self._transfers.pop(client, None)
            return False

    def _forget_dead(self) -> None:
        """Give back what clients held that have died."""
        for client in sorted(self._dead_ranks.ranks - self._forgotten):
            self._forgotten.add(client)
            self._transfers.pop(client, None)
            self._send(self.store.client_died(client, time.monotonic()))

    def _expire(self) -> bool:
        if self.store.next_deadline_s() > (now_s := time.monotonic()):
            return False
        self._send(self.store.expire(now_s))
        return True

    def _moving(self) -> bool:
        """Whether a transfer of our own is under way: MPI moves it only while it is called."""
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
    """Hands out blocks of memory for large payloads, and takes them back by itself.

    They are used again: touching fresh pages costs more than copying into them. `idle_bytes` is
    how much is kept for later at most.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._room_bytes = idle_bytes
        self._idle: dict[int, list[_Bytes]] = defaultdict(list)
        self._lent: dict[int, tuple[weakref.ref[_Bytes], _Bytes]] = {}

    def __len__(self) -> int:
        """Return how many blocks are kept for later."""
        return sum(map(len, self._idle.values()))

    def take(self, size_bytes: int) -> memoryview:
        """Return writable memory of this size; it comes back once nothing refers to it."""
        rounded = _round_up(size_bytes)
        idle = self._idle[rounded]
        if idle:
            array = idle.pop()
            self._room_bytes += rounded
        else:
            array = np.empty(rounded, np.uint8)
        block = array[:size_bytes]  # an object of its own, so that its end can be noticed
        end = weakref.ref(block, self._give_back)
        self._lent[id(end)] = end, array
        return block.data

    def _give_back(self, end: weakref.ref[_Bytes]) -> None:
        _, array = self._lent.pop(id(end))
        if array.nbytes <= self._room_bytes:
            self._room_bytes -= array.nbytes
            self._idle[array.nbytes].append(array)


def _round_up(size_bytes: int) -> int:
    """Return one of eight sizes an octave, so that blocks of about one size are shared."""
    step = max(1, 1 << max(0, size_bytes.bit_length() - 1 - _SIZES_AN_OCTAVE.bit_length() + 1))
    return -(-size_bytes // step) * step
