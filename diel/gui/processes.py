"""Commands of diel that the page starts: they go on when its server ends; and waiting for them."""

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
"""Those that may still go on: whoever has ended is forgotten at the next start."""


async def wait_for(does: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Return what a function returns that waits for another process, for seconds perhaps.

    It has threads of its own for that, so that pages, which read files in threads, are shown
    meanwhile.
    """
    work = functools.partial(does, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_waits, work)


def start_command(arguments: Sequence[str], folder: Path, output: Path | None = None) -> int:
    """Start ``diel ARGUMENTS`` in a session of its own; return the number of its process.

    Nothing is given to a shell. The process is not waited for: the run directory tells how it goes.

    Parameters
    ----------
    arguments : sequence of str
        ``["run", "file.toml"]``.
    folder : Path
        The current folder of the command.
    output : Path, optional
        The file to which what it prints is appended.

    Raises
    ------
    PageError
        If it cannot be started, or the file for its output is a link or no regular file.
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
    """Open a file to append to it: neither through a link, nor a pipe, which would wait."""
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
