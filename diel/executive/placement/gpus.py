"""Which rank of the pool gets which GPUs: fixed before the first group starts.

CUDA reads ``CUDA_VISIBLE_DEVICES`` once, so a rank keeps its GPUs from group to group. The groups
decide what ranks need: the largest demand of any group has to be met, then the demands of further
groups, which may run at the same time, as far as possible; GPUs that remain go to further ranks.

A rank may need a share of a GPU, 1/n of it. Sizes are exact numbers, so that n shares fill a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from diel.frozen import Frozen

if TYPE_CHECKING:
    from fractions import Fraction

Size: TypeAlias = "int | Fraction"
"""How many GPUs: a whole number, or 1/n."""
Demand: TypeAlias = "list[Size]"
"""How many GPUs each rank of a group needs, largest first; ranks without GPUs are left out."""

_NOT_ASSIGNED: Final[Mapping[int, tuple[str, ...]]] = {}


class Node(Frozen):
    """One machine of a run.

    Attributes
    ----------
    host : str
    ranks : tuple of int
        The ranks of the pool on this machine.
    gpus : tuple of str
        The GPUs of these ranks together, as ``CUDA_VISIBLE_DEVICES`` names them.
    assigned : mapping of int to tuple of str, optional
        The GPUs of each rank, if the launcher has assigned them; they are not changed.
    """

    host: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    assigned: Mapping[int, tuple[str, ...]] = _NOT_ASSIGNED


class RankGpus(NamedTuple):
    """The GPUs of a rank: their names, and how many they are.

    Attributes
    ----------
    names : tuple of str
        As in ``CUDA_VISIBLE_DEVICES``.
    size : int or Fraction
        How many they are; 1/n where the rank shares its one GPU.
    """

    names: tuple[str, ...] = ()
    size: Size = 0


NO_GPUS: Final = RankGpus()


class TooFewGpus(ValueError):
    """A group needs more GPUs than its ranks can have."""


def exact_size(gpus: float) -> Size:
    """Return a number of GPUs exactly: a whole number as int, 1/n as Fraction."""
    if gpus >= 1 or not gpus:
        return int(gpus)
    from fractions import Fraction  # imported here: it takes milliseconds, few workflows need it

    return Fraction(1, round(1 / gpus))


def nodes_of(ranks: Iterable[tuple[int, str, tuple[str, ...]]]) -> list[Node]:
    """Group ranks, each with its host and its GPUs, into nodes, in the order of first ranks."""
    by_host: dict[str, dict[int, tuple[str, ...]]] = {}
    for rank, host, gpus in ranks:
        by_host.setdefault(host, {})[rank] = gpus
    nodes = []
    for host, seen in by_host.items():
        views = set(seen.values())
        if len(views) == 1:
            nodes.append(Node(host, tuple(seen), views.pop()))
        else:
            together = tuple(dict.fromkeys(gpu for gpus in seen.values() for gpu in gpus))
            nodes.append(Node(host, tuple(seen), together, seen))
    return nodes


def assign_gpus(nodes: Sequence[Node], demands: Sequence[Demand]) -> dict[int, RankGpus]:
    """Give every rank of the pool its GPUs.

    Parameters
    ----------
    nodes : sequence of Node
    demands : sequence of Demand
        One for each group.

    Returns
    -------
    dict of int to RankGpus
        By rank; `NO_GPUS` for a rank that gets none.

    Raises
    ------
    TooFewGpus
        If some group could never start.

    Notes
    -----
    A group can start if, for each size, as many ranks have at least that many GPUs as the group
    needs. So the rank with the i-th most GPUs needs as many as the largest i-th demand of any
    group, and no more. To distribute these sizes over nodes is bin packing: largest first onto
    the node with most GPUs left, or, where that fails, onto the fullest node that has room.
    Within a node, shares go to the fullest GPU that has room; in the end the shares of a node are
    spread over all GPUs that no rank has as a whole.
    """
    musts = required_ranks(demands)
    wishes = Counter(size for demand in demands for size in demand) - Counter(musts)
    assigned = {
        rank: RankGpus(gpus, len(gpus)) for node in nodes for rank, gpus in node.assigned.items()
    }
    to_assign = _not_covered(musts, (gpus.size for gpus in assigned.values()))
    for order in (_even, _full_first):
        shares = [_NodeShare(node) for node in nodes if not node.assigned]
        if len(order(shares, to_assign)) == len(to_assign):
            break
    else:
        raise TooFewGpus
    for size, count in sorted(wishes.items(), reverse=True):
        _even(shares, repeat(size, count))
    for size in sorted(set(musts), reverse=True):
        _even(shares, repeat(size))
    for share in shares:
        share.spread()
        assigned |= share.assigned
    return dict(sorted(assigned.items()))


def required_ranks(demands: Sequence[Demand]) -> Demand:
    """Return how many GPUs ranks must have, largest first, so that each of the groups can run."""
    return [max(sizes) for sizes in zip_longest(*demands, fillvalue=0)]


def _not_covered(sizes: Demand, counts: Iterable[Size]) -> Demand:
    """Return the sizes that are left when each rank with GPUs has met the largest that it can."""
    left = list(sizes)
    for count in sorted(counts, reverse=True):
        fitting = next((size for size in left if size <= count), None)
        if fitting is not None:
            left.remove(fitting)
    return left


class _NodeShare:
    """A node while its GPUs are being given to its ranks."""

    def __init__(self, node: Node) -> None:
        self.assigned = dict.fromkeys(node.ranks, NO_GPUS)
        self.without = list(reversed(node.ranks))
        self.left = list(reversed(node.gpus))
        self.rests: dict[str, Size] = {}  # what is left of the GPUs that ranks share

    @property
    def room(self) -> Size:
        """The largest size that fits: whole GPUs, or a share."""
        return len(self.left) + max(self.rests.values(), default=0)

    def take(self, size: Size) -> None:
        """Give GPUs, or a share of one, to the first rank that has none."""
        names = (
            tuple(self.left.pop() for _ in range(size))
            if isinstance(size, int)
            else (self._take_share(size),)
        )
        self.assigned[self.without.pop()] = RankGpus(names, size)

    def _take_share(self, size: Size) -> str:
        fitting = [name for name, rest in self.rests.items() if rest >= size]
        name = min(fitting, key=self.rests.__getitem__) if fitting else self.left.pop()
        self.rests[name] = self.rests.get(name, 1) - size
        return name

    def spread(self) -> None:
        """Spread the shares of this node evenly over shared and unused GPUs, if they all fit."""
        sharing = {rank: gpus.size for rank, gpus in self.assigned.items() if 0 < gpus.size < 1}
        if not sharing:
            return
        rests: dict[str, Size] = dict.fromkeys((*self.rests, *reversed(self.left)), 1)
        spread = {}
        for rank in sorted(sharing, key=sharing.__getitem__, reverse=True):
            name = max(rests, key=rests.__getitem__)
            rests[name] -= sharing[rank]
            if rests[name] < 0:
                return
            spread[rank] = RankGpus((name,), sharing[rank])
        self.assigned |= spread


def _even(shares: Sequence[_NodeShare], sizes: Iterable[Size]) -> list[Size]:
    """Give each size to the node with most GPUs left; stop at the first size that fits nowhere."""
    rooms = [(-share.room, index) for index, share in enumerate(shares) if share.without]
    heapify(rooms)
    given = []
    for size in sizes:
        if not rooms or -rooms[0][0] < size:
            break
        index = rooms[0][1]
        shares[index].take(size)
        given.append(size)
        if shares[index].without:
            heapreplace(rooms, (-shares[index].room, index))
        else:
            heappop(rooms)
    return given


def _full_first(shares: Sequence[_NodeShare], sizes: Iterable[Size]) -> list[Size]:
    """Give each size to the node with fewest GPUs left that can hold it; stop as `_even` does."""
    given = []
    for size in sizes:
        fitting = [share for share in shares if share.without and share.room >= size]
        if not fitting:
            break
        min(fitting, key=lambda share: share.room).take(size)
        given.append(size)
    return given
