"""Several objectives: the Pareto front, kept up to date while results come, and ranks in fronts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np

Entry = TypeVar("Entry")


class ParetoFront(Generic[Entry]):
    """Keeps the entries that are not dominated.

    One entry dominates another if it is at least as good in every objective, and better in one. Of
    entries with the same scores the one with the smaller number stays, in whatever order they come.

    Parameters
    ----------
    largest : int, optional
        A front of more entries is thinned out: every second entry goes, the ends stay.

    Notes
    -----
    Only the front is kept: for independent scores it has about ``(ln n)**(m - 1) / (m - 1)!`` of n
    entries with m objectives, and adding one costs as many comparisons; of two objectives, only
    those with its neighbours on the front.
    """

    def __init__(self, largest: int | None = None) -> None:
        self.thinned = False
        self._largest = largest
        # Sorted by the first objective, the best first; its negated scores, to bisect in.
        self._front: list[tuple[tuple[float, ...], int, Entry]] = []
        self._firsts: list[float] = []

    def add(self, number: int, scores: Sequence[float], entry: Entry) -> bool:
        """Offer an entry and the number of its trial; return whether it is on the front now.

        Larger scores are better; an entry with NaN among them is never on the front.
        """
        new = tuple(scores)
        if any(score != score for score in new):
            return False
        start = bisect_left(self._firsts, -new[0])
        stop = bisect_right(self._firsts, -new[0])
        # Along a front of two objectives the second grows: the nearest entry has most of it.
        for old, earlier, _ in self._front[max(0, stop - 1) if len(new) == 2 else 0 : stop]:
            if dominates(old, new) or (old == new and earlier < number):
                return False
        stop, rest = start, []
        if len(new) == 2:
            while stop < len(self._front) and self._front[stop][0][1] <= new[1]:
                stop += 1
        else:
            stop = len(self._front)
            rest = [
                kept
                for kept in self._front[start:]
                if not dominates(new, kept[0]) and kept[0] != new
            ]
        self._front[start:stop] = [(new, number, entry), *rest]
        self._firsts[start:stop] = [-new[0], *(-scores[0] for scores, _, _ in rest)]
        if self._largest is not None and len(self._front) > self._largest:
            self.thinned = True
            for kept in (self._front, self._firsts):
                del kept[1 : len(kept) - 1 : 2]
        return True

    @property
    def front(self) -> list[Entry]:
        """Entries of the front: best by the first objective first, of equals the smaller number."""
        ranked = sorted(self._front, key=lambda kept: ([-score for score in kept[0]], kept[1]))
        return [entry for _, _, entry in ranked]


def dominates(scores: Sequence[float], rivals: Sequence[float]) -> bool:
    """Whether scores are at least as good as `rivals` in every objective, and better in one."""
    pairs = list(zip(scores, rivals, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def ranked(scores: np.ndarray) -> np.ndarray:
    """Return the indices of entries from the best to the worst, as NSGA-II compares them.

    Those that no other dominates come first, then those that only these dominate, and so on; of one
    front those whose neighbours are farthest, so that it stays spread out; then in their order.

    Parameters
    ----------
    scores : numpy.ndarray, shape (entries, objectives)
        Larger ones are better; without NaN.

    References
    ----------
    .. [1] Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE
       Transactions on Evolutionary Computation 6, 2002, sections III A and B.
    """
    import numpy as np

    at_least = (scores[:, None] >= scores[None]).all(2)
    beats = at_least & ~at_least.T
    left, order = np.ones(len(scores), bool), []
    while left.any():
        front = np.flatnonzero(left & ~beats[left].any(0))
        left[front] = False
        order.append(front[np.argsort(-_distances(scores[front]), kind="stable")])
    return np.concatenate(order) if order else np.zeros(0, int)


def _distances(scores: np.ndarray) -> np.ndarray:
    """Return the crowding distance of each entry of a front: infinite at its ends."""
    import numpy as np

    found = np.zeros(len(scores))
    for column in scores.T:
        order = np.argsort(column, kind="stable")
        found[order[[0, -1]]] = np.inf
        if (width := column[order[-1]] - column[order[0]]) > 0:
            found[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / width
    return found
