"""The Unix socket by which the program of a rank uses the tuple space: ``diel tuple``.

::

    rank (main thread)                        diel tuple, any number, started by the program
    ──────────────────                        ──────────────────────────────────────────────
    polls its supervisor, and                 connects, asks once, prints, leaves
    serves the socket in between  <── socket ──>

The rank's client of the tuple space must not be shared by threads, so the rank serves the socket in
the loop in which it waits for its program. A `get` that waits must not block that loop: it is a
watch, which takes nothing, and a claim once that has matched. The claim is acknowledged when the
command has printed the value; if it dies before, the tuple is given back to its old place.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import selectors
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.comm.waiting import wait_for
from diel.errors import DielError, ModuleFailed, RunStopped, TagError, TupleError, TupleTimeout
from diel.programs.tuple_protocol import (
    BEST_FORM,
    DONE,
    FORMS,
    LATE,
    REFUSED,
    TOKEN,
    TUPLE_SOCKET,
    NotUnderstood,
    SocketMessage,
    Unpacker,
    pack,
)
from diel.run.json_values import is_number
from diel.tag_text import parse_tag
from diel.text import describe_error
from diel.tuples.tags import ANY

if TYPE_CHECKING:
    from diel.tuples.client import TupleClient
    from diel.tuples.handles import Claim, Watch

_LONGEST_ADDRESS_BYTES: Final = 100  # of 107 that the kernel takes
_FOLDER_PREFIX: Final = "diel-"
_SOCKET: Final = "tuples"
# A socket that was bound and does not listen yet looks abandoned.
_ABANDONED_AFTER_S: Final = 60.0
_RECEIVE_BYTES: Final = 2**18
_RECEIVES_AT_ONCE: Final = 16
_ROOM_AGAIN_S: Final = 0.05
_SETTLE_S: Final = 1.0


class TupleSocket:
    """A socket at which a rank serves the commands of its program.

    The client, which `tuples` returns, is used by the thread that calls `serve`, from the first
    command on. The address is in a folder that only this user can enter. Serving and settling raise
    `RunStopped` where the run is stopping.
    """

    def __init__(self, tuples: Callable[[], TupleClient]) -> None:
        self._tuples = tuples
        self._token = secrets.token_hex(16)
        self._folder = _private_folder()
        self.address = str(self._folder / _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: list[_Connection] = []
        self._users: set[str] = set()

    @property
    def facts(self) -> dict[str, str]:
        """The environment variables by which a program finds the socket."""
        return {TUPLE_SOCKET: self.address, TOKEN: self._token}

    def facts_for(self, user: int) -> dict[str, str]:
        """Return the same for one of several programs: its requests are noted as its own."""
        return {TUPLE_SOCKET: self.address, TOKEN: f"{self._token}-{user}"}

    def take_users(self) -> set[int]:
        """Return which programs have made requests since the last call."""
        users = {int(user) for user in self._users if user.isdecimal()}
        self._users.clear()
        return users

    def serve(self) -> None:
        """Serve all requests that can be served at this moment, without waiting."""
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept()
            else:
                key.data.exchange()
        if self._connections:
            now_s = time.monotonic()
            for connection in list(self._connections):
                connection.advance(now_s)
                if connection.is_over:
                    self._dismiss(connection)

    def settle(self, patience_s: float = _SETTLE_S) -> None:
        """Serve the last requests of a program that has ended, then drop its connections."""
        try:
            # Last messages may still be in the sockets: that a value was received, say.
            wait_for(self._is_quiet, patience_s)
        finally:
            for connection in list(self._connections):
                with contextlib.suppress(DielError):  # the run may be stopping
                    connection.abandon()
                self._dismiss(connection)

    def close(self, patience_s: float = _SETTLE_S) -> None:
        """Settle, and remove the socket and its folder."""
        try:
            self.settle(patience_s)
        finally:
            self._selector.close()
            self._listener.close()
            for remove, place in ((os.unlink, self.address), (os.rmdir, self._folder)):
                with contextlib.suppress(OSError):  # the supervisor has removed it
                    remove(place)

    def fileno(self) -> int:
        """Return the descriptor that can be read when there is something to serve."""
        return self._selector.fileno()

    @property
    def is_asked(self) -> bool:
        """Whether a program waits for an answer."""
        return any(connection.is_asked for connection in self._connections)

    @property
    def is_connected(self) -> bool:
        """Whether any client is connected."""
        return bool(self._connections)

    def _is_quiet(self) -> bool | None:
        self.serve()
        return True if not self._connections else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the client has left, or no descriptor is free
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                tuples = self._tuples()
                connection = _Connection(accepted, self._selector, self._token, self._users, tuples)
                self._connections.append(connection)

    def _dismiss(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        connection.close()


class _Connection:
    """The connection of one client: its requests, one after the other, and how far they are."""

    def __init__(
        self,
        connection: socket.socket,
        selector: selectors.BaseSelector,
        token: str,
        users: set[str],
        tuples: TupleClient,
    ) -> None:
        self._connection = connection
        self._selector = selector
        self._token = token
        self._users = users
        self._tuples = tuples
        self._unpacker = Unpacker()
        self._to_send = bytearray()
        self._request: _Request | None = None
        self._is_understood = True
        self._has_left = False
        self._watch: Watch | None = None
        self._claim: Claim | None = None
        self._not_before_s = 0.0
        selector.register(connection, selectors.EVENT_READ, self)

    @property
    def is_over(self) -> bool:
        """Whether the client has left, and holds no claim."""
        return self._has_left and self._claim is None

    @property
    def is_asked(self) -> bool:
        """Whether the client waits for an answer."""
        return self._request is not None

    # -- bytes --------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Send and receive what can be sent and received at once."""
        try:
            self._send()
            for _ in range(_RECEIVES_AT_ONCE):
                data = self._connection.recv(_RECEIVE_BYTES)
                if not data:
                    self._has_left = True
                    return
                if self._is_understood:
                    self._unpacker.feed(data)
        except BlockingIOError:
            return
        except OSError:
            self._has_left = True

    def _send(self) -> None:
        while self._to_send:
            try:
                sent = self._connection.send(self._to_send)
            except BlockingIOError:
                break
            del self._to_send[:sent]
        waits = selectors.EVENT_WRITE if self._to_send else 0
        self._selector.modify(self._connection, selectors.EVENT_READ | waits, self)

    def close(self) -> None:
        """Close the connection."""
        self._selector.unregister(self._connection)
        self._connection.close()

    # -- steps --------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Serve the client's requests as far as possible now; it may have sent several."""
        while self._is_understood and self._step(now_s):
            pass
        if self._has_left:
            self.abandon()

    def _step(self, now_s: float) -> bool:
        """Take the next step; return whether another one may follow at once."""
        try:
            if self._claim is not None:
                message = self._unpacker.next()
                if message is None:
                    return False
                claim, self._claim = self._claim, None
                if message.head.get("received") is False:
                    claim.give_back()
                else:
                    claim.acknowledge()
                return True
            if self._request is None:
                self._read_request(now_s)
            if self._request is not None:
                self._attempt(self._request, now_s)
                return self._request is None
        except NotUnderstood as problem:
            # It cannot be known where the next request begins.
            self._is_understood = False
            if self._claim is None:
                self._refuse(f"not understood: {problem}")
            else:  # what it got has not been confirmed
                self._has_left = True
        except RunStopped:
            raise
        except Exception as error:  # a MemoryError, say, is the end of a request, not of a rank
            self._refuse(_in_words(error))
            return True
        return False

    def abandon(self) -> None:
        """Give back a claimed tuple, and stop watching for one."""
        self._stop_watching()
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.give_back()

    def _read_request(self, now_s: float) -> None:
        head = self._unpacker.head()
        if head is None:
            return
        token, _, user = str(head.get("token")).partition("-")
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            self._is_understood = False
            self._refuse(f"{TOKEN} is not that of this program")
            return
        message = self._unpacker.next()
        if message is not None:
            self._users.add(user)
            self._request = _Request(message, now_s)

    def _attempt(self, request: _Request, now_s: float) -> None:
        if now_s < self._not_before_s:
            return
        if self._watch is not None and not self._watch.has_matched() and now_s < request.deadline_s:
            return
        self._stop_watching()
        if self._has_left and request.operation != "put":
            return
        try:
            self._perform(request)
        except TupleTimeout:
            if now_s >= request.deadline_s:
                self._answer({"status": LATE})
            elif request.operation == "put":  # there is no room
                self._not_before_s = now_s + _ROOM_AGAIN_S
            else:
                self._watch = self._tuples.watch(request.tag)

    def _perform(self, request: _Request) -> None:
        from diel.programs.shell_values import shown

        if request.operation == "put":
            # Waiting for room could wait for a command that this rank would have to serve.
            self._tuples.tput(request.tag, request.value, wait=True, timeout=0)
            self._answer({"status": DONE})
            return
        if request.operation == "read":
            tag, value = self._tuples.tread(request.tag, timeout=0, with_tag=True)
            line = shown(value, request.form)
        else:
            claim = self._tuples.claim(request.tag, timeout=0)
            tag = claim.tag
            try:
                line = shown(claim.value, request.form)
            except Exception as error:  # the value may be of any class
                claim.give_back()
                raise TupleError(f"{_in_words(error)}; it was left there") from None
            self._claim = claim
        fields = list(tag) if isinstance(tag, tuple) else [tag]
        head = {"status": DONE, "tag": fields, "is_line": line.is_line, "form": line.form}
        self._answer(head, line.body)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _refuse(self, why: str) -> None:
        self._answer({"status": REFUSED, "why": why})

    def _answer(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._request, self._not_before_s = None, 0.0
        self._to_send += pack(head, body)
        self.exchange()


class _Request:
    """A request of a command: operation, tag, form, deadline, value; TupleError if invalid."""

    def __init__(self, message: SocketMessage, now_s: float) -> None:
        from diel.programs.shell_values import value_of

        head = message.head
        self.operation = head.get("operation")
        if self.operation not in ("put", "get", "read"):
            raise TupleError("the operation is none of put, get and read")
        self.form: Any = head.get("form")
        forms = FORMS if self.operation == "put" else tuple({*FORMS, BEST_FORM, None} - {"text"})
        if not isinstance(self.form, str | None) or self.form not in forms:
            names = sorted("null" if form is None else form for form in forms)
            raise TupleError(f"the form is none of {', '.join(names)}")
        self.tag: Any = _tag(head.get("tag"))
        timeout_s = head.get("timeout_s")
        if timeout_s is not None and not is_number(timeout_s, 0):
            raise TupleError("the timeout is no number of seconds, nor null for none")
        self.deadline_s = math.inf if timeout_s is None else now_s + timeout_s
        self.value = value_of(str(self.form), message.body) if self.operation == "put" else None


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, (DielError, ValueError)) else describe_error(error)


def _tag(fields: object) -> tuple[Any, ...]:
    if isinstance(fields, str):
        fields = parse_tag(fields)
    if not isinstance(fields, list):
        raise TupleError("a tag is a list, or a string such as job/3")
    for field in fields:
        if not (field is None or isinstance(field, str) or type(field) is int):
            raise TagError(f"{field!r}: a field of a tag is a string, an integer, or null for any")
    return tuple(ANY if field is None else field for field in fields)


def _private_folder() -> Path:
    """Make a folder that only this user can enter, with a path short enough for a socket."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        if (
            len(os.fsencode(place)) + len(f"/{_FOLDER_PREFIX}12345678/{_SOCKET}")
            > _LONGEST_ADDRESS_BYTES
        ):
            continue
        _remove_abandoned(Path(place))
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=place))
    raise ModuleFailed(
        "there is no folder for the socket of diel tuple: let TMPDIR name one that can be written "
        "to, with a path of less than 80 characters"
    )


def _remove_abandoned(place: Path) -> None:
    """Remove the sockets of this user's ranks that were killed together with their supervisors."""
    for folder in place.glob(f"{_FOLDER_PREFIX}*"):
        # Files of other users, and files that are no such folders, are left alone.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            about = folder.lstat()
            age_s = time.time() - about.st_mtime
            if about.st_uid == os.geteuid() and age_s > _ABANDONED_AFTER_S:
                probe.setblocking(False)
                try:
                    probe.connect(str(folder / _SOCKET))
                except ConnectionRefusedError:
                    (folder / _SOCKET).unlink()
                    folder.rmdir()
