"""Load the shared object of a library module, and call its function in this rank."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.crashes import CrashHandlers
from diel.compiled.table import CopyCalls
from diel.errors import ModuleFailed
from diel.workflow.functions import FunctionLocation
from diel.workflow.libraries import check_library, mpi_of

if TYPE_CHECKING:
    from diel.loading.context import Context


_MPI_NAME: Final = r"libmpi(ch)?\.so|libmpi-|libmsmpi"
_ANOTHER: Final = (
    ", and this process runs {}: two MPI libraries in one process do not work; compile it with the "
    "mpicc of this environment, or with $(diel config --cflags --libs --mpi)"
)


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
    found = check_library(location.file, location.function)
    _check_mpi(location.file, found.needed)
    try:
        library = ctypes.CDLL(str(location.file), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise ModuleFailed(
            f"{location.spec} cannot be loaded: {error} (ldd {location.file} shows what is missing)"
        ) from None
    _check_one_mpi(location.file)
    code = sys.modules.get(location.module_name) or ModuleType(location.module_name)
    sys.modules[location.module_name] = code
    setattr(code, location.function, _caller(library, location, crash_note))
    return code


def _caller(
    library: ctypes.CDLL, location: FunctionLocation, crash_note: int
) -> Callable[[Context], Any]:
    function = library[location.function]
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    end_lanes = getattr(library, "diel_end_lanes_", None)  # where mpi.h was included
    if end_lanes is not None:
        end_lanes.argtypes, end_lanes.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int], None
    handlers = CrashHandlers(library, crash_note)

    def call(context: Context) -> Any:
        rank, ranks = context.rank_of_copy
        with CopyCalls(context, rank, ranks, end_lanes) as calls:
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


def _check_mpi(file: Path, needed: Sequence[str]) -> None:
    """Refuse a library that was compiled or linked with another MPI than that of this process."""
    if "mpi4py.MPI" not in sys.modules:
        return
    from diel.comm.mpi import library_name

    here = library_name()
    name, _, version = mpi_of(file).rpartition(" ")
    major = version.partition(".")[0]
    if version and not re.search(rf"{re.escape(name)}\D*{major}\.", here, re.IGNORECASE):
        raise ModuleFailed(f"{file} was compiled with {name} {version}{_ANOTHER.format(here)}")
    ours = _mapped_mpi()
    wanted = [each for each in needed if re.match(_MPI_NAME, each)]
    if wanted and ours and not any(Path(each).name.startswith((*wanted,)) for each in ours):
        raise ModuleFailed(f"{file} is linked with {', '.join(wanted)}{_ANOTHER.format(here)}")


def _check_one_mpi(file: Path) -> None:
    """Refuse a library that has brought another MPI into this process, by another library."""
    found = _mapped_mpi()
    if len(found) > 1:
        raise ModuleFailed(
            f"{file} needs a second MPI library in this process, which has {' and '.join(found)}: "
            "compile it, and the libraries that it needs, with the MPI of this environment"
        )


def _mapped_mpi() -> list[str]:
    """Return the files of MPI libraries that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = {line[line.index("/") :] for line in lines if "/" in line}
    return sorted(each for each in files if re.match(_MPI_NAME, Path(each).name))
