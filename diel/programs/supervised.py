"""A program under a supervisor, as the rank that waits for it sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from diel.comm.waiting import wait_for

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_SET: Final = "DIEL_SET_"  # as in supervisor.py
# What the supervisor needs beyond the grace: it kills for up to 2 s.
_SUPERVISOR_EXTRA_S: Final = 3.0
_WORDS_BYTES: Final = 4096


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes
    ----------
    status : int or None
        Its exit status, if it exited.
    signal : int or None
        What killed it.
    errno : int or None
        Why it could not be started.
    left_behind : int
        Processes that it had started, that outlived it, and that were ended.
    """

    status: int | None = None
    signal: int | None = None
    errno: int | None = None
    left_behind: int = 0

    @property
    def is_success(self) -> bool:
        """Whether it exited with status 0."""
        return self.status == 0

    @property
    def exit_status(self) -> int:
        """As a shell has it: 128 and the signal for what was killed, 127 for what did not start."""
        if self.status is not None:
            return self.status
        return 127 if self.signal is None else 128 + self.signal

    def __str__(self) -> str:
        if self.errno is not None:
            return f"cannot be started: {os.strerror(self.errno)}"
        if self.status is not None:
            return f"exited with status {self.status}"
        if self.signal is not None:
            return f"was killed by {_signal_name(self.signal)}"
        return "was ended when its supervisor died"


class Supervised:
    """A program that runs under a supervisor of its own, which ends all that it has started.

    To be used by the main thread: when the thread that made it ends, so does all of it.

    Parameters
    ----------
    command : sequence of str
    directory : Path
        Its working directory.
    environment : mapping of str to str
        Of the supervisor.
    added : mapping of str to str
        What the program shall find in its environment besides.
    stdin, stdout, stderr : files
        Or `subprocess.DEVNULL`; never those of this process.
    grace_s : float, seconds
        For the program to end by itself when it is asked to.
    tuple_socket : str
        A socket to be removed when all is over, or nothing.

    Raises
    ------
    OSError
        If not even the supervisor can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        added: Mapping[str, str],
        stdin: IO[bytes] | int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        grace_s: float,
        tuple_socket: str = "",
    ) -> None:
        self._grace_s = grace_s
        self._words_fd, status_fd = os.pipe()
        line = [sys.executable, "-I", "-S", str(_SUPERVISOR)]
        line += [str(status_fd), str(os.getpid()), str(grace_s), tuple_socket, *command]
        try:
            self._supervisor = subprocess.Popen(
                line,
                cwd=directory,
                env={**environment, **{_SET + name: value for name, value in added.items()}},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[status_fd],
                start_new_session=True,
            )
        except BaseException:
            os.close(self._words_fd)
            raise
        finally:
            os.close(status_fd)
        self._ending: Ending | None = None

    @property
    def supervisor_pid(self) -> int:
        """The process number of the supervisor."""
        return self._supervisor.pid

    def poll(self) -> Ending | None:
        """Return how the program ended once it and all that it has started are gone."""
        if self._ending is None and self._supervisor.poll() is not None:
            words = _numbers(os.read(self._words_fd, _WORDS_BYTES))
            os.close(self._words_fd)
            self._ending = Ending(
                status=words.get("exited"),
                signal=words.get("killed"),
                errno=words.get("failed"),
                left_behind=words.get("ended", 0),
            )
            if "started" in words and not {"exited", "killed"} & words.keys():
                _kill_session(words["started"])  # the supervisor was killed; its program with it
        return self._ending

    def end(self) -> None:
        """End the program and all that it has started: ask, wait, then kill."""
        self._supervisor.send_signal(signal.SIGTERM)
        if wait_for(self.poll, self._grace_s + _SUPERVISOR_EXTRA_S) is None:
            self._supervisor.kill()
            wait_for(self.poll)


def _numbers(words: bytes) -> dict[str, int]:
    pairs = (line.split() for line in words.decode(errors="replace").splitlines())
    return {what: int(number) for what, number in pairs}


def _kill_session(leader: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
