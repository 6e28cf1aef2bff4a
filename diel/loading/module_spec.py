"""The entry of a module in the workflow file, as plain values that are sent to ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.frozen import Frozen
from diel.run.directory import ELEMENTS

if TYPE_CHECKING:
    from diel.workflow.elements import Element, Expansion
    from diel.workflow.functions import FunctionLocation
    from diel.workflow.model import Module

_NOTHING: Final[Mapping[str, str]] = {}


class ExecutableSpec(Frozen):
    """The program of a module; placeholders may stand in all texts."""

    words: tuple[str, ...]  # the program and its arguments
    launcher: tuple[str, ...] = ()  # words put before these
    directory: str = ""  # relative to the workflow file's folder
    environment: Mapping[str, str] = _NOTHING
    stdin: str = ""  # a file, relative to that folder too; empty for nothing to read
    tasks: int | None = None
    max_failures: int | None = None  # of its tasks; None where the first fails its copy
    retries: int = 0
    memory_bytes: int | None = None  # of the program and all that it starts, in the first attempt
    more_memory: float = 1.0  # by how much each further attempt has
    signal: str = "TERM"  # when its time is nearly over, without "SIG"


class ModuleSpec(Frozen):
    """A module's entry in the workflow file."""

    name: str
    function: FunctionLocation | None
    executable: ExecutableSpec | None
    threads: int  # of BLAS and OpenMP, for each rank
    options: dict[str, Any]
    gpus: float = 0  # of each rank; a whole number or 1/n
    signal_before_s: float | None = None  # before the end of its time limit
    pin: str = "none"  # or "cores", "numa": what each rank is bound to
    inputs: tuple[str, ...] = ()  # files and folders; placeholders may stand in them
    outputs: tuple[str, ...] = ()
    own_name: str = ""  # what its code, and that of its group, call it
    element: Element | None = None  # of a group with ``foreach``

    @classmethod
    def of(
        cls, module: Module, location: FunctionLocation | None, expansion: Expansion
    ) -> ModuleSpec:
        """Return the spec of a module of a workflow."""
        return cls(
            name=module.name,
            function=location,
            executable=_executable(module),
            threads=module.threads,
            options=dict(module.options),
            gpus=module.gpus,
            signal_before_s=module.signal_before_s,
            pin=module.pin,
            inputs=module.inputs,
            outputs=module.outputs,
            own_name=expansion.own_name(module.name),
            element=expansion.elements.get(("module", module.name)),
        )

    def places(
        self,
        *,
        copy: int,
        copies: int,
        processes: int,
        group: str,
        iteration: Sequence[int],
        run_dir: Path,
        folder: Path,
    ) -> dict[str, object]:
        """Return the values of all placeholders for a copy, with the first task."""
        return {
            "copy": copy,
            "copies": copies,
            "task": 0,
            "tasks": (self.executable and self.executable.tasks) or 1,
            "iteration": ".".join(map(str, iteration)),
            "run_dir": run_dir,
            "folder": folder,
            "processes": processes,
            "threads": self.threads,
            "module": self.name,
            "group": group,
            "element": "" if self.element is None else self.element.name,
            "element_dir": folder_of_element(run_dir, self.element),
        }

    def is_of(self, element: str) -> bool:
        """Whether it is a module of an element."""
        return self.element is not None and self.element.name == element

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the Python files that the entry names: of its function, and of its options."""
        if self.function and self.function.file and not self.function.is_library:
            yield self.function.file
        for text in _texts(self.options):
            file, _, function = text.rpartition(":")
            if file.endswith(".py") and function.isidentifier() and "\0" not in file:
                yield folder / file


def folder_of_element(run_dir: Path, element: Element | None) -> Path:
    """Return the folder of an element in a run directory; that itself for None."""
    return run_dir if element is None else run_dir / ELEMENTS / element.name


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _executable(module: Module) -> ExecutableSpec | None:
    if module.executable is None:
        return None
    return ExecutableSpec(
        words=module.executable,
        launcher=module.launcher,
        directory=module.directory,
        environment={name: str(value) for name, value in module.environment.items()},
        stdin=module.stdin,
        tasks=module.tasks,
        max_failures=module.failures_allowed,
        retries=module.retries,
        memory_bytes=module.memory_bytes,
        more_memory=module.retry_memory or 1.0,
        signal=module.signal,
    )
