"""What a rank has to know of a module to run it: plain values that travel in an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diel.workflow.functions import FunctionLocation
    from diel.workflow.model import Module


@dataclass(frozen=True)
class ModuleSpec:
    """A module's entry in the workflow file.

    Attributes
    ----------
    name : str
    function : FunctionLocation or None
    executable : tuple of str or None
    threads : int
        BLAS/OpenMP threads for each rank.
    gpus : int
        GPUs of each rank.
    options : dict
    """

    name: str
    function: FunctionLocation | None
    executable: tuple[str, ...] | None
    threads: int
    options: dict[str, Any]
    gpus: int = 0

    @classmethod
    def of(cls, module: Module, location: FunctionLocation | None) -> ModuleSpec:
        """Return the spec of a module of a workflow."""
        return cls(
            name=module.name,
            function=location,
            executable=module.executable,
            threads=module.threads,
            options=dict(module.options),
            gpus=module.gpus,
        )
