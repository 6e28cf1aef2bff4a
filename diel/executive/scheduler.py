"""Which group runs when, and on which ranks: a pure state machine.

``start()`` and ``handle(event)`` return instructions, which the driver performs; there is no I/O
and no clock here. Events are in the past tense, instructions in the imperative.

A group becomes ready when every group that it depends on has finished. Ready groups take their
ranks from the pool in the order in which they became ready, each all of its ranks at once, and
none overtakes another, so that a large group is not starved by small ones. When a group has
finished, its ranks return to the pool. A module runs in one group at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# -- what there is to run -----------------------------------------------------------------------


@dataclass(frozen=True)
class ModulePlan:
    """One module of a group: how many copies, and how many ranks each."""

    module: str
    copies: int
    processes: int


@dataclass(frozen=True)
class GroupPlan:
    """One group: its modules, and the names of the groups that have to finish first."""

    name: str
    modules: tuple[ModulePlan, ...]
    depends: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks that the group takes from the pool."""
        return sum(module.copies * module.processes for module in self.modules)


@dataclass(frozen=True)
class CopyPlan:
    """One copy of a module on its ranks.

    Attributes
    ----------
    serial : int
        Different for every copy that is ever started in a run.
    group, module : str
    copy_index, copies : int
    ranks : tuple of int
        This copy's; the i-th is rank i of its communicator.
    module_serial : int
        Of the module's own communicator; equal for its copies.
    module_ranks : tuple of int
        Those of all copies.
    """

    serial: int
    group: str
    module: str
    copy_index: int
    copies: int
    ranks: tuple[int, ...]
    module_serial: int
    module_ranks: tuple[int, ...]


# -- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyRankFinished:
    """One rank of a copy has finished its part."""

    serial: int
    rank: int
    returned: Any = None


@dataclass(frozen=True)
class CopyRankFailed:
    """One rank of a copy has failed."""

    serial: int
    rank: int


@dataclass(frozen=True)
class StopAsked:
    """Somebody asked the run to stop."""

    reason: str


@dataclass(frozen=True)
class DeadlockFound:
    """Every running module waits for another one."""

    explanation: str


Event: TypeAlias = "CopyRankFinished | CopyRankFailed | StopAsked | DeadlockFound"

# -- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartGroup:
    """Order these copies to start."""

    group: str
    copies: tuple[CopyPlan, ...]


@dataclass(frozen=True)
class NoteCopyFinished:
    """A copy is done on all its ranks; `returned` is what its rank 0 returned."""

    plan: CopyPlan
    returned: Any


@dataclass(frozen=True)
class NoteGroupFinished:
    """A group is done."""

    group: str


@dataclass(frozen=True)
class StopRun:
    """Tell every rank to stop; `failed` is the copy that caused it, if one did."""

    failed: CopyPlan | None
    failed_rank: int | None
    reason: str
    is_failure: bool = True


@dataclass(frozen=True)
class EndRun:
    """Everything is done."""


Instruction: TypeAlias = "StartGroup | NoteCopyFinished | NoteGroupFinished | StopRun | EndRun"

# -- the machine --------------------------------------------------------------------------------

Choose: TypeAlias = "Callable[[GroupPlan, Sequence[int]], tuple[tuple[int, ...], ...] | None]"
"""From a group and the free ranks to the ranks of each copy, or None: not these."""


def in_order(plan: GroupPlan, free: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Give each copy the next free ranks."""
    if plan.ranks > len(free):
        return None
    left = iter(free)
    return tuple(
        tuple(next(left) for _ in range(module.processes))
        for module in plan.modules
        for _ in range(module.copies)
    )


@dataclass
class _RunningCopy:
    plan: CopyPlan
    unfinished: set[int]
    returned: Any = None


@dataclass
class _RunningGroup:
    plan: GroupPlan
    ranks: tuple[int, ...]
    unfinished: set[int] = field(default_factory=set)  # serials


class Scheduler:
    """Runs groups by their dependencies on a pool of ranks.

    Parameters
    ----------
    groups : sequence of GroupPlan
        In the order of the workflow file, which decides among groups that become ready together.
    pool : iterable of int
        Ranks for copies.
    choose : callable, optional
        Which of the free ranks a group takes, copy by copy in the group's order. With the whole
        pool free it never says None.

    Raises
    ------
    ValueError
        If a group needs more ranks than the pool has, or could never start: it depends on
        itself, directly or not, or on a group that is not there.
    """

    def __init__(
        self, groups: Sequence[GroupPlan], pool: Iterable[int], choose: Choose = in_order
    ) -> None:
        self._choose = choose
        self._plans = {group.name: group for group in groups}
        self._free = sorted(pool)
        for group in groups:
            if group.ranks > len(self._free):
                raise ValueError(
                    f"group {group.name!r} needs {group.ranks} ranks of the pool, "
                    f"which has {len(self._free)}"
                )
        self._check_dependencies(groups)
        self._unmet = {group.name: set(group.depends) for group in groups}
        self._ready: deque[str] = deque()
        self._groups: dict[str, _RunningGroup] = {}
        self._copies: dict[int, _RunningCopy] = {}
        self._finished: set[str] = set()
        self._serials = 0
        self.stopping = False

    @staticmethod
    def _check_dependencies(groups: Sequence[GroupPlan]) -> None:
        startable: set[str] = set()
        rest = list(groups)
        while rest:
            ready = [group for group in rest if startable.issuperset(group.depends)]
            if not ready:
                names = ", ".join(group.name for group in rest)
                raise ValueError(f"these groups could never start: {names}")
            startable.update(group.name for group in ready)
            rest = [group for group in rest if group.name not in startable]

    @property
    def free_ranks(self) -> tuple[int, ...]:
        """Ranks of the pool that nothing runs on."""
        return tuple(self._free)

    @property
    def running_ranks(self) -> set[int]:
        """Ranks that have not finished their part of a copy."""
        return {rank for copy in self._copies.values() for rank in copy.unfinished}

    @property
    def groups_to_come(self) -> list[str]:
        """Groups that have not started."""
        return [*self._ready, *self._unmet]

    def plan_of(self, serial: int) -> CopyPlan:
        """Return the plan of a copy that is running."""
        return self._copies[serial].plan

    def start(self) -> list[Instruction]:
        """Begin; returns the first instructions."""
        return self._advance()

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event into account and return what is to be done about it.

        Parameters
        ----------
        event : Event

        Returns
        -------
        list of Instruction
            To be performed in this order.
        """
        if self.stopping:
            return []  # what ends now is a consequence of the stop
        if isinstance(event, CopyRankFinished):
            return self._rank_finished(event)
        self.stopping = True
        if isinstance(event, StopAsked):
            return [StopRun(None, None, event.reason, is_failure=False)]
        if isinstance(event, DeadlockFound):
            return [StopRun(None, None, "deadlock")]
        plan = self._copies[event.serial].plan
        return [StopRun(plan, event.rank, f"{plan.module}.{plan.copy_index} failed")]

    def _rank_finished(self, event: CopyRankFinished) -> list[Instruction]:
        copy = self._copies[event.serial]
        copy.unfinished.discard(event.rank)
        if event.rank == copy.plan.ranks[0]:
            copy.returned = event.returned
        if copy.unfinished:
            return []
        del self._copies[event.serial]
        instructions: list[Instruction] = [NoteCopyFinished(copy.plan, copy.returned)]
        group = self._groups[copy.plan.group]
        group.unfinished.discard(event.serial)
        if group.unfinished:
            return instructions
        return [*instructions, *self._finish_group(group)]

    def _finish_group(self, group: _RunningGroup) -> list[Instruction]:
        name = group.plan.name
        del self._groups[name]
        self._finished.add(name)
        self._free = sorted([*self._free, *group.ranks])
        return [NoteGroupFinished(name), *self._advance()]

    def _advance(self) -> list[Instruction]:
        """Start what can start now."""
        for name in [name for name, unmet in self._unmet.items() if unmet <= self._finished]:
            del self._unmet[name]
            self._ready.append(name)
        instructions: list[Instruction] = []
        while self._ready:
            plan = self._plans[self._ready[0]]
            seats = self._seats_for(plan)
            if seats is None:
                break
            self._ready.popleft()
            instructions.append(self._start(plan, seats))
        if not self._groups and not self._ready:
            instructions.append(EndRun())
        return instructions

    def _seats_for(self, plan: GroupPlan) -> tuple[tuple[int, ...], ...] | None:
        running = {
            module.module for group in self._groups.values() for module in group.plan.modules
        }
        if not running.isdisjoint(module.module for module in plan.modules):
            return None
        return self._choose(plan, self._free)

    def _start(self, plan: GroupPlan, seats: tuple[tuple[int, ...], ...]) -> StartGroup:
        taken = tuple(rank for ranks in seats for rank in ranks)
        self._free = sorted(set(self._free).difference(taken))
        copies = []
        left = iter(seats)
        for module in plan.modules:
            ranks = tuple(next(left) for _ in range(module.copies))
            copies += self._plan_copies(plan.name, module, ranks)
        serials = {copy.serial for copy in copies}
        self._groups[plan.name] = _RunningGroup(plan, taken, serials)
        for copy in copies:
            self._copies[copy.serial] = _RunningCopy(copy, set(copy.ranks))
        return StartGroup(plan.name, tuple(copies))

    def _plan_copies(
        self, group: str, module: ModulePlan, seats: tuple[tuple[int, ...], ...]
    ) -> list[CopyPlan]:
        module_serial = self._next_serial()
        everyone = tuple(rank for ranks in seats for rank in ranks)
        return [
            CopyPlan(
                serial=self._next_serial(),
                group=group,
                module=module.module,
                copy_index=index,
                copies=module.copies,
                ranks=ranks,
                module_serial=module_serial,
                module_ranks=everyone,
            )
            for index, ranks in enumerate(seats)
        ]

    def _next_serial(self) -> int:
        self._serials += 1
        return self._serials
