"""The pending state of a store: waiting requests, subscriptions, and claims.

A subscriber gets a copy of every matching tuple that is put after its request. Copies that it has
not yet asked for are in its backlog, which counts in the server's memory.

A claimed tuple is invisible to other requests until its holder acknowledges it, which removes it,
or gives it back to its old place in the order. It is also given back when its lease ends or its
holder dies.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from diel.tuples.protocol import (
    NOTHING,
    Out,
    Outs,
    Query,
    Status,
    answer,
    is_piece,
    tuple_reply,
)
from diel.tuples.store.memory import StoreMemory, cost_of, loaded
from diel.tuples.store.queues import Entry
from diel.tuples.tags import Fields, fields_match, split_fields, wildcard_fields

_SERVED_DEADLINES: Final = 64
"""Deadlines of served requests are removed when there are so many beyond twice the waiting ones."""


@dataclass(slots=True)
class Waiter:
    """A request that waits for a matching tuple."""

    number: int  # increases in order of arrival
    query: Query
    pattern: Fields | None  # the fields of its key if that has wildcards


class Waiters:
    """All waiting requests of a store, by key, by pattern and by deadline."""

    def __init__(self) -> None:
        self.by_number: dict[int, Waiter] = {}
        self._on_key: dict[bytes, dict[int, None]] = {}
        self._on_pattern: dict[int, None] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self.by_number.values())

    def add(self, waiter: Waiter, deadline_s: float) -> None:
        """Add a request that waits until a deadline, or for ever (infinity)."""
        self.by_number[waiter.number] = waiter
        if waiter.pattern is None:
            self._on_key.setdefault(waiter.query.key, {})[waiter.number] = None
        else:
            self._on_pattern[waiter.number] = None
        if deadline_s < math.inf:
            heapq.heappush(self._deadlines, (deadline_s, waiter.number))
            if len(self._deadlines) > 2 * len(self.by_number) + _SERVED_DEADLINES:
                live = [item for item in self._deadlines if item[1] in self.by_number]
                heapq.heapify(live)
                self._deadlines = live

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiting request."""
        del self.by_number[waiter.number]
        if waiter.pattern is not None:
            del self._on_pattern[waiter.number]
            return
        numbers = self._on_key[waiter.query.key]
        del numbers[waiter.number]
        if not numbers:
            del self._on_key[waiter.query.key]

    def first_on(self, key: bytes) -> Waiter | None:
        """Return the request that has waited longest for exactly this key, patterns excluded."""
        numbers = self._on_key.get(key)
        return self.by_number[next(iter(numbers))] if numbers else None

    def matching(self, key: bytes) -> list[Waiter]:
        """Return the requests that a tag matches, in order of arrival."""
        numbers = list(self._on_key.get(key, ()))
        if self._on_pattern and not is_piece(key):
            fields = split_fields(key)
            for number in self._on_pattern:
                pattern = self.by_number[number].pattern
                if pattern is not None and fields_match(pattern, fields):
                    numbers.append(number)
            numbers.sort()
        return [self.by_number[number] for number in numbers]

    def find(self, client: int, request_id: int) -> Waiter | None:
        """Return a client's request, if it is waiting."""
        for waiter in self.by_number.values():
            if waiter.query.client == client and waiter.query.request_id == request_id:
                return waiter
        return None

    def overdue(self, now_s: float) -> list[Waiter]:
        """Return the waiting requests whose deadline has passed, each once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            if number in self.by_number:
                found.append(self.by_number[number])
        return found

    def next_deadline_s(self) -> float:
        """Return the earliest deadline of a waiting request; infinity without one."""
        while self._deadlines and self._deadlines[0][1] not in self.by_number:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf


# -- subscriptions --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Subscriber:
    """A client's subscription to a pattern, with the copies that it has not asked for yet."""

    key: bytes
    pattern: Fields | None
    backlog: deque[Entry] = field(default_factory=deque)


class Subscribers:
    """All subscriptions of a store."""

    def __init__(
        self, memory: StoreMemory, waiters: Waiters, next_number: Callable[[], int]
    ) -> None:
        # By client and the id of its SUBSCRIBE request.
        self.by_name: dict[tuple[int, int], _Subscriber] = {}
        self._memory = memory
        self._waiters = waiters
        self._next_number = next_number

    def subscribe(self, query: Query, now_s: float) -> Outs:
        """Begin a subscription, which is named by the request id."""
        self.by_name[query.client, query.request_id] = _Subscriber(
            query.key, wildcard_fields(query.key)
        )
        return (answer(query.client, query.request_id, Status.OK),)

    def next(self, query: Query, now_s: float) -> Outs:
        """Reply with the next tuple of a subscription, named by `argument`, or wait for it."""
        subscription = self.by_name.get((query.client, query.argument))
        if subscription is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        if subscription.backlog:
            entry = subscription.backlog.popleft()
            released = self._memory.release(cost_of(entry))
            return [_copy_for(query.client, query.request_id, entry), *released]
        if query.timeout_s <= 0:
            return (answer(query.client, query.request_id, Status.TIMEOUT),)
        waiting = query._replace(key=_next_key(query.client, query.argument))
        waiter = Waiter(self._next_number(), waiting, None)
        self._waiters.add(waiter, now_s + query.timeout_s)
        return NOTHING

    def publish(self, key: bytes, entry: Entry) -> list[Out]:
        """Give a copy of a tuple that is being put to every subscription that matches it."""
        replies: list[Out] = []
        if is_piece(key):
            return replies
        fields = split_fields(key) if self.by_name else ()
        for (client, request_id), subscription in self.by_name.items():
            if subscription.key != key and (
                subscription.pattern is None or not fields_match(subscription.pattern, fields)
            ):
                continue
            waiter = self._waiters.first_on(_next_key(client, request_id))
            if waiter is not None:
                self._waiters.remove(waiter)
                replies.append(_copy_for(client, waiter.query.request_id, entry))
            else:
                subscription.backlog.append(entry)
                self._memory.hold(cost_of(entry))
        return replies

    def unsubscribe(self, query: Query, now_s: float) -> Outs:
        """End a subscription, named by `argument`."""
        released = self._drop((query.client, query.argument))
        return [answer(query.client, query.request_id, Status.OK), *released]

    def client_died(self, client: int) -> list[Out]:
        """End all subscriptions of a client."""
        replies: list[Out] = []
        for name in [name for name in self.by_name if name[0] == client]:
            replies += self._drop(name)
        return replies

    def _drop(self, name: tuple[int, int]) -> list[Out]:
        subscription = self.by_name.pop(name, None)
        released: list[Out] = []
        if subscription is not None:
            while (waiter := self._waiters.first_on(_next_key(*name))) is not None:
                self._waiters.remove(waiter)
            for entry in subscription.backlog:
                released += self._memory.release(cost_of(entry))
        return released


def _copy_for(client: int, request_id: int, entry: Entry) -> Out:
    number, _, body, payload = entry
    return tuple_reply(client, request_id, number, body, loaded(payload))


def _next_key(client: int, request_id: int) -> bytes:
    # No tag begins with "#", so NEXT requests never match tuples.
    return b"#%d/%d" % (client, request_id)


# -- claims ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Claimed:
    """A tuple that a client holds, until its lease ends or, without a lease, the client dies."""

    client: int
    key: bytes
    entry: Entry
    lease_ends_s: float


class Claims:
    """All claims of a store; claimed tuples count in its memory.

    `put_back(key, entry)` puts a tuple back to its old place, or gives it to a waiting request, and
    returns the replies. A claim's name is the version that the reply gave to its holder.
    """

    def __init__(self, memory: StoreMemory, put_back: Callable[[bytes, Entry], list[Out]]) -> None:
        self.by_name: dict[int, Claimed] = {}
        self.held_by_dead: set[int] = set()  # numbers of tuples
        self._memory = memory
        self._put_back = put_back

    def __len__(self) -> int:
        return len(self.by_name)

    def hold(self, name: int, client: int, key: bytes, entry: Entry, lease_ends_s: float) -> None:
        """Record a claim, until its lease ends or, if that is infinity, the client dies."""
        self.by_name[name] = Claimed(client, key, entry, lease_ends_s)

    def has(self, key: bytes) -> bool:
        """Whether a tuple of this tag is claimed."""
        return any(claim.key == key for claim in self.by_name.values())

    def acknowledge(self, query: Query, now_s: float) -> Outs:
        """End a claim, named by `argument`, and remove its tuple."""
        claim = self._claim_of(query)
        if claim is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        del self.by_name[query.argument]
        self.held_by_dead.discard(claim.entry[0])
        released = self._memory.release(cost_of(claim.entry))
        return [answer(query.client, query.request_id, Status.OK), *released]

    def give_back(self, query: Query, now_s: float) -> Outs:
        """End a claim, named by `argument`, and put its tuple back."""
        if self._claim_of(query) is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        returned = self._return([query.argument])
        return [answer(query.client, query.request_id, Status.OK), *returned]

    def renew(self, query: Query, now_s: float) -> Outs:
        """Extend the lease of a claim, named by `argument`, to `timeout_s` from now."""
        claim = self._claim_of(query)
        if claim is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        claim.lease_ends_s = now_s + query.timeout_s
        return (answer(query.client, query.request_id, Status.OK),)

    def expire(self, now_s: float) -> list[Out]:
        """End the claims whose leases have ended, and put their tuples back."""
        if not self.by_name:
            return []
        late = [name for name, claim in self.by_name.items() if claim.lease_ends_s <= now_s]
        return self._return(late)

    def next_deadline_s(self) -> float:
        """Return the time at which the next lease ends; infinity without one."""
        if not self.by_name:
            return math.inf
        return min(claim.lease_ends_s for claim in self.by_name.values())

    def client_died(self, client: int) -> list[Out]:
        """End the claims of a client, and put their tuples back."""
        names = [name for name, claim in self.by_name.items() if claim.client == client]
        self.held_by_dead.update(self.by_name[name].entry[0] for name in names)
        return self._return(names)

    def _claim_of(self, query: Query) -> Claimed | None:
        claim = self.by_name.get(query.argument)
        return claim if claim is not None and claim.client == query.client else None

    def _return(self, names: list[int]) -> list[Out]:
        """End claims, oldest tuple first, so that the longest waiting request gets the oldest."""
        replies: list[Out] = []
        for name in sorted(names, key=lambda name: self.by_name[name].entry[0]):
            claim = self.by_name.pop(name)
            replies += self._put_back(claim.key, claim.entry)
        return replies
