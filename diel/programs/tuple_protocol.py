"""The protocol of the tuple socket, and its client, in a program of a run or outside of it.

::

    client                                                      rank
      {"token", "operation", "tag", "form", "timeout_s"}, body   ──>
                                <── {"status", "tag", "is_line", "form", "why"}, body
      {"received": true}              ──>  after a get, when the value is safe; with false, the
                                           tuple is given back to its old place
      the next request                ──>

Each message is a line of JSON, whose ``size`` is the number of bytes that follow it.
A client sends one request after the other; `docs/executables.md` says what the fields may hold.
``diel tuple`` imports this file, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from diel.errors import TupleSocketError
from diel.run.json_values import DamagedRecord, is_integer, parse_json

if TYPE_CHECKING:
    from diel.run.directory import RunDirectory

TUPLE_SOCKET: Final = "DIEL_TUPLE_SOCKET"
TOKEN: Final = "DIEL_TOKEN"

DONE: Final = "done"
LATE: Final = "late"
REFUSED: Final = "refused"

FORMS: Final = ("text", "json", "bytes", "npy")
"""Forms in which values are sent; the rank converts between them and Python values."""

BEST_FORM: Final = "fitting"
"""In a get or read, in place of a form: the one that keeps most of a value; the answer names it."""

LONGEST_HEAD_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 2**18


class NotUnderstood(Exception):
    """Raised for bytes on the socket that are not a message of this protocol."""


class SocketMessage(NamedTuple):
    """One message: its head and the bytes that came with it."""

    head: dict[str, Any]
    body: bytes


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a message as bytes."""
    return json.dumps({**head, "size": len(body)}).encode() + b"\n" + body


class Unpacker:
    """Cuts a stream of bytes, which may arrive in any pieces, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer += data

    def head(self) -> dict[str, Any] | None:
        """Return the head of the next message, perhaps before its body; None if it has not come."""
        if self._head is None:
            end = self._buffer.find(b"\n", 0, LONGEST_HEAD_BYTES)
            if end < 0:
                if len(self._buffer) >= LONGEST_HEAD_BYTES:
                    raise NotUnderstood("a head without an end")
                return None
            self._head = _read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 1]
        return self._head

    def next(self) -> SocketMessage | None:
        """Return the next message; None if it has not come whole."""
        head = self.head()
        if head is None or len(self._buffer) < head["size"]:
            return None
        body = bytes(self._buffer[: head["size"]])
        del self._buffer[: head["size"]]
        self._head = None
        return SocketMessage(head, body)


def _read_head(line: bytes) -> dict[str, Any]:
    try:
        head = parse_json(line, with_nan=True)  # refused where it stands, with a reason
    except DamagedRecord as damage:
        raise NotUnderstood(f"a head that cannot be read: {damage}") from None
    if not isinstance(head, dict) or not is_integer(head.get("size"), 0):
        raise NotUnderstood("a head that is no table with a size")
    return head


# -- the client -----------------------------------------------------------------------------------


class TupleConnection:
    """A connection to a tuple socket.

    The token is sent with each request; others are refused. A `TupleSocketError` if the run is over
    or out of reach, and from `ask`, if the rank refuses.
    """

    def __init__(self, address: str, token: str) -> None:
        self.has_ended = False
        self._token = token
        self._unpacker = Unpacker()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise TupleSocketError(
                f"{address} cannot be reached ({error.strerror or error}): the run is over, or "
                "goes on on another node"
            ) from None

    @classmethod
    def of_program(cls) -> TupleConnection:
        """Connect to the rank that has started this program, or its ancestor."""
        address = os.environ.get(TUPLE_SOCKET, "")
        if not address:
            raise TupleSocketError(
                f"{TUPLE_SOCKET} is not set: diel tuple works in what a run's executable starts, "
                "and elsewhere with --run RUN_DIR; a function module has ctx.tuples"
            )
        return cls(address, os.environ.get(TOKEN, ""))

    @classmethod
    def of_run(cls, directory: RunDirectory) -> TupleConnection:
        """Connect to the executive of a run that goes on on this host."""
        import platform  # here, since the socket of a rank needs neither

        from diel.run.directory import read_tuple_access

        access = read_tuple_access(directory)
        if access is None:
            raise TupleSocketError(
                f"{directory.path} offers no tuples: the run has not begun, or has ended; of one "
                "that has ended, diel.open_run(...).tuples reads the last checkpoint"
            )
        here = platform.node()
        if access.host != here:
            raise TupleSocketError(
                f"the executive of {directory.path} runs on {access.host or 'another host'}, and "
                f"this is {here}: ask there, as with ssh {access.host or 'HOST'}"
            )
        return cls(access.address, access.token)

    def ask(self, head: dict[str, Any], body: bytes = b"") -> SocketMessage:
        """Send a request and return its answer, with the status ``done`` or ``late``."""
        self._send(pack({**head, "token": self._token}, body))
        answer = self._receive()
        if answer.head.get("status") not in (DONE, LATE):
            raise TupleSocketError(str(answer.head.get("why")))
        return answer

    def confirm(self, *, received: bool = True) -> None:
        """Confirm that the value of a get was received, or have its tuple given back."""
        self._send(pack({"received": received}))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the rank's answer, or its end, tells why
            self._socket.sendall(data)

    def _receive(self) -> SocketMessage:
        try:
            while True:
                message = self._unpacker.next()
                if message is not None:
                    return message
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    break
                self._unpacker.feed(data)
        except (OSError, NotUnderstood):
            pass
        self.has_ended = True
        raise TupleSocketError("the run has ended, or is ending: it has not answered")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> TupleConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
