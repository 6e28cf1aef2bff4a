"""The last scores of many, in order: what a rule compares a trial with."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 4096
"""How many scores are kept at most: a rule costs the same after any number of trials."""


class Window:
    """The last `limit` numbers that were added.

    Parameters
    ----------
    limit : int
    """

    def __init__(self, limit: int = WINDOW) -> None:
        self._limit = limit
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, score: float) -> None:
        """Add a number, not NaN; the oldest one leaves when there are too many."""
        if len(self._sorted) == self._limit:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(score)
        insort(self._sorted, score)

    def largest(self, place: int) -> float:
        """Return the largest number but ``place - 1``."""
        return self._sorted[-place]

    def quantile(self, fraction: float) -> float:
        """Return a quantile, linear between two numbers, as `numpy.quantile` does."""
        position = fraction * (len(self._sorted) - 1)
        below = int(position)
        above = min(below + 1, len(self._sorted) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low if low == high else low + (position - below) * (high - low)
