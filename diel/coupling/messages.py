"""The head of a message between modules, before its payload; counts of messages.

::

    8  serial of the receiver's copy     8  serial of the sender's copy     8  size of the payload
    2  ticket of the payload, or -1      1  kind    2  length of the key    2  length of the meta
    key, meta, and the payload itself where it is small

All integers are little-endian. A head whose serials are not those of copies that run belongs to
an earlier one, and is dropped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from diel.tuples.tags import Tag, decode_tag, encode_tag, format_tag

INLINE_BYTES: Final = 2048
"""Payloads up to this size travel in the head: by default both MPIs then let it leave at once."""
NO_TICKET: Final = -1

_FIXED: Final = struct.Struct("<QQQhBHH")


class Head(NamedTuple):
    """The head of a message."""

    to_serial: int
    from_serial: int
    size_bytes: int
    ticket: int
    kind: int
    key: bytes
    meta: bytes
    inline: bytes

    @property
    def has_payload(self) -> bool:
        """Whether the payload comes apart from the head."""
        return self.ticket != NO_TICKET

    def pack(self) -> bytes:
        """Return the bytes of the head."""
        to, of, size, ticket, kind, key, meta, inline = self
        return _FIXED.pack(to, of, size, ticket, kind, len(key), len(meta)) + key + meta + inline

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        """Return the head of some bytes."""
        to, of, size, ticket, kind, key_length, meta_length = _FIXED.unpack_from(data)
        meta_at = _FIXED.size + key_length
        inline_at = meta_at + meta_length
        key, meta = data[_FIXED.size : meta_at], data[meta_at:inline_at]
        return cls(to, of, size, ticket, kind, key, meta, data[inline_at:])


# What is sent under: a tag, none, or a piece of a boundary. No tag begins like the others.
_NO_TAG: Final = b"-"
_BOUNDARY: Final = b"b"
_SEPARATOR: Final = b"\0"


def key_of(tag: Tag | None) -> bytes:
    """Return the key of messages with a tag, or without one.

    Raises
    ------
    TagError
        If it is no tag.
    """
    return _NO_TAG if tag is None else encode_tag(tag)


def boundary_key(name: str, owner: int, reader: int) -> bytes:
    """Return the key of what goes from an owner to a reader of a boundary, by their numbers."""
    return _BOUNDARY + name.encode() + _SEPARATOR + b"%d-%d" % (owner, reader)


def describe_key(key: bytes) -> str:
    """Return in words the tag or the boundary that a message was sent under."""
    if key == _NO_TAG:
        return "no tag"
    if key.startswith(_BOUNDARY):
        return f'boundary "{key[1:].partition(_SEPARATOR)[0].decode()}"'
    return f"tag {format_tag(decode_tag(key))}"


@dataclass(frozen=True)
class MessageCounts:
    """How many messages a copy on a rank has sent and received: what tells a deadlock from delay.

    Attributes
    ----------
    sent : dict of (int, int) to int
        Messages that it has sent, by serial and world rank of their receivers.
    arrived : int
        Messages that have reached it, received by it or not.
    delivered : dict of (int, int) to int
        Of those sent with a payload apart, how many are known to have been received.
    received : dict of (int, int) to int
        Payloads that it has received, by serial and world rank of their senders.
    waits_for : str
        ``message``, ``receipt`` (of a message of its own), or nothing of the kind.
    receivers : tuple of (int, int)
        Serials and world ranks of those whose receipt it waits for.
    """

    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    arrived: int = 0
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)
    received: dict[tuple[int, int], int] = field(default_factory=dict)
    waits_for: Literal["message", "receipt", ""] = ""
    receivers: tuple[tuple[int, int], ...] = ()
