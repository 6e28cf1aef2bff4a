"""Claims, subscriptions and watches: the handles that `TupleClient` returns.

Each is a context manager that ends it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from diel.errors import ClaimLost, PayloadError, TupleError, TupleTimeout
from diel.tuples.protocol import HELD_BY_DEAD, STRIPED, Operation, Reply, Status, pack_query
from diel.tuples.requests import Requests, seconds, value_of, whole_value
from diel.tuples.tags import Pattern, Tag, decode_tag, format_tag

_EARLY_S: Final = 1e-3


class Claim:
    """A tuple that this rank holds, until it confirms it or gives it back; see `TupleClient.claim`.

    As a context manager it acknowledges the tuple at the end of the block, which removes it, and
    gives it back if the block raises.

    Attributes
    ----------
    tag : str or tuple of str and int
    value : object
    held_by_dead : bool
        Whether an earlier claim ended because its client died or was reset by `start_over`.
    """

    def __init__(
        self, requests: Requests, tag: Pattern, timeout: float | None, lease: float | None
    ) -> None:
        timeout_s = seconds(timeout)
        if lease is not None and not lease > 0:
            raise ValueError(f"a lease is longer than 0 s; got {lease!r}")
        lease_ms = 0 if lease is None else max(1, round(lease * 1000))
        self._requests = requests
        self._server, reply = requests.match(
            Operation.CLAIM, "claim", tag, timeout_s, argument=lease_ms
        )
        requests.raise_for(reply, "claim", tag, timeout_s)
        self._number = reply.number
        self.held_by_dead = bool(reply.number & HELD_BY_DEAD)
        self._is_held = True
        try:
            self.value = whole_value(reply, "claim", tag)
        except PayloadError:
            self._ask(Operation.GIVE_BACK)
            raise
        self.tag: Tag = decode_tag(reply.key)

    def acknowledge(self) -> None:
        """Remove the tuple, whose work is done; raise `ClaimLost` if the lease has ended."""
        self._end(Operation.ACKNOWLEDGE)

    def give_back(self) -> None:
        """Put the tuple back to its old place; raise `ClaimLost` if the lease has ended."""
        self._end(Operation.GIVE_BACK)

    def renew(self, lease: float) -> None:
        """Extend the lease to `lease` seconds from now; raise `ClaimLost` if it has ended."""
        if not lease > 0:
            raise ValueError(f"a lease is longer than 0 s; got {lease!r}")
        self._check(self._ask(Operation.RENEW, lease))

    def _ask(self, operation: Operation, timeout_s: float = 0.0) -> Reply:
        return self._requests.ask(
            self._server, operation, timeout_s=timeout_s, argument=self._number
        )

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_held:
            return
        if error is None:
            self.acknowledge()
            return
        with contextlib.suppress(ClaimLost):  # it was given back already; the block's error counts
            self.give_back()

    def _end(self, operation: Operation) -> None:
        reply = self._ask(operation)
        self._is_held = False
        self._check(reply)

    def _check(self, reply: Reply) -> None:
        if reply.status == Status.GONE:
            self._is_held = False
            raise ClaimLost(f"the claim on {format_tag(self.tag)} is no longer held")


class Subscription:
    """An iterator over (tag, value) of newly put tuples; made by `TupleClient.subscribe`.

    Each server keeps copies until this rank asks for them, so that no tuple is missed. With several
    servers, the order is kept only among tuples of the same server.
    """

    def __init__(self, requests: Requests, servers: list[int], key: bytes, tag: object) -> None:
        self._requests = requests
        self._transport = requests.transport
        self._tag = tag
        self._shown_as = format_tag(tag)
        self._names: dict[int, int] = {}  # server -> its name for this subscription
        self._asked: dict[int, int] = {}  # request for the next tuple -> server
        for server in servers:
            self._names[server] = requests.ask(server, Operation.SUBSCRIBE, key).request_id

    def next(self, timeout: float | None = None) -> tuple[Tag, Any]:
        """Return the next (tag, value).

        Parameters
        ----------
        timeout : float, seconds, optional
            Give up after this long; without it, wait for ever.

        Raises
        ------
        TupleTimeout
            If nothing was put in time.
        RunStopped
            If the run is stopping.
        TupleError
            If the subscription is closed.
        """
        timeout_s = seconds(timeout)
        self._requests.waiting_for = ("subscription.next", self._tag, timeout_s)
        try:
            return self._next(timeout_s)
        finally:
            self._requests.waiting_for = None

    def _next(self, timeout_s: float) -> tuple[Tag, Any]:
        deadline_s = time.monotonic() + timeout_s
        if not self._names:
            raise TupleError(f"the subscription to {self._shown_as} is closed")
        unanswered = self._ask_idle_servers(deadline_s)
        while True:
            _, reply = self._transport.receive(list(self._asked), timeout_s)
            del self._asked[reply.request_id]
            unanswered.discard(reply.request_id)
            self._transport.drop(reply.request_id)
            if reply.status == Status.OK:
                if reply.kind & STRIPED:
                    raise PayloadError(
                        f"a subscription to {self._shown_as} met the striped tuple "
                        f"{decode_tag(reply.key)!r}: read that with dist_tread"
                    )
                value = value_of(
                    reply, reply.payload, "subscription.next", "the tuple itself is where it was"
                )
                return decode_tag(reply.key), value
            if time.monotonic() < deadline_s - _EARLY_S:  # the timeout of an earlier, shorter wait
                unanswered |= self._ask_idle_servers(deadline_s)
            elif not unanswered:  # another server may still reply with a tuple
                raise TupleTimeout("subscription.next", self._shown_as, timeout_s)

    def _ask_idle_servers(self, deadline_s: float) -> set[int]:
        """Ask each server without a pending request for its next tuple; return the request ids."""
        asked = set()
        left_s = max(0.0, deadline_s - time.monotonic())
        for server, name in self._names.items():
            if server in self._asked.values():
                continue
            request_id = self._transport.next_request_id()
            self._asked[request_id] = server
            asked.add(request_id)
            self._transport.keep(request_id)
            query = pack_query(Operation.NEXT, request_id, argument=name, timeout_s=left_s)
            self._transport.send(server, query)
        return asked

    def close(self) -> None:
        """End the subscription; tuples that it has not returned are dropped."""
        for request_id in self._asked:
            self._transport.drop(request_id)
        self._asked.clear()
        for server, name in self._names.items():
            self._requests.ask(server, Operation.UNSUBSCRIBE, argument=name)
        self._names.clear()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> tuple[Tag, Any]:
        if not self._names:
            raise StopIteration
        return self.next()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Watch:
    """A handle that polls whether a tuple has matched a pattern; made by `TupleClient.watch`.

    It takes no tuple, so that another rank may take the match first, and no tuple is lost when the
    watch is closed.
    """

    def __init__(self, requests: Requests, servers: list[int], key: bytes) -> None:
        self._requests = requests
        self._transport = requests.transport
        self._asked = {requests.watch(server, key): server for server in servers}  # by request
        self._has_matched = False

    def has_matched(self) -> bool:
        """Whether a tuple has matched since the watch began; never waits."""
        if not self._has_matched:
            found = self._transport.poll(self._asked)
            if found is not None:
                self._has_matched = True
                self._transport.drop(found[1].request_id)
                del self._asked[found[1].request_id]
        return self._has_matched

    def close(self) -> None:
        """End the watch at all servers."""
        for request_id, server in self._asked.items():
            self._requests.cancel(server, request_id)
        self._asked.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
