"""Executable modules: run any program, keep its output, honour its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from diel.comm.waiting import wait_for
from diel.errors import ModuleFailed

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


def child_environment(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the environment for a program: this one without the launcher's variables.

    Parameters
    ----------
    facts : mapping
        Added as text.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_LAUNCHER_PREFIXES)
    }
    return inherited | {name: str(value) for name, value in facts.items()}


def run_executable(
    command: Sequence[str],
    *,
    folder: Path,
    facts: Mapping[str, object],
    log: Path,
    safe_point: Callable[[], None],
) -> None:
    """Run a program to its end, waiting politely.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments. A program with a slash in its name is relative to
        `folder`, any other is looked up on the PATH.
    folder : Path
        Its working directory.
    facts : mapping
        Environment variables.
    log : Path
        Receives its standard output; the same name with the suffix ``.err``, its standard error.
    safe_point : callable
        Asked while waiting; what it raises ends the wait, once the program is terminated.

    Raises
    ------
    ModuleFailed
        If it cannot be started, is killed, or exits with a status other than zero; the last
        lines of its standard error are in the message.
    RunStopped
        From `safe_point`.
    """
    program = str(folder / command[0]) if "/" in command[0] else command[0]
    errors = log.with_suffix(".err")
    with log.open("ab") as stdout, errors.open("ab") as stderr:
        earlier_bytes = stderr.tell()  # of an earlier run of the same copy
        try:
            child = subprocess.Popen(
                [program, *command[1:]],
                cwd=folder,
                env=child_environment(facts),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise ModuleFailed(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        status = wait_for(child.poll, safe_point=safe_point)
    except BaseException:
        _terminate(child)
        raise
    if status:
        tail = last_lines(errors, start_bytes=earlier_bytes)
        raise ModuleFailed(
            f"{' '.join(command)} {_describe_status(status)}"
            + (f"\nlast lines of its standard error:\n{tail}" if tail else "")
        )


def last_lines(file: Path, count: int = _STDERR_LINES, start_bytes: int = 0) -> str:
    """Return the last lines, after a number of bytes, of a text file that may hold anything."""
    with file.open("rb") as stream:
        stream.seek(max(start_bytes, file.stat().st_size - 64 * 1024))
        lines = stream.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-count:])


def _describe_status(status: int) -> str:
    if status > 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _terminate(child: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started in its session."""
    _signal_session(child, signal.SIGTERM)
    wait_for(lambda: _session_ended(child) or None, _TERMINATION_GRACE_S)
    _signal_session(child, signal.SIGKILL)  # to what is left of it
    child.wait()


def _session_ended(child: subprocess.Popen[bytes]) -> bool:
    # Nobody may reap the orphans of a program in a container: they count as long as they exist.
    return child.poll() is not None and not _signal_session(child, 0)


def _signal_session(child: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal; say whether there was a process left to receive it."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return False
    return True
