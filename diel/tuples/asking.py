"""How a client asks its servers: which one has a tag, credit for puts, answers from several."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from diel.errors import PayloadError, TupleSpaceFull, TupleTimeout
from diel.tuples import codec
from diel.tuples.distributed import server_of_piece
from diel.tuples.protocol import (
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
    pack_put,
    pack_query,
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

ANYWHERE: Final = -1
"""In place of a server: a pattern whose matches may be on any of them."""

_TAGS_REMEMBERED: Final = 10_000


class Asking:
    """The inside of a `TupleClient`: requests and their answers.

    Parameters
    ----------
    transport : Transport

    Attributes
    ----------
    waiting_for : (str, object, float) or None
        The call that waits at this moment, its tag, and its timeout in seconds.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._servers = transport.servers
        self._known: dict[str, KnownTag] = {}
        self._credits = [Credit() for _ in range(self._servers)]
        self._senders = [transport.sender(server) for server in range(self._servers)]
        self.waiting_for: tuple[str, object, float] | None = None

    @property
    def puts(self) -> list[int]:
        """How many puts this client has sent to each server."""
        return [credit.puts for credit in self._credits]

    def _spend_together(
        self, parts: Sequence[tuple[int, bytes, Payload]], tag: object, timeout: float | None
    ) -> None:
        """Get the credit for several messages, or for none of them."""
        spent: list[tuple[int, int]] = []
        try:
            for server, message, payload in parts:
                cost = message_cost(message, payload)
                self._spend_credit(server, cost, tag, timeout)
                spent.append((server, cost))
        except BaseException:
            for server, cost in spent:
                self._return_credit(server, cost)
            raise

    def _ask_all(
        self,
        operation: int,
        places: Sequence[tuple[int, bytes]],
        cuts: Sequence[memoryview] | None = None,
    ) -> list[Reply]:
        """Ask several servers at the same time, without waiting there; replies in this order."""
        serials = [self._transport.next_serial() for _ in places]
        for serial, (server, key) in zip(serials, places, strict=True):
            self._transport.send(server, pack_query(operation, serial, key, timeout_s=0))
        outs = None if cuts is None else dict(zip(serials, cuts, strict=True))
        found = {reply.serial: reply for _, reply in self._transport.receive_all(serials, outs)}
        return [found[serial] for serial in serials]

    def _match(
        self,
        operation: int,
        name: str,
        tag: Pattern,
        timeout_s: float,
        target: codec.Encoded | None = None,
        argument: int = 0,
    ) -> tuple[int, Reply]:
        key, server = self._pattern_place(tag)
        self.waiting_for = (name, tag, timeout_s)
        try:
            if server == ANYWHERE:
                return self._match_anywhere(operation, key, timeout_s, target, argument)
            return server, self._ask(
                server, operation, key, timeout_s=timeout_s, target=target, argument=argument
            )
        except BaseException:
            self._name_cut_short(operation)
            raise
        finally:
            self.waiting_for = None

    def _match_anywhere(
        self,
        operation: int,
        key: bytes,
        timeout_s: float,
        target: codec.Encoded | None,
        argument: int,
    ) -> tuple[int, Reply]:
        """Take at whichever server has a match: each is asked to tell when it does."""
        for server in range(self._servers):
            reply = self._ask(server, operation, key, timeout_s=0, target=target, argument=argument)
            if reply.status != Status.TIMEOUT or (timeout_s <= 0 and server == self._servers - 1):
                return server, reply
        deadline_s = time.monotonic() + timeout_s
        watches: dict[int, int] = {}  # serial -> server
        try:
            for server in range(self._servers):
                self._watch(server, key, timeout_s, watches)
            while True:
                server, told = self._transport.receive(watches, timeout_s)
                self._transport.drop(told.serial)
                del watches[told.serial]
                if told.status == Status.TIMEOUT:
                    if not watches:
                        return server, told
                    continue
                reply = self._ask(
                    server, operation, key, timeout_s=0, target=target, argument=argument
                )
                if reply.status != Status.TIMEOUT:
                    return server, reply
                # Another rank was faster. This one goes on waiting, for what is left of its time.
                left_s = max(0.0, deadline_s - time.monotonic())
                self._watch(server, key, left_s, watches)
        finally:
            for serial, server in watches.items():
                self._transport.drop(serial)
                cancel = pack_query(Operation.CANCEL, 0, argument=serial)
                self._transport.send(server, cancel)

    def _watch(self, server: int, key: bytes, timeout_s: float, watches: dict[int, int]) -> None:
        serial = self._transport.next_serial()
        watches[serial] = server
        self._transport.keep(serial)
        self._transport.send(server, pack_query(Operation.WATCH, serial, key, timeout_s=timeout_s))

    def _send_tuple(self, operation: int, tag: Tag, argument: int, value: object) -> Reply:
        key, server = self._place(tag)
        kind, meta, buffer = self._encode(value)
        serial = self._transport.next_serial()
        message, payload = pack_put(operation, serial, argument, kind, key, meta, buffer)
        self._spend_credit(server, message_cost(message, payload), tag, None)
        self._transport.send(server, message, payload)
        return self._transport.receive((serial,))[1]

    def _ask(
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
        tag: object = None,
    ) -> Reply:
        serial = self._transport.next_serial()
        if target is not None:
            kind, meta = target.kind, target.meta
        message = pack_query(
            operation, serial, key, timeout_s=timeout_s, argument=argument, kind=kind, meta=meta
        )
        self._transport.send(server, message)
        outs = None if target is None else {serial: target.buffer}
        return self._transport.receive((serial,), timeout_s, outs)[1]

    def _spend_credit(self, server: int, cost: int, tag: object, timeout: float | None) -> None:
        """Take the cost of a message, in bytes, off the credit; ask for more if need be."""
        credit = self._credits[server]
        if cost > credit.credit_bytes:
            timeout_s = seconds(timeout)
            self.waiting_for = ("tput", tag, timeout_s)
            try:
                reply = self._ask(server, Operation.ASK_CREDIT, timeout_s=timeout_s, argument=cost)
            finally:
                self.waiting_for = None
            if reply.status == Status.TIMEOUT:
                reason = f"no room for {cost:,} bytes ({_what_is_held(reply)})"
                raise TupleTimeout("tput", format_tag(tag), timeout_s, reason)
            if reply.status != Status.OK:
                raise TupleSpaceFull(_no_room(tag, cost, reply))
            credit.credit_bytes += reply.number
        credit.credit_bytes -= cost

    def _name_cut_short(self, operation: int) -> None:
        """Note what the requests were whose wait was just cut short."""
        for serial, known in self._transport.cut_short.items():
            self._transport.cut_short[serial] = known or operation

    def start_over(self) -> None:
        """Make the client as good as new after an exception, which may have ended a wait.

        Nothing that it waits for, claims or subscribes to is left at the servers. A tuple that
        it was about to take goes back into the space, behind the others of its tag.

        Raises
        ------
        TupleError
            If a server does not answer.
        RunStopped
            If the run is stopping.
        """
        self.waiting_for = None
        late = dict(self._transport.cut_short)
        self._transport.cut_short.clear()
        for server in range(self._servers):
            self._ask(server, Operation.START_OVER, timeout_s=0)
            self._credits[server].credit_bytes = 0
        replies = [reply for _, reply in self._transport.kept(late)]
        for serial in late:
            self._transport.drop(serial)
        for reply in replies:
            is_taken = late[reply.serial] == Operation.TAKE and reply.status == Status.OK
            if is_taken and reply.kind >= 0:
                self._put_again(reply)

    def _put_again(self, item: Reply) -> None:
        """Put a tuple as it came from a server."""
        server = self._route(item.key)
        message, payload = pack_put(
            Operation.PUT, 0, 0, item.kind, item.key, item.meta, item.payload
        )
        self._spend_credit(server, message_cost(message, payload), decode_tag(item.key), None)
        self._credits[server].puts += 1
        self._transport.send(server, message, payload)

    def _note_wait(self, waiting_for: tuple[str, object, float] | None) -> None:
        self.waiting_for = waiting_for

    def _return_credit(self, server: int, cost: int) -> None:
        """Give credit back that was not used, so that others may have it."""
        query = pack_query(Operation.RETURN_CREDIT, 0, argument=cost)
        self._transport.send(server, query)

    @staticmethod
    def _encode(value: object) -> tuple[int, bytes, Any]:
        encoded = codec.encode(value)
        # A dtype of a thousand fields: what describes it does not fit into a message.
        return encoded if len(encoded[1]) <= LONGEST_META_BYTES else codec.encode_as_pickle(value)

    def _place(self, tag: Tag) -> tuple[bytes, int]:
        """Return the bytes of a tag and the server that has it."""
        if type(tag) is str and tag in self._known:
            return self._known[tag][:2]
        key = encode_tag(tag)
        server = self._route(key)
        if type(tag) is str and len(key) <= SMALL_BYTES and len(self._known) < _TAGS_REMEMBERED:
            self._known[tag] = KnownTag.of(key, server, self._credits[server])
        return key, server

    def _pattern_place(self, tag: Pattern) -> tuple[bytes, int]:
        """Return the bytes of a pattern and the server that has its matches, or `ANYWHERE`."""
        if type(tag) is str and tag in self._known:
            return self._known[tag][:2]
        key, wild = encode_pattern(tag)
        if wild and self._servers > 1 and key[:1] == WILDCARD:
            return key, ANYWHERE
        return key, self._route(key)

    def _pattern_places(self, tag: Pattern) -> tuple[bytes, list[int]]:
        """Return the bytes of a pattern and all servers that may have its matches."""
        key, server = self._pattern_place(tag)
        return key, list(range(self._servers)) if server == ANYWHERE else [server]

    def _route(self, key: bytes) -> int:
        if self._servers == 1:
            return 0
        if is_piece(key):
            return server_of_piece(key, self._servers)
        first_field_ends = 5 + int.from_bytes(key[1:5], "little")
        # A checksum and not Python's hash, which differs from process to process.
        return crc32(key[:first_field_ends]) % self._servers

    @staticmethod
    def _value_of(reply: Reply, name: str, tag: object) -> Any:
        if reply.kind & STRIPED:
            raise PayloadError(
                f"{name}({format_tag(tag)}): the tuple is striped; take it with dist_tget"
            )
        return codec.decode(reply.kind, reply.meta, reply.payload)

    @staticmethod
    def _raise_for(
        reply: Reply,
        name: str,
        tag: object,
        timeout_s: float,
        target: codec.Encoded | None = None,
    ) -> None:
        if reply.status == Status.TIMEOUT:
            raise TupleTimeout(name, format_tag(tag), timeout_s)
        if reply.status == Status.MISMATCH and target is not None:
            wanted = codec.describe(target.kind, target.meta)
            found = codec.describe(reply.kind, reply.meta)
            raise PayloadError(
                f"{name}({format_tag(tag)}): out= is {wanted}, the tuple is {found}; "
                "it was left there"
            )


def _no_room(tag: object, cost: int, reply: Reply) -> str:
    what = f"tput({format_tag(tag)}): {cost:,} bytes"
    if reply.status == Status.TOO_LARGE:
        return (
            f"{what} are more than the {reply.number:,} that a tuple server may hold "
            "([tuple_space] memory in the workflow file)"
        )
    return f"{what} do not fit: {_what_is_held(reply)}"


def _what_is_held(reply: Reply) -> str:
    """Say what fills a tuple server, and why its disk did not help, if it has one."""
    held = f"the tuple server holds {reply.number:,} bytes"
    spill_error = bytes(reply.payload).decode(errors="replace")
    return f"{held} and cannot move any to the disk: {spill_error}" if spill_error else held


def seconds(timeout: float | None) -> float:
    """Return a timeout as a number: infinity for none.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or negative.
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is in seconds; got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout cannot be negative; got {timeout!r}")
    return float(timeout)
