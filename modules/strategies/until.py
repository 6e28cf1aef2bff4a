"""When a sweep is over: a number of trials, a score that was to be reached, a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Until:
    """Watches what happens and says when it is enough.

    Attributes
    ----------
    trials : int or None
        As many are tried.
    score : float or None
        Once a trial has it or more, no further one begins.
    time_s : float or None
        Seconds after the start, as `clock` tells them; no further one begins.
    """

    trials: int | None = None
    score: float | None = None
    time_s: float | None = None
    _reason: str | None = None

    def allows(self, trial: int) -> bool:
        """Whether a trial may begin."""
        return self._reason is None and (self.trials is None or trial < self.trials)

    def told(self, score: float | None) -> None:
        """Take the score of a trial, larger being better."""
        if self.score is not None and score is not None and score >= self.score:
            self._reason = self._reason or "objective"

    def clock(self, elapsed_s: float) -> None:
        """Take the time since the start: it passes only by being told."""
        if self.time_s is not None and elapsed_s >= self.time_s:
            self._reason = self._reason or "time"

    @property
    def reason(self) -> str | None:
        """Why no further trial may begin: "objective" or "time"; None if one may, for all these."""
        return self._reason
