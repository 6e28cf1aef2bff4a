"""Histories of concurrent operations, and whether some order in one place explains them.

`record` lets clients act on real stores behind a network that is simulated: requests and replies
lie in one first-in-first-out channel for each pair of client and server, and a seeded scheduler
picks which channel delivers next. `explains` searches an order of the operations of one tag that
keeps to their calls and returns and that a queue in one place could have seen.

The search is that of Wing and Gong [1]_ with the memory of Lowe [2]_: what is left after the same
operations in the same state is looked at once.

References
----------
.. [1] Wing and Gong, Testing and Verifying Concurrent Objects, 1993.
.. [2] Lowe, Testing for Linearizability, 2017.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diel.tuples import codec
from diel.tuples.protocol import (
    Operation,
    Reply,
    Status,
    pack_put,
    pack_query,
    unpack_frames,
    unpack_reply,
)
from diel.tuples.store import TupleStore
from diel.tuples.tags import encode_tag

State = tuple[tuple[int, int], ...]
"""The tuples of one tag in order: (value, the claim that holds it or -1)."""


class Event(NamedTuple):
    """An operation on one tag: when it was called and returned, and with what."""

    call: float
    returned: float
    operation: str
    argument: Any
    result: Any
    applied: float = 0.0
    """When a server dealt with it. Only where a search begins, so it finds nothing that is not."""


# -- the queue in one place -----------------------------------------------------------------------


def apply(state: State, event: Event) -> State | None:
    """Return the state after an operation, or None if it cannot have returned what it did."""
    operation, argument, result = event[2:5]
    if operation == "put":
        return (*state, (argument, -1))
    place = next((at for at, entry in enumerate(state) if entry[1] < 0), None)
    if operation == "take" or operation == "read" or operation == "claim":
        if place is None or result is None:
            return state if place is None and result is None else None
        if state[place][0] != result:
            return None
        if operation == "read":
            return state
        held = ((result, argument),) if operation == "claim" else ()
        return state[:place] + held + state[place + 1 :]
    if operation == "acknowledge" or operation == "give_back":
        at = next(at for at, entry in enumerate(state) if entry[1] == argument)
        back = ((state[at][0], -1),) if operation == "give_back" else ()
        return state[:at] + back + state[at + 1 :]
    if operation == "put_if_absent":
        if result == bool(state):
            return None
        return state if state else ((argument, -1),)
    if operation == "increment":
        total = argument + (0 if place is None else state[place][0])
        if total != result:
            return None
        if place is None:
            return (*state, (total, -1))
        return (*state[:place], (total, -1), *state[place + 1 :])
    if operation == "replace":
        old, new = argument
        if ((old, -1) in state) != result:
            return None
        return tuple((new, -1) if entry == (old, -1) else entry for entry in state)
    visible = tuple(value for value, claim in state if claim < 0)
    if operation == "count":
        return state if len(visible) == result else None
    assert operation == "collect"
    return tuple(entry for entry in state if entry[1] >= 0) if visible == result else None


# -- the search -----------------------------------------------------------------------------------


def explains(history: Sequence[Event]) -> bool:
    """Whether an order of the operations of one tag explains what each of them returned."""
    events = sorted(history, key=lambda event: event[:2])
    size = len(events)
    everything = (1 << size) - 1
    seen: set[tuple[int, State]] = set()
    todo: list[tuple[int, State]] = [(0, ())]
    while todo:
        done, state = todo.pop()
        if done == everything:
            return True
        earliest = math.inf
        followers = []
        for at in range(size):
            if done >> at & 1:
                continue
            event = events[at]
            if event[0] > earliest:
                break  # another operation had returned before this one, and all later, began
            if event[1] < earliest:
                earliest = event[1]
            after = apply(state, event) if _can_follow(event, state) else None
            if after is not None:
                following = (done | 1 << at, after)
                if following not in seen:
                    seen.add(following)
                    followers.append((-event[5], following))
        followers.sort()
        todo += [following for _, following in followers]
    return False


def _can_follow(event: Event, state: State) -> bool:
    """Whether the claim that an operation ends is there."""
    if event[2] not in ("acknowledge", "give_back"):
        return True
    return any(entry[1] == event[3] for entry in state)


# -- clients, servers and what lies between them --------------------------------------------------


@dataclass
class _Client:
    """One rank: what it does, one after the other, and what it waits for."""

    number: int
    operations_left: int
    request_id: int = 0
    waits: set[tuple[int, int]] = field(default_factory=set)  # (server, request_id)
    current: Callable[[Reply], None] | None = None
    blocked_on: int | None = None  # a tag, if the wait may last for ever
    unconfirmed: list[tuple[int, int, int, int, list[float]]] = field(default_factory=list)
    """Puts that no reply confirms yet: server, tag, value, call, and when it was applied."""
    claims: list[tuple[int, int, int]] = field(default_factory=list)  # tag, name, number
    read: list[tuple[int, int, int]] = field(default_factory=list)  # tag, value, version


class Recording:
    """A run of some clients against some stores; `histories` has the events of each tag."""

    OPERATIONS = (
        *("put", "put", "put", "put", "put", "put", "take", "take", "wait", "read", "read"),
        *(
            "claim",
            "claim",
            "claim",
            "end",
            "end",
            "end",
            "end",
            "put_if_absent",
            "increment",
            "replace",
            "count",
            "collect",
        ),
        "flush",
    )

    MOST_UNCONFIRMED = 4
    """Puts of a client: where they overlap, a search in vain tries all their orders."""

    def __init__(self, seed: int, make_store: Callable[[], TupleStore] = TupleStore) -> None:
        self.random = random.Random(seed)
        draw = self.random.randrange
        self.stores = [make_store() for _ in range(1 if draw(3) else 3)]
        self.clients = [_Client(number, 4 + draw(9)) for number in range(2 + draw(3))]
        self.tags = 1 + draw(3)
        self.keys = [encode_tag(("t", tag)) for tag in range(self.tags)]
        self.histories: list[list[Event]] = [[] for _ in range(self.tags)]
        self.now = 0
        self.applied = 0.0
        self.claims = 0
        self.requests: dict[tuple[int, int], deque[Any]] = {}
        self.replies: dict[tuple[int, int], deque[Any]] = {}
        self.blocked_with_tuples = False
        self._run()
        self._drain()

    def is_linearizable(self) -> bool:
        """Whether each tag's history has an explanation and nobody waits for what is there."""
        return not self.blocked_with_tuples and all(map(explains, self.histories))

    # -- the scheduler --------------------------------------------------------------------------

    def _run(self) -> None:
        pick = self.random.random
        while True:
            ready: list[Any] = [
                client for client in self.clients if client.operations_left and not client.waits
            ]
            ready += self.requests
            ready += self.replies
            if not ready:
                return
            at = int(pick() * len(ready))
            self.now += 1
            chosen = ready[at]
            if type(chosen) is _Client:
                self._act(chosen)
            elif at < len(ready) - len(self.replies):
                self._serve(*chosen)
            else:
                self._hear(*chosen)

    def _serve(self, client: int, server: int) -> None:
        """Deliver the next request of a client to a server."""
        channel = self.requests[client, server]
        message, payload, applied = channel.popleft()
        if not channel:
            del self.requests[client, server]
        applied.append(self.now)
        replies = self.stores[server].handle(client, message, 0.0, payload)
        for place, (who, *reply) in enumerate(replies, 1):
            moment = self.now + place / 100
            self.replies.setdefault((who, server), deque()).append((*reply, moment))

    def _hear(self, number: int, server: int) -> None:
        """Deliver the next reply of a server to a client."""
        channel = self.replies[number, server]
        message, payload, self.applied = channel.popleft()
        if not channel:
            del self.replies[number, server]
        client = self.clients[number]
        reply = unpack_reply(message, payload)
        client.waits.remove((server, reply.request_id))
        self._confirm(client, server)
        if client.current is not None:
            client.current(reply)

    def _confirm(self, client: _Client, server: int) -> None:
        """Whatever a server answers, it has seen the puts that this client sent it before."""
        left = []
        for put in client.unconfirmed:
            if put[0] == server:
                event = Event(put[3], self.now, "put", put[2], None, put[4][0])
                self.histories[put[1]].append(event)
            else:
                left.append(put)
        client.unconfirmed = left

    # -- what clients do ------------------------------------------------------------------------

    def _act(self, client: _Client) -> None:
        operation = self.random.choice(self.OPERATIONS)
        client.operations_left -= 1
        tag = self.random.randrange(self.tags)
        getattr(self, f"_do_{operation}")(client, tag)

    def _value(self) -> int:
        """Return a number that no other operation has, nor sums of them."""
        return self.random.getrandbits(48)

    def _do_put(self, client: _Client, tag: int) -> None:
        if len(client.unconfirmed) == self.MOST_UNCONFIRMED:
            self._do_flush(client, tag)
            return
        value = self._value()
        applied = self._send_tuple(client, tag, Operation.PUT, 0, value)
        client.unconfirmed.append((self._server(tag), tag, value, self.now, applied))

    def _do_take(self, client: _Client, tag: int, timeout_s: float = 0) -> None:
        self._get(client, tag, Operation.TAKE, "take", timeout_s)

    def _do_wait(self, client: _Client, tag: int) -> None:
        client.blocked_on = tag
        self._do_take(client, tag, math.inf)

    def _do_read(self, client: _Client, tag: int) -> None:
        self._get(client, tag, Operation.READ, "read", 0)

    def _do_claim(self, client: _Client, tag: int) -> None:
        self._get(client, tag, Operation.CLAIM, "claim", 0)

    def _get(
        self, client: _Client, tag: int, operation: Operation, name: str, timeout_s: float
    ) -> None:
        call = self.now
        self.claims += 1
        number = self.claims

        def finish(reply: Reply) -> None:
            client.blocked_on = None
            value = _number(reply)
            argument = number if name == "claim" else None
            self._note(tag, call, name, argument, value)
            if value is not None and name == "claim":
                client.claims.append((tag, reply.number, number))
            if value is not None and name == "read":
                client.read.append((tag, value, reply.number))

        self._ask(client, tag, finish, operation, timeout_s=timeout_s)

    def _do_end(self, client: _Client, tag: int) -> None:
        """Acknowledge a claim or give it back."""
        if not client.claims:
            return
        tag, name, number = client.claims.pop(self.random.randrange(len(client.claims)))
        call = self.now
        gives_back = self.random.random() < 0.5

        def finish(reply: Reply) -> None:
            assert reply.status == Status.OK
            word = "give_back" if gives_back else "acknowledge"
            self._note(tag, call, word, number, None)

        operation = Operation.GIVE_BACK if gives_back else Operation.ACKNOWLEDGE
        self._ask(client, tag, finish, operation, key=b"", argument=name)

    def _do_put_if_absent(self, client: _Client, tag: int) -> None:
        call, value = self.now, self._value()

        def finish(reply: Reply) -> None:
            self._note(tag, call, "put_if_absent", value, reply.number == 1)

        self._send_tuple(client, tag, Operation.PUT_IF_ABSENT, 0, value, finish)

    def _do_replace(self, client: _Client, tag: int) -> None:
        if not client.read:
            return
        tag, old, version = client.read.pop()
        call, new = self.now, self._value()

        def finish(reply: Reply) -> None:
            self._note(tag, call, "replace", (old, new), reply.status == Status.OK)

        self._send_tuple(client, tag, Operation.REPLACE, version, new, finish)

    def _do_increment(self, client: _Client, tag: int) -> None:
        call, by = self.now, self._value()
        kind, meta = codec.encode_number(by)

        def finish(reply: Reply) -> None:
            self._note(tag, call, "increment", by, _number(reply))

        self._ask(client, tag, finish, Operation.INCREMENT, kind=kind, meta=meta)

    def _do_count(self, client: _Client, tag: int) -> None:
        call = self.now

        def finish(reply: Reply) -> None:
            self._note(tag, call, "count", None, reply.number)

        self._ask(client, tag, finish, Operation.COUNT)

    def _do_collect(self, client: _Client, tag: int) -> None:
        call = self.now

        def finish(reply: Reply) -> None:
            found = tuple(_number(item) for item in unpack_frames(reply.payload))
            self._note(tag, call, "collect", None, found)

        self._ask(client, tag, finish, Operation.COLLECT)

    def _do_flush(self, client: _Client, tag: int) -> None:
        client.current = None
        for server in range(len(self.stores)):
            client.request_id += 1
            client.waits.add((server, client.request_id))
            self._send(client, server, pack_query(Operation.FLUSH, client.request_id))

    # -- messages -------------------------------------------------------------------------------

    def _server(self, tag: int) -> int:
        return tag % len(self.stores)

    def _send(
        self, client: _Client, server: int, message: bytes, payload: Any = None
    ) -> list[float]:
        """Send a request; return where it will be said when it was applied."""
        applied: list[float] = []
        channel = self.requests.setdefault((client.number, server), deque())
        channel.append((message, payload, applied))
        return applied

    def _send_tuple(
        self,
        client: _Client,
        tag: int,
        operation: Operation,
        argument: int,
        value: int,
        finish: Callable[[Reply], None] | None = None,
    ) -> list[float]:
        server = self._server(tag)
        kind, data = codec.encode_number(value)
        if finish is not None:
            client.request_id += 1
            client.waits.add((server, client.request_id))
            client.current = finish
        request_id = client.request_id if finish is not None else 0
        packed = pack_put(operation, request_id, argument, kind, self.keys[tag], b"", data)
        return self._send(client, server, *packed)

    def _ask(
        self,
        client: _Client,
        tag: int,
        finish: Callable[[Reply], None],
        operation: Operation,
        key: bytes | None = None,
        **fields: Any,
    ) -> None:
        server = self._server(tag)
        client.request_id += 1
        client.waits.add((server, client.request_id))
        client.current = finish
        key = self.keys[tag] if key is None else key
        self._send(client, server, pack_query(operation, client.request_id, key, **fields))

    def _note(self, tag: int, call: int, operation: str, argument: Any, result: Any) -> None:
        event = Event(call, self.now, operation, argument, result, self.applied)
        self.histories[tag].append(event)

    # -- the end --------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Take what is left, so that a tuple that was lost is missed."""
        for client in self.clients:
            for server in range(len(self.stores)):  # all requests have been served
                self._confirm(client, server)
        last = _Client(len(self.clients), 0)
        self.clients.append(last)
        blocked = {client.blocked_on for client in self.clients}
        for tag in range(self.tags):
            found: int | None = -1
            while found is not None:
                self.now += 1
                self._do_take(last, tag)
                self._serve(last.number, self._server(tag))
                self.now += 1
                self._hear(last.number, self._server(tag))
                found = self.histories[tag][-1].result
                if found is not None and tag in blocked:
                    self.blocked_with_tuples = True


def _number(reply: Reply) -> int | None:
    if reply.status != Status.OK:
        return None
    return int(codec.decode_number(reply.kind, reply.payload))
