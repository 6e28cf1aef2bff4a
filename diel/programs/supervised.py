"""Starting programs through a supervisor process, and waiting for their end."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diel.comm.waiting import wait_for
from diel.processes import signal_name, start_helper
from diel.programs.supervisor import become_subreaper, kill_descendants, now_ticks
from diel.text import format_bytes

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
# What the supervisor needs beyond the grace: it kills for up to 2 s.
_SUPERVISOR_EXTRA_S: Final = 3.0
# A supervisor that does not read was stopped by a signal: nothing else lets a request wait.
_SENDING_S: Final = 10.0


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes
    ----------
    status : int or None
        Its exit status, if it exited.
    signal : int or None
        The signal that killed it.
    errno : int or None
        The error number if it could not be started.
    path : str
        The file or folder that was the reason then, if not the program itself.
    left_behind : int
        Processes that it had started, that outlived it, and that were ended.
    supervisor : str
        How its supervisor ended, if the program was ended for that reason.
    memory_bytes : int or None
        What it had in memory when it was killed for that, where its memory is limited.
    is_starved : bool
        Whether it was killed while the kernel killed processes for want of memory.
    warning : int or None
        The signal that it was sent before the end of its time.
    errors_from : int
        Size of its file of standard error, in bytes, when it began.
    """

    status: int | None = None
    signal: int | None = None
    errno: int | None = None
    path: str = ""
    left_behind: int = 0
    supervisor: str = ""
    memory_bytes: int | None = None
    is_starved: bool = False
    warning: int | None = None
    errors_from: int = field(default=0, compare=False)

    @property
    def is_success(self) -> bool:
        """Whether the program exited with status 0."""
        return self.status == 0

    @property
    def exit_status(self) -> int:
        """The status as a shell has it: 128 plus the signal if killed, 127 if it did not start."""
        if self.status is not None:
            return self.status
        if self.signal is not None:
            return 128 + self.signal
        return 127 if self.errno is not None else 1

    def __str__(self) -> str:
        if self.errno is not None:
            where = f"{self.path}: " if self.path else ""
            return f"cannot be started: {where}{os.strerror(self.errno)}"
        if self.memory_bytes is not None:
            return f"was killed: it had {format_bytes(self.memory_bytes)} in memory"
        told = f" {signal_name(self.warning)}, sent by signal_before" if self.warning else ""
        if self.status is not None:
            return f"exited with status {self.status}{told and f' after{told}'}"
        if self.signal is not None:
            why = ", as this machine ran out of memory" if self.is_starved else ""
            if self.signal == self.warning:
                return f"was killed by{told}"
            return f"was killed by {signal_name(self.signal)}{why}{told and f', after{told}'}"
        if self.supervisor:
            return f"was ended, with all that it had started, since {self.supervisor}"
        return "could not be ended"


@dataclass(frozen=True)
class Program:
    """A program that is ready to be started: all placeholders are filled in."""

    words: Sequence[str]  # the command, a launcher in front included
    directory: Path  # the working directory
    added: Mapping[str, str]  # its environment, beside what it inherits
    stdin: Path | None = None
    memory_bytes: int | None = None  # what it and its descendants may have
    signal: tuple[int, float] | None = None  # to be sent, and when by the monotonic clock
    cpus: Sequence[int] | None = None  # that it is bound to; None for those of its supervisor

    def __str__(self) -> str:
        return " ".join(self.words)


class Supervisor:
    """Starts programs, one after the other, through a process that also ends their descendants.

    That process starts with the first program and serves until `close`, or until this process ends,
    however that happens. If it is killed, this process inherits the processes that it leaves, ends
    them, and starts another supervisor for the next program.

    Only the main thread may use it: when the thread that started it ends, so do the supervisor and
    its programs.

    All programs inherit the environment. `removed` is a socket, alone in its folder, to be removed
    with the folder at the end.
    """

    def __init__(self, environment: Mapping[str, str], removed: str = "") -> None:
        self._environment = environment
        self._removed = removed
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the supervisor; None if it has not been started."""
        return None if self._process is None else self._process.pid

    def start(
        self, programs: Sequence[Program], *, stdout: Path, stderr: Path, grace_s: float
    ) -> SupervisedProgram:
        """Start programs, one after the other, even if one fails; earlier programs have ended.

        Their output and errors are appended to the files. Each has `grace_s` seconds to end by
        itself when it is asked to. An OSError says that not even the supervisor can be started.
        """
        requests = [
            {
                "command": [os.fsencode(word) for word in program.words],
                "directory": os.fsencode(program.directory),
                "added": {
                    os.fsencode(key): os.fsencode(text) for key, text in program.added.items()
                },
                "files": [
                    None if file is None else os.fsencode(os.path.abspath(file))
                    for file in (program.stdin, stdout, stderr)
                ],
                "grace_s": grace_s,
                "memory": program.memory_bytes,
                "cpus": None if program.cpus is None else list(program.cpus),
                "signal": None
                if program.signal is None
                else (int(program.signal[0]), program.signal[1]),
            }
            for program in programs
        ]
        data = marshal.dumps(requests)
        data = len(data).to_bytes(4, "little") + data
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it was killed while it was idle
        started_ticks = now_ticks()
        try:
            self._send(data)
        except OSError:  # it was killed just now
            self.close()
            self._send(data)
        assert self._process is not None
        assert self._socket is not None
        return SupervisedProgram(self, self._process, self._socket, started_ticks, grace_s)

    def close(self) -> None:
        """End the supervisor; a program that still runs under it is ended first."""
        process, connection = self._process, self._socket
        self._process = self._socket = None
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SUPERVISOR_EXTRA_S)
                return
            process.kill()
            process.wait()

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            self._start_process()
        assert self._socket is not None
        self._socket.settimeout(_SENDING_S)
        self._socket.sendall(data)
        self._socket.setblocking(False)

    def _start_process(self) -> None:
        become_subreaper()
        ours, its = socket.socketpair()
        line = [sys.executable, "-I", "-S", str(_SUPERVISOR)]
        try:
            self._process = start_helper(
                [*line, str(its.fileno()), str(os.getpid()), self._removed],
                its.fileno(),
                environment=self._environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()
        self._socket = ours


class SupervisedProgram:
    """One program, or several in sequence, that a `Supervisor` has started.

    Attributes
    ----------
    endings : list of Ending
        How each started program has ended, once `poll` has found the last ending; else empty.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        started_ticks: int,
        grace_s: float,
    ) -> None:
        self._supervisor = supervisor
        self._process = process
        self._socket = connection
        self._started_ticks = started_ticks
        self._grace_s = grace_s
        self._received = b""
        self.endings: list[Ending] = []

    def fileno(self) -> int:
        """Return the descriptor that can be read when the program has ended."""
        return self._socket.fileno()

    def poll(self) -> Ending | None:
        """Return how the last program ended; None until it and all its descendants have ended."""
        if self.endings:
            return self.endings[-1]
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._received += data
        length = int.from_bytes(self._received[:4], "little")
        if len(self._received) >= 4 + max(length, 1):
            self.endings = [_ending_of(answer) for answer in marshal.loads(self._received[4:])]
        elif not data:
            self.endings = [self._after_the_supervisor()]
        return self.endings[-1] if self.endings else None

    def end(self) -> None:
        """End the program and all that it has started: ask, wait, then kill."""
        if not self.endings:
            # The supervisor ends too, and the next program starts another supervisor.
            self._process.send_signal(signal.SIGTERM)
            if wait_for(self.poll, self._grace_s + _SUPERVISOR_EXTRA_S, wakes=[self]) is None:
                self._process.kill()
                wait_for(self.poll)
            self._supervisor.close()

    def _after_the_supervisor(self) -> Ending:
        """End the processes that a killed supervisor has left to this one; return the ending."""
        status = self._process.wait()  # only then are its orphans our children
        if status == 0:  # it was asked to end before it had started anything
            return Ending(signal=signal.SIGTERM)
        how = f"killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
        self._supervisor.close()
        kill_descendants(_reap, self._started_ticks)
        return Ending(supervisor=f"its supervisor (process {self._process.pid}) was {how}")


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _ending_of(answer: dict[str, Any]) -> Ending:
    return Ending(
        status=answer.get("exited"),
        signal=answer.get("killed"),
        errno=answer.get("failed"),
        path=os.fsdecode(answer.get("path") or ""),
        left_behind=answer.get("ended", 0),
        memory_bytes=answer.get("memory"),
        is_starved=answer.get("starved", False),
        warning=answer.get("warned"),
        errors_from=answer.get("errors_from", 0),
    )
