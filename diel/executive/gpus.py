"""Which rank of the pool gets which GPUs, for life: pure, and fixed before the first group starts.

CUDA reads ``CUDA_VISIBLE_DEVICES`` once, so a rank keeps its GPUs from group to group. What a rank
may need is told by the groups: the largest demand of any group is a must, more GPUs for groups
that may run at the same time are welcome, and what then remains goes to further ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import repeat, zip_longest
from typing import TypeAlias

Demand: TypeAlias = "list[int]"
"""How many GPUs each rank of a group needs, largest first, ranks without any left out."""


@dataclass(frozen=True)
class Node:
    """One machine of a run.

    Attributes
    ----------
    host : str
    ranks : tuple of int
        Those of the pool that are on it.
    gpus : tuple of str
        What they share, as ``CUDA_VISIBLE_DEVICES`` names it.
    dealt : mapping of int to tuple of str, optional
        If the launcher has given each rank GPUs of its own already: they stay as they are.
    """

    host: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    dealt: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class TooFewGpus(ValueError):
    """No way to seat what the groups need."""


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


def deal(nodes: Sequence[Node], demands: Sequence[Demand]) -> dict[int, tuple[str, ...]]:
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
        If some group could never be seated.

    Notes
    -----
    A group can be seated if, for each size, as many ranks have at least that many GPUs as the
    group needs. So the i-th largest seat has to be as large as the i-th largest demand of each
    group, and no larger. To distribute these sizes over nodes is bin packing: largest first onto
    the emptiest node, which is even, or, where that fails, onto the fullest that has room.
    """
    musts = required_seats(demands)
    wishes = Counter(size for one in demands for size in one) - Counter(musts)
    dealt = {rank: gpus for node in nodes for rank, gpus in node.dealt.items()}
    to_deal = _not_covered(musts, (len(gpus) for gpus in dealt.values()))
    for order in (_even, _full_first):
        hands = [_Hand(node) for node in nodes if not node.dealt]
        if len(order(hands, to_deal)) == len(to_deal):
            break
    else:
        raise TooFewGpus
    for size, count in sorted(wishes.items(), reverse=True):
        _even(hands, repeat(size, count))
    for size in sorted(set(musts), reverse=True):
        _even(hands, repeat(size))
    for hand in hands:
        dealt |= hand.dealt
    return dict(sorted(dealt.items()))


def required_seats(demands: Sequence[Demand]) -> Demand:
    """Return the sizes of the seats that let each of these groups run by itself."""
    return [max(sizes) for sizes in zip_longest(*demands, fillvalue=0)]


def _not_covered(sizes: Demand, seats: Iterable[int]) -> Demand:
    """Return the demands that are left when each seat has taken the largest that it can hold."""
    left = list(sizes)
    for seat in sorted(seats, reverse=True):
        fitting = next((size for size in left if size <= seat), None)
        if fitting is not None:
            left.remove(fitting)
    return left


class _Hand:
    """A node while its GPUs are being dealt."""

    def __init__(self, node: Node) -> None:
        self.dealt: dict[int, tuple[str, ...]] = dict.fromkeys(node.ranks, ())
        self.without = list(reversed(node.ranks))
        self.left = list(reversed(node.gpus))

    def take(self, size: int) -> None:
        """Give so many to the first rank that has none."""
        self.dealt[self.without.pop()] = tuple(self.left.pop() for _ in range(size))


def _even(hands: Sequence[_Hand], sizes: Iterable[int]) -> list[int]:
    """Give each size to the node that has most left; end where one fits nowhere."""
    rooms = [(-len(hand.left), index) for index, hand in enumerate(hands) if hand.without]
    heapify(rooms)
    given = []
    for size in sizes:
        if not rooms or -rooms[0][0] < size:
            break
        index = rooms[0][1]
        hands[index].take(size)
        given.append(size)
        if hands[index].without:
            heapreplace(rooms, (-len(hands[index].left), index))
        else:
            heappop(rooms)
    return given


def _full_first(hands: Sequence[_Hand], sizes: Iterable[int]) -> list[int]:
    """Give each size to the node that has least left and can still hold it."""
    given = []
    for size in sizes:
        fitting = [hand for hand in hands if hand.without and len(hand.left) >= size]
        if not fitting:
            break
        min(fitting, key=lambda hand: len(hand.left)).take(size)
        given.append(size)
    return given
