"""Load the shared object of a library module, and call its function in this rank."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from diel.compiled.crashes import CrashHandlers
from diel.compiled.table import CopyCalls
from diel.errors import ModuleFailed
from diel.workflow.functions import FunctionLocation
from diel.workflow.libraries import check_library, mpi_of

if TYPE_CHECKING:
    from diel.loading.context import Context


def load_library(location: FunctionLocation, crash_note: int) -> ModuleType:
    """Load a shared object, and return code whose attribute of the function's name calls it.

    Parameters
    ----------
    location : FunctionLocation
    crash_note : int
        The open file for the stack of a crash; -1 without one.

    Raises
    ------
    ModuleFailed
        If it cannot be loaded here, or was compiled with another MPI than that of this process.
    FunctionNotFound
        If it has changed since the run has started, so that it cannot be called.
    """
    assert location.file is not None
    check_library(location.file, location.function)
    _check_mpi(location.file)
    try:
        library = ctypes.CDLL(str(location.file), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise ModuleFailed(
            f"{location.spec} cannot be loaded: {error} (ldd {location.file} shows what is missing)"
        ) from None
    code = sys.modules.get(location.module_name) or ModuleType(location.module_name)
    sys.modules[location.module_name] = code
    setattr(code, location.function, _caller(library, location, crash_note))
    return code


def _caller(
    library: ctypes.CDLL, location: FunctionLocation, crash_note: int
) -> Callable[[Context], Any]:
    function = library[location.function]
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    handlers = CrashHandlers(library, crash_note)

    def call(context: Context) -> Any:
        rank, ranks = context.rank_of_copy
        with CopyCalls(context, rank, ranks) as calls:
            with handlers.watching():
                status = function(calls.address)
            if calls.error is not None:
                raise calls.error
            if status:
                words = calls.struct.error.decode(errors="replace")
                after = f"; the last call that was not done: {words}" if words else ""
                raise ModuleFailed(f"{location.spec} returned {status}{after}")
        return calls.results or None

    return call


def _check_mpi(file: Path) -> None:
    """Refuse a library that was compiled with another MPI than that of this process."""
    compiled_with, has = mpi_of(file), ""
    if "mpi4py.MPI" in sys.modules:
        from diel.comm.mpi import library_name

        has = library_name()
    if not compiled_with or not has:
        return
    name, _, version = compiled_with.rpartition(" ")
    major = version.partition(".")[0]
    if not re.search(rf"{re.escape(name)}\D*{major}\.", has, re.IGNORECASE):
        raise ModuleFailed(
            f"{file} was compiled with {compiled_with}, and this process runs {has}: two MPI "
            "libraries in one process do not work; compile it with the mpicc of this MPI "
            "(diel config --cflags --mpi)"
        )
