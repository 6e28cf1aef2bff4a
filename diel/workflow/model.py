"""What a valid workflow file says.

::

    Workflow                   [workflow]   name
    ├── tuple_space            [tuple_space] ranks that serve tuples, and their memory
    ├── modules: Module...     [[module]]   what runs: a Python function or an executable
    ├── groups: Group...       [[group]]    which modules run together, or which groups, how often,
    │                                       and after which other groups
    └── boundaries: Boundary... [[boundary]] arrays that modules share (in `boundary`)

The models hold what one table can say for itself. What needs a second table or the disk (a group
that names an unknown module, a function that does not exist) is checked in `load`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from diel.errors import Problem
from diel.workflow.boundary import Boundary
from diel.workflow.durations import duration_s
from diel.workflow.placeholders import names_in
from diel.workflow.programs import FACTS
from diel.workflow.scalars import LONGEST_NAME, Count, FolderName, GpuCount, Name, Times
from diel.workflow.wording import InWords

_LONGEST_TAG_BYTES = 4096  # what a tuple server takes
_TagField = Annotated[str, StringConstraints(min_length=1)] | int
TagText = Annotated[
    Annotated[str, StringConstraints(min_length=1)]
    | Annotated[tuple[_TagField, ...], Field(strict=False, min_length=1)],
    InWords("a tag: a string, or a list of strings and whole numbers"),
]

NOTHING_TO_RUN = {
    "module": Problem(
        path="",
        message="says nothing to run: it has neither function nor executable",
        remedy='add function = "package.module:function" or executable = ["./a.out"]',
    ),
    "group": Problem(
        path="",
        message="says nothing to run: it has neither modules nor groups",
        remedy='add modules = ["master", "trainer"], or groups = [...] with names of other groups',
    ),
}
"""What is wrong with an entry that runs nothing, by its table."""


def _nothing_to_run(kind: str) -> PydanticCustomError:
    problem = NOTHING_TO_RUN[kind]
    return PydanticCustomError(
        "nothing_to_run", "{message}", {"message": problem.message, "remedy": problem.remedy}
    )


def _word(text: str) -> str:
    names_in(text)
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a program")
    return text


def _variable(name: str) -> str:
    if name in FACTS:
        raise PydanticCustomError(
            "variable_of_diel",
            "{name} is what diel itself tells the program",
            {"name": name, "remedy": "choose another name"},
        )
    return name


_OF_EXECUTABLES = {
    "launcher": "a launcher",
    "directory": "a working directory",
    "environment": "an environment",
    "stdin": "a standard input",
}
Word = Annotated[str, AfterValidator(_word)]
Variable = Annotated[
    str,
    StringConstraints(pattern=r"^[^=\x00]+$"),
    InWords('a name without "="'),
    AfterValidator(_variable),
]
Setting = Annotated[Word | int | float, InWords("a string or a number")]


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
    executable: tuple[Word, ...] | None = Field(
        default=None,
        # TOML has lists only.
        strict=False,
        min_length=1,
        description=(
            "The program to start, and its arguments. A program with a slash in its name is "
            "relative to the workflow file's folder, any other is found on PATH. Placeholders "
            "such as {copy} may stand in each."
        ),
        examples=[["./a.out", "--fast", "--seed={copy}"]],
    )
    launcher: tuple[Word, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description=(
            "What starts the program, where it does not start by itself: the launcher of a "
            "parallel program and its arguments, put before those of executable; executables "
            "only. Placeholders may stand in each."
        ),
        examples=[["mpiexec", "-n", "{processes}"]],
    )
    directory: Word = Field(
        default="",
        min_length=1,
        description=(
            "The program's working directory, relative to the workflow file's folder, which it is "
            "by default; made where it lies in the run directory; executables only. Placeholders "
            "may stand in it."
        ),
        examples=["{run_dir}/{module}.{copy}"],
    )
    environment: dict[Variable, Setting] = Field(
        default={},
        description=(
            "Variables that the program finds in its environment, beside those of the run; "
            "executables only. Placeholders may stand in the values."
        ),
        examples=[{"SEED": "{copy}"}],
    )
    stdin: Word = Field(
        default="",
        min_length=1,
        description=(
            "The file that is the program's standard input, relative to the workflow file's "
            "folder; by default there is nothing to read; executables only. Placeholders may "
            "stand in it."
        ),
        examples=["input.{copy}.txt"],
    )
    processes: Count = Field(
        default=1,
        description="MPI ranks in one copy.",
        examples=[2],
        json_schema_extra={"unit": "ranks"},
    )
    copies: Count | Literal["fill"] = Field(
        default=1,
        description=(
            'How many copies run at the same time; "fill" takes as many as the ranks of the job '
            "allow."
        ),
        examples=[2],
        json_schema_extra={"unit": "copies"},
    )
    threads: Count = Field(
        default=1,
        description="BLAS and OpenMP threads of each rank.",
        examples=[2],
        json_schema_extra={"unit": "threads"},
    )
    gpus: GpuCount = Field(
        default=0,
        description=(
            "GPUs of each rank, which no other rank uses. As soon as one module of the file asks "
            "for GPUs, the others see none."
        ),
        examples=[1],
        json_schema_extra={"unit": "GPUs"},
    )
    placement: Literal["packed", "spread"] = Field(
        default="packed",
        description=(
            'Where copies go if there are several nodes: "packed" onto as few as possible, or '
            '"spread" over all. The ranks of one copy stay on one node wherever they fit.'
        ),
        examples=["spread"],
    )
    options: dict[str, Any] = Field(
        default={},
        description="What the function finds in its context as options; function modules only.",
    )
    on_failure: Literal["stop", "continue"] = Field(
        default="stop",
        description=(
            'What happens when a copy has failed and is not started again: "stop" ends the run, '
            '"continue" gives the copy up, and the rest goes on as if it had finished.'
        ),
    )
    retries: Times = Field(
        default=0,
        description=(
            "How many times a copy that failed is started again; the whole module if it has used "
            "ctx.module_comm."
        ),
        examples=[2],
    )
    time_limit: float | str | None = Field(
        default=None,
        description=(
            "How long one run of a copy may take, in seconds or with a unit (ms, s, min, h, d); "
            "then it has failed. Without it, as long as it likes."
        ),
        examples=["10 min"],
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
        return executable

    @field_validator("time_limit")
    @classmethod
    def _check_time_limit(cls, time_limit: float | str | None) -> float | str | None:
        if time_limit is not None:
            duration_s(time_limit)
        return time_limit

    @field_validator(*_OF_EXECUTABLES)
    @classmethod
    def _check_is_executable(cls, value: Any, info: ValidationInfo) -> Any:
        is_function = info.data.get("function") is not None
        if is_function and info.data.get("executable", ...) is None:
            raise PydanticCustomError(
                "key_of_executables",
                "only an executable has {key}: a function runs on ranks of this job",
                {"key": _OF_EXECUTABLES[info.field_name or ""], "remedy": "remove it"},
            )
        if info.field_name == "launcher" and not value[0]:
            raise ValueError("the program's name is empty")
        return value

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
            raise _nothing_to_run("module")
        return self

    @property
    def time_limit_s(self) -> float | None:
        """How long one run of a copy may take, in seconds; None for as long as it likes."""
        return None if self.time_limit is None else duration_s(self.time_limit)


class Group(_Table):
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
    until: TagText | None = Field(
        default=None,
        description=(
            "Run again until a tuple with this tag is in the tuple space after an iteration; it "
            "stays there. The group ends before that where iterations says so."
        ),
        examples=["converged", ["converged", 3]],
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
    def _check_until(cls, until: TagText | None) -> TagText | None:
        fields = (until,) if isinstance(until, str) else until or ()
        lengths = [
            field.bit_length() // 8 + 1 if isinstance(field, int) else len(field.encode())
            for field in fields
        ]
        if sum(lengths) + 5 * len(lengths) > _LONGEST_TAG_BYTES:
            raise ValueError(f"a tag has {_LONGEST_TAG_BYTES:,} bytes at the most")
        return until

    @model_validator(mode="after")
    def _check_something_to_run(self) -> Group:
        if not self.modules and not self.groups:
            raise _nothing_to_run("group")
        return self

    @property
    def most_iterations(self) -> int | None:
        """How many times it runs at most; None without a limit."""
        return 1 if self.iterations is None and self.until is None else self.iterations


_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SMALLEST_MEMORY = 2**16


class TupleSpace(_Table):
    """The table [tuple_space]: how many ranks serve tuples, and what they may hold."""

    servers: Count = Field(
        default=1,
        description="Ranks that serve tuples.",
        examples=[2],
        json_schema_extra={"unit": "ranks"},
    )
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
