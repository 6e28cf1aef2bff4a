"""Processes that diel starts: helpers that run beside it, and tools whose output it reads."""

from __future__ import annotations

import ctypes
import os
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
    """Return the command line that runs code of diel by this Python interpreter."""
    return [sys.executable, "-c", _PATH + code]


def diel_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs ``diel ARGUMENTS`` by this Python interpreter."""
    return [*python_command(_MAIN), *arguments]


def start_helper(
    command: Sequence[str],
    descriptor: int,
    *,
    environment: Mapping[str, str],
    stdout: Output = subprocess.DEVNULL,
    stderr: Output = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a helper process in a session of its own, which signals to our process group miss.

    Parameters
    ----------
    command : sequence of str
    descriptor : int
        Of the socket or pipe by which the helper is controlled; it has the same number there.
    environment : mapping of str to str
    stdout, stderr : optional
        As for ``subprocess.Popen``; by default its output is thrown away.

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
    """Return the name of a signal, such as SIGTERM; ``signal N`` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent process ends, for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_tool(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a tool, and return its output and exit status.

    An OSError if it cannot be started, or does not end in time (TimeoutError).
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


def memory_bytes() -> int:
    """Return how much memory this process may use: of the machine, or of its control group."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _lines_of("/proc/self/cgroup"):
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        root = os.path.normpath(f"/sys/fs/cgroup/{mount}")
        folders = [root]  # in a container, the group itself
        folder = os.path.normpath(f"{root}/{group}")
        while folder.startswith(f"{root}/"):
            folders.append(folder)
            folder = os.path.dirname(folder)
        for folder in folders:
            sizes += [int(text) for text in _lines_of(f"{folder}/{name}") if text.isdigit()]
    return min(size for size in sizes if size > 0)


def _lines_of(file: str) -> list[str]:
    try:
        with open(file) as stream:
            return stream.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
