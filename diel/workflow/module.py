"""The table [[module]]: a function or an executable, and how its copies run."""

from __future__ import annotations

import glob
import re
from fractions import Fraction
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

from diel.text import duration_s, format_duration, show, size_bytes
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


def _failures(number: int | str) -> int | str:
    share = _SHARE.fullmatch(number) if isinstance(number, str) else None
    if (share is None or float(share[1]) > 100) if isinstance(number, str) else number < 0:
        words = 'a number of tasks from 0, or a share of all such as "5%"'
        raise ValueError(f"{words}; got {show(number)}")
    return number


_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%", re.ASCII)
_LEAST_MEMORY_BYTES: Final = 2**20
_EXECUTABLE_KEYS: Final = {
    "launcher": "a launcher",
    "directory": "a working directory",
    "environment": "an environment",
    "stdin": "a standard input",
    "tasks": "tasks",
    "max_failures": "a limit of failed tasks",
    "memory": "a limit of memory",
    "signal": "a signal",
}
MaxFailures = Annotated[str | int, AfterValidator(_failures)]
Word = Annotated[str, AfterValidator(_word)]
File = Annotated[str, AfterValidator(_file)]
Variable = Annotated[
    str,
    StringConstraints(pattern=r"^[^=\x00]+$"),
    InWords('a name without "="'),
    AfterValidator(_variable),
]
Setting = Annotated[Word | int | float, InWords("a string or a number")]


def allowed_of(max_failures: int | str, total: int) -> int:
    """Return how many of so many may fail, from a number or a share such as ``"5%"``."""
    if isinstance(max_failures, int):
        return max_failures
    # As written: 0.29 times 100 is less than 29 in binary fractions.
    return int(Fraction(max_failures.rstrip(" %")) * total / 100)


class Module(StrictTable):
    """One thing that runs: a function or an executable, in any number of copies."""

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
    library: str | None = Field(
        default=None,
        description=(
            "The function in a shared object of C, C++ or Fortran to call in each rank: "
            '"./solver.so:run", relative to the workflow file\'s folder; it includes diel.h.'
        ),
        examples=["./solver.so:run"],
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
            "only. A task that fails fails its copy, see max_failures. A run that goes on repeats "
            "those that failed or are missing."
        ),
        examples=[1000],
        json_schema_extra={"unit": "tasks"},
    )
    max_failures: MaxFailures | None = Field(
        default=None,
        description=(
            'How many tasks may fail, as a number or as a share of all such as "5%": a task that '
            "fails is recorded, and its copy goes on with the next; with more the module has "
            "failed. Without it the first that fails fails its copy."
        ),
        examples=[10, "5%"],
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
    resources: dict[Name, Count] = Field(
        default={},
        description=(
            "What each copy takes of the resources in [workflow] while its group runs: the group "
            "waits until there is enough for all its copies."
        ),
        examples=[{"licence": 1}],
    )
    pin: Literal["none", "cores", "numa"] = Field(
        default="none",
        description=(
            'What each rank is bound to while it runs a copy: "cores", so many cores of its own as '
            'threads says; "numa", cores of one NUMA node where they fit; "none", the cores that '
            "it has been started with. A program has the cores of all ranks of its copy on its "
            "host. A second hardware thread of a core counts as a core once all cores are taken."
        ),
        examples=["cores"],
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
    signal_before: Duration | None = Field(
        default=None,
        description=(
            "How long before the end of time_limit a copy is told of it, in seconds or with a "
            "unit (ms, s, min, h, d), so that it can save its state: a program by a signal, a "
            "function by ctx.ends_soon. By default not at all."
        ),
        examples=["2 min"],
    )
    signal: Literal["TERM", "INT", "HUP", "USR1", "USR2"] = Field(
        default="TERM",
        description=(
            "The signal that the program, and what is in its process group, gets when "
            "signal_before is reached, of the module or of [workflow]; executables only."
        ),
        examples=["USR1"],
    )

    @field_validator("library")
    @classmethod
    def _check_library(cls, library: str | None, info: ValidationInfo) -> str | None:
        if library is not None and info.data.get("function") is not None:
            raise PydanticCustomError(
                "two_things_to_run",
                "a module is either a function or a library, and both are given",
                {"remedy": "keep one of the two, or make it two modules"},
            )
        return library

    @field_validator("executable")
    @classmethod
    def _check_executable(
        cls, executable: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        if executable is None:
            return None
        other = next((key for key in ("function", "library") if info.data.get(key)), None)
        if other is not None:
            raise PydanticCustomError(
                "two_things_to_run",
                f"a module is either a {other} or an executable, and both are given",
                {"remedy": "keep one of the two, or make it two modules"},
            )
        if not executable[0]:
            raise ValueError("the program's name is empty")
        return executable

    @field_validator(*_EXECUTABLE_KEYS)
    @classmethod
    def _check_is_executable(cls, value: Any, info: ValidationInfo) -> Any:
        is_function = info.data.get("function") or info.data.get("library")
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
        is_function = info.data.get("function") or info.data.get("library")
        if info.data.get("executable") is not None and not is_function:
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
    def _check_time_to_warn(self) -> Module:
        before_s, limit_s = self.signal_before_s, self.time_limit_s
        if before_s is None or (limit_s is not None and before_s < limit_s):
            return self
        if limit_s is None:
            raise PydanticCustomError(
                "nothing_ends",
                "signal_before has no effect without time_limit",
                {
                    "remedy": "add time_limit; before the end of the job around a run, "
                    "signal_before in [workflow] tells all modules"
                },
            )
        raise PydanticCustomError(
            "warned_too_early",
            "signal_before is {before}, and time_limit is {limit}: a copy would be told at once",
            {
                "before": format_duration(before_s),
                "limit": format_duration(limit_s),
                "remedy": "make signal_before shorter than time_limit",
            },
        )

    @model_validator(mode="after")
    def _check_tasks_to_fail(self) -> Module:
        if self.max_failures is not None and self.tasks is None:
            raise PydanticCustomError(
                "no_tasks_to_fail",
                "max_failures has no effect without tasks",
                {"remedy": "add tasks, or remove max_failures"},
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
        if not self.is_function and self.executable is None:
            raise nothing_to_run("module")
        return self

    @property
    def is_function(self) -> bool:
        """Whether it runs in ranks of the run: a Python function, or one of a library."""
        return self.function is not None or self.library is not None

    @property
    def failures_allowed(self) -> int | None:
        """How many tasks may fail; None where the first that fails fails its copy."""
        return None if self.max_failures is None else allowed_of(self.max_failures, self.tasks or 0)

    @property
    def memory_bytes(self) -> int | None:
        """What the program may have in memory, in bytes; None without a limit."""
        return None if self.memory is None else size_bytes(self.memory)

    @property
    def time_limit_s(self) -> float | None:
        """How long one run of a copy may take, in seconds; None without a limit."""
        return None if self.time_limit is None else duration_s(self.time_limit)

    @property
    def signal_before_s(self) -> float | None:
        """How long before the end of time_limit a copy is told, in seconds; None for never."""
        return None if self.signal_before is None else duration_s(self.signal_before)
