"""Start commands of diel that go on when the server of the page ends, and wait for processes."""

from __future__ import annotations

import asyncio
import functools
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from diel.errors import PageError
from diel.processes import diel_command

_T = TypeVar("_T")
_waits: Final = ThreadPoolExecutor(8, thread_name_prefix="diel-waits")
_started: list[subprocess.Popen[bytes]] = []
"""Processes that may still go on; those that have ended are removed at the next start."""


async def wait_for(function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Call a function that waits for another process, maybe for seconds; return its result.

    It runs in threads that are used for this only, so that pages, which read files in other
    threads, are shown meanwhile.
    """
    work = functools.partial(function, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_waits, work)


def start_command(arguments: Sequence[str], folder: Path, output: Path | None = None) -> int:
    """Start ``diel ARGUMENTS`` in a session of its own; return its process id.

    Nothing is given to a shell. The process is not waited for: the run directory tells how it goes.

    Parameters
    ----------
    arguments : sequence of str
        ``["run", "file.toml"]``.
    folder : Path
        The current folder of the command.
    output : Path, optional
        The file to which the command's output is appended.

    Raises
    ------
    PageError
        If the command cannot be started, or the file for its output is a link or no regular file.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    command = diel_command(arguments)
    try:
        with _open_output(output) as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise PageError(
            f"diel {' '.join(arguments)} cannot be started: {error.strerror or error}"
        ) from error
    _started.append(process)
    return process.pid


def _open_output(path: Path | None) -> BinaryIO:
    """Open a regular file to append to it; no link, and no pipe, which would block."""
    if path is None:
        return open(os.devnull, "ab")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "ab")


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a command that was started here; None while it goes on."""
    for process in _started:
        if process.pid == pid:
            return process.poll()
    return None
