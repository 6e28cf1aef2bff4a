"""Commands of diel that the page starts: they go on when its server ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from diel.errors import PageError
from diel.processes import diel_command

_started: list[subprocess.Popen[bytes]] = []
"""Those that may still go on: whoever has ended is forgotten at the next start."""


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
        If it cannot be started.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    command = diel_command(arguments)
    try:
        with open(output or os.devnull, "ab") as log:
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


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a command that was started here; None while it goes on."""
    for process in _started:
        if process.pid == pid:
            return process.poll()
    return None
