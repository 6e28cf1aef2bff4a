"""Plans of what a run executes: the run, its groups, their modules, and the copies by rank.

The launcher checks the workflow file, and rank 0 takes its plan if the file has not changed since.
Without a launcher, as under a bare mpirun, rank 0 checks the file itself.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from diel.frozen import Frozen
from diel.loading.module_spec import ExecutableSpec, ModuleSpec
from diel.run.files import open_regular, read_json, replace_file
from diel.run.records import Elements, RunStarted
from diel.tuples.tags import format_tag
from diel.workflow.elements import Element
from diel.workflow.functions import FunctionLocation

if TYPE_CHECKING:
    from diel.workflow.boundary import Boundary
    from diel.workflow.when import When

Iteration: TypeAlias = "tuple[int, ...]"
"""The index of a group's iteration, from 0, after the indices of all enclosing groups, outermost
first."""


_NOTHING: Final[Mapping[str, int]] = {}


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
    tasks : int or None
        How many tasks its copies share.
    resources : mapping of str to int
        What each copy takes of the resources of the run.
    """

    module: str
    copies: int
    processes: int
    on_failure: Literal["stop", "continue"] = "stop"
    retries: int = 0
    time_limit_s: float | None = None
    tasks: int | None = None
    resources: Mapping[str, int] = _NOTHING


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
    when : When or None
        The condition that is judged before its first iteration in each pass; None if it always
        runs. Where that is decided and false, the group has no modules here.
    elements : Elements or None
        What holds for the groups inside, if they are elements of ``foreach``.
    """

    name: str
    modules: tuple[ModulePlan, ...] = ()
    depends: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    iterations: int | None = 1
    until: str | tuple[str | int, ...] | None = None
    when: When | None = None
    elements: Elements | None = None

    @property
    def ranks(self) -> int:
        """Ranks that an iteration of its own modules takes from the pool."""
        return sum(module.copies * module.processes for module in self.modules)

    @property
    def resources(self) -> dict[str, int]:
        """What an iteration of its own modules takes of the resources of the run."""
        taken: dict[str, int] = {}
        for module in self.modules:
            for name, amount in module.resources.items():
                taken[name] = taken.get(name, 0) + module.copies * amount
        return taken


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
        "when": {group.name: group.when.text for group in groups if group.when is not None},
        "taken": {
            module.module: dict(module.resources)
            for group in groups
            for module in group.modules
            if module.resources
        },
        "elements": [group.elements for group in groups if group.elements is not None],
    }


def planned(started: RunStarted) -> list[GroupPlan]:
    """Return the plans of a run's groups from its journal, which lacks the policies of failures."""
    inside: dict[str, list[str]] = {}
    for name, around in started.inside.items():
        inside.setdefault(around, []).append(name)
    elements = {each.group: each for each in started.elements}
    return [
        GroupPlan(
            name,
            tuple(
                ModulePlan(
                    module,
                    copies,
                    started.processes.get(module, 1),
                    resources=started.taken.get(module, _NOTHING),
                )
                for module, copies in started.copies.get(name, {}).items()
            ),
            tuple(started.depends.get(name, ())),
            tuple(inside.get(name, ())),
            started.iterations.get(name, 1),
            started.tags.get(name),
            elements=elements.get(name),
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
    """Yield the ranks and serials of each module of a group, from the ranks of all its copies.

    Rank 0 and the ranks of the group compute the same placement by this, so that an order contains
    only the group, its ranks and the first of `serials_of(group)` unused serials, but no copies.
    """
    serial, first = first_serial, 0
    for module in group.modules:
        end = first + module.copies * module.processes
        yield ModulePlacement(module, serial, tuple(ranks[first:end]))
        serial, first = serial + 1 + module.copies, end


def serials_of(group: GroupPlan) -> int:
    """Return how many serials an iteration of a group takes: one per module and one per copy."""
    return sum(1 + module.copies for module in group.modules)


# -- the run ---------------------------------------------------------------------------------------


class Need(Frozen):
    """A module's requirements on the ranks that run it.

    Attributes
    ----------
    gpus : float
        GPUs of each rank: a whole number, or 1/n for a share of a GPU.
    is_spread : bool
        Whether copies go to as many nodes as possible, rather than to as few.
    is_fill : bool
        Whether it has as many copies as there is room for.
    """

    gpus: float = 0
    is_spread: bool = False
    is_fill: bool = False


class RunPlan(Frozen):
    """The settings, modules and groups of a checked workflow file, for a number of ranks.

    `diel.executive.placement.planning.plan_run` makes it. Rank 0 adds what only the started ranks
    can tell, and sends it to all of them.

    Attributes
    ----------
    file : str
        The workflow file, as an absolute path.
    ranks : int
        All ranks, the executive and the servers included.
    name : str
        The name of the workflow.
    private : bool
        Whether only the owner may read the run directory.
    server_ranks : tuple of int
        Ranks that serve tuples; all other ranks but rank 0 form the pool.
    replicas : int
        1 if each server is to have a twin, else 0.
    server_memory_bytes : int
        How much memory the tuples of one server may take.
    refuse_when_full : bool
        Whether a put to a full server raises, rather than waits.
    spill : bool
        Whether large payloads go to files before a server counts as full.
    survives_loss : bool
        Whether the run may go on without ranks that have died; that needs an MPI that can.
    heartbeat_timeout_s : float
        How long a rank or a host may be silent.
    log_size_bytes : int
        The limit on the size of a log file.
    returned_size_bytes, returned_total_bytes : int
        The limits on the size of a returned value in the journal, and of all files of larger ones.
    restarts : int
        How often the launcher may start the run again.
    checkpoint_every_s : float or None
        How often to save a checkpoint while groups run; None for only at the ends of iterations.
    signal_before_s : float or None
        How long before the end of the run copies are told of it; None for never.
    groups : tuple of GroupPlan
        Orders to ranks refer to a group by its index here.
    specs : dict of str to ModuleSpec
        Of all modules, by name.
    needs : dict of str to Need
        By module.
    resources : dict of str to int
        How many there are of each resource that groups share.
    parameters : dict of str to value
        The values of the file's parameters.
    given : tuple of str
        Settings of the command line, each ``KEY=VALUE``.
    boundaries : tuple of Boundary
    tail_ranks : tuple of int
        The twin of each server, in the same order; empty without twins.
    time_left_s : float or None
        How long the job around the run lasts from its start; None where that is not known.
    makes_all : bool
        Whether copies run whose outputs are current.
    """

    file: str
    ranks: int
    name: str
    private: bool
    server_ranks: tuple[int, ...]
    replicas: int
    server_memory_bytes: int
    refuse_when_full: bool
    spill: bool
    survives_loss: bool
    heartbeat_timeout_s: float
    log_size_bytes: int
    returned_size_bytes: int
    returned_total_bytes: int
    restarts: int
    checkpoint_every_s: float | None
    signal_before_s: float | None
    groups: tuple[GroupPlan, ...]
    specs: dict[str, ModuleSpec]
    needs: dict[str, Need]
    resources: dict[str, int]
    parameters: dict[str, Any]
    given: tuple[str, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    tail_ranks: tuple[int, ...] = ()
    time_left_s: float | None = None
    makes_all: bool = False

    @property
    def pool(self) -> tuple[int, ...]:
        """The ranks that run modules."""
        return tuple(rank for rank in range(1, self.ranks) if rank not in self.server_ranks)

    @property
    def modules(self) -> dict[tuple[str, str], ModulePlan]:
        """The plan of each module, by its group and name."""
        return {
            (group.name, module.module): module for group in self.groups for module in group.modules
        }

    @property
    def elements(self) -> list[Elements]:
        """The elements of each group with ``foreach``."""
        return [group.elements for group in self.groups if group.elements is not None]

    @property
    def pins(self) -> bool:
        """Whether ranks of some module are bound to cores."""
        return any(spec.pin != "none" for spec in self.specs.values())

    @property
    def max_threads(self) -> int:
        """The largest number of threads that a rank of any module uses."""
        return max((spec.threads for spec in self.specs.values()), default=1)

    @property
    def folder(self) -> Path:
        """The folder of the workflow file."""
        return Path(self.file).parent

    def save(self, path: Path, source: str) -> None:
        """Write the plan for rank 0, unless it has what JSON cannot hold: boundaries, dates.

        `source` is the text of the workflow file when it was checked.
        """
        if self.boundaries:
            return
        with contextlib.suppress(TypeError, OSError):
            replace_file(path, json.dumps([source, self], default=_as_json))

    @classmethod
    def take(cls, path: Path, file: str, ranks: int) -> RunPlan | None:
        """Read the plan that `save` wrote, and remove it.

        None if no plan was saved for this number of ranks, it is damaged, or the workflow file has
        changed: then the file is checked again.
        """
        try:
            source, given = read_json(path, with_nan=True)
            path.unlink()
            with open_regular(file) as source_file:
                present = source_file.read().decode("utf-8-sig")
            if (source, given["file"], given["ranks"]) != (present, os.path.abspath(file), ranks):
                return None
            given["groups"] = tuple(map(_group, given["groups"]))
            given["specs"] = {name: _spec(table) for name, table in given["specs"].items()}
            given["needs"] = {name: Need(**table) for name, table in given["needs"].items()}
            for name in ("server_ranks", "boundaries", "tail_ranks", "given"):
                given[name] = tuple(given[name])
            return cls(**given)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def _as_json(value: object) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Frozen):
        return value.as_dict()
    raise TypeError(f"{value!r} is nothing that JSON has")


def _group(table: Mapping[str, Any]) -> GroupPlan:
    until, when = table["until"], table["when"]
    if when is not None:
        from diel.workflow.when import When

        when = When(when["text"], tuple(map(tuple, when["known"])))
    return GroupPlan(
        **{
            **table,
            "modules": tuple(ModulePlan(**module) for module in table["modules"]),
            "depends": tuple(table["depends"]),
            "groups": tuple(table["groups"]),
            "until": tuple(until) if isinstance(until, list) else until,
            "when": when,
            "elements": table["elements"] and Elements(**table["elements"]),
        }
    )


def _spec(table: Mapping[str, Any]) -> ModuleSpec:
    function, executable = table["function"], table["executable"]
    return ModuleSpec(
        **{
            **table,
            "function": function and _location(function),
            "executable": executable and _executable(executable),
            "element": table["element"] and Element(**table["element"]),
            "inputs": tuple(table["inputs"]),
            "outputs": tuple(table["outputs"]),
        }
    )


def _location(table: Mapping[str, Any]) -> FunctionLocation:
    paths = {key: table[key] and Path(table[key]) for key in ("file", "root")}
    sets = {key: frozenset(table[key]) for key in ("classes", "hidden")}
    return FunctionLocation(**{**table, **paths, **sets})


def _executable(table: Mapping[str, Any]) -> ExecutableSpec:
    words = {key: tuple(table[key]) for key in ("words", "launcher")}
    return ExecutableSpec(**{**table, **words})
