"""Programs that modules start: placeholders in their words, environment, whether they can start."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from diel.errors import Problem
from diel.workflow.source import near_file

PLACEHOLDERS: Final = {
    "copy": "which copy of the module this is, from 0",
    "copies": "how many copies there are",
    "task": "which of the module's tasks this is, from 0",
    "tasks": "how many tasks there are; 1 where the module has none",
    "iteration": 'which iteration of its groups, outermost first, from 0, such as "2.0"',
    "run_dir": "the run directory",
    "folder": "the workflow file's folder",
    "processes": "the module's processes: the ranks in one copy",
    "threads": "the module's threads",
    "module": "the module's name",
    "group": "its group's name",
}
"""The placeholders, and what each of them stands for."""

# An MPI program that inherits these variables from its parent rank hangs or aborts.
_LAUNCHER_PREFIXES: Final = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "OPAL_",
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
)
_SETTINGS: Final = ("OMPI_MCA_", "OPAL_")
_KEPT: Final = frozenset(
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}"
    for prefix in ("OMPI", "PRTE")
    for suffix in ("", "_CONFIRM")
)
# Double braces come first, since they stand for a literal brace.
_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ONE_BRACE: Final = {"{{": "{", "}}": "}"}


class PlaceholderProblem(ValueError):
    """A text has braces that are no placeholder; ``remedy`` says what to write."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def placeholders_in(text: str) -> list[str]:
    """Return the placeholders of a text, in their order.

    Raises
    ------
    PlaceholderProblem
        If a placeholder is not known, or a brace stands alone.
    """
    names = []
    for found in _PIECES.finditer(text):
        name = found[1]
        if found[0] in _ONE_BRACE:
            continue
        if name is None:
            raise PlaceholderProblem(
                f'"{found[0]}" opens or closes no placeholder', f"for a brace, {_TWICE}"
            )
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise PlaceholderProblem(
                f"there is no placeholder {{{name}}}", f"known: {known}; for a brace, {_TWICE}"
            )
        names.append(name)
    return names


_TWICE: Final = "write it twice: {{ or }}"


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """Replace the placeholders of a text that `placeholders_in` accepts by their values."""

    def replacement(found: re.Match[str]) -> str:
        return _ONE_BRACE[found[0]] if found[0] in _ONE_BRACE else str(values[found[1]])

    return _PIECES.sub(replacement, text)


FACTS: Final = (
    "DIEL_RUN_DIR",
    "DIEL_WORKFLOW_DIR",
    "DIEL_GROUP",
    "DIEL_MODULE",
    "DIEL_COPY",
    "DIEL_COPIES",
    "DIEL_ITERATION",
    "DIEL_TASK",
    "DIEL_TASKS",
    "DIEL_PROCESSES",
    "DIEL_THREADS",
    "DIEL_TUPLE_SOCKET",
    "DIEL_TOKEN",
)
"""The environment variables that tell a program its run, group, module, copy and task."""


def search_path(environment: Mapping[str, str]) -> str:
    """Return the search path for programs that have no slash in their names.

    That is PATH, and after it the folder of this Python, which has the command ``diel`` also when
    its virtual environment is not activated.
    """
    path = environment.get("PATH", os.defpath)
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else f"{path}{os.pathsep}{own}"


def _is_of_launcher(name: str) -> bool:
    return name.startswith(_LAUNCHER_PREFIXES) and name not in _KEPT


def child_environment() -> dict[str, str]:
    """Return the environment for a child process: this process's, without the launcher's variables.

    Its PATH ends with the folder of the command ``diel``.
    """
    inherited = {name: value for name, value in os.environ.items() if not _is_of_launcher(name)}
    return inherited | {"PATH": search_path(inherited)}


@contextlib.contextmanager
def launcher_forgotten() -> Iterator[None]:
    """Remove the launcher's variables from this process's environment, within a block.

    So an MPI program that a module starts, by whatever means, is a program of its own: with them it
    waits in its MPI_Init for the launcher of this rank, which expects no such process. MPI reads
    them at its start alone. Settings of MPI stay, since it reads some of them later.
    """
    removed = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if _is_of_launcher(name) and not name.startswith(_SETTINGS)
    }
    try:
        yield
    finally:
        os.environ.update(removed)


def check_programs(entry: Mapping[str, Any], path: str, folder: Path) -> list[Problem]:
    """Find what keeps the programs of a module from being started; its table may be invalid."""
    launcher, program = _first(entry.get("launcher")), _first(entry.get("executable"))
    environment = entry.get("environment")
    own_path = environment.get("PATH") if isinstance(environment, dict) else None
    where: str | None = search_path(os.environ)
    if own_path is not None:
        is_known = isinstance(own_path, str) and not _has_placeholders(own_path)
        where = fill_placeholders(own_path, {}) if is_known else None
    if launcher is None:
        return check_program(program, f"{path}.executable[0]", folder, where)
    problems = check_program(launcher, f"{path}.launcher[0]", folder, where)
    if program is not None and program.startswith("."):  # any other may be inside a container
        problems += check_program(program, f"{path}.executable[0]", folder, where)
    return problems


def check_program(program: str | None, path: str, folder: Path, where: str | None) -> list[Problem]:
    """Find what keeps a program, the first word of a command, from being started.

    Nothing is found for a missing or wrong word (None), which the model reports, and for a word
    with placeholders, whose values are known in a run only. ``where`` is the search path, None if
    that is not known either.
    """
    if not program or "\0" in program or _has_placeholders(program):
        return []
    program = fill_placeholders(program, {})
    if "/" not in program:
        if where is None or shutil.which(program, path=where):
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


def _first(words: object) -> str | None:
    if isinstance(words, list) and words and isinstance(words[0], str):
        return words[0]
    return None


def _has_placeholders(text: str) -> bool:
    """Whether a text has placeholders, valid or not, so that its value is not known yet."""
    try:
        return bool(placeholders_in(text))
    except PlaceholderProblem:
        return True


def _near_program(file: Path) -> str:
    hint = near_file(file)
    return hint or "a path is relative to the workflow file's folder"
