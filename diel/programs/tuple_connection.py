"""Client of a tuple socket, for a program of a run or a process outside of it.

``diel tuple`` imports this file, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from typing import Any, Final

from diel.errors import TupleSocketError
from diel.programs.tuple_protocol import (
    DONE,
    LATE,
    TOKEN,
    TUPLE_SOCKET,
    NotUnderstood,
    SocketMessage,
    Unpacker,
    pack,
)
from diel.run.directory import RunDirectory, read_tuple_access

_RECEIVE_BYTES: Final = 2**18


class TupleConnection:
    """A connection to a tuple socket.

    Parameters
    ----------
    address : str
        Of the socket.
    token : str
        Sent with each request; others are refused.

    Raises
    ------
    TupleSocketError
        If the socket cannot be reached.
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
        """Connect to the rank that has started this program, or its ancestor.

        Raises
        ------
        TupleSocketError
            If there is no run around this process, or it is out of reach.
        """
        address = os.environ.get(TUPLE_SOCKET, "")
        if not address:
            raise TupleSocketError(
                f"{TUPLE_SOCKET} is not set: diel tuple works in what a run's executable starts, "
                "and elsewhere with --run RUN_DIR; a function module has ctx.tuples"
            )
        return cls(address, os.environ.get(TOKEN, ""))

    @classmethod
    def of_run(cls, directory: RunDirectory) -> TupleConnection:
        """Connect to the executive of a run that goes on on this host.

        Raises
        ------
        TupleSocketError
            If the run has ended, is on another host, or cannot be reached.
        """
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
        """Send a request and return its answer, with the status ``done`` or ``late``.

        Raises
        ------
        TupleSocketError
            If the rank refuses, or is gone.
        """
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
