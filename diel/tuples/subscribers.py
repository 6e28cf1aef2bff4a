"""Who subscribes to future tuples at a server: the other end of `subscriptions`.

A subscriber gets a copy of every tuple that is put from its request on. What it has not yet asked
for lies in its backlog, which counts in the server's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from diel.tuples.distributed import is_piece
from diel.tuples.memory import Memory
from diel.tuples.protocol import Operation, Out, Status, answer, tuple_reply
from diel.tuples.queues import Entry
from diel.tuples.requests import NOTHING, Outs, Query, cost_of
from diel.tuples.spill import loaded
from diel.tuples.tags import Fields, fields_match, is_wildcard, split_fields
from diel.tuples.waiters import Waiter, Waiters


@dataclass(slots=True)
class _Subscription:
    """What a client wants copies of, and those that it has yet to ask for."""

    key: bytes
    pattern: Fields | None
    backlog: deque[Entry] = field(default_factory=deque)


class Subscribers:
    """All subscriptions of one store.

    Parameters
    ----------
    memory : Memory
        Of the store, in which backlogs count.
    waiters : Waiters
        Of the store, where requests for the next tuple wait.
    next_number : callable
        Returns the place of a request in order of arrival.

    Attributes
    ----------
    by_name : dict of (int, int) to subscription
        By client and the serial of its request.
    """

    def __init__(self, memory: Memory, waiters: Waiters, next_number: Callable[[], int]) -> None:
        self.by_name: dict[tuple[int, int], _Subscription] = {}
        self._memory = memory
        self._waiters = waiters
        self._next_number = next_number

    def subscribe(self, query: Query, now_s: float) -> Outs:
        """Begin a subscription, whose name is the serial of the request."""
        fields = split_fields(query.key)
        pattern = fields if any(map(is_wildcard, fields)) else None
        self.by_name[query.client, query.serial] = _Subscription(query.key, pattern)
        return (answer(query.client, query.serial, Status.OK),)

    def next(self, query: Query, now_s: float) -> Outs:
        """Give a subscription, named by `argument`, its next tuple."""
        subscription = self.by_name.get((query.client, query.argument))
        if subscription is None:
            return (answer(query.client, query.serial, Status.GONE),)
        if subscription.backlog:
            entry = subscription.backlog.popleft()
            released = self._memory.release(cost_of(entry))
            return [_copy_for(query.client, query.serial, entry), *released]
        if query.timeout_s <= 0:
            return (answer(query.client, query.serial, Status.TIMEOUT),)
        waiter = Waiter(
            self._next_number(),
            query.client,
            query.serial,
            Operation.NEXT,
            _next_key(query.client, query.argument),
            None,
            -1,
            b"",
            query.argument,
        )
        self._waiters.add(waiter, now_s + query.timeout_s)
        return NOTHING

    def tell(self, key: bytes, entry: Entry) -> list[Out]:
        """Give every subscriber that wants it a copy of a tuple that is being put."""
        replies: list[Out] = []
        if is_piece(key):
            return replies
        fields = split_fields(key) if self.by_name else ()
        for (client, serial), subscription in self.by_name.items():
            if subscription.key != key and (
                subscription.pattern is None or not fields_match(subscription.pattern, fields)
            ):
                continue
            waiter = self._waiters.first_on(_next_key(client, serial))
            if waiter is not None:
                self._waiters.remove(waiter)
                replies.append(_copy_for(client, waiter.serial, entry))
            else:
                subscription.backlog.append(entry)
                self._memory.hold(cost_of(entry))
        return replies

    def unsubscribe(self, query: Query, now_s: float) -> Outs:
        """End a subscription, named by `argument`."""
        released = self._drop((query.client, query.argument))
        return [answer(query.client, query.serial, Status.OK), *released]

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


def _copy_for(client: int, serial: int, entry: Entry) -> Out:
    number, _, body, payload = entry
    return tuple_reply(client, serial, number, body, loaded(payload))


def _next_key(client: int, serial: int) -> bytes:
    # No tag begins so: the requests of a subscription wait apart from those for tuples.
    return b"#%d/%d" % (client, serial)
