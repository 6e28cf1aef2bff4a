"""The entry of a module in the workflow file, as plain values that are sent to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from diel.frozen import Frozen

if TYPE_CHECKING:
    from diel.workflow.functions import FunctionLocation
    from diel.workflow.model import Module

_NOTHING: Final[Mapping[str, str]] = {}


class ExecutableSpec(Frozen):
    """The program of a module; placeholders may stand in all texts.

    Attributes
    ----------
    words, launcher : tuple of str
        The program and its arguments; what is put before them, if anything.
    directory, stdin : str
        Relative to the workflow file's folder; empty for the folder itself, and for nothing to
        read.
    environment : mapping of str to str
    """

    words: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    directory: str = ""
    environment: Mapping[str, str] = _NOTHING
    stdin: str = ""
    tasks: int | None = None


class ModuleSpec(Frozen):
    """A module's entry in the workflow file.

    Attributes
    ----------
    name : str
    function : FunctionLocation or None
    executable : ExecutableSpec or None
    threads : int
        BLAS/OpenMP threads for each rank.
    gpus : int
        GPUs of each rank.
    options : dict
    """

    name: str
    function: FunctionLocation | None
    executable: ExecutableSpec | None
    threads: int
    options: dict[str, Any]
    gpus: int = 0

    @classmethod
    def of(cls, module: Module, location: FunctionLocation | None) -> ModuleSpec:
        """Return the spec of a module of a workflow."""
        return cls(
            name=module.name,
            function=location,
            executable=_executable(module),
            threads=module.threads,
            options=dict(module.options),
            gpus=module.gpus,
        )


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
    )
