"""What a client and a server say to each other.

::

    client -> server   header | key | meta | payload, if small       CLIENT_TO_SERVER
                       payload, if large, in chunks                  CLIENT_TO_SERVER_PAYLOAD
    server -> client   header | key | meta | payload, if small       SERVER_TO_CLIENT
                       payload, if large, in chunks                  SERVER_TO_CLIENT_PAYLOAD
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"

INLINE_BYTES: Final = 16 * 1024
"""Payloads up to this size travel in the message itself: copying them is cheaper than a second
message."""

CHUNK_BYTES: Final = 2**30
"""A single message of 2^31 bytes and more is an error in Open MPI's wheel."""


class Operation(IntEnum):
    """What a client asks for."""

    PUT = 1
    TAKE = 2
    READ = 3
    FLUSH = 4


class Status(IntEnum):
    """How a server answers."""

    OK = 0
    TIMEOUT = 1
    MISMATCH = 2


class Request(NamedTuple):
    """One request.

    Attributes
    ----------
    client : int
        Who asks; the transport fills it in.
    serial : int
        Numbers the requests of one client, so that it can tell the answers apart.
    operation : Operation
    key : bytes
        A tag for PUT, a pattern for TAKE and READ.
    timeout_s : float, seconds
        How long to wait for a match: 0 not at all, infinity for ever.
    kind : int
        Of the payload; for TAKE and READ, that of the only payload which is welcome, or -1.
    meta : bytes
        Likewise.
    payload : buffer
    """

    client: int
    serial: int
    operation: int
    key: bytes
    timeout_s: float = math.inf
    kind: int = -1
    meta: bytes = b""
    payload: Buffer = b""


class Reply(NamedTuple):
    """One answer: the status, and the tuple if there is one."""

    client: int
    serial: int
    status: int
    key: bytes = b""
    kind: int = -1
    meta: bytes = b""
    payload: Buffer = b""


_REQUEST = struct.Struct("<BbxxIIIQd")
_REPLY = struct.Struct("<BbxxIIIQ")


def pack_request(request: Request) -> tuple[bytes, Buffer | None]:
    """Return the message, and the payload if that travels on its own."""
    size = len(request.payload)
    head = _REQUEST.pack(
        request.operation,
        request.kind,
        request.serial,
        len(request.key),
        len(request.meta),
        size,
        request.timeout_s,
    )
    if size <= INLINE_BYTES:
        return b"".join((head, request.key, request.meta, request.payload)), None
    return b"".join((head, request.key, request.meta)), request.payload


def unpack_request(message: bytes | bytearray, client: int) -> tuple[Request, int]:
    """Return the request and the size in bytes of a payload that is still to come, or 0."""
    operation, kind, serial, key_size, meta_size, size, timeout_s = _REQUEST.unpack_from(message)
    key_end = _REQUEST.size + key_size
    meta_end = key_end + meta_size
    key = bytes(message[_REQUEST.size : key_end])
    meta = bytes(message[key_end:meta_end])
    inline = bytes(message[meta_end:])
    request = Request(client, serial, operation, key, timeout_s, kind, meta, inline)
    return request, size if size > INLINE_BYTES else 0


def pack_reply(reply: Reply) -> tuple[bytes, Buffer | None]:
    """Return the message, and the payload if that travels on its own."""
    size = len(reply.payload)
    head = _REPLY.pack(
        reply.status, reply.kind, reply.serial, len(reply.key), len(reply.meta), size
    )
    if size <= INLINE_BYTES:
        return b"".join((head, reply.key, reply.meta, reply.payload)), None
    return b"".join((head, reply.key, reply.meta)), reply.payload


def unpack_reply(message: bytearray, client: int) -> tuple[Reply, int]:
    """Return the reply and the size in bytes of a payload that is still to come, or 0."""
    status, kind, serial, key_size, meta_size, size = _REPLY.unpack_from(message)
    key_end = _REPLY.size + key_size
    meta_end = key_end + meta_size
    key = bytes(message[_REPLY.size : key_end])
    meta = bytes(message[key_end:meta_end])
    reply = Reply(client, serial, status, key, kind, meta, message[meta_end:])
    return reply, size if size > INLINE_BYTES else 0


def chunks(buffer: Buffer) -> Iterator[memoryview]:
    """Cut a payload into pieces that MPI can carry in one message each."""
    view = memoryview(buffer)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
