"""Between the referee and a contender of `tuple_space.py` that mpiexec starts.

::

    referee ── stdin ──> relay ── socket ──> one of the ranks
            <─ stdout ──       <────────────

mpiexec gives no rank the end of its standard input reliably, and ``diel run`` gives its ranks none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness

SOCKET = "socket"


def relay(command: Callable[[Path], Sequence[str | Path]]) -> None:
    """Start a contender, and pass on the referee's tasks and its answers.

    Parameters
    ----------
    command : callable
        Receives a folder that lives as long as the contender, in which its rank finds `SOCKET`.

    Raises
    ------
    RuntimeError
        If it ends before the tasks do; with what it wrote.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / SOCKET))
        listener.listen()
        log = folder / "log"
        process = subprocess.Popen(
            command(folder),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=stack.enter_context(log.open("w")),
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        rank = stack.enter_context(_accept(listener, process, log))
        lines = stack.enter_context(rank.makefile("rw"))
        for task in sys.stdin:
            lines.write(task)
            lines.flush()
            answer = lines.readline()
            if not answer:
                process.wait()
                raise RuntimeError(log.read_text())
            print(answer, end="", flush=True)


def answer(path: str, work: Callable[..., dict[str, Any]]) -> None:
    """Be the rank at the other end: answer each task until there are no more."""
    with socket.socket(socket.AF_UNIX) as relay_socket:
        relay_socket.connect(path)
        with relay_socket.makefile("r") as tasks, relay_socket.makefile("w") as answers:
            harness.serve(work, tasks, answers)


def environment() -> dict[str, str]:
    """Return the environment in which diel and the files beside this one can be imported."""
    paths = [str(harness.REPOSITORY), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _accept(listener: socket.socket, process: subprocess.Popen[bytes], log: Path) -> socket.socket:
    """Wait for the rank to connect, as long as its process lives."""
    listener.settimeout(0.2)
    while True:
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            if process.poll() is not None:
                raise RuntimeError(log.read_text()) from None
        else:
            connection.settimeout(None)
            return connection
