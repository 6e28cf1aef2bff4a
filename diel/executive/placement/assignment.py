"""Which of the free ranks a copy takes; deterministic, so that equal free ranks give equal choices.

The scheduler calls ``RankAssignment.choose`` when a group may start. Modules with GPUs choose
first, the largest demand before the smaller ones, since every rank that has enough GPUs for one
demand has enough for any smaller one. Modules without GPUs take ranks that have GPUs only if too
few ranks without are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeAlias

from diel.executive.placement.gpus import (
    NO_GPUS,
    Demand,
    Node,
    RankGpus,
    Size,
    assign_gpus,
    exact_size,
)
from diel.executive.plans import GroupPlan, ModulePlan, Need

GroupRanks: TypeAlias = "tuple[tuple[int, ...], ...]"
"""The ranks of each copy: first the copies of the group's first module, then of the second, ..."""

_CHOICES_REMEMBERED: Final = 1000


class RankAssignment:
    """Assigns ranks to copies, and GPUs to ranks, on the nodes where the ranks of the pool are.

    A TooFewGpus if some group could never start.
    """

    def __init__(
        self, nodes: Sequence[Node], needs: Mapping[str, Need], groups: Sequence[GroupPlan]
    ) -> None:
        self.nodes = tuple(nodes)
        self.needs = dict(needs)
        self._node_of = {rank: index for index, node in enumerate(nodes) for rank in node.ranks}
        # A cache, since groups of the same shape often find the same ranks free.
        self._shapes: dict[str, tuple[tuple[int, int, Need], ...]] = {}
        self._chosen: dict[tuple[object, tuple[int, ...]], GroupRanks | None] = {}
        self._uses_gpus = any(need.gpus for need in self.needs.values())
        self._gpus: dict[int, RankGpus] = {}
        if self._uses_gpus:
            self._gpus = assign_gpus(nodes, [demand_of(group, self.needs) for group in groups])

    def gpus_of(self, rank: int) -> tuple[str, ...] | None:
        """Return the GPUs of a rank during the whole run.

        None if no module of the workflow asks for GPUs: then CUDA_VISIBLE_DEVICES is not changed.
        """
        return self._gpus.get(rank, NO_GPUS).names if self._uses_gpus else None

    def gpus_of_copy(self, module: str, ranks: Sequence[int]) -> tuple[str, ...] | None:
        """Return the GPUs of a copy's program: those of its ranks on the node of the first rank."""
        if not self._uses_gpus:
            return None
        count, node = math.ceil(self.needs[module].gpus), self._node_of[ranks[0]]
        gpus_by_rank = (
            self._gpus.get(rank, NO_GPUS).names[:count]
            for rank in ranks
            if self._node_of[rank] == node
        )
        return tuple(dict.fromkeys(gpu for gpus in gpus_by_rank for gpu in gpus))

    def choose(self, plan: GroupPlan, free: Sequence[int]) -> GroupRanks | None:
        """Choose the ranks of a group among those that run nothing, which are in ascending order.

        Returns the ranks of each copy, module by module in the group's order; None if the free
        ranks do not suffice.
        """
        shape = self._shapes.get(plan.name)
        if shape is None:
            shape = self._shapes[plan.name] = tuple(
                (module.copies, module.processes, self._need(plan, index))
                for index, module in enumerate(plan.modules)
            )
        asked = shape, tuple(free)
        if asked not in self._chosen:
            if len(self._chosen) >= _CHOICES_REMEMBERED:
                self._chosen.clear()
            self._chosen[asked] = self._choose(plan, free)
        return self._chosen[asked]

    def _choose(self, plan: GroupPlan, free: Sequence[int]) -> GroupRanks | None:
        free_ranks = _FreeRanks(self.nodes, self._node_of, self._gpu_size, free)
        chosen: dict[int, list[tuple[int, ...]]] = {}
        for index in sorted(range(len(plan.modules)), key=lambda i: -self._need(plan, i).gpus):
            module = plan.modules[index]
            copies = free_ranks.take(module, self._need(plan, index))
            if copies is None:
                return None
            chosen[index] = copies
        return tuple(ranks for index in range(len(plan.modules)) for ranks in chosen[index])

    def _need(self, plan: GroupPlan, index: int) -> Need:
        return self.needs.get(plan.modules[index].module, Need())

    def _gpu_size(self, rank: int) -> Size:
        return self._gpus.get(rank, NO_GPUS).size


def demand_of(group: GroupPlan, needs: Mapping[str, Need]) -> Demand:
    """Return how many GPUs each rank of a group needs, largest first."""
    sizes = [
        exact_size(needs[module.module].gpus)
        for module in group.modules
        for _ in range(module.copies * module.processes)
        if module.module in needs
    ]
    return sorted((size for size in sizes if size), reverse=True)


@dataclass
class _FreeOnNode:
    """The free ranks of one node that have enough GPUs for a module, the best first."""

    node: int
    ranks: list[int]
    taken: int = 0
    copies: int = field(default=0)

    def room(self, processes: int) -> int:
        """Return how many whole copies still fit."""
        return (len(self.ranks) - self.taken) // processes

    def take(self, count: int) -> tuple[int, ...]:
        """Take `count` ranks for a copy; return them in ascending order."""
        self.taken += count
        self.copies += 1
        return tuple(sorted(self.ranks[self.taken - count : self.taken]))


class _FreeRanks:
    """The free ranks by node, from which a group takes its ranks."""

    def __init__(
        self,
        nodes: Sequence[Node],
        node_of: Mapping[int, int],
        gpu_size: Callable[[int], Size],
        free: Sequence[int],
    ) -> None:
        self._gpu_size = gpu_size
        self._free: list[list[int]] = [[] for _ in nodes]
        for rank in free:
            self._free[node_of[rank]].append(rank)
        self._used: set[int] = set()

    def take(self, module: ModulePlan, need: Need) -> list[tuple[int, ...]] | None:
        """Take ranks for all copies of a module; None if too few are free."""
        choose = _spread if need.is_spread else _packed
        needed = exact_size(need.gpus)
        exact = self._nodes_with(lambda size: size == needed)
        if sum(free.room(module.processes) for free in exact) >= module.copies:
            places = exact
        else:
            places = self._nodes_with(lambda size: size >= needed)
        if sum(len(free.ranks) for free in places) < module.copies * module.processes:
            return None
        copies = choose(places, module.copies, module.processes, self._used)
        for free in places:
            if free.taken:
                taken = set(free.ranks[: free.taken])
                self._free[free.node] = [r for r in self._free[free.node] if r not in taken]
                self._used.add(free.node)
        return copies

    def _nodes_with(self, is_enough: Callable[[Size], bool]) -> list[_FreeOnNode]:
        found = []
        for node, ranks in enumerate(self._free):
            good = [rank for rank in ranks if is_enough(self._gpu_size(rank))]
            if good:
                found.append(_FreeOnNode(node, sorted(good, key=lambda r: (self._gpu_size(r), r))))
        return found


def _packed(
    places: Sequence[_FreeOnNode], copies: int, processes: int, used: Collection[int]
) -> list[tuple[int, ...]]:
    """Fill node after node: the smallest that holds all remaining copies, else the largest."""
    taken_ranks: list[tuple[int, ...]] = []
    while len(taken_ranks) < copies:
        left = copies - len(taken_ranks)
        rooms = [(free.room(processes), free) for free in places if free.room(processes)]
        if not rooms:
            taken_ranks.append(_split(places, processes))
            continue
        holding = [(room, free) for room, free in rooms if room >= left]
        if holding:
            _, node = min(
                holding, key=lambda pair: (pair[1].node not in used, pair[0], pair[1].node)
            )
        else:
            _, node = min(
                rooms, key=lambda pair: (-pair[0], pair[1].node not in used, pair[1].node)
            )
        taken_ranks += [node.take(processes) for _ in range(min(left, node.room(processes)))]
    return taken_ranks


def _spread(
    places: Sequence[_FreeOnNode], copies: int, processes: int, used: Collection[int]
) -> list[tuple[int, ...]]:
    """Put each copy on the node with the fewest copies; of equal nodes, on that with most room."""
    rooms = [
        (0, -free.room(processes), index)
        for index, free in enumerate(places)
        if free.room(processes)
    ]
    heapify(rooms)
    taken_ranks: list[tuple[int, ...]] = []
    while len(taken_ranks) < copies:
        if not rooms:
            taken_ranks.append(_split(places, processes))
            continue
        free = places[rooms[0][2]]
        taken_ranks.append(free.take(processes))
        if free.room(processes):
            heapreplace(rooms, (free.copies, -free.room(processes), rooms[0][2]))
        else:
            heappop(rooms)
    return taken_ranks


def _split(places: Sequence[_FreeOnNode], processes: int) -> tuple[int, ...]:
    """Take ranks for a copy that fits on no single node, from as few nodes as possible."""
    ranks: list[int] = []
    while len(ranks) < processes:
        free = max(places, key=lambda node: (len(node.ranks) - node.taken, -node.node))
        ranks += free.take(min(processes - len(ranks), len(free.ranks) - free.taken))
    return tuple(sorted(ranks))
