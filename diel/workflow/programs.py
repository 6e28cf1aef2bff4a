"""Programs that modules start: placeholders in their words, environment, whether they can start."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from diel.errors import Problem
from diel.text import show
from diel.workflow.elf import MACHINES, MAGIC
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
    "element": "the group of its element of foreach, such as cases-3",
    "element_dir": "a folder of that element in the run directory",
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

    A PlaceholderProblem if a placeholder is not known, or a brace stands alone.
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


VARIABLES: Final = {name: f"DIEL_{name.upper()}" for name in PLACEHOLDERS} | {
    "folder": "DIEL_WORKFLOW_DIR"
}
"""By placeholder, the environment variable of the same content."""

_END_TIME: Final = "DIEL_END_TIME"  # as in diel.loading.deadline, which starts without this file

FACTS: Final = (*VARIABLES.values(), _END_TIME, "DIEL_TUPLE_SOCKET", "DIEL_TOKEN")
"""The environment variables that tell a program its run, group, module, copy, task and end."""


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

    Its PATH ends with the folder of the command ``diel``. The end of a job is not in it: a copy may
    have to end earlier, and the end of an earlier job may have been kept.
    """
    inherited = {name: value for name, value in os.environ.items() if not _is_of_launcher(name)}
    inherited.pop(_END_TIME, None)
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
        if where is None:
            return []
        if (command := shutil.which(program, path=where)) is not None:
            return _as_problems(obstacle(Path(command), where), command, path)
        beside = os.path.isfile(folder / program)
        hint = (
            f'write "./{program}" for the file beside this one'
            if beside
            else "install it, or write its path"
        )
        return [Problem(path, f'there is no program "{program}" on PATH', hint)]
    file = folder / program
    if not os.path.exists(file):  # also where its name is too long for any file
        return [Problem(path, f"there is no file {file}", _near_program(file))]
    return _as_problems(obstacle(file, where), file, path)


def _as_problems(found: Obstacle | None, file: Path | str, path: str) -> list[Problem]:
    return [] if found is None else [Problem(path, f"{file} {found.message}", found.remedy)]


class Obstacle(NamedTuple):
    """Why a file that is there cannot be started as a program: words that follow its name."""

    message: str
    remedy: str = ""


def obstacle(file: Path, where: str | None = None, depth: int = 0) -> Obstacle | None:
    """Find what keeps the system from starting a file, or from finding what it names; else None.

    The system's own words are of little use: of a script whose interpreter is missing it says that
    there is no such file. ``where`` is the search path that ``env`` has, None if that is not known.
    """
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            return Obstacle("is a folder, not a program")
        if not stat.S_ISREG(mode):  # to open a pipe would wait for a writer
            return Obstacle("is no regular file")
        if not os.access(file, os.X_OK):
            if mode & 0o111:
                return Obstacle(
                    "may not be executed by this user, or where it is (a disk mounted with noexec)"
                )
            return Obstacle("is not executable", f"chmod +x {file}")
        head = _head_of(file)
    except OSError:
        return None  # a program need not be readable
    if head.startswith(b"#!"):
        if depth > _MOST_INTERPRETERS:
            return Obstacle("is one more script: Linux starts no longer chain of interpreters")
        return _obstacle_of_script(file, head, where, depth)
    if head.startswith(MAGIC):
        return _obstacle_of_binary(head)
    if head.startswith(b"\xef\xbb\xbf#!"):
        return Obstacle(
            'begins with a byte order mark, so its "#!" is not seen', "save it as UTF-8 without one"
        )
    if _takes_other_formats():
        return None
    what = "is empty" if not head else "is neither a script nor a program for this system"
    return Obstacle(what, 'the first line of a script names its interpreter, such as "#!/bin/sh"')


_HEAD_BYTES: Final = 64 * 1024
_PT_INTERP: Final = 3
_FIRST_LINE_BYTES: Final = 256  # Linux reads no more of a script
_MOST_INTERPRETERS: Final = 4  # scripts, each the interpreter of the one before
_ASSIGNMENT: Final = re.compile(r"[^=\s]+=")
_BLANKS: Final = re.compile(r"[ \t]+")
_RUNS_TOO: Final = {62: (3,), 183: (40,)}  # x86-64: 32-bit x86; AArch64: 32-bit Arm


def _head_of(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(_HEAD_BYTES)


def _obstacle_of_script(file: Path, head: bytes, where: str | None, depth: int) -> Obstacle | None:
    line, newline, _ = head[2:_FIRST_LINE_BYTES].partition(b"\n")
    if line.endswith(b"\r"):
        return Obstacle(
            "has Windows line ends (CRLF): the carriage return counts as a part of its first line, "
            f"{show('#!' + line.decode(errors='replace'))}",
            f"sed -i 's/\\r$//' {file}",
        )
    text = os.fsdecode(line.partition(b"\0")[0]).strip(" \t")
    name, *arguments = _BLANKS.split(text, maxsplit=1)
    first = "its first line"
    if not name:
        return Obstacle(f'names no interpreter behind "#!" in {first}', 'such as "#!/bin/sh"')
    if not newline and not arguments and len(head) > _FIRST_LINE_BYTES:
        return Obstacle(
            f"has an interpreter in {first} that ends beyond {_FIRST_LINE_BYTES} bytes, which is "
            "all that the system reads",
            "give it a shorter path, by a link, or use #!/usr/bin/env",
        )
    if not os.path.isabs(name):
        if "/" in name:
            return None  # relative to the folder where it will run
        return Obstacle(
            f'has the interpreter "{name}" in {first}, which is no path',
            f'write "#!/usr/bin/env {name}"',
        )
    if not os.path.exists(name):
        return Obstacle(
            f"has the interpreter {name} in {first}, and there is no such file",
            "install it, or correct the line",
        )
    interpreter = Path(name)
    found = obstacle(interpreter, where, depth + 1)
    if found is not None:
        return found._replace(
            message=f"has the interpreter {name} in {first}, which {found.message}"
        )
    if interpreter.name == "env" and where is not None:
        return _obstacle_of_env("".join(arguments), where)
    return None


def _obstacle_of_env(argument: str, where: str) -> Obstacle | None:
    """Find out whether ``env`` finds what the first line of a script tells it to."""
    words = [argument]  # the system hands on all of it as one word
    if argument.startswith(("-S", "--split-string")):
        try:
            words = shlex.split(
                argument.removeprefix("--split-string").removeprefix("-S").lstrip("= ")
            )
        except ValueError:
            return None
    while words and _ASSIGNMENT.match(words[0]) and not words[0].startswith("PATH="):
        del words[0]
    # Another option or PATH changes where env looks, or what it runs.
    is_plain = (
        words and words[0] and not words[0].startswith(("-", "PATH=")) and "$" not in words[0]
    )
    if not is_plain or "/" in words[0] or shutil.which(words[0], path=where):
        return None
    several = words[0].split()
    if len(several) > 1 and shutil.which(several[0], path=where):
        return Obstacle(
            f'has env in its first line, which gets "{argument}" as one word',
            f'write "#!/usr/bin/env -S {argument}"',
        )
    return Obstacle(
        f'has the interpreter "{several[0]}" in its first line, which is not on PATH',
        "install it, or correct the line",
    )


def _obstacle_of_binary(head: bytes) -> Obstacle | None:
    try:
        machine, loader = _machine_and_loader(head)
    except (struct.error, IndexError, ValueError, OverflowError):
        return Obstacle("is a damaged or incomplete program", "build or copy it again")
    ours = machine
    with contextlib.suppress(OSError, struct.error, IndexError, ValueError):
        python = _head_of(Path(sys.executable))
        ours = _machine_and_loader(python)[0] if python.startswith(MAGIC) else machine
    if machine not in (ours, *_RUNS_TOO.get(ours, ())) and not _takes_other_formats():
        for_, here = (MACHINES.get(each, f"machine type {each}") for each in (machine, ours))
        return Obstacle(f"is a program for {for_}, and this machine is {here}", "build it here")
    if loader and not os.path.exists(loader):
        return Obstacle(
            f"needs the dynamic loader {loader}, and there is no such file",
            "it is for another system (such as one with another C library): build it here",
        )
    return None


def _machine_and_loader(head: bytes) -> tuple[int, str]:
    """Return the machine that an ELF file is for, and its dynamic loader, empty if it has none.

    References
    ----------
    .. [1] elf(5): the ELF header, and the program header PT_INTERP.
    """
    is_64_bit, order = head[4] == 2, "<>"[head[5] - 1]
    (machine,) = struct.unpack_from(f"{order}H", head, 18)
    (table,) = struct.unpack_from(
        f"{order}{'Q' if is_64_bit else 'I'}", head, 32 if is_64_bit else 28
    )
    size, count = struct.unpack_from(f"{order}HH", head, 54 if is_64_bit else 42)
    for at in range(table, table + size * count, size or 1):
        (kind,) = struct.unpack_from(f"{order}I", head, at)
        if kind == _PT_INTERP:
            layout, place = ("Q", 8) if is_64_bit else ("I", 4)
            (offset,) = struct.unpack_from(f"{order}{layout}", head, at + place)
            name = head[offset : head.index(b"\0", offset)] if offset < len(head) else b""
            return machine, os.fsdecode(name)
    return machine, ""


def _takes_other_formats() -> bool:
    """Whether the system hands some files to other programs, such as those of other machines."""
    try:
        entries = os.listdir("/proc/sys/fs/binfmt_misc")
    except OSError:
        return False
    return bool({*entries} - {"register", "status"})


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
