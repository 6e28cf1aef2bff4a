"""Transports of a client's requests to servers: the base class, and one within a process.

`mpi_transport` has the transport over MPI.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from diel.comm.meter import Meter
from diel.tuples.protocol import Outs, Payload, Reply, take_head, unpack_reply

if TYPE_CHECKING:
    from diel.tuples.store import TupleStore

LARGEST_REQUEST_ID: Final = 2**32 - 1
_INTERRUPTIBLE_S: Final = 0.1

Targets: TypeAlias = "Mapping[int, memoryview] | None"
"""The memory to receive large payloads into, by request id."""


class Interrupted(Exception):
    """Raised in a wait when `Transport.interrupt` returns true."""


class Transport(ABC):
    """Sends a client's requests to servers, and keeps replies until they are received.

    Its meter measures transfers, also those between a client's GPU and its host.
    """

    def __init__(self, servers: int, meter: Meter | None = None) -> None:
        self.servers = servers
        self.meter = Meter() if meter is None else meter
        # Ids of requests whose wait was ended by an exception, with their operations, 0 if the
        # operation is unknown here.
        self.cut_short: dict[int, int] = {}
        self.interrupt: Callable[[], bool] | None = None
        self.latest_request_id = 0
        self._kept: set[int] = set()
        self._early: dict[int, tuple[int, Reply]] = {}

    @property
    def gpu_aware(self) -> bool:
        """Whether payloads may be in GPU memory."""
        return False

    @abstractmethod
    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Send a request; return when the payload may be changed."""

    def sender(self, server: int) -> Callable[[bytes], None]:
        """Return a function that sends messages without a separate payload to a server."""
        return functools.partial(self.send, server)

    def send_all(self, parts: Sequence[tuple[int, bytes, Payload]]) -> None:
        """Send several requests, as (server, message, payload)."""
        for server, message, payload in parts:
            self.send(server, message, payload)

    def take_quickly(self, server: int, rest: bytes) -> tuple[int, bytes | None]:
        """Send a `PLAIN` take; a transport may poll for the reply for a short while.

        `rest` is the query after its request id. Returns the request id, and the tuple's value if
        that is bytes; None if the caller has to `receive` the reply.
        """
        request_id = self.next_request_id()
        self.send(server, take_head(request_id) + rest)
        return request_id, None

    @abstractmethod
    def receive(
        self, request_ids: Collection[int], timeout_s: float = math.inf, targets: Targets = None
    ) -> tuple[int, Reply]:
        """Wait for the reply to any of several requests; return (server, reply).

        A separate payload is received into the memory that `targets` has for its request, if the
        size fits. Replies to other requests are kept if `keep` was called for them, and dropped
        otherwise.
        """

    @abstractmethod
    def receive_all(
        self, request_ids: Collection[int], targets: Targets = None
    ) -> list[tuple[int, Reply]]:
        """Wait for the replies to all of several requests, with their payloads in parallel."""

    @abstractmethod
    def poll(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        """Return a reply to any of several requests, as `receive`, if one has arrived."""

    def _look_for_interrupt(self) -> None:
        """Raise `Interrupted` if `interrupt` returns true; called several times a second."""
        if self.interrupt is not None and self.interrupt():
            raise Interrupted

    # -- requests and early replies -----------------------------------------------------------

    def next_request_id(self) -> int:
        """Return an id for a new request, different from those of all pending requests."""
        self.latest_request_id = self.latest_request_id % LARGEST_REQUEST_ID + 1
        return self.latest_request_id

    def keep(self, request_id: int) -> None:
        """Keep the reply to a request, if it comes during another wait, until it is received."""
        self._kept.add(request_id)

    def kept(self, request_ids: Collection[int]) -> list[tuple[int, Reply]]:
        """Return the (server, reply) of those requests whose replies have been kept."""
        return [self._early[request_id] for request_id in request_ids if request_id in self._early]

    def drop(self, request_id: int) -> None:
        """Stop keeping the reply to a request, and discard a reply that has been kept."""
        self._kept.discard(request_id)
        self._early.pop(request_id, None)

    def _note_cut_short(self, request_ids: Collection[int]) -> None:
        """Record that a wait was interrupted; keep late replies, so that no taken tuple is lost."""
        self.cut_short.update(dict.fromkeys(request_ids, 0))
        self._kept.update(request_ids)

    def _take_early(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        if self._early:
            for request_id in request_ids:
                if request_id in self._early:
                    return self._early.pop(request_id)
        return None

    def _sort(self, server: int, reply: Reply) -> None:
        if reply.request_id in self._kept:
            self._early[reply.request_id] = (server, reply)


class LocalTransport(Transport):
    """A transport to stores in the same process; clients may be threads, each with a transport.

    `safe_point` is called during waits; an exception that it raises ends the wait. Without `stores`
    a new store is created.
    """

    def __init__(
        self,
        stores: Sequence[TupleStore] | None = None,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        from diel.tuples.store import TupleStore  # client ranks have no store

        self._stores = tuple(stores) if stores is not None else (TupleStore(),)
        super().__init__(len(self._stores))
        self._safe_point = safe_point
        self._client = 0
        self._changed = threading.Condition()
        self._mail: dict[int, deque[tuple[int, Reply]]] = {0: deque()}

    def another_client(self, safe_point: Callable[[], None] = lambda: None) -> LocalTransport:
        """Return a transport for a further client of the same stores."""
        with self._changed:
            other = LocalTransport(self._stores, safe_point)
            other._changed, other._mail = self._changed, self._mail
            other._client = len(self._mail)
            self._mail[other._client] = deque()
            return other

    def wake(self) -> None:
        """Make every waiting client call its safe point."""
        with self._changed:
            self._changed.notify_all()

    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Apply a request to the store at once."""
        copy = None if payload is None else bytes(payload)  # the caller may change its own
        with self._changed:
            store = self._stores[server]
            now_s = time.monotonic()
            self._deliver(server, store.expire(now_s))
            self._deliver(server, store.handle(self._client, message, now_s, copy))

    def receive_all(
        self, request_ids: Collection[int], targets: Targets = None
    ) -> list[tuple[int, Reply]]:
        """Wait for the replies to all of several requests."""
        for request_id in request_ids:
            self.keep(request_id)
        missing = set(request_ids)
        found = []
        while missing:
            found.append(self.receive(missing, targets=targets))
            missing.discard(found[-1][1].request_id)
            self.drop(found[-1][1].request_id)
        return found

    def receive(
        self, request_ids: Collection[int], timeout_s: float = math.inf, targets: Targets = None
    ) -> tuple[int, Reply]:
        """Wait for the reply to any of several requests; return (server, reply)."""
        with self._changed:
            while True:
                found = self._take_mail(request_ids)
                if found is not None:
                    return found
                try:
                    self._wait_for_change()
                except BaseException:
                    self._note_cut_short(request_ids)
                    raise

    def poll(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        """Return a reply to any of several requests, as `receive`, if one has arrived."""
        with self._changed:
            self._expire(time.monotonic())
            return self._take_mail(request_ids)

    def _take_mail(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        mail = self._mail[self._client]
        while mail:
            server, reply = mail.popleft()
            if reply.request_id in request_ids or reply.request_id in self._kept:
                self._early[reply.request_id] = (server, reply)
        return self._take_early(request_ids)

    def _expire(self, now_s: float) -> None:
        for server, store in enumerate(self._stores):
            self._deliver(server, store.expire(now_s))

    def _wait_for_change(self) -> None:
        self._safe_point()
        self._look_for_interrupt()
        now_s = time.monotonic()
        self._expire(now_s)
        if not self._mail[self._client]:
            next_s = min(store.next_deadline_s() for store in self._stores)
            longest_s = 1.0 if self.interrupt is None else _INTERRUPTIBLE_S
            self._changed.wait(max(0.0, min(next_s - now_s, longest_s)))

    def _deliver(self, server: int, replies: Outs) -> None:
        for client, message, payload in replies:
            copy = None if payload is None else bytearray(payload)
            self._mail[client].append((server, unpack_reply(message, copy)))
        if replies:
            self._changed.notify_all()
