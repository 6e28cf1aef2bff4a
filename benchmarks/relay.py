"""Between the referee of a benchmark and a contender that consists of ranks, or is a run of diel.

::

    referee ── stdin ──> relay ── socket ──> a rank, or each of them
            <─ stdout ──       <────────────

mpiexec gives no rank the end of its standard input reliably, and ``diel run`` gives its ranks none.
Ranks that wait for their next task sleep on their socket, whatever started them.
"""

from __future__ import annotations

import contextlib
import json
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


def relay(command: Callable[[Path], Sequence[str | Path]], ranks: int = 1) -> None:
    """Start a contender, and pass on the referee's tasks and its answers.

    Parameters
    ----------
    command : callable
        Receives a folder that lives as long as the contender, in which its ranks find `SOCKET`.
    ranks : int
        How many of them answer. The answer of one is passed on as it is, those of several as
        ``{"ranks": [...]}``, in the order in which they have connected.

    Raises
    ------
    RuntimeError
        If it ends before the tasks do; with what it wrote.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / SOCKET))
        listener.listen(ranks)
        log = folder / "log"
        process = subprocess.Popen(
            command(folder),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=stack.enter_context(log.open("w")),
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        lines = []
        for _ in range(ranks):
            rank = stack.enter_context(_accept(listener, process, log))
            lines.append(stack.enter_context(rank.makefile("rw")))
        for task in sys.stdin:
            for line in lines:
                line.write(task)
                line.flush()
            answers = [line.readline() for line in lines]
            if not all(answers):
                process.wait()
                raise RuntimeError(log.read_text())
            together = {"ranks": [json.loads(answer) for answer in answers]}
            print(json.dumps(together) if ranks > 1 else answers[0].rstrip("\n"), flush=True)


def answer(path: str, work: Callable[..., dict[str, Any]]) -> None:
    """Be a rank at the other end: answer each task until there are no more."""
    with socket.socket(socket.AF_UNIX) as relay_socket:
        relay_socket.connect(path)
        with relay_socket.makefile("r") as tasks, relay_socket.makefile("w") as answers:
            harness.serve(work, tasks, answers)


def environment() -> dict[str, str]:
    """Return the environment in which diel and the files beside this one can be imported."""
    paths = [str(harness.REPOSITORY), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _accept(listener: socket.socket, process: subprocess.Popen[bytes], log: Path) -> socket.socket:
    """Wait for a rank to connect, as long as its process lives."""
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
