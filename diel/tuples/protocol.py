"""The messages between tuple clients and servers, byte by byte.

::

    client -> server   PREFIX | BODY  | key | meta | payload, if small    a tuple
                       PREFIX | QUERY | key | meta                        a question
                       payload, if large, in chunks                       CLIENT_TO_SERVER_PAYLOAD
    server -> client   PREFIX | BODY  | key | meta | payload, if small    SERVER_TO_CLIENT
                       payload, if large, in chunks                       SERVER_TO_CLIENT_PAYLOAD

The part from BODY on is the same in both directions: a server keeps it as it came and sends it as
it is, so a small tuple is neither taken apart nor put together there.

Where the bytes of a message lie is known in this file alone; it ends with what a put and a take of
a few bytes go through.
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
"""A large payload: anything with the buffer protocol and a length in bytes."""

INLINE_BYTES: Final = 16 * 1024
"""Payloads up to this size travel in the message itself: copying them is cheaper than a second
message."""
SMALL_BYTES: Final = 1024
"""Messages with so much and a tag leave at once: by default both MPIs copy those of 4 KiB and
more."""
LONGEST_KEY_BYTES: Final = 4096
LONGEST_META_BYTES: Final = 4096
CHUNK_BYTES: Final = 2**30
"""A single message of 2^31 bytes and more is an error in Open MPI's wheel."""

PREFIX: Final = struct.Struct("<BBHIQ")
"""Operation or status, whether a payload comes apart, `PLAIN` or 0, the number of the request, and
a number whose meaning depends on the first."""
BODY: Final = struct.Struct("<BxHIQ")
"""Kind, bytes of key, of meta, and of payload."""
QUERY: Final = struct.Struct("<dbxHI")
"""Timeout in seconds, kind that is welcome or -1, bytes of key, of meta."""
_PUT_HEAD: Final = struct.Struct("<BBHIQBxHIQ")  # PREFIX and BODY in one go
_QUERY_HEAD: Final = struct.Struct("<BBHIQdbxHI")  # PREFIX and QUERY

# Bytes of a message by their place.
OPERATION: Final = 0
APART: Final = 1
"""Whether a payload follows in messages of its own."""
FLAGS: Final = 2
PLAIN: Final = 1
"""Flag of a question for a tag without wildcards, that takes any payload and waits for ever."""
BODY_AT: Final = PREFIX.size
KEY_AT: Final = PREFIX.size + BODY.size
KEY_BYTES_AT: Final = BODY_AT + 2
QUERY_KEY_AT: Final = PREFIX.size + QUERY.size

MESSAGE_BYTES: Final = KEY_AT + LONGEST_KEY_BYTES + LONGEST_META_BYTES + INLINE_BYTES
"""No message is longer."""
TUPLE_OVERHEAD_BYTES: Final = 320
"""Memory of a server for a tuple beside its bytes: objects, a place in a queue and in indexes."""
FIXED_BYTES: Final = TUPLE_OVERHEAD_BYTES + BODY_AT
"""Memory that a tuple counts for beside its body and payload."""

HELD_BY_DEAD: Final = 1 << 63
"""Added to the name of a claim on a tuple that a client held which has died."""
STRIPED: Final = 0x40
"""Added to the kind of a value whose payload lies in pieces; in its place is their layout."""
PIECE: Final = b"p"
"""The first byte of a piece's key, which no tag and no pattern has."""


class Operation(IntEnum):
    """Operations that a client asks for. PUT alone has no reply."""

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
    # In a replicated space alone: of a client, and of the head of a partition to its tail.
    CONFIRM = 24
    EXPIRE = 25
    FORGET_CLIENT = 26


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
    """A request that asks for something, taken apart."""

    client: int
    operation: int
    request_id: int
    argument: int
    timeout_s: float
    kind: int
    key: bytes
    meta: bytes


class Reply(NamedTuple):
    """A server's answer, taken apart."""

    status: int
    request_id: int
    number: int
    kind: int = -1
    key: bytes = b""
    meta: bytes = b""
    payload: Payload = b""


class Out(NamedTuple):
    """A server's message on its way: to whom, and a payload that travels apart."""

    client: int
    message: bytes
    payload: Payload = None


Outs: TypeAlias = "Sequence[tuple[int, bytes, Payload]]"
"""Messages on their way, mostly `Out`."""
NOTHING: Final[tuple[Out, ...]] = ()


class Credit:
    """The bytes that a client may send to a server without asking, and how many puts it has sent.

    Both ends count.
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
    """Return the message of an operation that carries a tuple, and a payload that goes apart."""
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
    """Return the message of an operation that asks for something.

    Its key is a tag or pattern, to be waited for as long as the timeout: 0 not at all, infinity
    for ever. What `argument` means depends on the operation. `kind` and `meta` describe the only
    payload that is welcome, if kind is not -1.
    """
    plain = PLAIN if kind < 0 and timeout_s == math.inf and b"*" not in key else 0
    head = _QUERY_HEAD.pack(
        operation, 0, plain, request_id, argument, timeout_s, kind, len(key), len(meta)
    )
    return head + key + meta


def message_cost(message: Buffer, payload: Payload) -> int:
    """Return the bytes of a server's memory that a message with a tuple counts for."""
    return TUPLE_OVERHEAD_BYTES + len(message) + (0 if payload is None else len(payload))


def number_cost(key: bytes) -> int:
    """Return the bytes of a server's memory that a tuple with a number counts for."""
    return FIXED_BYTES + BODY.size + len(key) + 8


def unpack_query(client: int, message: bytes) -> Query:
    """Take a question apart."""
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
    """Return a reply that carries a tuple, as it came."""
    prefix = PREFIX.pack(Status.OK, payload is not None, 0, request_id, version)
    # A named tuple without the cost of its constructor: this is done for every tuple.
    return tuple.__new__(Out, (client, prefix + body, payload))


def unpack_reply(message: bytes, payload: Payload = None) -> Reply:
    """Take a reply apart; `payload` is the one that came after it, if any."""
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
    """Return the bytes of the payload of a message with a BODY in it."""
    size: int = BODY.unpack_from(message, BODY_AT)[3]
    return size


def tag_bytes(message: bytes) -> bytes:
    """Return the key in a message that carries a tuple."""
    key_bytes = message[KEY_BYTES_AT] | message[KEY_BYTES_AT + 1] << 8
    return message[KEY_AT : KEY_AT + key_bytes]


def unpack_prefix(message: Buffer) -> tuple[int, int]:
    """Return the number of the request that a message is, or answers, and its argument."""
    request_id, argument = PREFIX.unpack_from(message)[3:]
    return request_id, argument


def unpack_body(body: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Return kind, key, meta and, if it is small, payload of a tuple: a message from BODY on."""
    kind, key_bytes, meta_bytes, _ = BODY.unpack_from(body)
    meta_at = BODY.size + key_bytes
    payload_at = meta_at + meta_bytes
    return kind, body[BODY.size : meta_at], body[meta_at:payload_at], body[payload_at:]


def is_piece(key: bytes) -> bool:
    """Whether a key is that of a piece, which patterns do not match."""
    return key[:1] == PIECE


def server_of_piece(key: bytes, servers: int) -> int:
    """Return the server on which a piece lies."""
    return int.from_bytes(key[-4:], "little") % servers


def chunks(buffer: Payload) -> Sequence[Payload]:
    """Cut a payload into pieces that MPI can carry in one message each."""
    if 0 < len(buffer) <= CHUNK_BYTES:
        return (buffer,)
    view = memoryview(buffer)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


def pack_frames(entries: list[tuple[bytes, Payload]]) -> bytearray:
    """Return several tuples, each a body and perhaps a payload, as one payload."""
    frames = bytearray()
    for body, payload in entries:
        frames += len(body).to_bytes(8, "little") + body
        if payload is not None:
            frames += payload
    return frames


def unpack_frames(frames: Buffer) -> Iterator[Reply]:
    """Take apart what `pack_frames` made."""
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
"""Number of the message, 0 for one that need not be sent again; partition; how many receipts."""
_RECORD: Final = struct.Struct("<QHId")
"""Number of the message, partition, client, and the time of the head."""
_RECEIPT_BYTES: Final = 4
MOST_RECEIPTS: Final = 255
LONGEST_SEAL_BYTES: Final = _SEAL.size + MOST_RECEIPTS * _RECEIPT_BYTES


class Seal(NamedTuple):
    """What a client adds to a message to replicated servers.

    Attributes
    ----------
    partition : int
        Which tuples it is about.
    number : int
        Counts the client's messages to the partition, from 1 on; 0 for a `CONFIRM`.
    receipts : sequence of int
        Requests whose replies it has received.
    """

    partition: int
    number: int
    receipts: Sequence[int] = ()


class Record(NamedTuple):
    """What the head of a partition adds to a request that it sends on to the tail."""

    partition: int
    number: int
    client: int
    now_s: float


def seal(message: bytes, about: Seal) -> bytes:
    """Return a message of a client with its seal, which has `MOST_RECEIPTS` at most."""
    partition, number, receipts = about
    end = _SEAL.pack(number, partition, len(receipts))
    return message + struct.pack(f"<{len(receipts)}I", *receipts) + end


def unseal(sealed: bytes) -> tuple[bytes, Seal]:
    """Take apart what `seal` made."""
    end = len(sealed) - _SEAL.size
    number, partition, count = _SEAL.unpack_from(sealed, end)
    start = end - count * _RECEIPT_BYTES
    receipts = struct.unpack_from(f"<{count}I", sealed, start)
    return sealed[:start], Seal(partition, number, receipts)


def pack_record(message: bytes, about: Record) -> bytes:
    """Return a request as the head of a partition sends it on to the tail."""
    return message + _RECORD.pack(about.number, about.partition, about.client, about.now_s)


def unpack_record(data: bytes) -> tuple[bytes, Record]:
    """Take apart what `pack_record` made."""
    end = len(data) - _RECORD.size
    number, partition, client, now_s = _RECORD.unpack_from(data, end)
    return data[:end], Record(partition, number, client, now_s)


def pack_notice(operation: Operation) -> bytes:
    """Return a message that holds nothing but its operation."""
    return PREFIX.pack(operation, 0, 0, 0, 0)


# -- fast path: a put and a take of a few bytes under a tag that was used before ------------------

_QUESTION_HEAD: Final = struct.Struct("<BBHI")
"""Of PREFIX all but the last number, which is 0 in the questions below."""
_PUT_SIZES: Final = 16

take_head: Final = functools.partial(_QUESTION_HEAD.pack, int(Operation.TAKE), 0, PLAIN)
"""``take_head(request_id) + known.question_rest`` is a `PLAIN` question for a tuple."""
plain_question: Final = struct.Struct("<4xI8x8xxxH").unpack_from
"""Of a `PLAIN` question, return its number and how many bytes its key has."""
ok_prefix: Final = functools.partial(PREFIX.pack, int(Status.OK), 0, 0)
"""``ok_prefix(request_id, version) + body`` is the reply with a tuple whose payload is small."""
_plain_reply: Final = struct.Struct("<xBxxI8xBxH").unpack_from
"""Of a reply with a tuple: whether its payload comes apart, request, kind, bytes of key."""


def plain_value(message: bytes, request_id: int) -> bytes | None:
    """Return the bytes that answer a request, if that is all that a message holds."""
    if len(message) < KEY_AT:
        return None
    apart, found, kind, key_bytes = _plain_reply(message)
    if found != request_id or kind or apart:
        return None
    return message[KEY_AT + key_bytes :]


class _PutHeads(dict[int, bytes]):
    """All of the put of some bytes under a tag that stands before these, by how many they are."""

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
    """Prepared messages of a tag: all of a put and a take that stays the same."""

    key: bytes
    server: int
    credit: Credit  # at that server
    put_heads: _PutHeads
    question_rest: bytes  # all of a `PLAIN` question behind its number

    @classmethod
    def of(cls, key: bytes, server: int, credit: Credit) -> KnownTag:
        """Prepare the messages of a tag whose bytes are `key`."""
        question = pack_query(Operation.TAKE, 0, key)
        return cls(key, server, credit, _PutHeads(key), question[_QUESTION_HEAD.size :])
