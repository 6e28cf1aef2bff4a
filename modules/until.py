"""When a sweep is over, beside the number of its trials: what a file says, and what is reached."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from diel import duration_s


class UntilOptions(BaseModel):
    """When a sweep is over, beside the number of its trials."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    objective: float | None = Field(
        default=None, allow_inf_nan=False, description="no further trial begins once one is as good"
    )
    time: float | str | None = Field(
        default=None,
        description='trials end then, and count with their best epoch: seconds, or as "2 h"',
    )
    core_hours: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="trials end so once all ranks of trainers have taken so many hours together",
    )

    @field_validator("time")
    @classmethod
    def _check_time(cls, time: float | str | None) -> float | None:
        return None if time is None else duration_s(time)

    @property
    def time_s(self) -> float | None:
        """The time, in seconds."""
        return None if self.time is None else float(self.time)

    @property
    def core_s(self) -> float | None:
        """The time of all ranks of trainers together, in seconds."""
        return None if self.core_hours is None else 3600 * self.core_hours

    @property
    def has_time(self) -> bool:
        """Whether a time ends the sweep."""
        return self.time is not None or self.core_hours is not None


@dataclass
class Until:
    """The limits of a sweep, and which of them has been reached."""

    trials: int | None = None
    """Most trials of the strategy."""
    score: float | None = None
    """Once a trial has this score or more, no further trial begins."""
    time_s: float | None = None
    """Seconds after the start, by `clock`, after which trials end."""
    core_s: float | None = None
    """Seconds that all ranks of trainers may take together, by `clock`."""
    _reason: str | None = None

    def allows(self, trial: int) -> bool:
        """Whether a trial may begin."""
        return self._reason is None and (self.trials is None or trial < self.trials)

    def told(self, score: float | None) -> None:
        """Record the score of a trial, larger being better."""
        if self.score is not None and score is not None and score >= self.score:
            self._reason = self._reason or "objective"

    def clock(self, elapsed_s: float, core_s: float = 0.0) -> None:
        """Set the seconds since the start, and of all ranks: nothing else measures them."""
        if self.time_s is not None and elapsed_s >= self.time_s:
            self._reason = self._reason or "time"
        if self.core_s is not None and core_s >= self.core_s:
            self._reason = self._reason or "core hours"

    def left_s(self, elapsed_s: float, core_s: float = 0.0, ranks: int = 1) -> float | None:
        """Return for how many seconds trials may go on; None without a limit of time."""
        left = [] if self.time_s is None else [self.time_s - elapsed_s]
        left += [] if self.core_s is None else [(self.core_s - core_s) / max(1, ranks)]
        return min(left, default=None)

    @property
    def reason(self) -> str | None:
        """The limit that is reached: "objective", "time" or "core hours"; None if none is."""
        return self._reason
