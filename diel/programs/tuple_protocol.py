"""The protocol of the tuple socket: what a program and the rank that started it say to each other.

::

    client                                                      rank
      {"token", "operation", "tag", "form", "timeout_s"}, body   ──>
                                      <── {"status", "tag", "is_line", "why"}, body
      {"received": true}              ──>  after a get, when the value is safe; with false, the
                                           tuple lies in its old place again
      the next request                ──>

Each is a parcel: a line of JSON, which says in ``size`` how many bytes follow, and these bytes.
A client sends one request after the other; `docs/executables.md` says what the fields may hold. The
command imports this file too, so it imports little.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

TUPLE_SOCKET: Final = "DIEL_TUPLE_SOCKET"
TOKEN: Final = "DIEL_TOKEN"

DONE: Final = "done"
LATE: Final = "late"
REFUSED: Final = "refused"

FORMS: Final = ("text", "json", "bytes", "npy")
"""In which a value travels; the rank makes Python values of them, and these of Python values."""

LONGEST_HEAD_BYTES: Final = 64 * 1024


class NotUnderstood(Exception):
    """What came over the socket is no parcel."""


class Parcel(NamedTuple):
    """One message: its head and the bytes that came with it."""

    head: dict[str, Any]
    body: bytes


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a parcel as bytes."""
    return json.dumps({**head, "size": len(body)}).encode() + b"\n" + body


class Unpacker:
    """Cuts what arrives, in whatever pieces, into parcels."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self._buffer += data

    def head(self) -> dict[str, Any] | None:
        """Return the head of the next parcel, which may come before its body.

        Raises
        ------
        NotUnderstood
            If it is none.
        """
        if self._head is None:
            end = self._buffer.find(b"\n", 0, LONGEST_HEAD_BYTES)
            if end < 0:
                if len(self._buffer) >= LONGEST_HEAD_BYTES:
                    raise NotUnderstood("a head without an end")
                return None
            self._head = _read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 1]
        return self._head

    def next(self) -> Parcel | None:
        """Return the next parcel if all of it has come.

        Raises
        ------
        NotUnderstood
            If its head is none.
        """
        head = self.head()
        if head is None or len(self._buffer) < head["size"]:
            return None
        body = bytes(self._buffer[: head["size"]])
        del self._buffer[: head["size"]]
        self._head = None
        return Parcel(head, body)


def _read_head(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        raise NotUnderstood("a head that is not JSON") from None
    size = head.get("size") if isinstance(head, dict) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise NotUnderstood("a head that is no table with a size")
    table: dict[str, Any] = head
    return table
