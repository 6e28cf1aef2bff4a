"""The Pareto front of what trials cost and what they gain, kept while they come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Final

_LARGEST: Final = 400


class Front:
    """Entries that none is both cheaper and better than: the cheapest first.

    Of entries that are equal in both the first stays. A front of more than `largest` entries is
    thinned out: every second one goes, the ends stay.

    Attributes
    ----------
    thinned : bool
    """

    def __init__(self, largest: int = _LARGEST) -> None:
        self.thinned = False
        self._largest = largest
        # Both increase strictly.
        self._costs: list[float] = []
        self._gains: list[float] = []
        self._entries: list[Any] = []

    def add(self, cost: float, gain: float, entry: Any) -> bool:
        """Offer an entry; return whether it is on the front now.

        Parameters
        ----------
        cost : float
            Less is better.
        gain : float
            More is better.
        entry
            Whatever is to be found on the front later.
        """
        costs, gains = self._costs, self._gains
        cheaper = bisect_right(costs, cost)
        if cheaper and gains[cheaper - 1] >= gain:
            return False
        first = bisect_left(costs, cost)
        last = first
        while last < len(gains) and gains[last] <= gain:
            last += 1
        costs[first:last] = [cost]
        gains[first:last] = [gain]
        self._entries[first:last] = [entry]
        if len(costs) > self._largest:
            self.thinned = True
            for kept in (costs, gains, self._entries):
                del kept[1 : len(kept) - 1 : 2]
        return True

    @property
    def entries(self) -> list[Any]:
        """The entries on the front, the cheapest first."""
        return list(self._entries)
