"""Find the C function of a library module: ``./solver.so:run``, without loading the library."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Final

from diel.text import did_you_mean, near_file_name
from diel.workflow.elf import (
    MACHINES,
    NotElf,
    SharedObject,
    content_of,
    machine_here,
    read_shared_object,
)
from diel.workflow.functions import FunctionLocation, FunctionNotFound

ABI: Final = 1
"""The version of `struct diel` in ``diel.h``: raised with each change that is no addition."""
HEADER: Final = "diel_header_"
"""A constant of 4 int32 that the header exports: the ABI, and the sizes in bytes of its structs."""
MPI_NAME: Final = "diel_mpi_"
"""A constant text that it exports where mpi.h was included before: the MPI it was compiled with."""
NAME_PREFIX: Final = "diel_library."

LIBRARY: Final = re.compile(r"\.so(\.\d+)*:")
"""Is in the place of a function of a library, and of no other."""

_FORM: Final = 'write "./solver.so:run": a shared object beside this file, and its function'
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_COMPILE: Final = "compile it with cc -shared -fPIC $(diel config --cflags)"


def locate_library(spec: str, folder: Path) -> FunctionLocation:
    """Find the function of a shared object that a workflow file names.

    Parameters
    ----------
    spec : str
        ``./solver.so:run``.
    folder : Path
        The folder of the workflow file.

    Raises
    ------
    FunctionNotFound
        If there is no such file or function, or this machine cannot load it.
    """
    where, _, function = spec.rpartition(":")
    if not where or not _NAME.fullmatch(function) or "\0" in spec:
        raise FunctionNotFound(f'"{spec}" does not name a function of a shared object', _FORM)
    file = Path(os.path.normpath(Path(folder).absolute() / where))
    if not os.path.isfile(file):
        raise FunctionNotFound(f"there is no file {file}", _near(file))
    check_library(file, function)
    return FunctionLocation(
        spec=spec,
        function=function,
        file=file,
        module_name=f"{NAME_PREFIX}{file}",
        root=None,
        classes=frozenset(),
        is_library=True,
        mpi=mpi_of(file),
    )


def check_library(file: Path, function: str) -> SharedObject:
    """Check what can be told without loading; a FunctionNotFound if a rank could not call it."""
    try:
        found = read_shared_object(file)
    except NotElf:
        raise FunctionNotFound(f"{file} is not a shared object", _COMPILE) from None
    except (OSError, ValueError) as error:
        raise FunctionNotFound(f"cannot read {file}: {error}") from None
    here = machine_here()
    if here is not None and found.machine != here:
        of, ours = (MACHINES.get(each, f"machine type {each}") for each in (found.machine, here))
        raise FunctionNotFound(f"{file} is for {of}, and this machine is {ours}", "build it here")
    if not found.is_shared:
        raise FunctionNotFound(f"{file} is not a shared object", _COMPILE)
    symbol = found.symbols.get(function)
    if symbol is None or not symbol.is_function:
        what = "is no function" if symbol else "is not defined or not exported"
        raise FunctionNotFound(f"{function} {what} in {file}", _listing(function, found))
    _check_header(file, found)
    return found


def mpi_of(file: Path) -> str:
    """Return the MPI that a library was compiled with, such as "Open MPI 5.0"; empty if none."""
    symbol = read_shared_object(file).symbols.get(MPI_NAME)
    text = content_of(file, symbol) if symbol else b""
    return text.partition(b"\0")[0].decode(errors="replace")


def _check_header(file: Path, found: SharedObject) -> None:
    symbol = found.symbols.get(HEADER)
    if symbol is None or symbol.size_bytes < 16:
        raise FunctionNotFound(
            f"{file} was not compiled with diel.h: it has no {HEADER}",
            "include diel.h where the function is defined, and export that symbol",
        )
    (abi,) = struct.unpack_from("=i", content_of(file, symbol))
    if abi != ABI:
        raise FunctionNotFound(
            f"{file} was compiled with version {abi} of diel.h, and this diel has version {ABI}",
            "compile it again, with the diel.h of this diel: diel config --cflags",
        )


def _near(file: Path) -> str:
    if not os.path.isdir(file.parent):
        return f"there is no folder {file.parent} either"
    near = near_file_name(file.name, sorted(path.name for path in file.parent.glob("*.so")))
    return f'did you mean "{near}"?' if near else "build it first: paths are relative to the file's"


def _listing(function: str, found: SharedObject) -> str:
    own = [
        name
        for name, symbol in found.symbols.items()
        if symbol.is_function and not name.startswith("_") and not name.startswith("diel_")
    ]
    mangled = [name for name in found.symbols if re.match(rf"_Z\d+{function}(?![a-z])", name)]
    if mangled:
        return f'it has the C++ name {mangled[0]}: write extern "C" before the function'
    near = did_you_mean(function, own)
    if near:
        return f'did you mean "{near}"?'
    return f"it exports {', '.join(own[:6])}" if own else "define it without static"
