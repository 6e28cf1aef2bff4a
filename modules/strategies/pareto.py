"""Several objectives: the trials that none other beats in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class ParetoFront(Generic[Entry]):
    """Keeps the trials that are not dominated.

    One trial dominates another if it is at least as good in every objective, and better in one. Of
    trials with the same scores the first one stays, whatever the order in which they come.

    Notes
    -----
    Only the front is kept: for independent scores it has about ``(ln n)**(m - 1) / (m - 1)!`` of n
    trials with m objectives, and taking a trial costs as many comparisons.
    """

    def __init__(self) -> None:
        self._front: list[tuple[tuple[float, ...], int, Entry]] = []

    def add(self, trial: int, scores: Sequence[float], entry: Entry) -> bool:
        """Take a trial; whether it is on the front now.

        Parameters
        ----------
        trial : int
        scores : sequence of float
            Larger is better in each; a trial with NaN among them is never on the front.
        entry : Entry
            Whatever is to be kept of it.
        """
        new = tuple(scores)
        if any(score != score for score in new):
            return False
        for old, earlier, _ in self._front:
            if dominates(old, new) or (old == new and earlier < trial):
                return False
        self._front = [one for one in self._front if not dominates(new, one[0]) and one[0] != new]
        self._front.append((new, trial, entry))
        return True

    @property
    def front(self) -> list[Entry]:
        """What was kept: best by the first objective first, of equals the earlier trial."""
        ranked = sorted(self._front, key=lambda one: ([-score for score in one[0]], one[1]))
        return [entry for _, _, entry in ranked]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether scores are at least as good in everything and better in something."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
