"""What a valid workflow file says.

::

    Workflow                   [workflow]   name
    ├── tuple_space            [tuple_space] ranks that serve tuples, and their memory
    ├── modules: Module...     [[module]]   what runs: a Python function or an executable
    ├── groups: Group...       [[group]]    which modules run together, and after which groups
    └── boundaries: Boundary... [[boundary]] arrays that modules share (in `boundary`)

The models hold what one table can say for itself. What needs a second table or the disk (a group
that names an unknown module, a function that does not exist) is checked in `load`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from diel.errors import Problem
from diel.workflow.boundary import Boundary
from diel.workflow.scalars import LONGEST_NAME, Count, FolderName, Name

NOTHING_TO_RUN = Problem(
    path="",
    message="says nothing to run: it has neither function nor executable",
    remedy='add function = "package.module:function" or executable = ["./a.out"]',
)


class _Table(BaseModel):
    """A table of a workflow file: it cannot be changed and knows every key it takes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Module(_Table):
    """One thing that runs: a Python function or an executable, in any number of copies."""

    name: Name = Field(
        description="What groups, logs and messages call this module.", examples=["trainer"]
    )
    function: str | None = Field(
        default=None,
        description=(
            'The Python function to call: "package.module:function", or "./file.py:function" '
            "for a file beside the workflow file."
        ),
        examples=["package.module:function"],
    )
    executable: tuple[str, ...] | None = Field(
        default=None,
        # TOML has lists only.
        strict=False,
        min_length=1,
        description=(
            "The program to start, and its arguments. A program with a slash in its name is "
            "relative to the workflow file's folder, any other is found on PATH."
        ),
        examples=[["./a.out", "--fast"]],
    )
    processes: Count = Field(default=1, description="MPI ranks in one copy.", examples=[2])
    copies: Count | Literal["fill"] = Field(
        default=1,
        description=(
            'How many copies run at the same time; "fill" takes as many as the ranks of the job '
            "allow."
        ),
        examples=[2],
    )
    threads: Count = Field(
        default=1, description="BLAS and OpenMP threads of each rank.", examples=[2]
    )
    options: dict[str, Any] = Field(
        default={},
        description="What the function finds in its context as options; function modules only.",
    )

    @field_validator("executable")
    @classmethod
    def _check_executable(
        cls, executable: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        if executable is None:
            return None
        if info.data.get("function") is not None:
            raise PydanticCustomError(
                "two_things_to_run",
                "a module is either a function or an executable, and both are given",
                {"remedy": "keep one of the two, or make it two modules"},
            )
        if not executable[0]:
            raise ValueError("the program's name is empty")
        if any("\0" in word for word in executable):
            raise ValueError("a NUL character cannot be passed to a program")
        return executable

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("executable") is not None and info.data.get("function") is None:
            raise PydanticCustomError(
                "options_of_executable",
                "an executable takes no options: only a function has a context to find them in",
                {"remedy": "pass them as arguments, in executable"},
            )
        return options

    @model_validator(mode="after")
    def _check_something_to_run(self) -> Module:
        if self.function is None and self.executable is None:
            raise PydanticCustomError(
                "nothing_to_run",
                "{message}",
                {"message": NOTHING_TO_RUN.message, "remedy": NOTHING_TO_RUN.remedy},
            )
        return self


class Group(_Table):
    """Modules that run at the same time, once every group it depends on has finished."""

    name: Name = Field(
        description="What other groups and messages call this group.", examples=["search"]
    )
    modules: tuple[str, ...] = Field(
        strict=False,
        min_length=1,
        description="Names of the modules that run together.",
        examples=[["master", "trainer"]],
    )
    depends: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Names of the groups that must have finished before this one starts.",
        examples=[["search"]],
    )

    @field_validator("modules", "depends")
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


_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SMALLEST_MEMORY = 2**16


class TupleSpace(_Table):
    """The table [tuple_space]: how many ranks serve tuples, and what they may hold."""

    servers: Count = Field(default=1, description="Ranks that serve tuples.", examples=[2])
    memory: str | int = Field(
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

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | int) -> str | int:
        if _size_bytes(memory) < SMALLEST_MEMORY:
            raise ValueError(f"a server needs 64 KiB at least; got {memory!r}")
        return memory

    @property
    def memory_bytes(self) -> int:
        """What each server may hold, in bytes."""
        return _size_bytes(self.memory)


def _size_bytes(size: str | int) -> int:
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if found is None or found[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ValueError(f"{size!r} is no size; write a number and one of {units}")
    return int(float(found[1]) * _UNITS[found[2]])


class Workflow(_Table):
    """A whole workflow file, valid and complete."""

    name: FolderName = Field(
        description="Names the folder of each run; by default the file's name without its suffix.",
        examples=["study"],
    )
    modules: tuple[Module, ...] = Field(description="Every [[module]], in file order.")
    groups: tuple[Group, ...] = Field(description="Every [[group]], in file order.")
    tuple_space: TupleSpace = Field(default=TupleSpace(), description="The table [tuple_space].")
    boundaries: tuple[Boundary, ...] = Field(
        default=(), description="Every [[boundary]], in file order."
    )
    file: Path = Field(description="The workflow file, as an absolute path.")

    @property
    def folder(self) -> Path:
        """The folder of the workflow file: relative paths in the file start here."""
        return self.file.parent

    @property
    def max_threads(self) -> int:
        """The largest number of threads that a rank of any module uses."""
        return max((module.threads for module in self.modules), default=1)

    def module(self, name: str) -> Module:
        """Return the module of this name, or raise KeyError."""
        return _named(self.modules, name)

    def group(self, name: str) -> Group:
        """Return the group of this name, or raise KeyError."""
        return _named(self.groups, name)


class WorkflowTable(_Table):
    """The table [workflow] itself."""

    name: FolderName | None = Field(
        default=None,
        description=Workflow.model_fields["name"].description,
        examples=["study"],
    )


def folder_name(stem: str) -> str:
    """Make a file's stem safe as a workflow's name: ``my study (2)`` becomes ``my-study-2``."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
    return safe[:LONGEST_NAME] or "workflow"


_Named = TypeVar("_Named", Module, Group)


def _named(tables: Sequence[_Named], name: str) -> _Named:
    for table in tables:
        if table.name == name:
            return table
    raise KeyError(name)


def _listed(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{quoted[0]} is" if len(quoted) == 1 else f"{', '.join(quoted)} are"
