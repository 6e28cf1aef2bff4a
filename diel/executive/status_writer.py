"""What rank 0 knows at this moment, for whoever watches a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from diel.run.json_values import plain
from diel.run.status import write_status

if TYPE_CHECKING:
    from diel.executive.deadlock import WaitWatch
    from diel.executive.messages import ServerStatus
    from diel.run.directory import RunDirectory
    from diel.run.records import ProgressMade

_EVERY_S: Final = 0.4


class StatusWriter:
    """Writes who waits, what the servers hold and how far copies are, where that has changed.

    Parameters
    ----------
    directory : RunDirectory
    waits : WaitWatch
    """

    def __init__(self, directory: RunDirectory, waits: WaitWatch) -> None:
        self._directory = directory
        self._waits = waits
        self._servers: dict[int, ServerStatus] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._written: dict[str, Any] = {"waiting": [], "servers": [], "progress": []}
        self._next_s = 0.0

    def note_server(self, rank: int, status: ServerStatus) -> None:
        """Record what a tuple server holds."""
        self._servers[rank] = status

    def note_progress(self, progress: ProgressMade) -> None:
        """Record how far a copy is."""
        far = {"done": progress.done, "total": progress.total, "text": progress.text}
        self._progress[progress.name] = {"copy": progress.name, **plain(far)}

    def forget_progress(self, copy: str) -> None:
        """Record that a copy has ended."""
        self._progress.pop(copy, None)

    def write_if_due(self, now_s: float, unix_time: Callable[[], float] = time.time) -> None:
        """Write, if something has changed and the last time is a while ago.

        Parameters
        ----------
        now_s : float
            On the clock of the waits.
        unix_time : callable, optional
            Returns seconds since 1970.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        offset_s = unix_time() - now_s
        status = {
            "waiting": [
                {
                    "rank": rank,
                    "copy": waits.plan.name,
                    "what": waits.report.what,
                    # To a tenth: the two clocks are never read at the same instant.
                    "since_s": round(waits.reported_s - waits.report.waited_s + offset_s, 1),
                }
                for rank, waits in sorted(self._waits.waits.items())
            ],
            "servers": [
                {
                    "rank": rank,
                    "tuples": status.tuples,
                    "size_bytes": status.size_bytes,
                    "capacity_bytes": status.capacity_bytes,
                }
                for rank, status in sorted(self._servers.items())
            ],
            "progress": list(self._progress.values()),
        }
        if status != self._written:
            self._written = status
            with contextlib.suppress(OSError):  # a full disk does not end a run
                write_status(self._directory, status)
