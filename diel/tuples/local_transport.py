"""A client's requests within one process: for tests, and for `diel.testing`."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from diel.tuples.protocol import Outs, Payload, Reply, take_head, unpack_reply
from diel.tuples.store import TupleStore
from diel.tuples.transport import Targets, Transport


class LocalTransport(Transport):
    """Reaches stores in the same process; clients may be threads, each with a transport.

    Parameters
    ----------
    stores : sequence of TupleStore, optional
        Default: a single new one.
    safe_point : callable, optional
        Asked during waits; what it raises ends them.
    """

    def __init__(
        self,
        stores: Sequence[TupleStore] | None = None,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
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
        """Make every client that waits call its safe point."""
        with self._changed:
            self._changed.notify_all()

    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Apply a request."""
        copy = None if payload is None else bytes(payload)  # the caller may change its own
        with self._changed:
            store = self._stores[server]
            now_s = time.monotonic()
            self._deliver(server, store.expire(now_s))
            self._deliver(server, store.handle(self._client, message, now_s, copy))

    def sender(self, server: int) -> Callable[[bytes], None]:
        """Return what applies messages without a payload."""
        return functools.partial(self.send, server)

    def take_quickly(self, server: int, rest: bytes) -> tuple[int, bytes | None]:
        """Ask for a tuple; the reply is to be had with `receive`."""
        request_id = self.next_request_id()
        self.send(server, take_head(request_id) + rest)
        return request_id, None

    def receive_all(
        self, request_ids: Collection[int], targets: Targets = None
    ) -> list[tuple[int, Reply]]:
        """Wait for the replies to all of some requests."""
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
        """Wait for the reply to one of some requests; return (server, reply)."""
        with self._changed:
            while True:
                mail = self._mail[self._client]
                while mail:
                    self._sort_any(*mail.popleft(), request_ids)
                found = self._take_early(request_ids)
                if found is not None:
                    return found
                try:
                    self._wait_for_change()
                except BaseException:
                    self._note_cut_short(request_ids)
                    raise

    def poll(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        """Return the reply to one of some requests, as `receive`, if it is here."""
        with self._changed:
            now_s = time.monotonic()
            for server, store in enumerate(self._stores):
                self._deliver(server, store.expire(now_s))
            mail = self._mail[self._client]
            while mail:
                self._sort_any(*mail.popleft(), request_ids)
            return self._take_early(request_ids)

    def _sort_any(self, server: int, reply: Reply, request_ids: Collection[int]) -> None:
        if reply.request_id in request_ids or reply.request_id in self._kept:
            self._early[reply.request_id] = (server, reply)

    def _wait_for_change(self) -> None:
        self._safe_point()
        now_s = time.monotonic()
        for server, store in enumerate(self._stores):
            self._deliver(server, store.expire(now_s))
        if not self._mail[self._client]:
            next_s = min(store.next_deadline_s() for store in self._stores)
            self._changed.wait(max(0.0, min(next_s - now_s, 1.0)))

    def _deliver(self, server: int, replies: Outs) -> None:
        for client, message, payload in replies:
            copy = None if payload is None else bytearray(payload)
            self._mail[client].append((server, unpack_reply(message, copy)))
        if replies:
            self._changed.notify_all()
