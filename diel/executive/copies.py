"""The copies of one iteration of a group: which ranks still work, and what follows a failure.

Pure. A copy that has failed is *left*: its other ranks are told to, and once all are out it starts
again on the same ranks or is given up. Copies that share their module's communicator go together:
none of them could use it without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from diel.executive.events import Policy
from diel.executive.plans import (
    CopyPlan,
    GroupPlan,
    Iteration,
    ModulePlan,
    place_modules,
    serials_of,
)


def policy_for(module: ModulePlan, attempt: int) -> Policy:
    """Return what follows when this attempt of a copy has failed."""
    return "retry" if attempt <= module.retries else module.on_failure


@dataclass(slots=True, eq=False)
class RunningCopy:
    """One copy that has been started.

    Attributes
    ----------
    plan : CopyPlan
    module : RunningModule
    working : set of int
        Ranks that have not reported the end of their part.
    returned : object
        By rank 0 of the copy.
    policy : str or None
        What follows once all ranks are out, if it has failed.
    error : str
        Why, then.
    leaving_with : sequence of RunningCopy
        The copies that have to be left by all before that, itself included.
    may_be_lost : bool
        Whether the others can go on if its rank dies.
    is_lost : bool
        Whether it has.
    is_settled : bool
        Whether it counts as done for its group: finished, or given up.
    """

    plan: CopyPlan
    module: RunningModule
    working: set[int]
    returned: Any = None
    policy: Policy | None = None
    error: str = ""
    leaving_with: Sequence[RunningCopy] = ()
    may_be_lost: bool = False
    is_lost: bool = False
    is_settled: bool = False

    @property
    def is_left(self) -> bool:
        """Whether nobody works on it, nor on any copy that goes with it."""
        return not any(copy.working for copy in self.leaving_with)


@dataclass(slots=True, eq=False)
class RunningModule:
    """One module of a group that runs.

    Attributes
    ----------
    plan : ModulePlan
    copies : list of RunningCopy
        By copy index.
    asked : set of int
        Ranks that wait for the communicator of all copies.
    has_comm : bool
        Whether that has been made.
    """

    plan: ModulePlan
    copies: list[RunningCopy] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    has_comm: bool = False

    def fail(self, failed: RunningCopy, policy: Policy, error: str) -> Sequence[RunningCopy]:
        """Begin to leave a copy, or all where they share a communicator; return these."""
        together = self.copies if self.has_comm else [failed]
        for copy in together:
            copy.policy, copy.error, copy.leaving_with = policy, error, together
            self.asked.difference_update(copy.plan.ranks)
        return together

    def restart(
        self, copies: Sequence[RunningCopy], serials: Iterator[int]
    ) -> tuple[CopyPlan, ...]:
        """Let copies that were left begin again, with new serials; return their plans."""
        attempt = max(copy.plan.attempt for copy in copies) + 1
        module_serial = next(serials) if self.has_comm else copies[0].plan.module_serial
        self.has_comm = False
        for copy in copies:
            copy.plan = copy.plan.replace(
                serial=next(serials), module_serial=module_serial, attempt=attempt
            )
            copy.working = set(copy.plan.ranks)
            copy.returned, copy.policy, copy.leaving_with = None, None, ()
            copy.is_settled = copy.may_be_lost = False
        return tuple(copy.plan for copy in copies)


@dataclass(slots=True, eq=False)
class RunningGroup:
    """One iteration of a group of modules.

    Attributes
    ----------
    plan : GroupPlan
    iteration : tuple of int
    ranks : tuple of int
        All that it has taken from the pool.
    modules : list of RunningModule
    unsettled : int
        Copies that are neither finished nor given up.
    """

    plan: GroupPlan
    iteration: Iteration
    ranks: tuple[int, ...]
    modules: list[RunningModule] = field(default_factory=list)
    unsettled: int = 0

    def place(self, serials: Iterator[int]) -> list[RunningCopy]:
        """Put the copies of all modules on the ranks, in order."""
        first_serial, *_ = islice(serials, serials_of(self.plan))
        for placement in place_modules(self.plan, self.ranks, first_serial):
            module = RunningModule(placement.plan)
            for index in range(placement.plan.copies):
                copy = placement.copy(index, self.plan.name, self.iteration)
                module.copies.append(RunningCopy(copy, module, set(copy.ranks)))
            self.modules.append(module)
        placed = [copy for module in self.modules for copy in module.copies]
        self.unsettled = len(placed)
        return placed
