"""Tuples of a run for processes outside of it: rank 0 serves them at a socket of its own.

Nothing but the socket is made, and asked five times a second whether somebody has come, as long as
nobody does.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from diel.errors import DielError
from diel.run.tuple_access import TupleAccess, write_tuple_access

if TYPE_CHECKING:
    from diel.programs.tuple_socket import TupleSocket
    from diel.run.directory import RunDirectory
    from diel.tuples.client import TupleClient

_OPEN_AFTER_S: Final = 0.5
"""A run that is over by then has no use for it."""


class OutsideSocket:
    """Serves tuples to processes outside of the run, in the loop of rank 0.

    Parameters
    ----------
    directory : RunDirectory
        Where those find out how to reach it.
    tuples : callable
        Returns the client that is asked on their behalf.
    warn : callable
        Told if there can be no socket.
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
        """Whether somebody is connected, who may put a tuple yet."""
        return self._socket is not None and self._socket.is_connected

    def serve(self) -> None:
        """Make the socket once the run has gone on for a moment; answer what can be answered."""
        if time.monotonic() >= self._opens_at_s:
            self._opens_at_s = math.inf
            self._open()
        if self._socket is not None:
            with contextlib.suppress(DielError):  # their request, not the run, comes to nothing
                self._socket.serve()

    def fileno(self) -> int:
        """Return what can be read when there is something to serve."""
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
        """Give back what they have not confirmed, and remove the socket."""
        connected, self._socket = self._socket, None
        if connected is not None:
            with contextlib.suppress(DielError, OSError):
                connected.close(patience_s=0.0)
            with contextlib.suppress(OSError):
                self._directory.tuple_access.unlink(missing_ok=True)
