"""What there is to run: groups, their modules, and the copies of one iteration on their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from diel.frozen import Frozen
from diel.run.records import RunStarted
from diel.tuples.tags import format_tag

Iteration: TypeAlias = "tuple[int, ...]"
"""Which iteration, from 0: a number for each group around, outermost first, and one for itself."""


class ModulePlan(Frozen):
    """One module of a group.

    Attributes
    ----------
    module : str
    copies, processes : int
        How many copies, and how many ranks each.
    on_failure : str
        What follows a failure when no retry is left.
    retries : int
        How often a failed copy is started again.
    time_limit_s : float or None
        For one run of a copy.
    """

    module: str
    copies: int
    processes: int
    on_failure: Literal["stop", "continue"] = "stop"
    retries: int = 0
    time_limit_s: float | None = None


class GroupPlan(Frozen):
    """One group: modules, or other groups.

    Attributes
    ----------
    name : str
    modules : tuple of ModulePlan
    depends : tuple of str
        Groups beside it that have to finish first.
    groups : tuple of str
        Groups inside it, where it has no modules.
    iterations : int or None
        How many at most; None for any number.
    until : str, tuple, or None
        The tag of a tuple that ends it after an iteration.
    """

    name: str
    modules: tuple[ModulePlan, ...] = ()
    depends: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    iterations: int | None = 1
    until: str | tuple[str | int, ...] | None = None

    @property
    def ranks(self) -> int:
        """Ranks that an iteration of its own modules takes from the pool."""
        return sum(module.copies * module.processes for module in self.modules)


def recorded(groups: Iterable[GroupPlan]) -> dict[str, Any]:
    """Return the fields of `RunStarted` that say what groups there are; `planned` reads them."""
    groups = list(groups)
    return {
        "groups": [group.name for group in groups],
        "copies": {
            group.name: {module.module: module.copies for module in group.modules}
            for group in groups
            if group.modules
        },
        "processes": {
            module.module: module.processes
            for group in groups
            for module in group.modules
            if module.processes > 1
        },
        "iterations": {group.name: group.iterations for group in groups},
        "until": [group.name for group in groups if group.until is not None],
        "tags": {
            group.name: format_tag(group.until) for group in groups if group.until is not None
        },
        "inside": {name: group.name for group in groups for name in group.groups},
        "depends": {group.name: list(group.depends) for group in groups if group.depends},
    }


def planned(started: RunStarted) -> list[GroupPlan]:
    """Return the groups of a run as its journal has them; policies of failures are not there."""
    inside: dict[str, list[str]] = {}
    for name, around in started.inside.items():
        inside.setdefault(around, []).append(name)
    return [
        GroupPlan(
            name,
            tuple(
                ModulePlan(module, copies, started.processes.get(module, 1))
                for module, copies in started.copies.get(name, {}).items()
            ),
            tuple(started.depends.get(name, ())),
            tuple(inside.get(name, ())),
            started.iterations.get(name, 1),
            started.tags.get(name),
        )
        for name in started.groups
    ]


class CopyPlan(Frozen):
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
    iteration : tuple of int
        Of the group.
    attempt : int
        From 1; larger if the copy failed and was started again.
    """

    serial: int
    group: str
    module: str
    copy_index: int
    copies: int
    ranks: tuple[int, ...]
    module_serial: int
    module_ranks: tuple[int, ...]
    iteration: Iteration = (0,)
    attempt: int = 1

    @property
    def place(self) -> dict[str, Any]:
        """Which copy it is, in the words of the records of `diel.run.records`."""
        return {
            "group": self.group,
            "iteration": self.iteration,
            "module": self.module,
            "copy": self.copy_index,
            "attempt": self.attempt,
        }

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.module}.{self.copy_index}"


class ModulePlacement(NamedTuple):
    """Where the copies of a module are in an iteration of its group.

    Attributes
    ----------
    plan : ModulePlan
    serial : int
        Of the module; its copies have the next ones.
    ranks : tuple of int
        Of all copies, in order.
    """

    plan: ModulePlan
    serial: int
    ranks: tuple[int, ...]

    def ranks_of(self, index: int) -> tuple[int, ...]:
        """Return the ranks of a copy."""
        size = self.plan.processes
        return self.ranks[index * size : (index + 1) * size]

    def copy(self, index: int, group: str, iteration: Iteration) -> CopyPlan:
        """Return the plan of a copy."""
        return CopyPlan(
            serial=self.serial + 1 + index,
            group=group,
            module=self.plan.module,
            copy_index=index,
            copies=self.plan.copies,
            ranks=self.ranks_of(index),
            module_serial=self.serial,
            module_ranks=self.ranks,
            iteration=iteration,
        )


def place_modules(
    group: GroupPlan, ranks: Sequence[int], first_serial: int
) -> Iterator[ModulePlacement]:
    """Yield where each module of a group is.

    Rank 0 and the ranks of the group come to the same by this, so that an order names the group,
    its ranks and a number, and no copy.

    Parameters
    ----------
    group : GroupPlan
    ranks : sequence of int
        Of all copies, in order.
    first_serial : int
        Of `serials_of(group)` that nobody else has.
    """
    serial, first = first_serial, 0
    for module in group.modules:
        end = first + module.copies * module.processes
        yield ModulePlacement(module, serial, tuple(ranks[first:end]))
        serial, first = serial + 1 + module.copies, end


def serials_of(group: GroupPlan) -> int:
    """Return how many serials an iteration of a group takes: one a module and one a copy."""
    return sum(1 + module.copies for module in group.modules)
