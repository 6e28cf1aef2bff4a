"""Requests of a client to tuple servers: routing by tag, credit for puts, waits for replies."""

from __future__ import annotations

import json
import math
import operator
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

from diel.comm.device_arrays import device_bytes, is_on_device, memory_to_send, to_host
from diel.errors import PayloadError, TupleError, TupleSpaceFull, TupleTimeout
from diel.tuples import codec
from diel.tuples.protocol import (
    INLINE_BYTES,
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
    near_tags,
)

if TYPE_CHECKING:
    from diel.tuples.transport import Transport

Wait: TypeAlias = "tuple[str, object, float]"
"""The call that waits, its tag, and its timeout in seconds."""

ANYWHERE: Final = -1
"""Stands for the server of a pattern whose matches may be on any server."""

_TAGS_REMEMBERED: Final = 10_000
_PUT: Final = int(Operation.PUT)  # struct packs an int faster than a member of an IntEnum


class Requests:
    """Sends the requests of one client to servers, accounts for credit, and waits for replies."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.servers = transport.servers
        self.known: dict[str, KnownTag] = {}  # tags that were used before
        self.waiting_for: Wait | None = None  # the call that waits at the moment
        self._next_survey_s = 0.0  # when servers may be asked for near tags again
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
        """Return the server of the key of a tag or a piece."""
        if self.servers == 1:
            return 0
        if is_piece(key):
            return server_of_piece(key, self.servers)
        first_field_ends = 5 + int.from_bytes(key[1:5], "little")
        # Not Python's hash, which differs from process to process.
        return crc32(key[:first_field_ends]) % self.servers

    # -- queries ------------------------------------------------------------------------------

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
        """Send a query to a server and wait for the reply; see `pack_query`.

        With a `target`, the server replies only with a payload that fits it, which is received into
        its memory.
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
        """Send queries with timeout 0 to several servers at once; return replies in this order."""
        request_ids = [self.transport.next_request_id() for _ in places]
        for request_id, (server, key) in zip(request_ids, places, strict=True):
            self.transport.send(server, pack_query(operation, request_id, key, timeout_s=0))
        targets = None if cuts is None else dict(zip(request_ids, cuts, strict=True))
        found = {
            reply.request_id: reply for _, reply in self.transport.receive_all(request_ids, targets)
        }
        return [found[request_id] for request_id in request_ids]

    def flush(self) -> None:
        """Wait until all tuples that this client has put are in the space."""
        for server in range(self.servers):
            self.ask(server, Operation.FLUSH)

    def survey(self, server: int) -> dict[str, Any]:
        """Return what a server holds; see `TupleClient.survey`."""
        survey: dict[str, Any] = json.loads(bytes(self.ask(server, Operation.SURVEY).payload))
        return survey

    def match(
        self,
        operation: int,
        name: str,
        tag: Pattern,
        timeout_s: float,
        target: codec.Encoded | None = None,
        argument: int = 0,
    ) -> tuple[int, Reply]:
        """Wait for a tuple that a pattern matches; return its server, and the reply."""
        key, server = self.pattern_place(tag)
        self.waiting_for = (name, tag, timeout_s)
        try:
            if server == ANYWHERE:
                return self._match_anywhere(operation, key, timeout_s, target, argument)
            return server, self.ask(
                server, operation, key, timeout_s=timeout_s, target=target, argument=argument
            )
        except BaseException:
            self._note_operation(operation)
            raise
        finally:
            self.waiting_for = None

    def await_take(self, request_id: int, tag: object) -> Reply:
        """Wait for the reply to a plain take that was sent already."""
        self.waiting_for = ("tget", tag, math.inf)
        try:
            return self.transport.receive((request_id,))[1]
        except BaseException:
            self._note_operation(Operation.TAKE)
            raise
        finally:
            self.waiting_for = None

    def watch(self, server: int, key: bytes, timeout_s: float = math.inf) -> int:
        """Ask a server to reply once a tuple matches; return the id of the request."""
        request_id = self.transport.next_request_id()
        self.transport.keep(request_id)
        self.transport.send(
            server, pack_query(Operation.WATCH, request_id, key, timeout_s=timeout_s)
        )
        return request_id

    def cancel(self, server: int, request_id: int) -> None:
        """Cancel a watch at its server."""
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
        """Get a match from any server: try each, then watch all and try where a tuple matches."""

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
                # Another rank has taken the tuple: watch again, for the remaining time.
                left_s = max(0.0, deadline_s - time.monotonic())
                watches[self.watch(server, key, left_s)] = server
        finally:
            for request_id, server in watches.items():
                self.cancel(server, request_id)

    # -- puts ---------------------------------------------------------------------------------

    def encode(self, value: object, key: bytes, tag: Tag) -> tuple[int, bytes, bytes, Any]:
        """Encode a value to put: return kind, key, meta and memory."""
        if is_on_device(value):
            meter = self.transport.meter
            if device_bytes(value) > INLINE_BYTES and self.transport.gpu_aware:
                meta = codec.device_array_meta(value)
                return codec.ARRAY, key, meta, memory_to_send(value, meter, tag)
            value = to_host(value, meter, tag)
        kind, meta, buffer = codec.encode(value)
        return kind, key, meta, buffer

    def put(self, tag: Tag, value: object, timeout: float | None) -> int:
        """Put a tuple; return the server that it went to."""
        key, server = self.place(tag)
        self._put(server, self.encode(value, key, tag), tag, timeout)
        return server

    def put_back(self, item: Reply) -> None:
        """Put a tuple that was taken back to its old place, encoded as in the server's reply."""
        request_id, server = self.transport.next_request_id(), self.route(item.key)
        encoded = item.kind, item.key, item.meta, item.payload
        message, payload = pack_put(Operation.PUT_BACK, request_id, item.number, *encoded)
        self._spend(server, message_cost(message, payload), decode_tag(item.key), None)
        self.transport.send(server, message, payload)
        self.transport.receive((request_id,))

    def put_again(self, item: Reply) -> None:
        """Put a tuple that is encoded as in a server's reply."""
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
        """Send a conditional put, such as PUT_IF_ABSENT or REPLACE, and wait for the reply."""
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
            by = operator.index(by)  # converts NumPy's integers too
        if isinstance(by, bool) or not isinstance(by, (int, float)):
            raise PayloadError(f"increment({format_tag(tag)}): by is a number, not {by!r}")
        try:
            kind, meta = codec.encode_number(by)
        except OverflowError:
            raise PayloadError(f"increment({format_tag(tag)}): {by} needs over 64 bits") from None
        # Needed in case that there is no tuple yet, so that the server puts one.
        self._spend(server, number_cost(key), tag, None)
        reply = self.ask(server, Operation.INCREMENT, key, kind=kind, meta=meta)
        if reply.status == Status.NOT_A_NUMBER:
            raise PayloadError(f"increment({format_tag(tag)}): the tuple there is not a number")
        if reply.status == Status.TOO_LARGE:
            raise PayloadError(f"increment({format_tag(tag)}): the result needs over 64 bits")
        return codec.decode_number(reply.kind, reply.payload)

    def send_puts(self, parts: Sequence[tuple[int, bytes, Payload]]) -> None:
        """Send puts, as (server, message, payload), whose credit has been spent already."""
        for server, _, _ in parts:
            self._credits[server].puts += 1
        self.transport.send_all(parts)

    def spend(self, costs: Sequence[tuple[int, int]], tag: object, timeout: float | None) -> None:
        """Spend credit for several messages, as (server, cost in bytes), or for none of them."""
        for index, (server, cost) in enumerate(costs):
            try:
                self._spend(server, cost, tag, timeout)
            except BaseException:
                for spent_at, spent in costs[:index]:  # returned, so that other clients can use it
                    query = pack_query(Operation.RETURN_CREDIT, 0, argument=spent)
                    self.transport.send(spent_at, query)
                raise

    def _spend(self, server: int, cost: int, tag: object, timeout: float | None) -> None:
        """Subtract the cost of a message, in bytes, from the credit; ask for more if needed."""
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

    # -- errors -------------------------------------------------------------------------------

    def raise_for(
        self,
        reply: Reply,
        name: str,
        tag: object,
        timeout_s: float,
        target: codec.Encoded | None = None,
    ) -> None:
        """Raise for a reply without a tuple: a timeout, or a tuple that does not fit out=."""
        if reply.status == Status.TIMEOUT:
            hint = self._near(tag) if timeout_s > 0 else ""
            raise TupleTimeout(name, format_tag(tag), timeout_s, hint=hint)
        if reply.status == Status.MISMATCH and target is not None:
            wanted = codec.describe(target.kind, target.meta)
            found = codec.describe(reply.kind & ~STRIPED, reply.meta)
            raise PayloadError(
                f"{name}({format_tag(tag)}): out= is {wanted}, the tuple is {found}; it was left "
                "there"
            )

    def _near(self, tag: object) -> str:
        """Return in words which tags of the space nearly match; empty if that is not known.

        A module may wait again and again for a short while: so servers are asked for a tenth of the
        time at most.
        """
        since_s = time.monotonic()
        if since_s < self._next_survey_s:
            return ""
        held: Counter[Any] = Counter()
        try:
            for server in range(self.servers):
                for key, count in self.survey(server)["tags"]:
                    if not is_piece(found := bytes.fromhex(key)):
                        held[decode_tag(found)] += count
        except TupleError:  # a server that cannot answer: the timeout alone is reported
            return ""
        near = near_tags(tag, held)
        now_s = time.monotonic()
        self._next_survey_s = now_s + 10 * (now_s - since_s)
        if not held:
            return "the tuple space is empty"
        shown = ", ".join(f"{format_tag(each)} x {held[each]}" for each in near)
        return f"tags there that nearly match: {shown}" if shown else ""

    # -- after an exception -------------------------------------------------------------------

    def _note_operation(self, operation: int) -> None:
        """Record the operation of the requests whose wait has just been interrupted."""
        for request_id, known in self.transport.cut_short.items():
            self.transport.cut_short[request_id] = known or operation

    def start_over(self) -> None:
        """End all requests here and at the servers; see `TupleClient.start_over`."""
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


def whole_value(reply: Reply, name: str, tag: object) -> Any:
    """Return the value of a tuple in a reply; raise PayloadError if the tuple is striped."""
    if reply.kind & STRIPED:
        raise PayloadError(
            f"{name}({format_tag(tag)}): the tuple is striped; take it with dist_tget"
        )
    return value_of(reply, reply.payload, name, "it is left there")


def value_of(reply: Reply, payload: Any, name: str, remains: str) -> Any:
    """Return the value of a tuple in a reply, whose payload may have come in pieces.

    A PayloadError if it cannot be rebuilt here; `remains` says what becomes of the tuple then.
    """
    try:
        return codec.decode(reply.kind & ~STRIPED, reply.meta, payload)
    except PayloadError as error:
        tag = format_tag(decode_tag(reply.key))
        raise PayloadError(f"{name}({tag}): {error}; {remains}") from error.__cause__


def _no_room(tag: object, cost: int, reply: Reply) -> str:
    subject = f"tput({format_tag(tag)}): {cost:,} bytes"
    if reply.status == Status.TOO_LARGE:
        return (
            f"{subject} are more than the {reply.number:,} that a tuple server may hold "
            "([tuple_space] memory in the workflow file)"
        )
    return f"{subject} do not fit: {_what_is_held(reply)}"


def _what_is_held(reply: Reply) -> str:
    """Return in words how full a tuple server is, and why it could not use its disk, if so."""
    held = f"the tuple server holds {reply.number:,} bytes"
    spill_error = bytes(reply.payload).decode(errors="replace")
    return f"{held} and cannot move any to the disk: {spill_error}" if spill_error else held


def seconds(timeout: float | None) -> float:
    """Check a timeout and return it as a float: infinity for None."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is in seconds; got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout cannot be negative; got {timeout!r}")
    return float(timeout)
