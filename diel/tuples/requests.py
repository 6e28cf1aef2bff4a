"""Requests to tuple servers: which server has a tag, credit for puts, waits for the answers."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

from diel.comm.device_arrays import device_bytes, is_on_device, memory_to_send, to_host
from diel.errors import PayloadError, TupleSpaceFull, TupleTimeout
from diel.tuples import codec
from diel.tuples.protocol import (
    INLINE_BYTES,
    LONGEST_META_BYTES,
    SMALL_BYTES,
    STRIPED,
    Credit,
    KnownTag,
    Operation,
    Payload,
    Reply,
    Status,
    is_piece,
    message_cost,
    number_cost,
    pack_put,
    pack_query,
    server_of_piece,
)
from diel.tuples.tags import (
    WILDCARD,
    Pattern,
    Tag,
    decode_tag,
    encode_pattern,
    encode_tag,
    format_tag,
)

if TYPE_CHECKING:
    from diel.tuples.transport import Transport

Wait: TypeAlias = "tuple[str, object, float]"
"""The call that waits, its tag, and its timeout in seconds."""

ANYWHERE: Final = -1
"""In place of a server: a pattern whose matches may be on any of them."""

_TAGS_REMEMBERED: Final = 10_000
_PUT: Final = int(Operation.PUT)  # a member of an IntEnum is slow to pack


class Requests:
    """The requests of one client: routed to servers, paid for with credit, waited for."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.servers = transport.servers
        self.known: dict[str, KnownTag] = {}  # tags that were used before
        self.waiting_for: Wait | None = None  # the call that waits at this moment
        self._credits = [Credit() for _ in range(self.servers)]

    @property
    def puts(self) -> list[int]:
        """How many puts this client has sent to each server."""
        return [credit.puts for credit in self._credits]

    # -- which server -------------------------------------------------------------------------

    def place(self, tag: Tag) -> tuple[bytes, int]:
        """Return the bytes of a tag and the server that has it."""
        if type(tag) is str and tag in self.known:
            return self.known[tag][:2]
        key = encode_tag(tag)
        server = self.route(key)
        if type(tag) is str and len(key) <= SMALL_BYTES and len(self.known) < _TAGS_REMEMBERED:
            self.known[tag] = KnownTag.of(key, server, self._credits[server])
        return key, server

    def pattern_place(self, tag: Pattern) -> tuple[bytes, int]:
        """Return the bytes of a pattern and the server that has its matches, or `ANYWHERE`."""
        if type(tag) is str and tag in self.known:
            return self.known[tag][:2]
        key, wild = encode_pattern(tag)
        if wild and self.servers > 1 and key[:1] == WILDCARD:
            return key, ANYWHERE
        return key, self.route(key)

    def pattern_places(self, tag: Pattern) -> tuple[bytes, list[int]]:
        """Return the bytes of a pattern and all servers that may have its matches."""
        key, server = self.pattern_place(tag)
        return key, list(range(self.servers)) if server == ANYWHERE else [server]

    def route(self, key: bytes) -> int:
        """Return the server that has the tuples of a tag, or a piece."""
        if self.servers == 1:
            return 0
        if is_piece(key):
            return server_of_piece(key, self.servers)
        first_field_ends = 5 + int.from_bytes(key[1:5], "little")
        # A checksum and not Python's hash, which differs from process to process.
        return crc32(key[:first_field_ends]) % self.servers

    # -- questions ----------------------------------------------------------------------------

    def ask(
        self,
        server: int,
        operation: int,
        key: bytes = b"",
        *,
        timeout_s: float = math.inf,
        argument: int = 0,
        kind: int = -1,
        meta: bytes = b"",
        target: codec.Encoded | None = None,
    ) -> Reply:
        """Ask a server and wait for the reply; see `pack_query`.

        What names a `target` is answered with a payload that fits it, received into its memory.
        """
        request_id = self.transport.next_request_id()
        if target is not None:
            kind, meta = target.kind, target.meta
        message = pack_query(
            operation, request_id, key, timeout_s=timeout_s, argument=argument, kind=kind, meta=meta
        )
        self.transport.send(server, message)
        targets = None if target is None else {request_id: target.buffer}
        return self.transport.receive((request_id,), timeout_s, targets)[1]

    def ask_all(
        self,
        operation: int,
        places: Sequence[tuple[int, bytes]],
        cuts: Sequence[memoryview] | None = None,
    ) -> list[Reply]:
        """Ask several servers at the same time, without waiting there; replies in this order."""
        request_ids = [self.transport.next_request_id() for _ in places]
        for request_id, (server, key) in zip(request_ids, places, strict=True):
            self.transport.send(server, pack_query(operation, request_id, key, timeout_s=0))
        targets = None if cuts is None else dict(zip(request_ids, cuts, strict=True))
        found = {
            reply.request_id: reply for _, reply in self.transport.receive_all(request_ids, targets)
        }
        return [found[request_id] for request_id in request_ids]

    def flush(self) -> None:
        """Return when everything that this client has put is in the space."""
        for server in range(self.servers):
            self.ask(server, Operation.FLUSH)

    def match(
        self,
        operation: int,
        name: str,
        tag: Pattern,
        timeout_s: float,
        target: codec.Encoded | None = None,
        argument: int = 0,
    ) -> tuple[int, Reply]:
        """Wait for a tuple that a pattern matches; return the server that had it, and its reply."""
        key, server = self.pattern_place(tag)
        self.waiting_for = (name, tag, timeout_s)
        try:
            if server == ANYWHERE:
                return self._match_anywhere(operation, key, timeout_s, target, argument)
            return server, self.ask(
                server, operation, key, timeout_s=timeout_s, target=target, argument=argument
            )
        except BaseException:
            self._name_cut_short(operation)
            raise
        finally:
            self.waiting_for = None

    def await_take(self, request_id: int, tag: object) -> Reply:
        """Wait for the reply to a plain take that was sent already."""
        self.waiting_for = ("tget", tag, math.inf)
        try:
            return self.transport.receive((request_id,))[1]
        except BaseException:
            self._name_cut_short(Operation.TAKE)
            raise
        finally:
            self.waiting_for = None

    def watch(self, server: int, key: bytes, timeout_s: float = math.inf) -> int:
        """Ask a server to reply once a tuple matches; return the request, whose reply is kept."""
        request_id = self.transport.next_request_id()
        self.transport.keep(request_id)
        self.transport.send(
            server, pack_query(Operation.WATCH, request_id, key, timeout_s=timeout_s)
        )
        return request_id

    def cancel(self, server: int, request_id: int) -> None:
        """End a watch."""
        self.transport.drop(request_id)
        self.transport.send(server, pack_query(Operation.CANCEL, 0, argument=request_id))

    def _match_anywhere(
        self,
        operation: int,
        key: bytes,
        timeout_s: float,
        target: codec.Encoded | None,
        argument: int,
    ) -> tuple[int, Reply]:
        """Take at whichever server has a match: each is asked to reply once it has."""

        def try_at(server: int) -> Reply:
            return self.ask(server, operation, key, timeout_s=0, target=target, argument=argument)

        for server in range(self.servers):
            reply = try_at(server)
            if reply.status != Status.TIMEOUT or (timeout_s <= 0 and server == self.servers - 1):
                return server, reply
        deadline_s = time.monotonic() + timeout_s
        watches: dict[int, int] = {}  # request_id -> server
        try:
            for server in range(self.servers):
                watches[self.watch(server, key, timeout_s)] = server
            while True:
                server, matched = self.transport.receive(watches, timeout_s)
                self.transport.drop(matched.request_id)
                del watches[matched.request_id]
                if matched.status == Status.TIMEOUT:
                    if not watches:
                        return server, matched
                    continue
                reply = try_at(server)
                if reply.status != Status.TIMEOUT:
                    return server, reply
                # Another rank was faster. This one goes on waiting, for what is left of its time.
                left_s = max(0.0, deadline_s - time.monotonic())
                watches[self.watch(server, key, left_s)] = server
        finally:
            for request_id, server in watches.items():
                self.cancel(server, request_id)

    # -- tuples to put ------------------------------------------------------------------------

    def encode(self, value: object, key: bytes, tag: Tag) -> tuple[int, bytes, bytes, Any]:
        """Return kind, key, meta and memory of a value to be put under the key of a tag."""
        if is_on_device(value):
            meter = self.transport.meter
            if device_bytes(value) > INLINE_BYTES and self.transport.gpu_aware:
                meta = codec.device_array_meta(value)
                return codec.ARRAY, key, meta, memory_to_send(value, meter, tag)
            value = to_host(value, meter, tag)
        kind, meta, buffer = codec.encode(value)
        if len(meta) > LONGEST_META_BYTES:  # a dtype of a thousand fields
            kind, meta, buffer = codec.encode_as_pickle(value)
        return kind, key, meta, buffer

    def put(self, tag: Tag, value: object, timeout: float | None) -> int:
        """Put a tuple; return its server."""
        key, server = self.place(tag)
        self._put(server, self.encode(value, key, tag), tag, timeout)
        return server

    def put_again(self, item: Reply) -> None:
        """Put a tuple as it came from a server."""
        encoded = item.kind, item.key, item.meta, item.payload
        self._put(self.route(item.key), encoded, decode_tag(item.key), None)

    def _put(
        self,
        server: int,
        encoded: tuple[int, bytes, bytes, Any],
        tag: object,
        timeout: float | None,
    ) -> None:
        message, payload = pack_put(_PUT, 0, 0, *encoded)
        self._spend(server, message_cost(message, payload), tag, timeout)
        self._credits[server].puts += 1
        self.transport.send(server, message, payload)

    def change(self, operation: int, tag: Tag, argument: int, value: object) -> Reply:
        """Put a tuple under a condition, and wait for the reply."""
        key, server = self.place(tag)
        request_id = self.transport.next_request_id()
        message, payload = pack_put(operation, request_id, argument, *self.encode(value, key, tag))
        self._spend(server, message_cost(message, payload), tag, None)
        self.transport.send(server, message, payload)
        return self.transport.receive((request_id,))[1]

    def increment(self, tag: Tag, by: Any) -> int | float:
        """Add to the number under a tag; see `TupleClient.increment`."""
        key, server = self.place(tag)
        if hasattr(by, "__index__") and not isinstance(by, bool):
            by = operator.index(by)  # NumPy's integers too
        if isinstance(by, bool) or not isinstance(by, (int, float)):
            raise PayloadError(f"increment({format_tag(tag)}): by is a number, not {by!r}")
        try:
            kind, meta = codec.encode_number(by)
        except OverflowError:
            raise PayloadError(f"increment({format_tag(tag)}): {by} needs over 64 bits") from None
        # If there is no tuple yet, there is one afterwards: that has its price.
        self._spend(server, number_cost(key), tag, None)
        reply = self.ask(server, Operation.INCREMENT, key, kind=kind, meta=meta)
        if reply.status == Status.NOT_A_NUMBER:
            raise PayloadError(f"increment({format_tag(tag)}): the tuple there is not a number")
        if reply.status == Status.TOO_LARGE:
            raise PayloadError(f"increment({format_tag(tag)}): the result needs over 64 bits")
        return codec.decode_number(reply.kind, reply.payload)

    def send_puts(self, parts: Sequence[tuple[int, bytes, Payload]]) -> None:
        """Send (server, message, payload) to several servers; their credit was spent."""
        for server, _, _ in parts:
            self._credits[server].puts += 1
        self.transport.send_all(parts)

    def spend(self, costs: Sequence[tuple[int, int]], tag: object, timeout: float | None) -> None:
        """Get the credit for several messages, as (server, cost in bytes), or for none of them."""
        for index, (server, cost) in enumerate(costs):
            try:
                self._spend(server, cost, tag, timeout)
            except BaseException:
                for spent_at, spent in costs[:index]:  # so that others may have it
                    query = pack_query(Operation.RETURN_CREDIT, 0, argument=spent)
                    self.transport.send(spent_at, query)
                raise

    def _spend(self, server: int, cost: int, tag: object, timeout: float | None) -> None:
        """Take the cost of a message, in bytes, off the credit; ask for more if need be."""
        credit = self._credits[server]
        if cost > credit.credit_bytes:
            timeout_s = seconds(timeout)
            self.waiting_for = ("tput", tag, timeout_s)
            try:
                reply = self.ask(server, Operation.ASK_CREDIT, timeout_s=timeout_s, argument=cost)
            finally:
                self.waiting_for = None
            if reply.status == Status.TIMEOUT:
                reason = f"no room for {cost:,} bytes ({_what_is_held(reply)})"
                raise TupleTimeout("tput", format_tag(tag), timeout_s, reason)
            if reply.status != Status.OK:
                raise TupleSpaceFull(_no_room(tag, cost, reply))
            credit.credit_bytes += reply.number
        credit.credit_bytes -= cost

    # -- after an exception -------------------------------------------------------------------

    def _name_cut_short(self, operation: int) -> None:
        """Note what the requests were whose wait was just cut short."""
        for request_id, known in self.transport.cut_short.items():
            self.transport.cut_short[request_id] = known or operation

    def start_over(self) -> None:
        """Forget all requests, at the servers too; see `TupleClient.start_over`."""
        self.waiting_for = None
        late = dict(self.transport.cut_short)
        self.transport.cut_short.clear()
        for server in range(self.servers):
            self.ask(server, Operation.START_OVER, timeout_s=0)
            self._credits[server].credit_bytes = 0
        replies = [reply for _, reply in self.transport.kept(late)]
        for request_id in late:
            self.transport.drop(request_id)
        for reply in replies:
            is_taken = late[reply.request_id] == Operation.TAKE and reply.status == Status.OK
            if is_taken and reply.kind >= 0:
                self.put_again(reply)


def raise_for(
    reply: Reply,
    name: str,
    tag: object,
    timeout_s: float,
    target: codec.Encoded | None = None,
) -> None:
    """Raise what a call raises whose reply is not a tuple that it can have."""
    if reply.status == Status.TIMEOUT:
        raise TupleTimeout(name, format_tag(tag), timeout_s)
    if reply.status == Status.MISMATCH and target is not None:
        wanted = codec.describe(target.kind, target.meta)
        found = codec.describe(reply.kind, reply.meta)
        raise PayloadError(
            f"{name}({format_tag(tag)}): out= is {wanted}, the tuple is {found}; it was left there"
        )


def whole_value(reply: Reply, name: str, tag: object) -> Any:
    """Return the value of a tuple, which may not be striped."""
    if reply.kind & STRIPED:
        raise PayloadError(
            f"{name}({format_tag(tag)}): the tuple is striped; take it with dist_tget"
        )
    return codec.decode(reply.kind, reply.meta, reply.payload)


def _no_room(tag: object, cost: int, reply: Reply) -> str:
    what = f"tput({format_tag(tag)}): {cost:,} bytes"
    if reply.status == Status.TOO_LARGE:
        return (
            f"{what} are more than the {reply.number:,} that a tuple server may hold "
            "([tuple_space] memory in the workflow file)"
        )
    return f"{what} do not fit: {_what_is_held(reply)}"


def _what_is_held(reply: Reply) -> str:
    """Return in words what fills a tuple server, and why it could not use its disk."""
    held = f"the tuple server holds {reply.number:,} bytes"
    spill_error = bytes(reply.payload).decode(errors="replace")
    return f"{held} and cannot move any to the disk: {spill_error}" if spill_error else held


def seconds(timeout: float | None) -> float:
    """Return a timeout as a number: infinity for none."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is in seconds; got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout cannot be negative; got {timeout!r}")
    return float(timeout)
