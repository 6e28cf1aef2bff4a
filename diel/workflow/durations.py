"""Durations as a workflow file writes them: seconds, or a number with a unit."""

from __future__ import annotations

import math
import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(duration: float | str) -> float:
    """Return a duration in seconds.

    Parameters
    ----------
    duration : float or str
        Seconds, or a number and one of ms, s, min, h, d, as in ``"10 min"``.

    Raises
    ------
    ValueError
        If it is neither, or not above 0.
    """
    if isinstance(duration, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", duration)
        if found is None or found[2] not in _UNITS_S:
            units = ", ".join(_UNITS_S)
            raise ValueError(f'"{duration}" is no duration; write a number and one of {units}')
        seconds = float(found[1]) * _UNITS_S[found[2]]
    else:
        seconds = float(duration)
    if not (0 < seconds < math.inf):
        raise ValueError(f"a duration is longer than 0 s, and ends; got {seconds:g} s")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit without a fraction: 600 s as ``10 min``."""
    for unit in ("d", "h", "min"):
        if seconds >= _UNITS_S[unit] and seconds % _UNITS_S[unit] == 0:
            return f"{seconds / _UNITS_S[unit]:g} {unit}"
    return f"{seconds:g} s"
