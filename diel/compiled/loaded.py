"""The code of a module of either kind: imported from Python, or loaded from a shared object."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from diel.loading.functions import import_code

if TYPE_CHECKING:
    from diel.workflow.functions import FunctionLocation


def load_code(location: FunctionLocation, folder: Path, crash_note: int = -1) -> ModuleType:
    """Import or load the code that defines a function; exceptions of its code are passed on.

    `crash_note` is the open file for the C stack of a crash, see `diel.compiled.crashes`.
    """
    if not location.is_library:
        return import_code(location, folder)
    from diel.compiled.library import load_library  # here: few runs have libraries

    return load_library(location, crash_note)
