"""How a client's requests reach a store: over MPI, or within one process."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from diel.comm import tags
from diel.comm.waiting import wait_for
from diel.errors import TupleError
from diel.tuples.protocol import (
    Buffer,
    Reply,
    Request,
    chunks,
    pack_request,
    unpack_reply,
)
from diel.tuples.store import TupleStore

if TYPE_CHECKING:
    from mpi4py import MPI

# The server decides about timeouts. A client gives up by itself only when the server has been
# silent for this much longer, which means that it is gone.
_SERVER_GRACE_S = 30.0


class Transport(Protocol):
    """Carries the requests of one client."""

    def post(self, request: Request) -> None:
        """Send a request that gets no reply; return when its payload may be changed."""

    def call(self, request: Request, out: memoryview | None = None) -> Reply:
        """Send a request and wait for its reply; a large payload lands in `out` if given."""


class MpiTransport:
    """Talks to one tuple server over MPI.

    Parameters
    ----------
    comm : MPI.Intracomm
    server : int
        The server's rank.
    safe_point : callable
        Asked now and then during waits; what it raises ends them.
    """

    def __init__(self, comm: MPI.Intracomm, server: int, safe_point: Callable[[], None]) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._server = server
        self._safe_point = safe_point
        self._serial = 0
        self._sending: deque[tuple[MPI.Request, bytes]] = deque()

    def post(self, request: Request) -> None:
        """Send a request that gets no reply; return when its payload may be changed."""
        self._send(request)

    def call(self, request: Request, out: memoryview | None = None) -> Reply:
        """Send a request and wait for its reply; a large payload lands in `out` if given."""
        self._serial = (self._serial + 1) % 2**32
        self._send(request._replace(serial=self._serial))
        while True:
            reply = self._receive(request.timeout_s, out)
            if reply.serial == self._serial:
                return reply
            # The answer to a wait that the stop of an earlier run cut short.

    def _send(self, request: Request) -> None:
        message, payload = pack_request(request)
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()
        sending = self._comm.Isend([message, self._mpi.BYTE], self._server, tags.CLIENT_TO_SERVER)
        if not sending.Test():
            self._sending.append((sending, message))
        if payload is not None:
            pieces = [
                self._comm.Isend(
                    [piece, self._mpi.BYTE], self._server, tags.CLIENT_TO_SERVER_PAYLOAD
                )
                for piece in chunks(payload)
            ]
            self._finish(pieces)

    def _receive(self, timeout_s: float, out: memoryview | None) -> Reply:
        limit_s = None if timeout_s == math.inf else timeout_s + _SERVER_GRACE_S
        status = self._mpi.Status()
        message = wait_for(
            lambda: self._comm.Improbe(self._server, tags.SERVER_TO_CLIENT, status),
            limit_s,
            self._safe_point,
        )
        if message is None:
            raise TupleError(f"the tuple server (rank {self._server}) does not answer")
        data = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv([data, self._mpi.BYTE])
        reply, payload_bytes = unpack_reply(data, self._comm.Get_rank())
        if not payload_bytes:
            return reply
        welcome = out is not None and reply.serial == self._serial and len(out) == payload_bytes
        payload: Buffer = out if welcome and out is not None else bytearray(payload_bytes)
        pieces = [
            self._comm.Irecv([piece, self._mpi.BYTE], self._server, tags.SERVER_TO_CLIENT_PAYLOAD)
            for piece in chunks(payload)
        ]
        self._finish(pieces)
        return reply._replace(payload=payload)

    def _finish(self, pieces: list[MPI.Request]) -> None:
        # Without sleeping: MPI moves a payload only while it is called.
        polls = 0
        while not self._mpi.Request.Testall(pieces):
            polls += 1
            if polls % 1000 == 0:
                self._safe_point()


class LocalTransport:
    """Reaches a store in the same process; clients may be threads.

    Parameters
    ----------
    store : TupleStore, optional
        Share one among several transports to let them meet.
    client : int, optional
        Tells the transports on one store apart.
    condition : threading.Condition, optional
        Shared like the store.
    """

    def __init__(
        self,
        store: TupleStore | None = None,
        client: int = 0,
        condition: threading.Condition | None = None,
    ) -> None:
        self._store = store if store is not None else TupleStore()
        self._client = client
        self._changed = condition if condition is not None else threading.Condition()
        self._serial = 0
        self._replies: dict[tuple[int, int], Reply] = {}
        self._peers = [self]

    def another_client(self) -> LocalTransport:
        """Return a transport for a further client of the same store."""
        other = LocalTransport(self._store, len(self._peers), self._changed)
        other._replies, other._peers = self._replies, self._peers
        self._peers.append(other)
        return other

    def post(self, request: Request) -> None:
        """Apply a request that gets no reply."""
        with self._changed:
            self._apply(request)

    def call(self, request: Request, out: memoryview | None = None) -> Reply:
        """Apply a request and wait for its reply."""
        with self._changed:
            self._serial += 1
            place = (self._client, self._serial)
            self._apply(request._replace(serial=self._serial))
            while place not in self._replies:
                self._deliver(self._store.expire(time.monotonic()))
                if place not in self._replies:
                    left_s = self._store.next_deadline_s() - time.monotonic()
                    self._changed.wait(max(0.0, min(left_s, 1.0)))
            reply = self._replies.pop(place)
        if out is not None and reply.status == 0:
            out[:] = reply.payload
            return reply._replace(payload=out)
        return reply._replace(payload=bytearray(reply.payload))

    def _apply(self, request: Request) -> None:
        payload = bytes(request.payload)  # the caller may change its own afterwards
        request = request._replace(client=self._client, payload=payload)
        self._deliver(self._store.handle(request, time.monotonic()))

    def _deliver(self, replies: list[Reply]) -> None:
        for reply in replies:
            self._replies[reply.client, reply.serial] = reply
        if replies:
            self._changed.notify_all()
