"""Plans of what a run executes: groups, their modules, and the copies of an iteration by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from diel.frozen import Frozen
from diel.run.records import RunStarted
from diel.tuples.tags import format_tag

Iteration: TypeAlias = "tuple[int, ...]"
"""The index of a group's iteration, from 0, after the indices of all enclosing groups, outermost
first."""


class ModulePlan(Frozen):
    """A module as part of a group: its copies, and what follows a failure.

    Attributes
    ----------
    module : str
    copies, processes : int
        The number of copies, and of ranks of each copy.
    on_failure : str
        The policy after a failure when no retry is left.
    retries : int
        How often a failed copy is started again.
    time_limit_s : float or None
        The time limit of each attempt of a copy.
    """

    module: str
    copies: int
    processes: int
    on_failure: Literal["stop", "continue"] = "stop"
    retries: int = 0
    time_limit_s: float | None = None


class GroupPlan(Frozen):
    """A group of modules, or a group of groups.

    Attributes
    ----------
    name : str
    modules : tuple of ModulePlan
    depends : tuple of str
        Sibling groups that have to finish first.
    groups : tuple of str
        The groups inside it, if it has no modules.
    iterations : int or None
        The most iterations; None for no limit.
    until : str, tuple, or None
        The tag of a tuple whose presence ends the group after an iteration.
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
    """Return the fields of `RunStarted` that describe the groups; `planned` is the inverse."""
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
    """Return the plans of a run's groups from its journal, which lacks the policies of failures."""
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
    """A copy of a module, with the ranks that run it.

    Attributes
    ----------
    serial : int
        Different for every copy that is ever started in a run.
    group, module : str
    copy_index, copies : int
    ranks : tuple of int
        The ranks of this copy; the i-th is rank i of its communicator.
    module_serial : int
        The serial of the module's communicator, which all its copies share.
    module_ranks : tuple of int
        The ranks of all copies.
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
        """The fields that identify the copy in the records of `diel.run.records`."""
        return {
            "group": self.group,
            "iteration": self.iteration,
            "module": self.module,
            "copy": self.copy_index,
            "attempt": self.attempt,
        }

    @property
    def name(self) -> str:
        """The name of the copy in messages: its module and its index."""
        return f"{self.module}.{self.copy_index}"


class ModulePlacement(NamedTuple):
    """The ranks and serials of a module's copies in an iteration of its group.

    Attributes
    ----------
    plan : ModulePlan
    serial : int
        The serial of the module; its copies have the serials that follow.
    ranks : tuple of int
        The ranks of all copies, in order.
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
    """Yield the ranks and serials of each module of a group.

    Rank 0 and the ranks of the group compute the same placement by this, so that an order contains
    only the group, its ranks and a serial, but no copies.

    Parameters
    ----------
    group : GroupPlan
    ranks : sequence of int
        The ranks of all copies, in order.
    first_serial : int
        The first of `serials_of(group)` unused serials.
    """
    serial, first = first_serial, 0
    for module in group.modules:
        end = first + module.copies * module.processes
        yield ModulePlacement(module, serial, tuple(ranks[first:end]))
        serial, first = serial + 1 + module.copies, end


def serials_of(group: GroupPlan) -> int:
    """Return how many serials an iteration of a group takes: one per module and one per copy."""
    return sum(1 + module.copies for module in group.modules)
