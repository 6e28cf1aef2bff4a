"""The transport of a client's requests to tuple servers over MPI; each server may have a twin."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from diel.comm import tags
from diel.comm.dead_ranks import dead_ranks_of
from diel.comm.mpi import is_gpu_aware
from diel.comm.waiting import Backoff
from diel.comm.wakeup import LINE, wakeup_of
from diel.errors import TupleError
from diel.tuples.protocol import (
    APART,
    MESSAGE_BYTES,
    MOST_RECEIPTS,
    Operation,
    Payload,
    Reply,
    Seal,
    chunks,
    pack_notice,
    payload_bytes,
    plain_value,
    seal,
    tag_bytes,
    take_head,
    unpack_prefix,
    unpack_reply,
)
from diel.tuples.transport import LARGEST_REQUEST_ID, Targets, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.comm.meter import Meter

# Timeouts end at the server. A client gives up by itself only if no reply comes for this much
# longer, which means that the server is gone.
_SERVER_GRACE_S: Final = 30.0
_QUICK_POLLS: Final = range(50)
_TO_SERVER: Final = tags.CLIENT_TO_SERVER
_EAGER_BYTES: Final = 256
"""Messages up to this size are sent by a blocking send. In shared memory, Open MPI completes larger
sends only when the receiver has received them, which it does not while it sleeps."""
_NOTHING: Final = Reply(0, 0, 0)  # no request has the number 0


def open_transport(
    comm: MPI.Intracomm,
    servers: Sequence[int],
    tails: Sequence[int],
    safe_point: Callable[[], None],
    transfer_safe_point: Callable[[], None] | None = None,
    meter: Meter | None = None,
) -> MpiTransport:
    """Return a transport to tuple servers: replicated if they have twins (`tails`), else plain."""
    if not tails:
        return MpiTransport(comm, servers, safe_point, transfer_safe_point, meter)
    return ReplicatedTransport(comm, servers, tails, safe_point, transfer_safe_point, meter)


class MpiTransport(Transport):
    """A transport to tuple servers, given by their ranks, over MPI.

    `safe_point` is called at intervals during waits; an exception that it raises ends the wait.
    During the transfer of a payload, which must complete unless the whole run ends,
    `transfer_safe_point` is called instead. The meter measures waits that outlast a few quick
    polls, and transfers of separate payloads.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        servers: Sequence[int],
        safe_point: Callable[[], None],
        transfer_safe_point: Callable[[], None] | None = None,
        meter: Meter | None = None,
    ) -> None:
        from mpi4py import MPI

        super().__init__(len(servers), meter)
        self._mpi = MPI
        self._comm = comm
        self._ranks = list(servers)
        self._server_of = {rank: server for server, rank in enumerate(servers)}
        self._safe_point = safe_point
        self._transfer_safe_point = transfer_safe_point or safe_point
        self._sending: deque[tuple[MPI.Request, bytes]] = deque()
        self._dead_ranks = dead_ranks_of(comm)
        self._wakeup = wakeup_of(comm)
        self._wakeup.sending.append(lambda: bool(self._sending) and not self._all_sent())
        self._wake, self._flags = self._wakeup.wake, self._wakeup.flags
        self._lines = [LINE * rank for rank in self._ranks]
        self._buffer = bytearray(MESSAGE_BYTES)
        self._view = memoryview(self._buffer)
        self._byte = MPI.BYTE
        self._status = MPI.Status()
        # One receive is always open, so that replies go to memory that is allocated and mapped.
        self._reply = comm.Recv_init(
            [self._buffer, MPI.BYTE], MPI.ANY_SOURCE, tags.SERVER_TO_CLIENT
        )
        self._test, self._send = self._reply.Test, comm.Send
        self._reply.Start()

    @functools.cached_property
    def gpu_aware(self) -> bool:
        """Whether MPI can send from and receive into GPU memory; servers use host memory."""
        return is_gpu_aware()

    def close(self) -> None:
        """Cancel and free the open receive for replies."""
        self._dead_ranks.give_back(self._reply)

    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Send a request; return when the payload may be changed."""
        rank = self._ranks[server]
        try:
            if len(message) <= _EAGER_BYTES and not self._sending:
                self._comm.Send(message, rank, tags.CLIENT_TO_SERVER)
            else:
                self._start_sending(message, rank)
        except self._mpi.Exception as error:  # a dead server: rank 0 is notified, and ends the run
            self._dead_ranks.note(error)
        if self._flags[LINE * rank]:
            self._wake(rank)
        if payload is not None:
            since_s = self.meter.clock()
            self._finish(self._start_payload(payload, rank))
            self.meter.communicated(since_s, "send", tag_bytes(message), len(payload))

    def send_all(self, parts: Sequence[tuple[int, bytes, Payload]]) -> None:
        """Send several requests, as (server, message, payload), with their payloads in parallel."""
        since_s, size_bytes = self.meter.clock(), 0
        pieces = []
        for server, message, payload in parts:
            self.send(server, message)
            if payload is not None:
                size_bytes += len(payload)
                pieces += self._start_payload(payload, self._ranks[server])
        self._finish(pieces)
        if pieces:
            self.meter.communicated(since_s, "send pieces", None, size_bytes)

    def _start_payload(self, payload: Payload, rank: int) -> list[MPI.Request]:
        return [
            self._comm.Isend([piece, self._mpi.BYTE], rank, tags.CLIENT_TO_SERVER_PAYLOAD)
            for piece in chunks(payload)
        ]

    def _all_sent(self) -> bool:
        while self._sending and self._dead_ranks.is_done(self._sending[0][0]):
            self._sending.popleft()
        return not self._sending

    def _start_sending(self, message: bytes, rank: int) -> None:
        self._all_sent()
        sending = self._comm.Isend(message, rank, tags.CLIENT_TO_SERVER)
        if not sending.Test():
            self._sending.append((sending, message))

    def sender(self, server: int) -> Callable[[bytes], None]:
        """Return a function that sends messages without a separate payload to a server."""
        send, rank = self._send, self._ranks[server]
        flags, line, wake = self._flags, self._lines[server], self._wake
        failure, note = self._mpi.Exception, self._dead_ranks.note

        def send_small(message: bytes) -> None:
            if len(message) > _EAGER_BYTES:
                self.send(server, message)
                return
            try:
                send(message, rank, _TO_SERVER)
            except failure as error:
                note(error)
            if flags[line]:
                wake(rank)

        return send_small

    def take_quickly(self, server: int, rest: bytes) -> tuple[int, bytes | None]:
        """Send a `PLAIN` take, and poll for the reply for a short while; see `Transport`."""
        self.latest_request_id = request_id = self.latest_request_id % LARGEST_REQUEST_ID + 1
        message = take_head(request_id) + rest
        if len(message) > _EAGER_BYTES:
            self.send(server, message)
        else:
            try:
                self._send(message, self._ranks[server], _TO_SERVER)
            except self._mpi.Exception as error:
                self._dead_ranks.note(error)
            if self._flags[self._lines[server]]:
                self._wake(self._ranks[server])
        test, status = self._test, self._status
        for _ in _QUICK_POLLS:
            try:
                is_here = test(status)
            except self._mpi.Exception as error:
                is_here = self._dead_ranks.message_came(error, self._reply, status)
            if is_here:
                message = self._view[: status.Get_count(self._byte)].tobytes()
                value = plain_value(message, request_id)
                if value is not None:
                    self._reply.Start()
                    return request_id, value
                server, reply, pieces = self._take_reply((request_id,), None)
                if pieces is not None:
                    self._finish_receiving(pieces, reply)
                if reply.request_id == request_id:
                    self._early[request_id] = (server, reply)
                    break
                self._sort(server, reply)
        return request_id, None

    def receive(
        self, request_ids: Collection[int], timeout_s: float = math.inf, targets: Targets = None
    ) -> tuple[int, Reply]:
        """Wait for the reply to any of several requests; return (server, reply)."""
        early = self._take_early(request_ids) if self._early else None
        if early is not None:
            return early
        while True:
            try:
                self._await_message(timeout_s)
            except BaseException:
                self._note_cut_short(request_ids)
                raise
            server, reply, pieces = self._take_reply(request_ids, targets)
            if pieces is not None:
                self._finish_receiving(pieces, reply)
            if reply[1] in request_ids:
                return server, reply
            self._sort(server, reply)

    def receive_all(
        self, request_ids: Collection[int], targets: Targets = None
    ) -> list[tuple[int, Reply]]:
        """Wait for the replies to all of several requests, with their payloads in parallel."""
        missing = set(request_ids)
        found, under_way = [], []
        while missing:
            self._await_message(math.inf)
            server, reply, pieces = self._take_reply(missing, targets)
            under_way += pieces or []
            if reply.request_id in missing:
                missing.discard(reply.request_id)
                found.append((server, reply))
            else:
                self._finish(pieces or [])
                self._sort(server, reply)
        since_s = self.meter.clock()
        self._finish(under_way)
        if under_way:
            size_bytes = sum(len(reply.payload or b"") for _, reply in found)
            self.meter.communicated(since_s, "receive pieces", None, size_bytes)
        return found

    def poll(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        """Return a reply to any of several requests, as `receive`, if one has arrived."""
        early = self._take_early(request_ids)
        while early is None and self._is_here():
            server, reply, pieces = self._take_reply(request_ids, None)
            if pieces is not None:
                self._finish_receiving(pieces, reply)
            if reply.request_id in request_ids:
                early = server, reply
            else:
                self._sort(server, reply)
        return early

    def _await_message(self, timeout_s: float) -> None:
        """Wait until a message has arrived in the open receive."""
        is_here = self._is_here
        for _ in _QUICK_POLLS:
            if is_here():
                return
        backoff = Backoff(wakeup=self._wakeup)
        deadline_s = time.monotonic() + timeout_s + _SERVER_GRACE_S if timeout_s < math.inf else 0
        since_s = self.meter.clock()
        try:
            while not is_here():
                if backoff.pause():
                    self._safe_point()
                    self._look_for_interrupt()
                    if deadline_s and time.monotonic() > deadline_s:
                        ranks = ", ".join(map(str, self._ranks))
                        raise TupleError(f"the tuple server (rank {ranks}) does not answer")
        finally:
            backoff.end()
            self.meter.waited(since_s)

    def _is_here(self) -> bool:
        """Whether a message has arrived in the open receive."""
        try:
            return self._test(self._status)
        except self._mpi.Exception as error:
            return self._dead_ranks.message_came(error, self._reply, self._status)

    def _take_reply(
        self, request_ids: Collection[int], targets: Targets
    ) -> tuple[int, Reply, list[MPI.Request] | None]:
        """Return server, reply, and the MPI requests of a separate payload still being received."""
        status = self._status
        message = self._view[: status.Get_count(self._byte)].tobytes()
        source = status.Get_source()
        server = self._server_of[source]
        self._reply.Start()
        if not message[APART]:
            return server, unpack_reply(message), None
        size = payload_bytes(message)
        request_id = unpack_prefix(message)[0]
        target = targets.get(request_id) if targets and request_id in request_ids else None
        payload: Payload = target if target is not None and len(target) == size else _allocate(size)
        pieces = [
            self._comm.Irecv([piece, self._byte], source, tags.SERVER_TO_CLIENT_PAYLOAD)
            for piece in chunks(payload)
        ]
        return server, unpack_reply(message, payload), pieces

    def _finish_receiving(self, pieces: list[MPI.Request], reply: Reply) -> None:
        since_s = self.meter.clock()
        self._finish(pieces)
        self.meter.communicated(since_s, "receive", reply.key, len(reply.payload or b""))

    def _finish(self, pieces: list[MPI.Request]) -> None:
        # No sleep, since MPI transfers a payload only during calls. But yield: the server may be on
        # the same core, and on a neighbouring core a tight loop would slow its copying.
        polls = 0
        while not self._are_done(pieces):
            os.sched_yield()
            polls += 1
            if polls % 1000 == 0:
                self._transfer_safe_point()

    def _are_done(self, pieces: list[MPI.Request]) -> bool:
        try:
            return self._mpi.Request.Testall(pieces)
        except self._mpi.Exception as error:
            self._dead_ranks.note(error)
            raise TupleError("a tuple server has died in the middle of a payload") from error


class ReplicatedTransport(MpiTransport):
    """A transport to tuple servers, and to the twins of servers that have died.

    Here a server's index is the number of a partition; `tails` are the ranks of the twins, and the
    other parameters those of `MpiTransport`. Payloads are copied, since they may have to be resent.
    """

    def __init__(
        self, comm: MPI.Intracomm, servers: Sequence[int], tails: Sequence[int], *others: Any
    ) -> None:
        super().__init__(comm, servers, *others)
        self._sent = SentMessages(servers, tails)
        self._ranks = self._sent.ranks
        self._known_dead: set[int] = set()

    @property
    def gpu_aware(self) -> bool:
        """Whether payloads may be in GPU memory: never, since they are copied."""
        return False

    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Send a request; return when the payload may be changed."""
        copy = None if payload is None else bytes(payload)
        self._send_sealed(server, self._sent.add(server, message, copy), copy)
        self._look_for_deaths()

    # Not those of `MpiTransport`, which send by themselves: every message goes through `send`.
    send_all = Transport.send_all
    sender = Transport.sender
    take_quickly = Transport.take_quickly

    def drop(self, request_id: int) -> None:
        """Stop keeping the reply to a request, and do not resend the request."""
        super().drop(request_id)
        self._sent.forget(request_id)

    def _is_here(self) -> bool:
        is_here = super()._is_here()
        self._look_for_deaths()
        return is_here

    def _look_for_deaths(self) -> None:
        """Resend unanswered messages to the twins of servers that have newly died."""
        dead = self._dead_ranks.ranks
        if len(dead) > len(self._known_dead):
            self._known_dead = set(dead)
            for server, message, payload in self._sent.fail_over(dead):
                self._send_sealed(server, message, payload)

    def _send_sealed(self, server: int, message: bytes, payload: Payload = None) -> None:
        with contextlib.suppress(TupleError):  # the server has died during a payload: resent later
            super().send(server, message, payload)

    def _take_reply(
        self, request_ids: Collection[int], targets: Targets
    ) -> tuple[int, Reply, list[MPI.Request] | None]:
        """Return server and reply, with its whole payload; `_NOTHING` for a duplicate reply."""
        try:
            _, reply, pieces = super()._take_reply(request_ids, targets)
            if pieces is not None:
                self._finish_receiving(pieces, reply)
        except (self._mpi.Exception, TupleError) as error:
            # The server has died during the payload: its twin sends the whole reply.
            if isinstance(error, self._mpi.Exception):
                self._dead_ranks.note(error)
            return 0, _NOTHING, None
        server = self._sent.received(reply.request_id)
        if server is None:
            return 0, _NOTHING, None
        if pieces is not None:  # confirm at once, so that the head can free the large reply
            self._send_sealed(server, self._sent.confirmation(server))
        return server, reply, None

    def _start_payload(self, payload: Payload, rank: int) -> list[MPI.Request]:
        try:
            return super()._start_payload(payload, rank)
        except self._mpi.Exception as error:
            self._dead_ranks.note(error)
            return []


class SentMessages:
    """The messages that a client has sent to replicated servers and may have to resend.

    A reply means that all earlier messages to that partition are in both stores. Puts have no
    reply, but their number is limited by credit, and the request for more credit has a reply.
    `ranks` has for each partition the rank that requests go to at present: the head, or else the
    tail.
    """

    def __init__(self, heads: Sequence[int], tails: Sequence[int]) -> None:
        self.ranks = list(heads)
        self._tails = tuple(tails)
        self._numbers = [0] * len(heads)
        self._receipts: list[list[int]] = [[] for _ in heads]
        # By number, oldest first: puts, which have no reply, and requests without a reply so far.
        self._puts: list[deque[tuple[int, bytes, Payload]]] = [deque() for _ in heads]
        self._asked: list[dict[int, tuple[bytes, Payload]]] = [{} for _ in heads]
        self._places: dict[int, tuple[int, int]] = {}  # partition and number, by request id

    def add(self, partition: int, message: bytes, payload: Payload = None) -> bytes:
        """Record a message that is about to be sent; return it with its seal."""
        self._numbers[partition] = number = self._numbers[partition] + 1
        sealed = seal(message, Seal(partition, number, self._take_receipts(partition)))
        request_id = unpack_prefix(message)[0]
        if request_id:
            self._places[request_id] = partition, number
            self._asked[partition][number] = sealed, payload
        else:
            self._puts[partition].append((number, sealed, payload))
        return sealed

    def confirmation(self, partition: int) -> bytes:
        """Return a CONFIRM message, which contains only receipts of replies."""
        receipts = self._take_receipts(partition)
        return seal(pack_notice(Operation.CONFIRM), Seal(partition, 0, receipts))

    def received(self, request_id: int) -> int | None:
        """Record a reply; return its partition, None if it is a duplicate or no longer awaited."""
        if request_id not in self._places:
            return None
        partition, number = self._places[request_id]
        self.forget(request_id)
        puts = self._puts[partition]
        while puts and puts[0][0] < number:
            puts.popleft()
        return partition

    def forget(self, request_id: int) -> None:
        """Drop a request that need not be resent, and add its id to the receipts."""
        if request_id in self._places:
            partition, number = self._places.pop(request_id)
            del self._asked[partition][number]
            self._receipts[partition].append(request_id)

    def fail_over(self, dead: Collection[int]) -> list[tuple[int, bytes, Payload]]:
        """Switch to the tails of partitions whose heads have died; return the messages to resend.

        Each is partition, message and payload. A TupleError if both servers of a partition have
        died.
        """
        resent: list[tuple[int, bytes, Payload]] = []
        for partition, (rank, tail) in enumerate(zip(self.ranks, self._tails, strict=True)):
            if rank not in dead:
                continue
            if tail in dead:
                raise TupleError(
                    f"the tuple servers on ranks {rank} and {tail} have died"
                    if rank != tail
                    else f"the tuple server on rank {tail} has died, as its twin had before"
                )
            self.ranks[partition] = tail
            asked = [(number, *sent) for number, sent in self._asked[partition].items()]
            for _, sealed, payload in sorted([*self._puts[partition], *asked], key=itemgetter(0)):
                resent.append((partition, sealed, payload))
        return resent

    def _take_receipts(self, partition: int) -> list[int]:
        waiting = self._receipts[partition]
        if not waiting:
            return waiting
        receipts, self._receipts[partition] = waiting[:MOST_RECEIPTS], waiting[MOST_RECEIPTS:]
        return receipts


def _allocate(size_bytes: int) -> memoryview:
    import numpy as np  # np.empty does not zero the memory, unlike bytearray

    return np.empty(size_bytes, np.uint8).data
