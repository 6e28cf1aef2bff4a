"""The table [[module]]: a Python function or an executable, and how its copies run."""

from __future__ import annotations

import glob
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from diel.text import duration_s, size_bytes
from diel.workflow.annotations import InWords
from diel.workflow.fields import Count, Duration, GpuCount, Name, StrictTable, Times, nothing_to_run
from diel.workflow.programs import FACTS, placeholders_in


def _word(text: str) -> str:
    placeholders_in(text)
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a program")
    return text


def _file(text: str) -> str:
    if not text:
        raise ValueError("the name of a file is empty")
    return _word(text)


def _variable(name: str) -> str:
    if name in FACTS:
        raise PydanticCustomError(
            "variable_of_diel",
            "{name} is what diel itself tells the program",
            {"name": name, "remedy": "choose another name"},
        )
    return name


def _memory(size: str | int) -> str | int:
    if size_bytes(size) < _LEAST_MEMORY_BYTES:
        raise ValueError(f"no program runs in less than 1 MiB; got {size!r}")
    return size


_LEAST_MEMORY_BYTES: Final = 2**20
_EXECUTABLE_KEYS: Final = {
    "launcher": "a launcher",
    "directory": "a working directory",
    "environment": "an environment",
    "stdin": "a standard input",
    "tasks": "tasks",
    "memory": "a limit of memory",
}
Word = Annotated[str, AfterValidator(_word)]
File = Annotated[str, AfterValidator(_file)]
Variable = Annotated[
    str,
    StringConstraints(pattern=r"^[^=\x00]+$"),
    InWords('a name without "="'),
    AfterValidator(_variable),
]
Setting = Annotated[Word | int | float, InWords("a string or a number")]


class Module(StrictTable):
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
        # TOML has no tuples: a list is accepted.
        strict=False,
        min_length=1,
        description=(
            "The program to start, and its arguments. A program with a slash in its name is "
            "relative to the workflow file's folder, any other is found on PATH. Placeholders "
            "such as {copy} may stand in each."
        ),
        examples=[["./a.out", "--fast", "--seed={copy}"]],
        json_schema_extra={"form": "command"},
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
        json_schema_extra={"form": "command"},
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
    tasks: Count | None = Field(
        default=None,
        description=(
            "How many times the program runs, each time with another {task}, from 0: the copies "
            "share these tasks, and each takes the next one when it has done its last; executables "
            "only. A task that fails fails its copy."
        ),
        examples=[1000],
        json_schema_extra={"unit": "tasks"},
    )
    memory: Annotated[str | int, AfterValidator(_memory)] | None = Field(
        default=None,
        description=(
            "What the program and all that it starts may have in memory, in bytes or with a unit "
            "(KiB, MiB, GiB, TiB): with more it is killed, and its copy has failed; executables "
            "only. By default as much as there is."
        ),
        examples=["4 GiB"],
        json_schema_extra={"unit": "bytes"},
    )
    retry_memory: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        description=(
            "By how much memory grows with each further attempt of a copy, see retries: with 2, "
            "from 4 GiB to 8 and 16."
        ),
        examples=[2],
    )
    inputs: tuple[File, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description=(
            "Files and folders that a copy reads, relative to the workflow file's folder: they "
            "have to be there, or be outputs of another module. Placeholders and patterns (*, ?, "
            "[abc], **) may stand in each."
        ),
        examples=[["data/*.csv", "{run_dir}/mesh.bin"]],
    )
    outputs: tuple[File, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description=(
            "Files and folders that a copy makes, relative to the workflow file's folder: they are "
            "removed before it starts and where it fails. A copy whose outputs were made of the "
            "same inputs, by the same command, is up to date and does not run. Placeholders may "
            "stand in each."
        ),
        examples=[["results/{copy}.npz"]],
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
            "GPUs of each rank, which no other rank uses; 0.5, 0.25, 0.2 ... is a share of one: "
            "2, 4, 5 ... ranks use it together. As soon as one module of the file asks for GPUs, "
            "the others see none."
        ),
        examples=[1, 0.25],
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
    time_limit: Duration | None = Field(
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

    @field_validator(*_EXECUTABLE_KEYS)
    @classmethod
    def _check_is_executable(cls, value: Any, info: ValidationInfo) -> Any:
        is_function = info.data.get("function") is not None
        if is_function and info.data.get("executable", ...) is None:
            raise PydanticCustomError(
                "key_of_executables",
                "only an executable has {key}: a function runs on ranks of this job",
                {"key": _EXECUTABLE_KEYS[info.field_name or ""], "remedy": "remove it"},
            )
        if info.field_name == "launcher" and not value[0]:
            raise ValueError("the program's name is empty")
        return value

    @field_validator("outputs")
    @classmethod
    def _check_outputs(cls, outputs: tuple[str, ...]) -> tuple[str, ...]:
        for text in outputs:
            if glob.has_magic(text):
                raise ValueError(f"an output is named, not searched for; got {text!r}")
        return outputs

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
    def _check_something_to_grow(self) -> Module:
        if self.retry_memory is not None and (self.memory is None or not self.retries):
            what = "memory" if self.memory is None else "retries"
            raise PydanticCustomError(
                "nothing_grows",
                "retry_memory has no effect without {what}",
                {"what": what, "remedy": f"add {what}, or remove retry_memory"},
            )
        return self

    @model_validator(mode="after")
    def _check_no_files_of_tasks(self) -> Module:
        if self.tasks is not None and (self.inputs or self.outputs):
            raise PydanticCustomError(
                "files_of_tasks",
                "a module with tasks has neither inputs nor outputs: its copies share the tasks, "
                "so that no file is one copy's",
                {"remedy": "use copies in place of tasks, or remove inputs and outputs"},
            )
        return self

    @model_validator(mode="after")
    def _check_something_to_run(self) -> Module:
        if self.function is None and self.executable is None:
            raise nothing_to_run("module")
        return self

    @property
    def memory_bytes(self) -> int | None:
        """What the program may have in memory, in bytes; None without a limit."""
        return None if self.memory is None else size_bytes(self.memory)

    @property
    def time_limit_s(self) -> float | None:
        """How long one run of a copy may take, in seconds; None without a limit."""
        return None if self.time_limit is None else duration_s(self.time_limit)
