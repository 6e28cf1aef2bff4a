"""Commands of diel that the page starts, and their messages in words of the page."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import stat
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from diel.errors import PageError
from diel.processes import diel_command
from diel.run.files import open_regular

_T = TypeVar("_T")
# What messages of commands recommend, and what is to be done on the page; the first row that fits.
_ON_THE_PAGE: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"(or say|say)\s+diel run --allow-run-as-root \.\.\.\s+or\s+",
         'start it with the button "Start as root", or start diel gui again, and '),
        (r"start it with at least -n (\d+)", r'write \1 or more into "MPI ranks"'),
        (r"say how many ranks \(--ranks N\), or how many nodes and how many ranks on each "
         r"\(--nodes N --per-node M\)",
         'fill in "MPI ranks", or "nodes" and "ranks per node"'),
        (r"start it with --ranks (\S+)", r'write \1 into "MPI ranks"'),
        (r"diel run --resume \S+ does it", "the button Resume on the page of the run does it"),
        (r"where diel run --resume goes on", "where Resume goes on"),
        (r"diel run --resume(?: \S+)?", "the button Resume on the page of the run"),
        (r"with --scheduler [\w, ]+", 'in "batch scheduler"'),
        (r"\(?--ranks N\)?", 'in "MPI ranks"'),
        (r"\(?--per-node M\)?", 'in "ranks per node"'),
        (r"\(?--nodes N\)?", 'in "nodes"'),
        (r"say --time", 'fill in "time limit"'),
        (r", with --output job\.sh", ": press Download, and submit it yourself"),
        (r"with --gpus-per-node G", "in the job that diel gui runs in"),
        (r"; runs are in the folder that diel run was given by --runs, or else in runs", ""),
    )
)  # fmt: skip
_LAST_BYTES: Final = 4000
_waits: Final = ThreadPoolExecutor(8, thread_name_prefix="diel-waits")
_started: list[subprocess.Popen[bytes]] = []
"""Processes that may still go on; those that have ended are removed at the next start."""


def in_words_of_the_page(message: str) -> str:
    """Return a message of a command with what to press or fill in, where it recommends a flag.

    A flag that the page has no field for stays, as one of the command line.
    """
    for pattern, words in _ON_THE_PAGE:
        message = pattern.sub(words, message)
    if re.search(r"(?<![\w-])--[a-z]", message):
        message += " (what begins with -- is for the command line: the page has no field for it)"
    return message


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


def last_words(log: Path) -> str:
    """Return the end of what a command has written to its file; empty without any."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a command that was started here; None while it goes on."""
    for process in _started:
        if process.pid == pid:
            return process.poll()
    return None
