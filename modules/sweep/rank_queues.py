"""Which ranks of which trainer run a trial, where trials have different numbers of ranks.

A trial of n ranks runs on ranks 0 to n - 1 of a copy, or n to 2 n - 1, and so on: so a rank is in
one group for each n. Each rank works through its orders one after the other, in the order in which
they were given, which is the same for all ranks of a group. So no groups wait for each other in a
circle. No trial starves: what is next is held until there is room for it, and nothing passes it.

Pure: no clock, no tuple space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_AHEAD: Final = 2
"""Most orders of a rank from which a group of several is to come together: all but the last of its
ranks wait for others, while the ranks of other groups go on."""


@dataclass(frozen=True)
class Ranks:
    """Ranks of one copy of a trainer that run a trial together."""

    copy_index: int
    session: str
    """That of the copy, which is another one each time that the copy begins."""
    first: int
    count: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))


class RankQueues:
    """How many orders each rank has; chooses the ranks of the next one.

    `copies` is the number of trainers, `ranks` that of the ranks of each.
    """

    def __init__(self, copies: int, ranks: int) -> None:
        self.copies, self.ranks = copies, ranks
        self._sessions: dict[int, str] = {}
        self._orders: dict[int, list[int]] = {}
        self._out: dict[int, Ranks] = {}

    @property
    def are_known(self) -> bool:
        """Whether any copy has begun."""
        return bool(self._sessions)

    def ranks_of(self, lease: int) -> Ranks | None:
        """Return the ranks that have a lease; None if it is not out."""
        return self._out.get(lease)

    def begin(self, copy_index: int, session: str) -> list[int]:
        """Add a copy that has begun; return the leases that it had before, which are lost."""
        before = self._sessions.get(copy_index, "")
        if before == session:
            return []
        lost = self.end(copy_index, before)
        self._sessions[copy_index] = session
        self._orders[copy_index] = [0] * self.ranks
        return lost

    def end(self, copy_index: int, session: str) -> list[int]:
        """Remove a copy that has failed, unless it has begun again; return the leases it had."""
        if self._sessions.get(copy_index) != session:
            return []
        del self._sessions[copy_index], self._orders[copy_index]
        lost = [lease for lease, ranks in self._out.items() if ranks.copy_index == copy_index]
        for lease in lost:
            del self._out[lease]
        return lost

    def has_room(self, most: int) -> bool:
        """Whether a rank has less than so many orders."""
        return any(orders < most for each in self._orders.values() for orders in each)

    def place(self, count: int, most: int = 1) -> Ranks | None:
        """Return so many ranks that have less than `most` orders each, the idlest first.

        None if there are none yet. Of equal ones those of the first copy, so that others stay free
        for larger groups.
        """
        limit = most if count == 1 else max(most, _AHEAD)
        blocks = (
            (orders[first : first + count], copy, first)
            for copy, orders in self._orders.items()
            for first in range(0, self.ranks - count + 1, count)
        )
        found = min(((max(each), sum(each), *where) for each, *where in blocks), default=None)
        if found is None or found[0] >= limit:
            return None
        *_, copy, first = found
        return Ranks(copy, self._sessions[copy], first, count)

    def has(self, ranks: Ranks | None) -> bool:
        """Whether ranks are of a copy that has not failed since."""
        return ranks is not None and self._sessions.get(ranks.copy_index) == ranks.session

    def group_of(self, trainer: int | None, count: int) -> Ranks:
        """Return the group of so many ranks that begins with a trainer; the first if it is gone."""
        copy, first = (-1, 0) if trainer is None else divmod(trainer, self.ranks)
        if copy not in self._sessions:
            copy, first = min(self._sessions), 0
        return Ranks(copy, self._sessions[copy], first, count)

    def give(self, lease: int, ranks: Ranks) -> None:
        """Count a lease that is given to ranks."""
        self._out[lease] = ranks
        self._add(ranks, 1)

    def came_back(self, lease: int) -> None:
        """Count a lease that has come back, whatever became of it."""
        if (ranks := self._out.pop(lease, None)) is not None:
            self._add(ranks, -1)

    def _add(self, ranks: Ranks, orders: int) -> None:
        for rank in ranks:
            self._orders[ranks.copy_index][rank] += orders
