"""Processes that diel starts: helpers beside this one, and tools that answer a question."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

_PR_SET_PDEATHSIG: Final = 1
Output: TypeAlias = "int | IO[Any] | None"


# Not ``python -m diel``: that would let a file in the current folder hide a module of ours.
_PATH: Final = "import sys; sys.path = [place for place in sys.path if place]; "
_MAIN: Final = "from diel.__main__ import main; main()"


def python_command(code: str) -> list[str]:
    """Return the command line that runs code of ours by this Python."""
    return [sys.executable, "-c", _PATH + code]


def diel_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of ``diel ARGUMENTS``, by this Python."""
    return [*python_command(_MAIN), *arguments]


def start_helper(
    command: Sequence[str],
    descriptor: int,
    *,
    environment: Mapping[str, str],
    stdout: Output = subprocess.DEVNULL,
    stderr: Output = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process that serves this one, in a session of its own: signals to this one miss it.

    Parameters
    ----------
    command : sequence of str
    descriptor : int
        Of the socket or pipe through which it is told what to do: it has the same number there.
    environment : mapping of str to str
    stdout, stderr : optional
        As for ``subprocess.Popen``; by default what it prints is thrown away.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=[descriptor],
        env=environment,
        start_new_session=True,
    )


def signal_name(number: int) -> str:
    """Return what a signal is called; its number, if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_parent() -> None:
    """Have this process killed when the one that has started it ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def answer_of(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Return what a tool prints and its exit status.

    Raises
    ------
    OSError
        If it cannot be started, or does not end in time (TimeoutError).
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"it does not answer within {timeout_s:g} s") from error
