"""Executable modules: run any program, keep its output, honour its exit status."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from diel.comm.waiting import wait_for
from diel.errors import ModuleFailed
from diel.loading.spec import ExecutableSpec
from diel.programs.supervised import Ending, Supervised
from diel.workflow.placeholders import fill
from diel.workflow.programs import search_path

# With these of its parent rank in its environment, an MPI program hangs or aborts.
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
_KEPT: Final = frozenset(
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}"
    for prefix in ("OMPI", "PRTE")
    for suffix in ("", "_CONFIRM")
)
_TERMINATION_GRACE_S: Final = 2.0
_STDERR_LINES: Final = 20


@dataclass(frozen=True)
class Command:
    """A program that is ready to be started: nothing is left to be filled in.

    Attributes
    ----------
    words : tuple of str
        The whole line, a launcher in front included.
    directory : Path
        The working directory.
    added : mapping of str to str
        What the program finds in its environment beside what it inherits.
    stdin : Path or None
        The file that it reads as standard input, if any.
    """

    words: tuple[str, ...]
    directory: Path
    added: Mapping[str, str]
    stdin: Path | None = None

    def __str__(self) -> str:
        return " ".join(self.words)


def command_of(
    spec: ExecutableSpec, places: Mapping[str, object], facts: Mapping[str, object]
) -> Command:
    """Return the command of one copy of a module.

    Parameters
    ----------
    spec : ExecutableSpec
    places : mapping
        A value for each placeholder.
    facts : mapping
        Variables of the run itself; those in the spec come on top.
    """
    folder = Path(str(places["folder"]))

    def filled(text: str) -> str:
        return fill(text, places)

    def program(text: str) -> str:
        name = filled(text)
        return str(folder / name) if "/" in name else name

    line = [words for words in (spec.launcher, spec.words) if words]
    added = {name: str(value) for name, value in facts.items()}
    added |= {name: filled(value) for name, value in spec.environment.items()}
    return Command(
        words=tuple(word for first, *rest in line for word in (program(first), *map(filled, rest))),
        directory=folder / filled(spec.directory),
        added=added,
        stdin=folder / filled(spec.stdin) if spec.stdin else None,
    )


def child_environment() -> dict[str, str]:
    """Return the environment that a program inherits: this one without the launcher's variables.

    Its PATH ends with the folder of the command ``diel``.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_LAUNCHER_PREFIXES)
    }
    return inherited | {"PATH": search_path(inherited)}


def run_executable(
    command: Command,
    *,
    run_dir: Path,
    log: Path,
    safe_point: Callable[[], None],
    meanwhile: Callable[[], None] = lambda: None,
    tuple_socket: str = "",
) -> Ending:
    """Run a program to its end, waiting politely; must be called by the main thread.

    When this returns or raises, neither the program nor anything that it started is left.

    Parameters
    ----------
    command : Command
    run_dir : Path
        Where its working directory is made if it is not there.
    log : Path
        Receives its standard output; the same name with the suffix ``.err``, its standard error.
        Both are appended to.
    safe_point : callable
        Asked while waiting; what it raises ends the wait, once the program is terminated.
    meanwhile : callable, optional
        Called all the time while waiting: it does not block.
    tuple_socket : str, optional
        A socket that is removed at the end, also if this process dies before.

    Returns
    -------
    Ending
        A success.

    Raises
    ------
    ModuleFailed
        If it cannot be started, is killed, or exits with a status other than zero; the last
        lines of its standard error are in the message.
    RunStopped
        From `safe_point`.
    """
    _provide_directory(command, run_dir)
    errors = log.with_suffix(".err")
    with contextlib.ExitStack() as stack:
        stdout = stack.enter_context(log.open("ab"))
        stderr = stack.enter_context(errors.open("ab"))
        earlier_bytes = stderr.tell()  # of an earlier run of the same copy
        try:
            program = Supervised(
                command.words,
                directory=command.directory,
                environment=child_environment(),
                added=command.added,
                stdin=_open_stdin(command, stack),
                stdout=stdout,
                stderr=stderr,
                grace_s=_TERMINATION_GRACE_S,
                tuple_socket=tuple_socket,
            )
        except OSError as error:
            raise ModuleFailed(f"{command.words[0]} cannot be started: {error.strerror}") from error

    def poll() -> Ending | None:
        meanwhile()
        return program.poll()

    try:
        ending = wait_for(poll, safe_point=safe_point)
        assert ending is not None  # without a timeout there is always one
    except BaseException:
        program.end()
        raise
    if not ending.is_success:
        who = command if ending.errno is None else command.words[0]
        tail = last_lines(errors, start_bytes=earlier_bytes)
        raise ModuleFailed(
            f"{who} {ending}" + (f"\nlast lines of its standard error:\n{tail}" if tail else "")
        )
    return ending


def last_lines(file: Path, count: int = _STDERR_LINES, start_bytes: int = 0) -> str:
    """Return the last lines, after a number of bytes, of a text file that may hold anything."""
    with file.open("rb") as stream:
        stream.seek(max(start_bytes, file.stat().st_size - 64 * 1024))
        lines = stream.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-count:])


def _provide_directory(command: Command, run_dir: Path) -> None:
    directory = command.directory
    # Without following "..": what leaves the run directory on the way is not inside it.
    is_inside = Path(os.path.normpath(directory)).is_relative_to(os.path.normpath(run_dir))
    try:
        if is_inside:
            directory.mkdir(parents=True, exist_ok=True)
        elif not directory.is_dir():
            words = "is not a folder" if directory.exists() else "does not exist"
            raise ModuleFailed(
                f"the working directory {directory} {words}; one below {{run_dir}} is made by diel"
            )
    except OSError as error:
        raise ModuleFailed(
            f"the working directory {directory} cannot be used: {error.strerror}"
        ) from error


def _open_stdin(command: Command, stack: contextlib.ExitStack) -> IO[bytes] | int:
    if command.stdin is None:
        return subprocess.DEVNULL
    try:
        # Unlike a file, a pipe that nobody writes to would let this wait for ever.
        if not command.stdin.is_file():
            words = "is not a file" if command.stdin.exists() else "does not exist"
            raise ModuleFailed(f"the standard input {command.stdin} {words}")
        return stack.enter_context(command.stdin.open("rb"))
    except OSError as error:
        raise ModuleFailed(
            f"the standard input {command.stdin} cannot be read: {error.strerror}"
        ) from error
