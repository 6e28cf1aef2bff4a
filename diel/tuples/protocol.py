"""The messages between tuple clients and servers, byte by byte.

::

    client -> server   PREFIX | BODY  | key | meta | payload, if small    a tuple
                       PREFIX | QUERY | key | meta                        a query
                       payload, if large, in chunks                       CLIENT_TO_SERVER_PAYLOAD
    server -> client   PREFIX | BODY  | key | meta | payload, if small    SERVER_TO_CLIENT
                       payload, if large, in chunks                       SERVER_TO_CLIENT_PAYLOAD

The part from BODY on is the same in both directions: a server stores and sends it unchanged, so
that it neither unpacks nor packs small tuples.

Only this file, the fast path in `store.store` and the frames of `checkpoint` depend on the layout
of messages. At the end is the fast path of a small put and take.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Payload: TypeAlias = Any
"""A large payload: an object with the buffer protocol whose length is in bytes."""

INLINE_BYTES: Final = 16 * 1024
"""Payloads up to this size are sent in the message itself: copying them is cheaper than a second
message."""
SMALL_BYTES: Final = 1024
"""Values and keys up to this size take the fast path: a message of both is within the eager limit,
which is 4 KiB or more by default in both MPIs."""
LONGEST_KEY_BYTES: Final = 4096
LONGEST_META_BYTES: Final = 4096
CHUNK_BYTES: Final = 2**30
"""The largest MPI message: one of 2^31 bytes or more is an error in Open MPI's wheel."""

PREFIX: Final = struct.Struct("<BBHIQ")
"""Operation or status, whether the payload is separate, `PLAIN` or 0, the request id, and a number
whose meaning depends on the operation or status."""
BODY: Final = struct.Struct("<BxHIQ")
"""Kind, and the lengths of key, meta and payload in bytes."""
QUERY: Final = struct.Struct("<dbxHI")
"""Timeout in seconds, the required kind or -1, and the lengths of key and meta in bytes."""
_PUT_HEAD: Final = struct.Struct("<BBHIQBxHIQ")  # PREFIX and BODY
_QUERY_HEAD: Final = struct.Struct("<BBHIQdbxHI")  # PREFIX and QUERY

# Offsets in a message.
OPERATION: Final = 0
APART: Final = 1
"""Offset of the flag that the payload follows in messages of its own."""
FLAGS: Final = 2
PLAIN: Final = 1
"""Flag of a query for a tag without wildcards that accepts any payload and has no timeout."""
BODY_AT: Final = PREFIX.size
KEY_AT: Final = PREFIX.size + BODY.size
KEY_BYTES_AT: Final = BODY_AT + 2
QUERY_KEY_AT: Final = PREFIX.size + QUERY.size

MESSAGE_BYTES: Final = KEY_AT + LONGEST_KEY_BYTES + LONGEST_META_BYTES + INLINE_BYTES
"""The length of the longest message."""
TUPLE_OVERHEAD_BYTES: Final = 320
"""A server's memory for a tuple besides its bytes: objects, and entries in a queue and indexes."""
FIXED_BYTES: Final = TUPLE_OVERHEAD_BYTES + BODY_AT
"""Memory that is accounted for a tuple besides its body and payload."""

HELD_BY_DEAD: Final = 1 << 63
"""Flag in the name of a claim: an earlier client that held the tuple has died or started over."""
STRIPED: Final = 0x40
"""Flag in the kind of a value whose payload is stored in pieces; the body has their layout."""
PIECE: Final = b"p"
"""The first byte of a piece's key; no key of a tag or pattern begins with it."""


class Operation(IntEnum):
    """The operation of a request.

    PUT, CANCEL, RETURN_CREDIT and those of replicated servers have no reply.
    """

    PUT = 1
    PUT_IF_ABSENT = 2
    REPLACE = 3
    INCREMENT = 4
    TAKE = 5
    READ = 6
    CLAIM = 7
    ACKNOWLEDGE = 8
    GIVE_BACK = 9
    RENEW = 10
    COUNT = 11
    COLLECT = 12
    SUBSCRIBE = 13
    NEXT = 14
    UNSUBSCRIBE = 15
    WATCH = 16
    CANCEL = 17
    ASK_CREDIT = 18
    FLUSH = 19
    DUMP = 20
    SURVEY = 21
    RETURN_CREDIT = 22
    START_OVER = 23
    # Only with replicated servers: CONFIRM from clients, the others from a head to its tail.
    CONFIRM = 24
    EXPIRE = 25
    FORGET_CLIENT = 26
    PUT_BACK = 27


class Status(IntEnum):
    """The outcome of a request."""

    OK = 0
    TIMEOUT = 1
    MISMATCH = 2
    FULL = 3
    TOO_LARGE = 4
    NOT_A_NUMBER = 5
    CONFLICT = 6
    GONE = 7
    FAILED = 8


class Query(NamedTuple):
    """An unpacked request without a tuple."""

    client: int
    operation: int
    request_id: int
    argument: int
    timeout_s: float
    kind: int
    key: bytes
    meta: bytes


class Reply(NamedTuple):
    """An unpacked reply of a server."""

    status: int
    request_id: int
    number: int
    kind: int = -1
    key: bytes = b""
    meta: bytes = b""
    payload: Payload = b""


class Out(NamedTuple):
    """A message that a server is to send: receiver, bytes, and a separate payload if any."""

    client: int
    message: bytes
    payload: Payload = None


Outs: TypeAlias = "Sequence[tuple[int, bytes, Payload]]"
"""Messages that a server is to send, mostly `Out`."""
NOTHING: Final[tuple[Out, ...]] = ()


class Credit:
    """The bytes that a client may send to a server without a request, and its number of puts.

    Client and server each count them.
    """

    __slots__ = ("credit_bytes", "puts")

    def __init__(self) -> None:
        self.credit_bytes = 0
        self.puts = 0


# -- messages of a client -------------------------------------------------------------------------


def pack_put(
    operation: int,
    request_id: int,
    argument: int,
    kind: int,
    key: bytes,
    meta: bytes,
    payload: Buffer,
) -> tuple[bytes, Buffer | None]:
    """Pack a request that carries a tuple; return the message, and the payload if separate."""
    size = len(payload)
    apart = size > INLINE_BYTES
    head = _PUT_HEAD.pack(
        operation, apart, 0, request_id, argument, kind, len(key), len(meta), size
    )
    if apart:
        return b"".join((head, key, meta)), payload
    return b"".join((head, key, meta, payload)), None


def pack_query(
    operation: int,
    request_id: int,
    key: bytes = b"",
    *,
    timeout_s: float = math.inf,
    argument: int = 0,
    kind: int = -1,
    meta: bytes = b"",
) -> bytes:
    """Pack a request without a tuple.

    Its key is a tag or pattern, and the timeout is how long the server waits for a match: 0 not at
    all, infinity for ever. The meaning of `argument` depends on the operation. `kind` and `meta`
    describe the only payload that is accepted, if kind is not -1.
    """
    plain = PLAIN if kind < 0 and timeout_s == math.inf and b"*" not in key else 0
    head = _QUERY_HEAD.pack(
        operation, 0, plain, request_id, argument, timeout_s, kind, len(key), len(meta)
    )
    return head + key + meta


def message_cost(message: Buffer, payload: Payload) -> int:
    """Return the server memory, in bytes, that is accounted for a message with a tuple."""
    return TUPLE_OVERHEAD_BYTES + len(message) + (0 if payload is None else len(payload))


def number_cost(key: bytes) -> int:
    """Return the server memory, in bytes, that is accounted for a tuple with a number."""
    return FIXED_BYTES + BODY.size + len(key) + 8


def unpack_query(client: int, message: bytes) -> Query:
    """Unpack the message of `pack_query`."""
    operation, _, _, request_id, argument, timeout_s, kind, key_bytes, meta_bytes = (
        _QUERY_HEAD.unpack_from(message)
    )
    meta_at = QUERY_KEY_AT + key_bytes
    key = message[QUERY_KEY_AT:meta_at]
    meta = message[meta_at : meta_at + meta_bytes]
    return Query(client, operation, request_id, argument, timeout_s, kind, key, meta)


# -- messages of a server -------------------------------------------------------------------------


def answer(client: int, request_id: int, status: int, number: int = 0) -> Out:
    """Return a reply without a tuple."""
    return Out(client, PREFIX.pack(status, 0, 0, request_id, number))


def tuple_reply(client: int, request_id: int, version: int, body: bytes, payload: Payload) -> Out:
    """Return a reply that carries a tuple, with the body unchanged."""
    prefix = PREFIX.pack(Status.OK, payload is not None, 0, request_id, version)
    # A named tuple without the cost of its constructor: this is done for every tuple.
    return tuple.__new__(Out, (client, prefix + body, payload))


def unpack_reply(message: bytes, payload: Payload = None) -> Reply:
    """Unpack a reply; `payload` is its separate payload, if it has one."""
    if len(message) < KEY_AT:
        status, _, _, request_id, number = PREFIX.unpack(message)
        return Reply(status, request_id, number)
    status, _, _, request_id, number, kind, key_bytes, meta_bytes, _ = _PUT_HEAD.unpack_from(
        message
    )
    meta_at = KEY_AT + key_bytes
    payload_at = meta_at + meta_bytes
    # A named tuple without the cost of its constructor: this is done for every tuple.
    return tuple.__new__(
        Reply,
        (
            status,
            request_id,
            number,
            kind,
            message[KEY_AT:meta_at],
            message[meta_at:payload_at],
            message[payload_at:] if payload is None else payload,
        ),
    )


# -- both directions ------------------------------------------------------------------------------


def payload_bytes(message: Buffer) -> int:
    """Return the size of the payload, in bytes, of a message that has a BODY."""
    size: int = BODY.unpack_from(message, BODY_AT)[3]
    return size


def tag_bytes(message: bytes) -> bytes:
    """Return the key in a message that carries a tuple."""
    key_bytes = message[KEY_BYTES_AT] | message[KEY_BYTES_AT + 1] << 8
    return message[KEY_AT : KEY_AT + key_bytes]


def unpack_prefix(message: Buffer) -> tuple[int, int]:
    """Return the request id and the argument of a request or reply."""
    request_id, argument = PREFIX.unpack_from(message)[3:]
    return request_id, argument


def unpack_body(body: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Unpack a message from BODY on: kind, key, meta, and the payload if it is not separate."""
    kind, key_bytes, meta_bytes, _ = BODY.unpack_from(body)
    meta_at = BODY.size + key_bytes
    payload_at = meta_at + meta_bytes
    return kind, body[BODY.size : meta_at], body[meta_at:payload_at], body[payload_at:]


def is_piece(key: bytes) -> bool:
    """Whether a key belongs to a piece of a striped tuple, which no pattern matches."""
    return key[:1] == PIECE


def server_of_piece(key: bytes, servers: int) -> int:
    """Return the server that stores a piece."""
    return int.from_bytes(key[-4:], "little") % servers


def chunks(buffer: Payload) -> Sequence[Payload]:
    """Cut a payload into chunks that each fit into an MPI message."""
    if 0 < len(buffer) <= CHUNK_BYTES:
        return (buffer,)
    view = memoryview(buffer)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


def pack_frames(entries: list[tuple[bytes, Payload]]) -> bytearray:
    """Pack several tuples, each a body and perhaps a separate payload, into one payload."""
    frames = bytearray()
    for body, payload in entries:
        frames += len(body).to_bytes(8, "little") + body
        if payload is not None:
            frames += payload
    return frames


def unpack_frames(frames: Buffer) -> Iterator[Reply]:
    """Yield the tuples of a payload from `pack_frames`."""
    view = memoryview(frames)
    at = 0
    while at < len(view):
        body_bytes = int.from_bytes(view[at : at + 8], "little")
        at += 8
        message = bytes(PREFIX.size) + bytes(view[at : at + body_bytes])
        at += body_bytes
        size = payload_bytes(message)
        apart = size if size > INLINE_BYTES else 0
        payload = bytearray(view[at : at + apart]) if apart else None
        at += apart
        yield unpack_reply(message, payload)


# -- replicated servers ----------------------------------------------------------------------------

_SEAL: Final = struct.Struct("<QHB")
"""Number of the message, 0 if it is never sent again; partition; number of receipts."""
_RECORD: Final = struct.Struct("<QHId")
"""Number of the message, partition, client, and the time of the head."""
_RECEIPT_BYTES: Final = 4
MOST_RECEIPTS: Final = 255
LONGEST_SEAL_BYTES: Final = _SEAL.size + MOST_RECEIPTS * _RECEIPT_BYTES


class Seal(NamedTuple):
    """The data that a client appends to a message to replicated servers.

    Attributes
    ----------
    partition : int
        The partition of the tuples that the message concerns.
    number : int
        The number of the message among the client's messages to the partition, from 1; 0 for
        `CONFIRM`.
    receipts : sequence of int
        Ids of requests whose replies the client has received.
    """

    partition: int
    number: int
    receipts: Sequence[int] = ()


class Record(NamedTuple):
    """The data that the head of a partition appends to a request that it forwards to the tail."""

    partition: int
    number: int
    client: int
    now_s: float


def seal(message: bytes, contents: Seal) -> bytes:
    """Append a seal, of at most `MOST_RECEIPTS` receipts, to a client's message."""
    partition, number, receipts = contents
    end = _SEAL.pack(number, partition, len(receipts))
    return message + struct.pack(f"<{len(receipts)}I", *receipts) + end


def unseal(sealed: bytes) -> tuple[bytes, Seal]:
    """Return the message and the seal of a message from `seal`."""
    end = len(sealed) - _SEAL.size
    number, partition, count = _SEAL.unpack_from(sealed, end)
    start = end - count * _RECEIPT_BYTES
    receipts = struct.unpack_from(f"<{count}I", sealed, start)
    return sealed[:start], Seal(partition, number, receipts)


def pack_record(message: bytes, record: Record) -> bytes:
    """Append a record to a request that the head of a partition forwards to the tail."""
    return message + _RECORD.pack(record.number, record.partition, record.client, record.now_s)


def unpack_record(data: bytes) -> tuple[bytes, Record]:
    """Return the request and the record of a message from `pack_record`."""
    end = len(data) - _RECORD.size
    number, partition, client, now_s = _RECORD.unpack_from(data, end)
    return data[:end], Record(partition, number, client, now_s)


def pack_notice(operation: Operation) -> bytes:
    """Pack a message that contains only its operation."""
    return PREFIX.pack(operation, 0, 0, 0, 0)


# -- fast path: a put and a take of a few bytes under a tag that was used before ------------------

_QUESTION_HEAD: Final = struct.Struct("<BBHI")
"""PREFIX without its last number, which is 0 in the queries below."""
_PUT_SIZES: Final = 16

take_head: Final = functools.partial(_QUESTION_HEAD.pack, int(Operation.TAKE), 0, PLAIN)
"""``take_head(request_id) + known.question_rest`` is a `PLAIN` query that takes a tuple."""
plain_question: Final = struct.Struct("<4xI8x8xxxH").unpack_from
"""Return the request id of a `PLAIN` query, and the length of its key in bytes."""
ok_prefix: Final = functools.partial(PREFIX.pack, int(Status.OK), 0, 0)
"""``ok_prefix(request_id, version) + body`` is the reply with a tuple whose payload is small."""
_plain_reply: Final = struct.Struct("<xBxxI8xBxH").unpack_from
"""Return, for a reply with a tuple: whether its payload is separate, the request id, the kind, and
the length of the key in bytes."""


def plain_value(message: bytes, request_id: int) -> bytes | None:
    """Return the bytes value that a message carries in reply to a request; else None."""
    if len(message) < KEY_AT:
        return None
    apart, found, kind, key_bytes = _plain_reply(message)
    if found != request_id or kind or apart:
        return None
    return message[KEY_AT + key_bytes :]


class _PutHeads(dict[int, bytes]):
    """The message of a put of bytes under a tag, up to these bytes, by their number."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _PUT_SIZES:
            self.clear()
        head = _PUT_HEAD.pack(Operation.PUT, 0, 0, 0, 0, 0, len(self._key), 0, size) + self._key
        self[size] = head
        return head


class KnownTag(NamedTuple):
    """The prepared parts of messages for a tag: all of a put and a take that does not vary."""

    key: bytes
    server: int
    credit: Credit  # the client's at that server
    put_heads: _PutHeads
    question_rest: bytes  # the rest of a `PLAIN` query, after its request id

    @classmethod
    def of(cls, key: bytes, server: int, credit: Credit) -> KnownTag:
        """Prepare the messages for the tag that is encoded as `key`."""
        question = pack_query(Operation.TAKE, 0, key)
        return cls(key, server, credit, _PutHeads(key), question[_QUESTION_HEAD.size :])
