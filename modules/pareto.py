"""Several objectives and constraints: fronts, ranks, hypervolume, scores of what is infeasible."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np

Entry = TypeVar("Entry")

_LEAST_EXPONENT, _EXPONENTS = -1075, 2100
"""A little below the exponents of all floats, and a little more than there are."""
_WORST_FEASIBLE = -math.ldexp(1.0, 1023)


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


class Fronts:
    """The first entries in fronts, kept up to date while they come: at least so many.

    Whole fronts are kept, as few as have `least` entries. What falls out does not come back.

    Notes
    -----
    An entry joins the first front in which none dominates it, which bisection finds; those of this
    front that it dominates join the next one, and so on [1]_.

    References
    ----------
    .. [1] Li, Deb, Zhang, Kwong, Efficient nondomination level update method for steady-state
       evolutionary multiobjective optimization, IEEE Transactions on Cybernetics 47, 2017.
    """

    def __init__(self, least: int) -> None:
        self._least, self._count = least, 0
        # Of each front the numbers of its entries, and their scores.
        self._fronts: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, number: int, scores: Sequence[float]) -> list[int]:
        """Add an entry; return the numbers of those that fall out. Larger scores are better."""
        import numpy as np

        numbers, rows = np.array([number]), np.array([scores], float)
        place = bisect_left(self._fronts, True, key=lambda front: not _beaten(rows, front[1])[0])
        while len(numbers) and place < len(self._fronts):
            there, have = self._fronts[place]
            beaten = _beaten(have, rows)
            stays = ~beaten
            self._fronts[place] = (
                np.concatenate([there[stays], numbers]),
                np.concatenate([have[stays], rows]),
            )
            numbers, rows, place = there[beaten], have[beaten], place + 1
        if len(numbers):
            self._fronts.append((numbers, rows))
        self._count += 1
        fallen: list[int] = []
        while self._count - len(self._fronts[-1][0]) >= self._least:
            last, _ = self._fronts.pop()
            self._count -= len(last)
            fallen += last.tolist()
        return fallen

    def from_best(self, count: int) -> list[int]:
        """Return the numbers of the entries from the best to the worst, front by front.

        Of the front that has the last of the best `count`, those come first that have most
        hypervolume together; else the smaller number comes first.
        """
        import numpy as np

        found: list[int] = []
        for numbers, rows in self._fronts:
            order = np.argsort(numbers, kind="stable")
            if len(found) < count < len(found) + len(numbers):
                chosen = largest_hypervolume(rows[order], count - len(found))
                order = np.append(order[chosen], np.delete(order, chosen))
            found += numbers[order].tolist()
        return found


def _beaten(rows: np.ndarray, rivals: np.ndarray) -> np.ndarray:
    """Return which rows any of the rivals dominates."""
    import numpy as np

    at_least = np.ones((len(rivals), len(rows)), bool)
    better = np.zeros_like(at_least)
    for column, rival in zip(rows.T, rivals.T, strict=True):  # a few: faster than one array of all
        at_least &= rival[:, None] >= column
        better |= rival[:, None] > column
    beaten: np.ndarray = np.any(at_least & better, axis=0)
    return beaten


_MARGIN = 0.1
"""How far the reference point lies behind the worst scores, in their ranges."""
_SAMPLED = 2048
_COMPARED = 128
"""Entries of a front of three objectives or more that are compared: those that stand alone."""


def largest_hypervolume(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of entries of a front that together dominate a large volume.

    They are chosen one after the other, each where it adds most; this has at least 63 % of the
    volume of the best choice [1]_. The volume is above a point a tenth of the range behind the
    worst scores; of two objectives it is exact, of more it is estimated at fixed random points.

    Parameters
    ----------
    scores : numpy.ndarray, shape (entries, objectives)
        Larger ones are better.
    count : int, at most as many as entries

    References
    ----------
    .. [1] Guerreiro, Fonseca, Paquete, Greedy hypervolume subset selection in low dimensions,
       Evolutionary Computation 24, 2016.
    """
    import numpy as np

    # Half of each, since a range of all floats is none.
    low, high = scores.min(0) / 2, scores.max(0) / 2
    width = np.where(high > low, high - low, 1.0)
    placed = (scores / 2 - low) / width + _MARGIN
    return _of_two(placed, count) if scores.shape[1] == 2 else _of_many(placed, count)


def _of_two(placed: np.ndarray, count: int) -> np.ndarray:
    import numpy as np

    order = np.lexsort((placed[:, 1], -placed[:, 0]))
    x, y = placed[order].T
    # Where the nearest chosen entries on either side end.
    left, below = np.zeros(len(x)), np.zeros(len(x))
    chosen = np.empty(count, int)
    gains = x * y
    for place in range(count):
        best = chosen[place] = int(gains.argmax())
        np.maximum(left[:best], x[best], out=left[:best])
        np.maximum(below[best + 1 :], y[best], out=below[best + 1 :])
        gains = (x - left) * (y - below)
        gains[chosen[: place + 1]] = -1.0
    return order[chosen]


def _of_many(placed: np.ndarray, count: int) -> np.ndarray:
    import numpy as np

    far = np.arange(len(placed))
    if len(placed) > max(_COMPARED, count):
        far = np.sort(np.argsort(-_distances(placed), kind="stable")[: max(_COMPARED, count)])
    points = np.random.default_rng(0).random((placed.shape[1], _SAMPLED)) * (1 + _MARGIN)
    covered = np.ones((_SAMPLED, len(far)), bool)
    for column, at in zip(placed[far].T, points, strict=True):
        covered &= column >= at[:, None]
    gains = covered.sum(0)
    chosen = np.empty(count, int)
    for place in range(count):
        best = chosen[place] = int(gains.argmax())
        is_new = covered[:, best]
        gains -= covered[is_new].sum(0)
        covered = covered[~is_new]
        gains[best] = -1
    return far[chosen]


def infeasible_score(violation: float) -> float:
    """Return the score of a trial that breaks constraints: below that of any trial that does not.

    It falls with the violation, so that ranks are those of constraint domination [1]_.

    References
    ----------
    .. [1] Deb, An efficient constraint handling method for genetic algorithms, Computer Methods in
       Applied Mechanics and Engineering 186, 2000.
    """
    exponent = math.log2(min(violation, sys.float_info.max))
    return _WORST_FEASIBLE * (1 + (exponent - _LEAST_EXPONENT) / _EXPONENTS)


def is_infeasible(score: float) -> bool:
    """Whether a score is one of `infeasible_score`."""
    return score <= _WORST_FEASIBLE
