"""Who would sit where: the groups of a workflow seated moment by moment, without running them.

The rules are the scheduler's; that all groups of a moment end together is an assumption, since how
long a module takes is not known. Each group is shown once, however often it is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diel.executive.plans import GroupPlan
from diel.executive.seating import Seating


@dataclass(frozen=True)
class Sitting:
    """One copy of a module on its ranks."""

    group: str
    module: str
    copy_index: int
    ranks: tuple[int, ...]


def moments(plans: Sequence[GroupPlan], seating: Seating) -> list[list[Sitting]]:
    """Return which copies would run at the same time, one moment after another.

    Parameters
    ----------
    plans : sequence of GroupPlan
        As `diel.executive.arrangement.arrange` returns them.
    seating : Seating
    """
    groups = {plan.name: plan for plan in plans}
    unmet = _dependencies(plans)
    finished: set[str] = set()
    ready: deque[str] = deque()
    told: list[list[Sitting]] = []
    while unmet or ready:
        for name in [name for name, before in unmet.items() if before <= finished]:
            del unmet[name]
            ready.append(name)
        running: dict[str, list[Sitting]] = {}
        free = sorted(rank for node in seating.nodes for rank in node.ranks)
        while ready:
            sittings = _seat(groups[ready[0]], running, free, seating)
            if sittings is None:
                break
            running[ready.popleft()] = sittings
            taken = {rank for sitting in sittings for rank in sitting.ranks}
            free = [rank for rank in free if rank not in taken]
        if not running:
            raise ValueError("groups that can never start")  # no valid workflow has such
        finished |= running.keys()
        told.append([sitting for sittings in running.values() for sitting in sittings])
    return told


def _seat(
    plan: GroupPlan,
    running: dict[str, list[Sitting]],
    free: Sequence[int],
    seating: Seating,
) -> list[Sitting] | None:
    busy = {sitting.module for sittings in running.values() for sitting in sittings}
    if not busy.isdisjoint(module.module for module in plan.modules):
        return None
    seats = seating.choose(plan, free)
    if seats is None:
        return None
    who = [(module.module, copy) for module in plan.modules for copy in range(module.copies)]
    return [
        Sitting(plan.name, module, copy, ranks)
        for (module, copy), ranks in zip(who, seats, strict=True)
    ]


def _dependencies(plans: Sequence[GroupPlan]) -> dict[str, set[str]]:
    """Return, for each group that runs modules, those of them that come before it.

    A group inside another one waits for whatever that one depends on, and who depends on a group
    waits for all that are inside it.
    """
    groups = {plan.name: plan for plan in plans}
    outer = {child: plan.name for plan in plans for child in plan.groups}

    def inside(name: str) -> set[str]:
        plan = groups[name]
        return {name} if plan.modules else set().union(*map(inside, plan.groups))

    def before(name: str) -> set[str]:
        found = set().union(*map(inside, groups[name].depends))
        return found | before(outer[name]) if name in outer else found

    return {plan.name: before(plan.name) for plan in plans if plan.modules}


def threads_on(
    ranks: Collection[int], moment: Sequence[Sitting], threads: Mapping[str, int]
) -> dict[str, int]:
    """Return how many threads each module has on some ranks at one moment.

    Parameters
    ----------
    ranks : collection of int
        Those of a node.
    moment : sequence of Sitting
    threads : mapping of str to int
        Of each rank, by module.
    """
    found: dict[str, int] = {}
    for sitting in moment:
        here = sum(rank in ranks for rank in sitting.ranks)
        if here:
            found[sitting.module] = found.get(sitting.module, 0) + here * threads[sitting.module]
    return found
