"""Models of a workflow file: `[workflow]`, `[tuple_space]`, `[[group]]`, and `Workflow`, the whole.

::

    Workflow
    ├── settings               [workflow]   name, size of logs
    ├── parameters: Parameter... [parameters] values that a run may be given
    ├── tuple_space            [tuple_space] ranks that serve tuples, and their memory
    ├── modules: Module...     [[module]]   what runs: a Python function or an executable
    ├── groups: Group...       [[group]]    which modules run together, or which groups, how often,
    │                                       and after which other groups
    └── boundaries: Boundary... [[boundary]] arrays that modules share

`module` and `boundary` have files of their own. The models check each table by itself. What needs a
second table or the disk (a group that names an unknown module, a function that does not exist) is
checked in `load`.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from diel.errors import LaunchError
from diel.run.part import GroupLinks, Part, groups_of
from diel.text import duration_s, show, size_bytes
from diel.workflow.annotations import InWords
from diel.workflow.boundary import Boundary
from diel.workflow.elements import NO_EXPANSION, Expansion
from diel.workflow.fields import (
    LONGEST_NAME,
    Count,
    Duration,
    FolderName,
    Name,
    StrictTable,
    Times,
    may_be_in_a_name,
    nothing_to_run,
)
from diel.workflow.module import MaxFailures, Module, allowed_of
from diel.workflow.parameters import Parameter, Scalar
from diel.workflow.when import When

_SMALLEST_BYTES: Final = 2**16
_LARGEST_RETURNED_BYTES: Final = 2**26
_SHORTEST_SILENCE_S: Final = 2.0


def _size(words: str, least: int, most: float = math.inf) -> AfterValidator:
    """Return the check that a size in bytes, or with a unit, is within limits; else it says so."""

    def check(size: str | int) -> str | int:
        if not least <= size_bytes(size) <= most:
            raise ValueError(f"{words}; got {size!r}")
        return size

    return AfterValidator(check)


_LogSize = Annotated[str | int, _size("a log file needs 64 KiB at least", _SMALLEST_BYTES)]
_ReturnedSize = Annotated[
    str | int, _size("what the journal holds is 64 MiB at most", 0, _LARGEST_RETURNED_BYTES)
]


def _check_silence(duration: float | str) -> float | str:
    if duration_s(duration) < _SHORTEST_SILENCE_S:
        raise ValueError(
            f"a rank may be silent for {_SHORTEST_SILENCE_S:g} s at least; got {duration!r}"
        )
    return duration


class TupleSpace(StrictTable):
    """The table [tuple_space]: how many ranks serve tuples, and what they may hold."""

    servers: Count = Field(
        default=1,
        description="Ranks that serve tuples.",
        examples=[2],
        json_schema_extra={"unit": "ranks"},
    )
    memory: Annotated[str | int, _size("a server needs 64 KiB at least", _SMALLEST_BYTES)] = Field(
        default="2 GiB",
        description=(
            "What each server may hold, in bytes or with a unit (KiB, MiB, GiB, TiB); credit of "
            "clients may add an eighth."
        ),
        examples=["2 GiB"],
    )
    when_full: Literal["wait", "raise"] = Field(
        default="wait",
        description=(
            'What a put does when its server has no room: "wait" until there is, or "raise" '
            "TupleSpaceFull."
        ),
    )
    spill: bool = Field(
        default=False,
        description=(
            "Write the oldest large payloads to files in the run directory when a server's memory "
            "is short, rather than wait or raise."
        ),
    )

    replicas: Literal[0, 1] = Field(
        default=0,
        description=(
            "1: each server has a twin, another server, on another host where there is one, that "
            "holds the same tuples and goes on with them when it dies. It needs two servers and "
            'on_rank_loss = "continue" in [workflow], and each server holds twice as much.'
        ),
        examples=[1],
    )

    @property
    def memory_bytes(self) -> int:
        """Memory limit of each tuple server, in bytes."""
        return size_bytes(self.memory)


_LONGEST_TAG_BYTES: Final = 4096  # the longest tag that a tuple server takes
_TagField = Annotated[str, StringConstraints(min_length=1)] | int
_TagText = Annotated[
    Annotated[str, StringConstraints(min_length=1)]
    | Annotated[tuple[_TagField, ...], Field(strict=False, min_length=1)],
    InWords("a tag: a string, or a list of strings and whole numbers"),
]


class Group(StrictTable):
    """Modules that run at the same time, or other groups; once or several times in a row."""

    name: Name = Field(
        description="What other groups and messages call this group.", examples=["search"]
    )
    modules: tuple[str, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description="Names of the modules that run together; or give groups.",
        examples=[["master", "trainer"]],
    )
    groups: tuple[str, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description=(
            "Names of the groups inside this one: they run when it does and never by themselves, "
            "at the same time unless they depend on each other. Instead of modules."
        ),
        examples=[["search", "report"]],
    )
    depends: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description=(
            "Names of the groups that must have finished before this one starts; they stand "
            "beside it, in the same group or in none."
        ),
        examples=[["search"]],
    )
    iterations: Count | None = Field(
        default=None,
        description=(
            "How many times the group runs, one after the other; 1 by default, any number where "
            "until is given."
        ),
        examples=[3],
    )
    until: _TagText | None = Field(
        default=None,
        description=(
            "Run again until a tuple with this tag is in the tuple space after an iteration; it "
            "stays there. The group ends before that where iterations says so."
        ),
        examples=["converged", ["converged", 3]],
    )
    when: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        description=(
            "Run the group only if this is true: an expression of parameters, of value('tag'), "
            "which is a tuple's value, and of outcome('group'), which is 'finished', 'failed' or "
            "'skipped'. It is judged when the groups that this one depends on have ended; a "
            "skipped group counts as finished for those that depend on it."
        ),
        examples=["refine and value('residual') > 0.1"],
    )

    foreach: str | dict[str, list[Scalar]] | None = Field(
        default=None,
        description=(
            "Run the group once for each element: each row of a CSV file, whose header names the "
            "values, relative to the workflow file's folder, or each combination of lists. In the "
            "entries of the group, of those inside it and of their modules, ${name} stands for the "
            "element's value. Element 3 of the group cases is the group cases-3 with a module "
            "solver-3 of its own, which it calls solver; a group that depends on cases waits for "
            "all of them."
        ),
        examples=["cases.csv", {"dt": [0.1, 0.2], "cells": [32, 64]}],
    )
    at_once: Count | None = Field(
        default=None,
        description=(
            "How many elements of foreach run at the same time; by default as many as there are "
            "ranks for."
        ),
        examples=[4],
        json_schema_extra={"unit": "elements"},
    )
    max_failures: MaxFailures | None = Field(
        default=None,
        description=(
            'How many elements of foreach may fail, as a number or as a share of all such as "5%": '
            "a module that fails fails its element, of which nothing further runs, and the others "
            "go on; with more the run ends. Without it the first that fails ends the run. A run "
            "that goes on repeats those that failed."
        ),
        examples=[10, "5%"],
        json_schema_extra={"unit": "elements"},
    )

    @field_validator("modules", "groups", "depends")
    @classmethod
    def _check_no_duplicates(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise PydanticCustomError(
                "duplicate_names",
                "{names} named more than once",
                {"names": _listed(twice), "remedy": "name each once"},
            )
        return names

    @field_validator("groups")
    @classmethod
    def _check_one_content(cls, groups: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("modules"):
            raise PydanticCustomError(
                "two_contents",
                "a group has either modules or groups inside, and both are given",
                {"remedy": "put the modules into a [[group]] of their own, and name that here"},
            )
        return groups

    @field_validator("until")
    @classmethod
    def _check_until(cls, until: _TagText | None) -> _TagText | None:
        fields = (until,) if isinstance(until, str) else until or ()
        lengths = [
            field.bit_length() // 8 + 1 if isinstance(field, int) else len(field.encode())
            for field in fields
        ]
        if sum(lengths) + 5 * len(lengths) > _LONGEST_TAG_BYTES:
            raise ValueError(f"a tag has {_LONGEST_TAG_BYTES:,} bytes at the most")
        return until

    @model_validator(mode="after")
    def _check_foreach(self) -> Group:
        for key in ("at_once", "max_failures"):
            if self.foreach is None and getattr(self, key) is not None:
                raise PydanticCustomError(
                    "no_elements",
                    "{key} has no effect without foreach",
                    {"key": key, "remedy": f"add foreach, or remove {key}"},
                )
        return self

    @model_validator(mode="after")
    def _check_something_to_run(self) -> Group:
        if not self.modules and not self.groups:
            raise nothing_to_run("group")
        return self

    def failures_allowed_of(self, elements: int) -> int | None:
        """Return how many of so many elements may fail; None where the first ends the run."""
        return None if self.max_failures is None else allowed_of(self.max_failures, elements)

    @property
    def most_iterations(self) -> int | None:
        """The largest number of times that the group runs; None without a limit."""
        return 1 if self.iterations is None and self.until is None else self.iterations


def _listed(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{quoted[0]} is" if len(quoted) == 1 else f"{', '.join(quoted)} are"


__all__ = ["Boundary", "Group", "Module", "TupleSpace", "Workflow", "WorkflowTable", "folder_name"]


class WorkflowTable(StrictTable):
    """The table [workflow] itself."""

    name: FolderName | None = Field(
        default=None,
        description=(
            "Names the folder of each run; by default the file's name without its suffix."
        ),
        examples=["study"],
    )
    log_size: _LogSize = Field(
        default="64 MiB",
        description=(
            "What each log file of a module may grow to, in bytes or with a unit (KiB, MiB, GiB, "
            "TiB); of a longer one the first quarter and the end are kept."
        ),
        examples=["64 MiB"],
    )
    returned_size: _ReturnedSize = Field(
        default="64 KiB",
        description=(
            "What a module may return into the journal, as JSON, in bytes or with a unit, 64 MiB "
            "at most; what is larger goes to a file in the folder `returned` of the run directory."
        ),
        examples=["1 MiB"],
    )
    returned_total: Annotated[str | int, _size("files cannot take less than nothing", 0)] = Field(
        default="10 GiB",
        description=(
            "What all files in the folder `returned` of the run directory may take together, in "
            "bytes or with a unit; a value that does not fit any more is described in the journal "
            "and not kept, and the first one is warned of."
        ),
        examples=["100 GiB"],
    )
    private: bool = Field(
        default=True,
        description=(
            "Whether the run directory, and so all that is in it, can be read by its owner alone; "
            "if not, the umask says who else may."
        ),
        examples=[False],
    )

    restarts: Times = Field(
        default=0,
        description=(
            "How often the run is started again, on what is left, when a rank, a host or mpiexec "
            "has died; where diel run starts mpiexec."
        ),
        examples=[10],
        json_schema_extra={"unit": "restarts"},
    )

    checkpoint_every: Duration | None = Field(
        default=None,
        description=(
            "How often to save a checkpoint while groups run, in seconds or with a unit (ms, s, "
            "min, h, d), beside those at the ends of iterations; without it at these alone, and "
            "when a module calls ctx.checkpoint."
        ),
        examples=["5 min"],
    )

    signal_before: Duration | None = Field(
        default=None,
        description=(
            "How long before the end of the job around the run the copies that run are told of it, "
            "in seconds or with a unit (ms, s, min, h, d), so that they can save their states, see "
            "signal of modules: where DIEL_END_TIME says when that is, as in scripts of diel batch "
            "with --time, or Slurm does. By default not at all."
        ),
        examples=["5 min"],
    )

    on_rank_loss: Literal["stop", "continue"] = Field(
        default="stop",
        description=(
            'What happens when a rank dies: "stop" ends the run, "continue" goes on without it '
            "where its module allows that, as trainers of sweeps do; else the run ends all the "
            "same. It needs Open MPI 5, whose small messages are slower then."
        ),
    )
    heartbeat_timeout: Annotated[float | str, AfterValidator(_check_silence)] = Field(
        default="30 s",
        description=(
            "How long a rank or a host may be silent, in seconds or with a unit (s, min, h, d), "
            "2 s at least; then it is lost, and the run ends. A rank that computes is heard of too."
        ),
        examples=["2 min"],
    )

    resources: dict[Name, Count] = Field(
        default={},
        description=(
            "What modules of the whole run share beside ranks, on all its nodes together, and how "
            "many there are of each: licences, tokens of a server. A group starts when as many "
            "are free as its copies take, see resources of modules."
        ),
        examples=[{"licence": 2}],
    )

    @property
    def checkpoint_every_s(self) -> float | None:
        """Interval of checkpoints while groups run, in seconds; None to save none by time."""
        return None if self.checkpoint_every is None else duration_s(self.checkpoint_every)

    @property
    def signal_before_s(self) -> float | None:
        """How long before the run's end copies are told of it, in seconds; None for never."""
        return None if self.signal_before is None else duration_s(self.signal_before)

    @property
    def heartbeat_timeout_s(self) -> float:
        """How long a rank or a host may be silent, in seconds."""
        return duration_s(self.heartbeat_timeout)

    @property
    def log_size_bytes(self) -> int:
        """The largest size of a log file, in bytes."""
        return size_bytes(self.log_size)

    @property
    def returned_size_bytes(self) -> int:
        """The largest size of a returned value in the journal, in bytes."""
        return size_bytes(self.returned_size)

    @property
    def returned_total_bytes(self) -> int:
        """The largest total size of the files of returned values, in bytes."""
        return size_bytes(self.returned_total)


class Workflow(StrictTable):
    """A whole workflow file, valid and complete."""

    name: FolderName = Field(description="What it is called, by its table or its file.")
    settings: WorkflowTable = Field(
        default_factory=WorkflowTable, description="The table [workflow]."
    )
    modules: tuple[Module, ...] = Field(description="Every [[module]], in file order.")
    groups: tuple[Group, ...] = Field(description="Every [[group]], in file order.")
    tuple_space: TupleSpace = Field(
        default_factory=TupleSpace, description="The table [tuple_space]."
    )
    boundaries: tuple[Boundary, ...] = Field(
        default=(), description="Every [[boundary]], in file order."
    )
    file: Path = Field(description="The workflow file, as an absolute path.")
    parameters: dict[str, Parameter] = Field(
        default={}, description="The table [parameters], by name."
    )
    values: dict[str, Any] = Field(default={}, description="The values of parameters.")
    expansion: Expansion = Field(
        default=NO_EXPANSION, description="The elements of groups with foreach."
    )

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def max_threads(self) -> int:
        """The largest number of threads that a rank of any module uses."""
        return max((module.threads for module in self.modules), default=1)

    def module(self, name: str) -> Module:
        """Return the module of this name, or raise KeyError."""
        return self._modules_by_name[name]

    def group(self, name: str) -> Group:
        """Return the group of this name, or raise KeyError."""
        return self._groups_by_name[name]

    def names_in(self, group: str) -> dict[str, str]:
        """Return the modules of a group, each with the name that the code of the group has for it.

        Of a group that is not there all modules.
        """
        found = self._groups_by_name.get(group)
        names = [each.name for each in self.modules] if found is None else found.modules
        return {name: self.expansion.own_name(name) for name in names}

    def only(self, group: str, modules: Sequence[str]) -> Workflow:
        """Return the workflow of some modules of one group, which runs once and waits for nothing.

        A LaunchError if there is no such group, or it has no such module.
        """
        found = self._groups_by_name.get(group)
        is_sound = bool(modules) and len({*modules}) == len(modules)
        if found is None or not is_sound or not {*modules} <= {*found.modules}:
            raise LaunchError(
                f"this run is of {', '.join(map(show, modules)) or 'no module'} in group "
                f"{show(group)}, as its part.json says, and the workflow file has no such modules"
            )
        once: dict[str, Any] = dict.fromkeys(("iterations", "until", "when"))
        once |= {"modules": tuple(modules), "depends": ()}
        parts = {
            "modules": tuple(self.module(name) for name in modules),
            "groups": (found.model_copy(update=once),),
            "boundaries": (),
        }
        return Workflow.model_construct(**{**dict(self), **parts})

    def when_of(self, group: Group) -> When | None:
        """Return the condition of a group, with the values of its names; None if it always runs."""
        values = {**self.values, **self.expansion.values_of("group", group.name)}
        return None if group.when is None else When.of(group.when, values)

    @cached_property
    def surely_skipped(self) -> frozenset[str]:
        """Groups that will not run, whatever tuples there are, with those inside them."""
        decided = ((group, self.when_of(group)) for group in self.groups)
        left = [group for group, when in decided if when is not None and when.decided is False]
        found = set()
        while left:
            group = left.pop()
            found.add(group.name)
            left += [self.group(name) for name in group.groups]
        return frozenset(found)

    def limited_to(self, part: Part) -> Workflow:
        """Return the workflow of the groups of a part, which wait for no others.

        A boundary stays if all its modules do. A LaunchError if there is no such part.
        """
        if not part:
            return self
        chosen, around = groups_of(part, self.links)
        kept = chosen | around
        groups = [
            group.model_copy(
                update={
                    key: tuple(name for name in getattr(group, key) if name in kept)
                    for key in ("groups", "depends")
                }
            )
            for group in self.groups
            if group.name in kept
        ]
        modules = {name for group in groups for name in group.modules}
        parts = {
            "modules": tuple(module for module in self.modules if module.name in modules),
            "groups": tuple(groups),
            "boundaries": tuple(
                each for each in self.boundaries if modules.issuperset(each.modules)
            ),
        }
        return Workflow.model_construct(**{**dict(self), **parts})

    @property
    def links(self) -> GroupLinks:
        """How the groups are connected."""
        return links_of(self.groups)

    @cached_property
    def _modules_by_name(self) -> dict[str, Module]:
        return {module.name: module for module in self.modules}

    @cached_property
    def _groups_by_name(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}


def links_of(groups: Sequence[Group]) -> GroupLinks:
    """Return how groups are connected."""
    return GroupLinks(
        [group.name for group in groups],
        {group.name: group.depends for group in groups},
        {inner: group.name for group in groups for inner in group.groups},
        {group.name for group in groups if group.most_iterations != 1},
    )


def folder_name(stem: str) -> str:
    """Make a file's stem safe as a workflow's name: ``my study (2)`` becomes ``my-study-2``."""
    composed = unicodedata.normalize("NFC", stem)
    marked = "".join(character if may_be_in_a_name(character) else "\0" for character in composed)
    safe = re.sub("\0+", "-", marked).strip("-._")
    while safe and not safe[0].isalnum():  # a mark without its letter
        safe = safe[1:]
    try:
        os.fsencode(safe)
    except UnicodeEncodeError:
        safe = ""
    return safe.encode()[:LONGEST_NAME].decode(errors="ignore") or "workflow"
