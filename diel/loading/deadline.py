"""The end of a copy's time, by its own limit or the end of the run, and the warning before it.

Times are those of this host's monotonic clock, which nobody can set; only what `Deadline.facts`
tells programs is a time of day.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final

from diel.errors import LaunchError
from diel.frozen import Frozen

END_TIME: Final = "DIEL_END_TIME"
"""The variable with the Unix time at which a run, or a program of it, has to have ended."""

_OF_SLURM: Final = "SLURM_JOB_END_TIME"


class Deadline(Frozen):
    """When a copy has to have ended, and when it is told so.

    Attributes
    ----------
    ends_s : float, seconds
        Of the monotonic clock; infinite where nothing ends it.
    warns_s : float, seconds
        When ``signal_before`` is reached; infinite without it.
    """

    ends_s: float = math.inf
    warns_s: float = math.inf

    @classmethod
    def of(
        cls,
        now_s: float,
        time_limit_s: float | None,
        signal_before_s: float | None,
        run_ends_s: float = math.inf,
        run_signal_before_s: float | None = None,
    ) -> Deadline:
        """Return the deadline of a copy that begins now, in a run that ends at `run_ends_s`."""
        copy_ends_s = math.inf if time_limit_s is None else now_s + time_limit_s
        warnings = [
            ends_s - before_s
            for ends_s, before_s in (
                (copy_ends_s, signal_before_s),
                (run_ends_s, run_signal_before_s),
            )
            if before_s is not None
        ]
        return cls(min(copy_ends_s, run_ends_s), min(warnings, default=math.inf))

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, at least 0; None without an end."""
        if self.ends_s == math.inf:
            return None
        return max(0.0, self.ends_s - time.monotonic())

    @property
    def is_near(self) -> bool:
        """Whether ``signal_before`` is reached."""
        return time.monotonic() >= self.warns_s

    def facts(self) -> dict[str, str]:
        """Return the environment variable that tells a program the end, as Unix time in seconds."""
        left_s = self.left_s
        return {} if left_s is None else {END_TIME: str(math.floor(time.time() + left_s))}


NO_DEADLINE: Final = Deadline()


def time_left_of_run(environment: Mapping[str, str], now: float) -> float | None:
    """Return in how many seconds the job around a run ends it; None where that is not known.

    Parameters
    ----------
    environment : mapping of str to str
        Its ``DIEL_END_TIME`` says so, which the scripts of ``diel batch`` set; else what Slurm says
        of the job.
    now : float, seconds
        The Unix time. An end before it is that of an earlier job, whose environment was kept.

    Raises
    ------
    LaunchError
        If ``DIEL_END_TIME`` is no Unix time.
    """
    given = environment.get(END_TIME, "")
    if given and not given.isdecimal():
        raise LaunchError(
            f"{END_TIME} is {given!r}, and has to be a Unix time in seconds, as of date +%s: "
            "correct or unset it"
        )
    of_slurm = environment.get(_OF_SLURM, "")
    for text in (given, of_slurm if of_slurm.isdecimal() else ""):
        if text and float(text) > now:
            return float(text) - now
    return None
