"""A checked workflow file as rank 0 needs it, so that the file is checked only once.

The launcher checks the file, and rank 0 uses its plan if the file has not changed. Without a
launcher, as under a bare mpirun, rank 0 checks the file itself.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel.executive.placement.assignment import Need
from diel.executive.placement.planning import needs_of, plan_groups
from diel.executive.plans import GroupPlan, ModulePlan
from diel.frozen import Frozen
from diel.loading.module_spec import ExecutableSpec, ModuleSpec
from diel.run.files import open_regular, read_json, replace_file
from diel.workflow.functions import FunctionLocation

if TYPE_CHECKING:
    from diel.workflow.boundary import Boundary
    from diel.workflow.load import Draft
    from diel.workflow.model import Workflow


class RunPlan(Frozen):
    """The settings, modules and groups of a checked workflow file, for a number of ranks.

    Attributes
    ----------
    file, source : str
        The workflow file, as an absolute path, and its text when it was checked.
    ranks : int
        All ranks, the executive and the servers included.
    name : str
        The name of the workflow.
    private : bool
        Whether only the owner may read the run directory.
    servers : int
        How many ranks serve tuples.
    replicas : int
        1 if each server has a twin, else 0.
    server_memory_bytes : int
    refuse_when_full, spill : bool
        As in `diel.executive.messages.Welcome`.
    on_rank_loss : str
        ``stop`` or ``continue``; the latter needs an MPI that survives losses.
    heartbeat_timeout_s : float
        How long a rank or a host may be silent.
    log_size_bytes, returned_size_bytes, returned_total_bytes : int
    restarts : int
        How often the launcher may start the run again.
    checkpoint_every_s : float or None
        How often to save a checkpoint while groups run; None for only at the ends of iterations.
    groups : tuple of GroupPlan
    specs : dict of str to ModuleSpec
        Of all modules, by name.
    needs : dict of str to Need
        By module.
    boundaries : tuple of Boundary
    """

    file: str
    source: str
    ranks: int
    name: str
    private: bool
    servers: int
    replicas: int
    server_memory_bytes: int
    refuse_when_full: bool
    spill: bool
    on_rank_loss: str
    heartbeat_timeout_s: float
    log_size_bytes: int
    returned_size_bytes: int
    returned_total_bytes: int
    restarts: int
    checkpoint_every_s: float | None
    groups: tuple[GroupPlan, ...]
    specs: dict[str, ModuleSpec]
    needs: dict[str, Need]
    boundaries: tuple[Boundary, ...] = ()

    @classmethod
    def of(cls, workflow: Workflow, draft: Draft, ranks: int) -> RunPlan:
        """Return the plan of a workflow, which was read from a draft, for a number of ranks.

        Raises
        ------
        WorkflowError
            If some group of modules needs more ranks than there are; the message has both numbers.
        """
        return cls(
            file=str(workflow.file),
            source=draft.source,
            ranks=ranks,
            name=workflow.name,
            private=workflow.settings.private,
            servers=workflow.tuple_space.servers,
            replicas=workflow.tuple_space.replicas,
            server_memory_bytes=workflow.tuple_space.memory_bytes,
            refuse_when_full=workflow.tuple_space.when_full == "raise",
            spill=workflow.tuple_space.spill,
            on_rank_loss=workflow.settings.on_rank_loss,
            heartbeat_timeout_s=workflow.settings.heartbeat_timeout_s,
            log_size_bytes=workflow.settings.log_size_bytes,
            returned_size_bytes=workflow.settings.returned_size_bytes,
            returned_total_bytes=workflow.settings.returned_total_bytes,
            restarts=workflow.settings.restarts,
            checkpoint_every_s=workflow.settings.checkpoint_every_s,
            groups=tuple(plan_groups(workflow, ranks, draft.shown_as)),
            specs={
                module.name: ModuleSpec.of(module, draft.locations.get(module.name))
                for module in workflow.modules
            },
            needs=needs_of(workflow),
            boundaries=workflow.boundaries,
        )

    @property
    def server_ranks(self) -> tuple[int, ...]:
        """The ranks that serve tuples: the ranks that follow rank 0, the executive."""
        return tuple(range(1, 1 + self.servers))

    @property
    def pool(self) -> range:
        """The ranks that run modules."""
        return range(1 + self.servers, self.ranks)

    @property
    def max_threads(self) -> int:
        """The largest number of threads that a rank of any module uses."""
        return max((spec.threads for spec in self.specs.values()), default=1)

    # -- from the launcher to rank 0 --------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the plan for rank 0, unless it has what JSON cannot hold: boundaries, dates."""
        if self.boundaries:
            return
        with contextlib.suppress(TypeError, OSError):
            replace_file(path, json.dumps(self, default=_as_json))

    @classmethod
    def take(cls, path: Path, file: str, ranks: int) -> RunPlan | None:
        """Read the plan that `save` wrote, and remove it.

        Returns
        -------
        RunPlan or None
            None if no plan was saved for this number of ranks, it is damaged, or the workflow file
            has changed: then the file is checked again.
        """
        try:
            given = read_json(path, with_nan=True)
            path.unlink()
            with open_regular(file) as source_file:
                source = source_file.read().decode("utf-8-sig")
            is_of = (given["file"], given["source"], given["ranks"])
            if (os.path.abspath(file), source, ranks) != is_of:
                return None
            given["groups"] = tuple(map(_group, given["groups"]))
            given["specs"] = {name: _spec(table) for name, table in given["specs"].items()}
            given["needs"] = {name: Need(**table) for name, table in given["needs"].items()}
            return cls(**{**given, "boundaries": ()})
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
    until = table["until"]
    return GroupPlan(
        **{
            **table,
            "modules": tuple(ModulePlan(**module) for module in table["modules"]),
            "depends": tuple(table["depends"]),
            "groups": tuple(table["groups"]),
            "until": tuple(until) if isinstance(until, list) else until,
        }
    )


def _spec(table: Mapping[str, Any]) -> ModuleSpec:
    function, executable = table["function"], table["executable"]
    return ModuleSpec(
        **{
            **table,
            "function": function and _location(function),
            "executable": executable and _executable(executable),
        }
    )


def _location(table: Mapping[str, Any]) -> FunctionLocation:
    paths = {key: table[key] and Path(table[key]) for key in ("file", "root")}
    sets = {key: frozenset(table[key]) for key in ("classes", "hidden")}
    return FunctionLocation(**{**table, **paths, **sets})


def _executable(table: Mapping[str, Any]) -> ExecutableSpec:
    words = {key: tuple(table[key]) for key in ("words", "launcher")}
    return ExecutableSpec(**{**table, **words})
