"""Values by time: which time stamps of a boundary are kept, and interpolation between them.

Nothing here sends or receives. Values at a time are those of a polynomial through the nearest
stamps, half of them on each side where they are known; the stamp at or after the time always is.
Later stamps are never needed, so that two modules that read each other cannot wait for each other
because of the degree.

References
----------
.. [1] Rüth, Uekermann, Mehl, Birken, Monge, Bungartz, Quasi-Newton waveform iteration for
   partitioned surface-coupled multiphysics applications, International Journal for Numerical
   Methods in Engineering 122, 2021: interpolation in time between codes with different steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from diel.errors import BoundaryError

Array = np.ndarray[Any, Any]

LARGEST_DEGREE: Final = 5
"""Polynomials of higher degree oscillate towards the end of their stamps, where they are used."""
_SAME: Final = 1e-12
"""Times that differ by less than this part of the largest of them are the same."""


def as_time(value: Any) -> float:
    """Return a time as float.

    Raises
    ------
    BoundaryError
        If it is no finite number.
    """
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not math.isfinite(time) or isinstance(value, str | bytes):
        raise BoundaryError(f"a time is a finite number, not {value!r}")
    return time


def as_degree(value: Any, dtype: np.dtype[Any]) -> int:
    """Return the degree of an interpolation of items of this dtype.

    Raises
    ------
    BoundaryError
        If it is no degree, or these items cannot be interpolated.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_DEGREE:
        raise BoundaryError(
            f"the degree is a whole number from 0 to {LARGEST_DEGREE}, not {value!r}"
        )
    if value and dtype.kind not in "fc":
        raise BoundaryError(
            f"items of dtype {dtype} cannot be interpolated: with degree=0 they are those of the "
            "last push at or before the time"
        )
    return value


def is_later(time: float, other: float) -> bool:
    """Whether a time is after another one, and not the same but for rounding."""
    return time > other + _SAME * max(abs(time), abs(other))


def lagrange_weights(times: Sequence[float], time: float) -> list[float]:
    """Return the weight of the value at each of some times in the polynomial through them."""
    return [
        math.prod((time - other) / (mine - other) for j, other in enumerate(times) if j != i)
        for i, mine in enumerate(times)
    ]


class Stamps:
    """Values by time, as far as they are kept, from one owner of a piece of a boundary.

    Parameters
    ----------
    source : str
        The owner, as messages name it.

    Attributes
    ----------
    times : list of float
        Growing.
    values : list of ndarray
        The values at each of them.
    free : list of ndarray
        Arrays of values that are not kept any more, to be used again.
    repetition : int
        How often the owner has gone back in time before the pushes that are taken now.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.times: list[float] = []
        self.values: list[Array] = []
        self.free: list[Array] = []
        self.repetition = 0
        self._has_dropped = False

    def reaches(self, time: float) -> bool:
        """Whether there is a stamp at or after a time."""
        return bool(self.times) and not is_later(time, self.times[-1])

    def takes(self, time: float, repetition: int) -> bool:
        """Whether a push is to be added, and does not belong to an earlier repetition.

        Raises
        ------
        BoundaryError
            If its time is not later than the last one, or its owner alone has gone back in time.
        """
        if repetition > self.repetition:
            raise BoundaryError(
                f"{self.source} has gone back in time, to push time {time!r} again, and this rank "
                "has not: all ranks that repeat steps call rewind"
            )
        if repetition == self.repetition and self.times and not is_later(time, self.times[-1]):
            raise BoundaryError(
                f"{self.source} has pushed time {time!r} after {self.times[-1]!r}: times grow"
            )
        return repetition == self.repetition

    def add(self, time: float, values: Array) -> None:
        """Add the values at a time that is later than all others."""
        self.times.append(time)
        self.values.append(values)

    def check_kept(self, time: float) -> None:
        """Raise a BoundaryError if a time is before the earliest stamp."""
        if self.times and is_later(self.times[0], time):
            if self._has_dropped:
                why = f"the earliest that is kept: give pull_at keep_from={time!r} before"
            else:
                why = "the first one that was pushed"
            raise BoundaryError(
                f"time {time!r} of {self.source} is before {self.times[0]!r}, {why}"
            )

    def at(self, time: float, degree: int) -> Array:
        """Return the values at a time, after the last stamp those of the last one.

        Parameters
        ----------
        time : float
            Not before the earliest stamp.
        degree : int
            Of the polynomial; there are degree + 1 stamps in it, or all that are kept if those are
            fewer. With 0 the values are those of the last stamp at or before the time.

        Returns
        -------
        ndarray
            It may be that of a stamp.
        """
        self.check_kept(time)
        after = bisect_left(self.times, time)  # the first stamp at or after the time
        if after < len(self.times) and self.times[after] == time:
            return self.values[after]
        before = after - 1
        if not self.reaches(time):
            return self.values[-1]
        if degree == 0 or len(self.times) == 1:
            rounded_up = after < len(self.times) and not is_later(self.times[after], time)
            return self.values[after if rounded_up else before]
        first = min(before - (degree - 1) // 2, len(self.times) - 1 - degree)
        chosen = slice(max(first, 0), max(first, 0) + degree + 1)
        values = self.values[chosen]
        weights = lagrange_weights(self.times[chosen], time)
        found: Array = weights[0] * values[0]
        for weight, more in zip(weights[1:], values[1:], strict=True):
            found += weight * more
        return found

    def forget_before(self, time: float, degree: int) -> None:
        """Drop what times from this one on do not need, with that degree."""
        needless = bisect_right(self.times, time) - max(degree, 1)
        if needless > 0:
            self._has_dropped = True
            self.free += self.values[:needless]
            del self.times[:needless], self.values[:needless]

    def rewind(self, time: float) -> None:
        """Drop the stamps after a time; the owner pushes them anew."""
        kept = bisect_right(self.times, time + _SAME * abs(time))
        self.free += self.values[kept:]
        del self.times[kept:], self.values[kept:]
        self.repetition += 1
