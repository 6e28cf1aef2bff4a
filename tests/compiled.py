"""Compile C, C++ and Fortran for tests of library modules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from diel.compiled.layout import HEADER_FOLDER

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g")
STRICT_CPP = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g")
STRICT_FORTRAN = (
    *("-std=f2018", "-Wall", "-Wextra", "-Werror", "-g", "-fcheck=all"),
    # Tests compare for equality, and functions in conditions that change nothing.
    *("-Wno-compare-reals", "-Wno-function-elimination"),
)


def compile_fortran(source: Path, *more: str, flags: tuple[str, ...] = STRICT_FORTRAN) -> Path:
    """Compile a file with diel.f90, and link more words; the test is skipped without gfortran."""
    if shutil.which("gfortran") is None:
        pytest.skip("there is no gfortran here to compile with")
    library = source.with_suffix(".so")
    files = [str(HEADER_FOLDER / "diel.f90"), str(source)]
    done = subprocess.run(
        ["gfortran", *flags, "-shared", "-fPIC", "-o", str(library), *files, *more],
        cwd=source.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return library


def compile_library(source: Path, *, compiler: str = "cc", flags: tuple[str, ...] = STRICT) -> Path:
    """Compile a file as a shared object beside it; the test is skipped without the compiler."""
    if shutil.which(compiler) is None or shutil.which("cc") is None:
        pytest.skip(f"there is no {compiler} here to compile with")
    library = source.with_suffix(".so")
    words = [compiler, *flags, "-shared", "-fPIC", f"-I{HEADER_FOLDER}", "-o", library, source]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return library
