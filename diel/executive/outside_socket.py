"""Access to a run's tuples for processes outside of the run, at a socket of rank 0.

Until a process connects, it costs no more than the socket and five polls of it a second.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from diel.errors import DielError
from diel.run.directory import TupleAccess, write_tuple_access

if TYPE_CHECKING:
    from diel.programs.tuple_socket import TupleSocket
    from diel.run.directory import RunDirectory
    from diel.tuples.client import TupleClient

_OPEN_AFTER_S: Final = 0.5
"""Shorter runs open no socket."""


class OutsideSocket:
    """Serves tuples to processes outside of the run, in the loop of rank 0.

    Parameters
    ----------
    directory : RunDirectory
        Those processes find the address of the socket there.
    tuples : callable
        Returns the client that performs their requests.
    warn : callable
        Called with the reason if there can be no socket.
    """

    def __init__(
        self,
        directory: RunDirectory,
        tuples: Callable[[], TupleClient],
        warn: Callable[[str], object],
    ) -> None:
        self._directory = directory
        self._tuples = tuples
        self._warn = warn
        self._socket: TupleSocket | None = None
        self._opens_at_s = time.monotonic() + _OPEN_AFTER_S

    @property
    def is_connected(self) -> bool:
        """Whether a process is connected, which may still put a tuple."""
        return self._socket is not None and self._socket.is_connected

    def serve(self) -> None:
        """Open the socket half a second after the start; perform the requests that have come."""
        if time.monotonic() >= self._opens_at_s:
            self._opens_at_s = math.inf
            self._open()
        if self._socket is not None:
            with contextlib.suppress(DielError):  # the outside request fails, not the run
                self._socket.serve()

    def fileno(self) -> int:
        """Return a file descriptor that is readable when there are requests to serve."""
        assert self._socket is not None
        return self._socket.fileno()

    def _open(self) -> None:
        from diel.programs.tuple_protocol import TOKEN
        from diel.programs.tuple_socket import TupleSocket

        try:
            self._socket = TupleSocket(self._tuples)
            access = TupleAccess(platform.node(), self._socket.address, self._socket.facts[TOKEN])
            write_tuple_access(self._directory, access)
        except (OSError, DielError) as error:
            self._warn(f"processes outside of the run cannot reach its tuples: {error}")
            self.close()

    def close(self) -> None:
        """Give back the tuples that connected processes have not confirmed; remove the socket."""
        connected, self._socket = self._socket, None
        if connected is not None:
            with contextlib.suppress(DielError, OSError):
                connected.close(patience_s=0.0)
            with contextlib.suppress(OSError):
                self._directory.tuple_access.unlink(missing_ok=True)
