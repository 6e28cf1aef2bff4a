"""The time of a sweep: how much is left of it, and whether trials are to end because it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..trial import StopCause

if TYPE_CHECKING:
    from ..search import Search

HOPELESS: Final = 20
"""If so many trials fail before one succeeds, the sweep ends: the points are not the cause."""


class SweepClock:
    """Measures the time of a session, and that of all ranks of trainers in all sessions.

    Parameters
    ----------
    search : Search
        Has the limits.
    trainers : int
        Of the run.
    ranks : int
        Of these trainers.
    joined : callable
        Returns how many trainers of other runs there are.

    Attributes
    ----------
    late_tries : int
        Trials that have ended without a result after the time was over.
    """

    def __init__(
        self, search: Search, trainers: int, ranks: int, joined: Callable[[], int]
    ) -> None:
        self._search, self._joined = search, joined
        self._ranks, self._trainers = ranks, max(1, trainers)
        self._started_s = time.monotonic()
        self._core_s, self._clocked_s = 0.0, self._started_s
        self.late_tries = 0

    def add_trials(self, seconds: float) -> None:
        """Add what trials of earlier sessions have taken, each on one trainer."""
        self._core_s += seconds * self._ranks / self._trainers

    def restart(self) -> None:
        """Let the time of the session begin now; that of all ranks goes on."""
        self._started_s = time.monotonic()

    def cause(self) -> StopCause:
        """Return why trials are to end: the time is over, and a trial has a result or not yet."""
        left_s = self.left_s()
        if left_s is None or left_s > 0:
            return StopCause.NO
        if not self._search.best and self.late_tries < HOPELESS:
            return StopCause.TIME_ONCE_REPORTED
        self._search.clock(self._clocked_s - self._started_s, self._core_s)
        return StopCause.TIME

    def left_s(self) -> float | None:
        """Return for how many seconds trials may go on; None without a limit of time."""
        now_s = time.monotonic()
        ranks = self._ranks + self._joined() * self._ranks // self._trainers
        self._core_s += ranks * (now_s - self._clocked_s)
        self._clocked_s = now_s
        return self._search.left_s(now_s - self._started_s, self._core_s, ranks)
