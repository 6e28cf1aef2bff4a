"""Whether the program of an executable module can be started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from diel.errors import Problem
from diel.workflow.source import near_file


def check_program(program: str, path: str, folder: Path) -> list[Problem]:
    """Find what keeps a program from being started.

    Parameters
    ----------
    program : str
        The first word of `executable`.
    path : str
        Where in the workflow file.
    folder : Path
        The folder of the workflow file.
    """
    if not program or "\0" in program:
        return []  # the model says so
    if "/" not in program:
        if shutil.which(program):
            return []
        beside = (folder / program).is_file()
        hint = (
            f'write "./{program}" for the file beside this one'
            if beside
            else "install it, or write its path"
        )
        return [Problem(path, f'there is no program "{program}" on PATH', hint)]
    file = folder / program
    if file.is_dir():
        return [Problem(path, f"{file} is a folder, not a program")]
    if not file.is_file():
        return [Problem(path, f"there is no file {file}", _near_program(file))]
    if not os.access(file, os.X_OK):
        return [Problem(path, f"{file} is not executable", f"chmod +x {file}")]
    return []


def _near_program(file: Path) -> str:
    hint = near_file(file)
    return hint or "a path is relative to the workflow file's folder"
