"""Which rank of the pool gets which GPUs: fixed before the first group starts.

CUDA reads ``CUDA_VISIBLE_DEVICES`` once, so a rank keeps its GPUs from group to group. What a rank
may need is told by the groups: the largest demand of any group is a must, more GPUs for groups
that may run at the same time are welcome, and what then remains goes to further ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import repeat, zip_longest
from typing import Final, TypeAlias

from diel.frozen import Frozen

Demand: TypeAlias = "list[int]"
"""How many GPUs each rank of a group needs, largest first, ranks without any left out."""

_NOT_ASSIGNED: Final[Mapping[int, tuple[str, ...]]] = {}


class Node(Frozen):
    """One machine of a run.

    Attributes
    ----------
    host : str
    ranks : tuple of int
        Those of the pool that are on it.
    gpus : tuple of str
        What they share, as ``CUDA_VISIBLE_DEVICES`` names it.
    assigned : mapping of int to tuple of str, optional
        If the launcher has given each rank GPUs of its own already: they stay as they are.
    """

    host: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    assigned: Mapping[int, tuple[str, ...]] = _NOT_ASSIGNED


class TooFewGpus(ValueError):
    """Some group needs more GPUs than there are for its ranks."""


def nodes_of(ranks: Iterable[tuple[int, str, tuple[str, ...]]]) -> list[Node]:
    """Return the nodes in the order of their first ranks.

    Parameters
    ----------
    ranks : iterable of (rank, host, gpus)
        Every rank of the pool, and the GPUs that it sees.
    """
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


def assign_gpus(nodes: Sequence[Node], demands: Sequence[Demand]) -> dict[int, tuple[str, ...]]:
    """Give every rank of the pool its GPUs.

    Parameters
    ----------
    nodes : sequence of Node
    demands : sequence of Demand
        One for each group.

    Returns
    -------
    dict of int to tuple of str
        By rank; empty for a rank that gets none.

    Raises
    ------
    TooFewGpus
        If some group could never start.

    Notes
    -----
    A group can start if, for each size, as many ranks have at least that many GPUs as the group
    needs. So the rank with the i-th most GPUs needs as many as the i-th largest demand of any
    group, and no more. To distribute these sizes over nodes is bin packing: largest first onto
    the emptiest node, which is even, or, where that fails, onto the fullest that has room.
    """
    musts = required_ranks(demands)
    wishes = Counter(size for demand in demands for size in demand) - Counter(musts)
    assigned = {rank: gpus for node in nodes for rank, gpus in node.assigned.items()}
    to_assign = _not_covered(musts, (len(gpus) for gpus in assigned.values()))
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
        assigned |= share.assigned
    return dict(sorted(assigned.items()))


def required_ranks(demands: Sequence[Demand]) -> Demand:
    """Return how many GPUs ranks need, largest first, so that each of these groups can run."""
    return [max(sizes) for sizes in zip_longest(*demands, fillvalue=0)]


def _not_covered(sizes: Demand, counts: Iterable[int]) -> Demand:
    """Return the demands that are left when ranks with GPUs have taken the largest they can."""
    left = list(sizes)
    for count in sorted(counts, reverse=True):
        fitting = next((size for size in left if size <= count), None)
        if fitting is not None:
            left.remove(fitting)
    return left


class _NodeShare:
    """A node while its GPUs are being given to its ranks."""

    def __init__(self, node: Node) -> None:
        self.assigned: dict[int, tuple[str, ...]] = dict.fromkeys(node.ranks, ())
        self.without = list(reversed(node.ranks))
        self.left = list(reversed(node.gpus))

    def take(self, size: int) -> None:
        """Give so many to the first rank that has none."""
        self.assigned[self.without.pop()] = tuple(self.left.pop() for _ in range(size))


def _even(shares: Sequence[_NodeShare], sizes: Iterable[int]) -> list[int]:
    """Give each size to the node that has most left; end at the first that fits nowhere."""
    rooms = [(-len(share.left), index) for index, share in enumerate(shares) if share.without]
    heapify(rooms)
    given = []
    for size in sizes:
        if not rooms or -rooms[0][0] < size:
            break
        index = rooms[0][1]
        shares[index].take(size)
        given.append(size)
        if shares[index].without:
            heapreplace(rooms, (-len(shares[index].left), index))
        else:
            heappop(rooms)
    return given


def _full_first(shares: Sequence[_NodeShare], sizes: Iterable[int]) -> list[int]:
    """Give each size to the node that has least left and can still hold it."""
    given = []
    for size in sizes:
        fitting = [share for share in shares if share.without and len(share.left) >= size]
        if not fitting:
            break
        min(fitting, key=lambda share: len(share.left)).take(size)
        given.append(size)
    return given
