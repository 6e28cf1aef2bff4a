"""Which cores a rank is bound to while it runs a copy of a module with ``pin``. Pure.

Ranks of a host that run such copies at the same time have no core in common. Which cores are free
is known when a group starts, so that is when rank 0 chooses, and the orders to the ranks say it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from diel.comm.cores import Topology
from diel.errors import LaunchError
from diel.executive.plans import CopyPlan, GroupPlan
from diel.workflow.graph import heaviest_antichain

if TYPE_CHECKING:
    from diel.loading.module_spec import ModuleSpec


def choose_cpus(
    topology: Topology,
    allowed: Collection[int],
    held: Collection[int],
    count: int,
    *,
    on_one_node: bool = False,
) -> tuple[int, ...] | None:
    """Choose CPUs among those that are allowed and not held; None if there are too few.

    A core of which no CPU is held or chosen comes before a second hardware thread of another.

    Parameters
    ----------
    topology : Topology
    allowed, held : collection of int
        The CPUs that the rank may use, and those that other ranks have.
    count : int
    on_one_node : bool, optional
        Whether they are to be on one NUMA node, where they fit: on the one with the fewest free
        cores that suffice, so that large copies find room later; else on that with the most.
    """
    free = set(allowed).difference(held)
    if len(free) < count:
        return None
    by_turns = _by_turns(topology, free, held)
    if on_one_node:
        fitting = []
        for node in topology.nodes:
            first = [cpu for turn, cpu in by_turns if turn == 0 and cpu in node]
            there = [cpu for _, cpu in by_turns if cpu in node]
            if len(there) >= count:
                suffice = len(first) >= count
                fitting.append((not suffice, len(first) if suffice else -len(first), there))
        if fitting:
            return tuple(sorted(min(fitting)[2][:count]))
    return tuple(sorted(cpu for _, cpu in by_turns[:count]))


def _by_turns(
    topology: Topology, free: Collection[int], held: Collection[int]
) -> list[tuple[int, int]]:
    """Return free CPUs in the order of preference, each behind how many of its core come first."""
    found = []
    for core in topology.cores:
        turn = sum(cpu in held for cpu in core)
        for cpu in core:
            if cpu in free:
                found.append((turn, cpu))
                turn += 1
    return sorted(found)


class Pins:
    """Which cores each rank is bound to, while groups start and end.

    Parameters
    ----------
    hosts : sequence of str
        Of all ranks.
    topologies : mapping of str to Topology
        By host.
    bound : mapping of int to tuple of int
        The CPUs of each rank that may not use all of its host.
    specs : mapping of str to ModuleSpec
    """

    def __init__(
        self,
        hosts: Sequence[str],
        topologies: Mapping[str, Topology],
        bound: Mapping[int, tuple[int, ...]],
        specs: Mapping[str, ModuleSpec],
    ) -> None:
        self._hosts = hosts
        self._topologies = topologies
        self._bound = bound
        self._specs = specs
        self._held: dict[int, tuple[int, ...]] = {}

    def check(self, groups: Sequence[GroupPlan], pool: Sequence[int]) -> None:
        """Raise LaunchError if ranks of a host may need more cores at a time than it has."""
        pinned = {name: spec.threads for name, spec in self._specs.items() if spec.pin != "none"}
        used = {module.module for group in groups for module in group.modules}
        most_each = max((pinned[name] for name in pinned if name in used), default=0)
        together = _most_at_a_time(groups, pinned)
        ranks_on: dict[str, list[int]] = {}
        for rank in pool:
            ranks_on.setdefault(self._hosts[rank], []).append(rank)
        for host, ranks in ranks_on.items():
            there = {cpu for rank in ranks for cpu in self._allowed(rank)}
            wanted = min(together, most_each * len(ranks))
            names = ", ".join(name for name in pinned if name in used)
            if wanted > len(there):
                is_bound = len(there) < len(self._topologies[host].cpus)
                more = ", leave them more of its CPUs (mpirun --bind-to none)" if is_bound else ""
                raise LaunchError(
                    f"pin of {names}: up to {wanted} cores are bound at a time on {host}, and its "
                    f"{len(ranks)} ranks may use {len(there)}: run fewer copies or threads, start "
                    f'fewer ranks (-n){more}, or let pin be "none"'
                )
            for rank in ranks:
                if len(self._allowed(rank)) < most_each:
                    raise LaunchError(
                        f"pin of {names}: threads need {most_each} cores of a rank, and rank "
                        f"{rank} on {host} may use {len(self._allowed(rank))}: the launcher has "
                        "bound it; start the ranks with mpirun --bind-to none, or by diel run"
                    )

    def release(self, ranks: Iterable[int]) -> None:
        """Free the cores of ranks, which run no copy, or are about to begin another one."""
        for rank in ranks:
            self._held.pop(rank, None)

    def take(self, copies: Sequence[CopyPlan]) -> list[CopyPlan]:
        """Choose the cores of copies that start together; return those for which too few are free.

        Their ranks are not bound. That happens only where a launcher has bound several ranks to the
        same few cores.
        """
        wanting = [
            (-self._specs[plan.module].threads, len(self._allowed(rank)), rank, plan)
            for plan in copies
            if self._specs[plan.module].pin != "none"
            for rank in plan.ranks
        ]
        lacking: dict[str, CopyPlan] = {}
        for _, _, rank, plan in sorted(wanting, key=lambda each: each[:3]):
            spec, host = self._specs[plan.module], self._hosts[rank]
            chosen = choose_cpus(
                self._topologies[host],
                self._allowed(rank),
                {
                    cpu
                    for other, cpus in self._held.items()
                    if self._hosts[other] == host
                    for cpu in cpus
                },
                spec.threads,
                on_one_node=spec.pin == "numa",
            )
            if chosen is None:
                lacking[plan.name] = plan
            else:
                self._held[rank] = chosen
        return [*lacking.values()]

    def of(self, plan: CopyPlan) -> tuple[tuple[int, ...] | None, ...] | None:
        """Return the CPUs of each rank of a copy; None if its module is not pinned.

        The program of an executable has those of all ranks of the copy that are on the host of the
        first one, which starts it.
        """
        spec = self._specs[plan.module]
        if spec.pin == "none":
            return None
        if spec.executable is None:
            return tuple(self._held.get(rank) for rank in plan.ranks)
        here = [rank for rank in plan.ranks if self._hosts[rank] == self._hosts[plan.ranks[0]]]
        if not all(rank in self._held for rank in here):
            return None
        together = tuple(sorted(cpu for rank in here for cpu in self._held[rank]))
        return tuple(together if rank == plan.ranks[0] else None for rank in plan.ranks)

    def _allowed(self, rank: int) -> tuple[int, ...]:
        return self._bound.get(rank) or self._topologies[self._hosts[rank]].cpus


def _most_at_a_time(groups: Sequence[GroupPlan], threads: Mapping[str, int]) -> int:
    """Return the most threads of modules with ``pin`` in groups that may run at the same time."""
    plans = {group.name: group for group in groups}

    def weight(group: GroupPlan) -> int:
        own = sum(
            module.copies * module.processes * threads.get(module.module, 0)
            for module in group.modules
        )
        return own or heaviest(group.groups)

    def heaviest(names: Collection[str]) -> int:
        beside = {name: plans[name] for name in names if name in plans}
        weights = {name: weight(group) for name, group in beside.items()}
        return heaviest_antichain(weights, {name: beside[name].depends for name in beside})[0]

    inside = {name for group in groups for name in group.groups}
    return heaviest([name for name in plans if name not in inside])
