"""The copies of one iteration of a group: which ranks still work, and what follows a failure.

Pure. When a copy has failed, its other ranks are ordered to leave it; once all have left, it starts
again on the same ranks or is given up. Copies that share their module's communicator are left
together, since none of them could use it without the others.
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
    """Return the policy that applies when this attempt of a copy has failed."""
    return "retry" if attempt <= module.retries else module.on_failure


@dataclass(slots=True, eq=False)
class RunningCopy:
    """A copy that has been started, and how far it is.

    Attributes
    ----------
    plan : CopyPlan
    module : RunningModule
    working : set of int
        Ranks that have not reported the end of their part of the copy.
    returned : object
        What rank 0 of the copy has returned.
    policy : str or None
        If the copy has failed: what follows once all ranks have left it.
    error : str
        Why the copy failed.
    leaving_with : sequence of RunningCopy
        The copies that all ranks have to leave first, this copy included.
    may_be_lost : bool
        Whether the module's other copies can go on if this copy's rank dies.
    is_lost : bool
        Whether its rank has died.
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
        """Whether all ranks have left this copy and the copies that are left with it."""
        return not any(copy.working for copy in self.leaving_with)


@dataclass(slots=True, eq=False)
class RunningModule:
    """A module of a running group, with its copies.

    Attributes
    ----------
    plan : ModulePlan
    copies : list of RunningCopy
        By copy index.
    asked : set of int
        Ranks that wait for the communicator of all copies.
    has_comm : bool
        Whether that communicator has been made.
    """

    plan: ModulePlan
    copies: list[RunningCopy] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    has_comm: bool = False

    def fail(self, failed: RunningCopy, policy: Policy, error: str) -> Sequence[RunningCopy]:
        """Mark a copy as failed, or all if they share a communicator; return the marked copies."""
        together = self.copies if self.has_comm else [failed]
        for copy in together:
            copy.policy, copy.error, copy.leaving_with = policy, error, together
            self.asked.difference_update(copy.plan.ranks)
        return together

    def restart(
        self, copies: Sequence[RunningCopy], serials: Iterator[int]
    ) -> tuple[CopyPlan, ...]:
        """Set copies that were left to a new attempt with new serials; return their plans."""
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
    """A running iteration of a group of modules.

    Attributes
    ----------
    plan : GroupPlan
    iteration : tuple of int
    ranks : tuple of int
        All ranks that it has taken from the pool.
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
