"""The store of a tuple server: the operations on its tuples."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from diel.tuples import codec
from diel.tuples.protocol import (
    BODY_AT,
    FIXED_BYTES,
    FLAGS,
    HELD_BY_DEAD,
    KEY_AT,
    KEY_BYTES_AT,
    NOTHING,
    OPERATION,
    PLAIN,
    QUERY_KEY_AT,
    STRIPED,
    TUPLE_OVERHEAD_BYTES,
    Operation,
    Out,
    Outs,
    Payload,
    Query,
    Status,
    answer,
    number_cost,
    ok_prefix,
    pack_frames,
    pack_put,
    plain_question,
    tag_bytes,
    tuple_reply,
    unpack_body,
    unpack_prefix,
    unpack_query,
)
from diel.tuples.store.memory import Spillable, SpillFolder, StoreMemory, cost_of, loaded
from diel.tuples.store.pending import Claims, Subscribers, Waiter, Waiters
from diel.tuples.store.queues import Entry, Queues
from diel.tuples.tags import wildcard_fields

# Plain integers for the code that runs for every tuple: members of an IntEnum are slower to look up
# and to compare.
_PUT: Final = int(Operation.PUT)
_LAST_WITH_A_TUPLE: Final = int(Operation.REPLACE)
_PUT_BACK: Final = int(Operation.PUT_BACK)
_TAKE: Final = int(Operation.TAKE)
_READ: Final = int(Operation.READ)
_CLAIM: Final = int(Operation.CLAIM)
_WATCH: Final = int(Operation.WATCH)


REPLY_BYTES: Final = 64 * 2**20
"""The approximate limit on a reply with many tuples; the client asks again for the rest."""


class TupleStore:
    """A state machine that applies requests to the tuples of one server, and returns replies.

    Parameters
    ----------
    capacity_bytes : int
        The memory that tuples may take, including their overhead. Unused credit of clients, at most
        an eighth of it, may come on top.
    refuse_when_full : bool
        Whether to refuse a request for credit at once if there is no room, rather than let it wait.
    spill : SpillFolder, optional
        Receives the oldest large payloads when memory is short.
    """

    def __init__(
        self,
        capacity_bytes: int = 2 * 2**30,
        refuse_when_full: bool = False,
        spill: SpillFolder | None = None,
    ) -> None:
        self._numbers = 0
        self.queues = Queues()
        self._by_key, self._buckets = self.queues.by_key, self.queues.buckets
        self.memory = StoreMemory(capacity_bytes, refuse_when_full)
        self._waiters = Waiters()
        self.claims = Claims(self.memory, self._put_back)
        self._dumps: dict[int, deque[Entry]] = {}  # by client: the rest of its snapshot
        self._spillable = None if spill is None else Spillable(spill, self.queues, self.memory)
        self._subscribers = Subscribers(self.memory, self._waiters, self._next_number)
        self._subscriptions = self._subscribers.by_name
        self._now_s = 0.0
        self._operations: dict[int, Callable[[Query, float], Outs]] = {
            Operation.TAKE: self._get,
            Operation.READ: self._get,
            Operation.CLAIM: self._get,
            Operation.WATCH: self._get,
            Operation.CANCEL: self._cancel,
            Operation.INCREMENT: self._increment,
            Operation.ACKNOWLEDGE: self.claims.acknowledge,
            Operation.GIVE_BACK: self.claims.give_back,
            Operation.RENEW: self.claims.renew,
            Operation.COUNT: self._count,
            Operation.COLLECT: self._collect,
            Operation.SUBSCRIBE: self._subscribers.subscribe,
            Operation.NEXT: self._subscribers.next,
            Operation.UNSUBSCRIBE: self._subscribers.unsubscribe,
            Operation.ASK_CREDIT: self._ask_credit,
            Operation.RETURN_CREDIT: self._return_credit,
            Operation.FLUSH: self._flush,
            Operation.DUMP: self._dump,
            Operation.SURVEY: self._survey,
            Operation.START_OVER: self._start_over,
        }

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def tuples_held(self) -> int:
        """The number of tuples, claimed tuples included."""
        return len(self.queues) + len(self.claims)

    @property
    def held_bytes(self) -> int:
        """The memory that the tuples and backlogs take, in bytes."""
        return self.memory.held_bytes

    @property
    def capacity_bytes(self) -> int:
        """The memory that tuples may take."""
        return self.memory.capacity_bytes

    # -- requests -----------------------------------------------------------------------------

    def handle(self, client: int, message: bytes, now_s: float, payload: Payload = None) -> Outs:
        """Apply a client's request; return replies to it and to requests that have waited.

        `now_s` is from any monotonic clock. The store keeps a reference to a separate `payload`.
        """
        self._now_s = now_s
        operation = message[OPERATION]
        if operation == _PUT:
            return self._put_message(client, message, payload)
        if operation == _TAKE and message[FLAGS] == PLAIN:
            # Fast path for a plain take of the only tuple of its tag.
            request_id, key_bytes = plain_question(message)
            key = message[QUERY_KEY_AT : QUERY_KEY_AT + key_bytes]
            entry = self._by_key.get(key)
            if type(entry) is tuple and entry[3] is None and not self._buckets:
                del self._by_key[key]
                _, version, body, _ = entry
                memory = self.memory
                memory.released_bytes += FIXED_BYTES + len(body)
                reply = client, ok_prefix(request_id, version) + body, None
                return (reply, *memory.release(0)) if memory.askers else (reply,)
        if operation <= _LAST_WITH_A_TUPLE or operation == _PUT_BACK:
            return self._apply_tuple(client, message, payload)
        return self._operations[operation](unpack_query(client, message), now_s)

    def expire(self, now_s: float) -> Outs:
        """End requests past their timeout and claims past their lease; return the replies."""
        self._now_s = now_s
        replies: list[Out] = []
        for waiter in self._waiters.overdue(now_s):
            self._waiters.remove(waiter)
            query = waiter.query
            replies.append(answer(query.client, query.request_id, Status.TIMEOUT))
        replies += self.memory.expire(now_s)
        return replies + self.claims.expire(now_s)

    def next_deadline_s(self) -> float:
        """Return the time at which `expire` is due next; infinity if it is not."""
        return min(
            self._waiters.next_deadline_s(),
            self.memory.next_deadline_s(),
            self.claims.next_deadline_s(),
        )

    def client_died(self, client: int, now_s: float = 0.0) -> Outs:
        """Give a client's claims back, drop its requests and subscriptions; return replies."""
        self._now_s = max(self._now_s, now_s)
        replies: list[Out] = []
        for waiter in [waiter for waiter in self._waiters if waiter.query.client == client]:
            self._waiters.remove(waiter)
        replies += self._subscribers.client_died(client)
        self._dumps.pop(client, None)
        replies += self.memory.client_died(client)
        return replies + self.claims.client_died(client)

    # -- putting ------------------------------------------------------------------------------

    def _put_message(self, client: int, message: bytes, payload: Payload) -> Outs:
        """Put a tuple; on the fast path, so `tag_bytes` and other helpers are inlined here."""
        key = message[KEY_AT : KEY_AT + (message[KEY_BYTES_AT] | message[KEY_BYTES_AT + 1] << 8)]
        body = message[BODY_AT:]
        cost = TUPLE_OVERHEAD_BYTES + len(message)
        if payload is not None:
            cost += len(payload)
        memory = self.memory
        credit = memory.credits.get(client)
        if credit is not None and cost <= credit.credit_bytes:
            credit.credit_bytes -= cost
            memory.arrived_bytes += cost
        else:
            credit = memory.arrived(client, cost)
        credit.puts += 1
        if self._waiters.by_number or self._subscriptions:
            return self._put(key, body, payload)
        self._numbers = number = self._numbers + 1
        if key in self._by_key or self._buckets:
            self.queues.append(key, (number, number, body, payload))
        else:
            self._by_key[key] = (number, number, body, payload)
        if payload is not None and self._spillable is not None:
            self._spillable.add(number, key)
        return NOTHING

    def _apply_tuple(self, client: int, message: bytes, payload: Payload) -> Outs:
        """Apply a put that is not a plain one, and reply whether it was done."""
        key = tag_bytes(message)
        body = message[BODY_AT:]
        cost = cost_of((0, 0, body, payload))
        self.memory.arrived(client, cost)
        request_id, argument = unpack_prefix(message)
        if message[OPERATION] == Operation.REPLACE:
            status, gone_bytes = self._replace(key, argument, body, payload, cost)
            return [answer(client, request_id, status), *self.memory.release(gone_bytes)]
        if message[OPERATION] == _PUT_BACK:
            put_back = self._put_back(key, (argument, argument, body, payload))
            return [answer(client, request_id, Status.OK), *put_back]
        present = self.queues.first(key) is not None or self.claims.has(key)
        put = self.memory.release(cost) if present else self._put(key, body, payload)
        return [answer(client, request_id, Status.OK, 0 if present else 1), *put]

    def _put(self, key: bytes, body: bytes, payload: Payload) -> Outs:
        self._numbers = number = self._numbers + 1
        entry = (number, number, body, payload)
        replies = self._subscribers.publish(key, entry)
        taken_by, more = self._offer_to_waiters(key, entry)
        if taken_by is None:
            self.queues.append(key, entry)
        released = self.memory.release(cost_of(entry)) if taken_by == _TAKE else ()
        return [*replies, *more, *released]

    def _put_back(self, key: bytes, entry: Entry) -> list[Out]:
        """Put a tuple back to its old place, unless a waiting request takes it."""
        taken_by, replies = self._offer_to_waiters(key, entry)
        if taken_by is None:
            self.queues.restore(key, entry)
            if entry[3] is not None and self._spillable is not None:
                self._spillable.add(entry[0], key)
        elif taken_by == _TAKE:
            replies += self.memory.release(cost_of(entry))
        return replies

    def _offer_to_waiters(self, key: bytes, entry: Entry) -> tuple[int | None, list[Out]]:
        """Offer a tuple to waiting requests in order; return the operation that took it, if any."""
        replies = []
        for waiter in self._waiters.matching(key):
            self._waiters.remove(waiter)
            reply, removes = self._offer(waiter.query, key, entry)
            replies.append(reply)
            if removes:
                return waiter.query.operation, replies
        return None, replies

    def _offer(self, query: Query, key: bytes, entry: Entry) -> tuple[Out, bool]:
        """Return the reply to a request that a tuple matches, and whether it removes the tuple.

        A request with ``out=`` names the only kind and meta that it can receive; if the tuple has
        others, the request is refused and the tuple stays.
        """
        _, version, body, payload = entry
        operation = query.operation
        if operation == _WATCH:
            return answer(query.client, query.request_id, Status.OK), False
        if query.kind >= 0:
            kind, _, meta, _ = unpack_body(body)
            if (query.kind, query.meta) != (kind & ~STRIPED, meta):
                misfit = pack_put(Status.MISMATCH, query.request_id, 0, kind, key, meta, b"")[0]
                return Out(query.client, misfit), False
        if operation == _CLAIM:
            lease_ends_s = self._now_s + query.argument / 1000 if query.argument else math.inf
            self._numbers = version = self._numbers + 1  # names the claim
            if entry[0] in self.claims.held_by_dead:
                version |= HELD_BY_DEAD
            self.claims.hold(version, query.client, key, entry, lease_ends_s)
        reply = tuple_reply(query.client, query.request_id, version, body, loaded(payload))
        return reply, operation != _READ

    # -- getting ------------------------------------------------------------------------------

    def _get(self, query: Query, now_s: float) -> Outs:
        key = query.key
        pattern = wildcard_fields(key)
        found = key if pattern is None else self.queues.oldest_match(pattern)
        entry = None if found is None else self.queues.first(found)
        if found is not None and entry is not None:
            reply, removes = self._offer(query, found, entry)
            if not removes:
                return (reply,)
            self.queues.take_first(found)
            if query.operation == _CLAIM:
                return (reply,)  # a claimed tuple still counts as held
            released = self.memory.release(cost_of(entry))
            return (reply, *released) if released else (reply,)
        if query.timeout_s <= 0:
            return (answer(query.client, query.request_id, Status.TIMEOUT),)
        self._numbers += 1
        self._waiters.add(Waiter(self._numbers, query, pattern), now_s + query.timeout_s)
        return NOTHING

    def _cancel(self, query: Query, now_s: float) -> Outs:
        waiter = self._waiters.find(query.client, query.argument)
        if waiter is not None:
            self._waiters.remove(waiter)
        return NOTHING

    # -- changing -----------------------------------------------------------------------------

    def _increment(self, query: Query, now_s: float) -> Outs:
        """Add the number in `kind` and `meta` to a tag's oldest tuple; put it if there is none."""
        # The client spent the credit for the put of a number, which this request may lead to.
        cost = number_cost(query.key)
        self.memory.arrived(query.client, cost)
        entry = self.queues.first(query.key)
        total = codec.decode_number(query.kind, query.meta)
        if entry is not None:
            number, _, body, _ = entry
            kind, _, _, data = unpack_body(body)
            if kind not in (codec.INTEGER, codec.FLOAT):
                refusal = answer(query.client, query.request_id, Status.NOT_A_NUMBER)
                return (refusal, *self.memory.release(cost))
            total = codec.decode_number(kind, data) + total
        try:
            kind, value = codec.encode_number(total)
        except OverflowError:
            refusal = answer(query.client, query.request_id, Status.TOO_LARGE)
            return (refusal, *self.memory.release(cost))
        message, _ = pack_put(Status.OK, query.request_id, 0, kind, query.key, b"", value)
        body = message[BODY_AT:]
        reply = Out(query.client, message)
        if entry is None:
            return [reply, *self._put(query.key, body, None)]
        self._numbers += 1
        self.queues.replace(query.key, entry, (number, self._numbers, body, None))
        return (reply, *self.memory.release(cost))

    def _replace(
        self, key: bytes, version: int, body: bytes, payload: Payload, cost: int
    ) -> tuple[Status, int]:
        """Replace the tuple that has a given version; it keeps its place in the order.

        Returns OK or CONFLICT, and the bytes to release: of the old tuple, or of the rejected one.
        """
        for entry in self.queues.of(key):
            if entry[1] == version:
                self._numbers += 1
                changed = (entry[0], self._numbers, body, payload)
                self.queues.replace(key, entry, changed)
                return Status.OK, cost_of(entry)
        return Status.CONFLICT, cost

    # -- many tuples at once ------------------------------------------------------------------

    def _count(self, query: Query, now_s: float) -> Outs:
        """Reply how many tuples match, claimed tuples excluded."""
        count = len(self._matching(query.key))
        return (answer(query.client, query.request_id, Status.OK, count),)

    def _collect(self, query: Query, now_s: float) -> Outs:
        """Take all tuples that match, at most `argument`; 0 stands for no limit.

        The reply's meta is not empty if more tuples match than fit into the reply.
        """
        taken: list[Entry] = []
        size, more = 0, b""
        released: list[Out] = []
        for key, entry in self._matching(query.key):
            if query.argument and len(taken) >= query.argument:
                break
            if size >= REPLY_BYTES:
                more = b"+"
                break
            self.queues.take_first(key)  # removes this entry, since matches come oldest first
            released += self.memory.release(cost_of(entry))
            taken.append(entry)
            size += cost_of(entry)
        return [_reply(query, taken, more), *released]

    def _dump(self, query: Query, now_s: float) -> Outs:
        """Reply with a piece of a snapshot of all tuples; `argument` 0 takes a new snapshot."""
        if query.argument == 0:
            everything = sorted(self.entries(), key=lambda item: item[1][0])
            self._dumps[query.client] = deque(entry for _, entry in everything)
        rest = self._dumps.get(query.client, deque())
        piece: list[Entry] = []
        size = 0
        while rest and size < REPLY_BYTES:
            piece.append(rest.popleft())
            size += cost_of(piece[-1])
        if not rest:
            self._dumps.pop(query.client, None)
        return (_reply(query, piece),)

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield all tuples with their keys, claimed tuples included."""
        for key in self.queues:
            for entry in self.queues.of(key):
                yield key, entry
        for claim in self.claims.by_name.values():
            yield claim.key, claim.entry

    def _matching(self, key: bytes) -> list[tuple[bytes, Entry]]:
        pattern = wildcard_fields(key)
        if pattern is not None:
            return self.queues.matching(pattern)
        return [(key, entry) for entry in self.queues.of(key)]

    # -- credit, flush, survey ----------------------------------------------------------------

    def _ask_credit(self, query: Query, now_s: float) -> Outs:
        if self._spillable is not None:
            self._spillable.make_room(self.memory.missing_bytes(query.argument))
        return self.memory.ask(
            query.client, query.request_id, query.argument, now_s + query.timeout_s, query.timeout_s
        )

    def _return_credit(self, query: Query, now_s: float) -> Outs:
        self.memory.arrived(query.client, query.argument)
        return self.memory.release(query.argument)

    def _flush(self, query: Query, now_s: float) -> Outs:
        return (answer(query.client, query.request_id, Status.OK),)

    def _start_over(self, query: Query, now_s: float) -> Outs:
        """Reset a client's requests, subscriptions, claims and credit, as if it had died."""
        forgotten = self.client_died(query.client, now_s)
        return [*forgotten, answer(query.client, query.request_id, Status.OK)]

    def _survey(self, query: Query, now_s: float) -> Outs:
        """Reply with the tags and waiting requests of this store, as JSON, to explain deadlocks."""
        survey = {
            "puts_applied": {client: credit.puts for client, credit in self.memory.credits.items()},
            "held_bytes": self.memory.held_bytes,
            "spill_error": self.memory.spill_error,
            "tags": [(key.hex(), len(self.queues.of(key))) for key in self.queues][:1000],
            "waiting": sorted(
                {(waiter.query.client, waiter.query.request_id) for waiter in self._waiters}
                | set(self.memory.askers)
            ),
            "claims": [(claim.client, claim.key.hex()) for claim in self.claims.by_name.values()],
        }
        data = json.dumps(survey).encode()
        message, payload = pack_put(Status.OK, query.request_id, 0, codec.BYTES, b"", b"", data)
        return (Out(query.client, message, payload),)


def _reply(query: Query, entries: Sequence[Entry], meta: bytes = b"") -> Out:
    frames = pack_frames([(body, loaded(payload)) for _, _, body, payload in entries])
    message, payload = pack_put(
        Status.OK, query.request_id, len(entries), codec.BYTES, b"", meta, frames
    )
    return Out(query.client, message, payload)
