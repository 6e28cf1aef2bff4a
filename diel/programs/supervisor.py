"""The supervisor: a small process between a rank and the program that it runs.

    python -I -S supervisor.py STATUS_FD PARENT GRACE_S TUPLE_SOCKET PROGRAM [ARGUMENT ...]

::

    rank ── starts ──> supervisor ── starts ──> program ──> whatever that starts
         <── words ───  (on a pipe, STATUS_FD; see below)

A rank may be killed at any moment, without a chance to end what it has started, and a program may
start others that leave its session. So the supervisor asks the kernel for two things: to be told
when the rank dies (PR_SET_PDEATHSIG), and to become the parent of every orphan among the program's
descendants (PR_SET_CHILD_SUBREAPER). When it ends, all of them have ended.

It is run as a file: a rank has loaded MPI and may be large, and the supervisor has to start within
milliseconds. Its own environment is the rank's without the launcher's variables; what
the program shall find besides is there under names that begin with ``DIEL_SET_``, so that a
variable such as LD_LIBRARY_PATH acts on the program alone.

What it says, a line each: ``started PID`` or ``failed ERRNO``; then ``exited STATUS`` or ``killed
SIGNAL``; then ``ended COUNT`` if it had to end processes that the program left behind.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WATCHED = {signal.SIGCHLD, *_END}
_SET = b"DIEL_SET_"

# What a program leaves behind often ends by itself in a moment: the `tee` of its output, say.
_LINGER_S = 1.0
_KILL_EVERY_S = 0.05
# Some cannot be killed: those of another user, or in the middle of a failing disk's I/O.
_KILLING_S = 2.0


def main(arguments: list[str]) -> None:
    """Start a program, see it to its end, and end what it leaves behind."""
    status_fd, parent, grace_s, socket, *command = arguments
    # Signals are waited for, never handled: nothing can come between two steps.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would swallow exit statuses
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):  # else it died before we asked to be told
        supervisor = _Supervisor(int(status_fd))
        supervisor.start(command, mask)
        supervisor.keep(float(grace_s))
    _remove(socket)


class _Supervisor:
    """The parent of one program and of every orphan among its descendants."""

    def __init__(self, status_fd: int) -> None:
        self._status_fd = status_fd
        os.set_inheritable(status_fd, False)  # whoever is left must not hold it open
        self._program = 0
        self._has_ended = False
        self._is_alone = False
        self._is_asked_to_end = False

    def start(self, command: list[str], mask: set[int]) -> None:
        """Start the program, or say why not."""
        failure, tell_failure = os.pipe()  # neither end survives an exec
        supervisor = os.getpid()
        try:
            self._program = os.fork()
        except OSError as error:
            self._say("failed", error.errno or 0)
            self._has_ended = self._is_alone = True
            return
        if not self._program:
            _become(command, mask, supervisor, tell_failure)
        os.close(tell_failure)
        words = os.read(failure, 32)
        os.close(failure)
        if words:
            self._say("failed", int(words))
            self._program = 0
        else:
            self._say("started", self._program)

    def keep(self, grace_s: float) -> None:
        """Wait until the program has ended, or somebody wants it to end; then end all the rest."""
        self._wait(lambda: self._has_ended or self._is_asked_to_end)
        if not self._is_asked_to_end:
            self._wait(lambda: self._is_alone or self._is_asked_to_end, _LINGER_S)
        if self._is_alone:
            return
        left = len(descendants()) if self._has_ended else 0
        signal_descendants(signal.SIGTERM)
        signal_descendants(signal.SIGCONT)  # a stopped one would never hear of it
        self._wait(lambda: self._is_alone, grace_s)
        deadline_s = time.monotonic() + _KILLING_S
        while not self._is_alone and time.monotonic() < deadline_s:
            signal_descendants(signal.SIGKILL)  # again and again: they may start others meanwhile
            self._wait(lambda: self._is_alone, _KILL_EVERY_S)
        if left:
            self._say("ended", left)

    def _wait(self, until: Callable[[], bool], timeout_s: float = 1e6) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._reap()
            left_s = deadline_s - time.monotonic()
            if until() or left_s <= 0:
                return
            told = signal.sigtimedwait(_WATCHED, left_s)
            if told is not None and told.si_signo in _END:
                self._is_asked_to_end = True

    def _reap(self) -> None:
        while not self._is_alone:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                self._has_ended = True
                return
            if not pid:
                return
            if pid == self._program:
                self._has_ended = True
                if os.WIFSIGNALED(status):
                    self._say("killed", os.WTERMSIG(status))
                else:
                    self._say("exited", os.WEXITSTATUS(status))

    def _say(self, what: str, number: int) -> None:
        try:  # noqa: SIM105 - contextlib takes a millisecond to import
            os.write(self._status_fd, f"{what} {number}\n".encode())
        except OSError:
            pass  # the rank is gone


def _become(command: list[str], mask: set[int], supervisor: int, tell_failure: int) -> None:
    """Turn this fork of the supervisor into the program."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)
        for name in ("SIGPIPE", "SIGXFSZ"):  # which Python ignores
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], command, _program_environment())
    except OSError as error:
        os.write(tell_failure, b"%d" % (error.errno or 0))
    finally:
        os._exit(127)


def _program_environment() -> dict[bytes, bytes]:
    inherited = {n: value for n, value in os.environb.items() if not n.startswith(_SET)}
    own = {n[len(_SET) :]: value for n, value in os.environb.items() if n.startswith(_SET)}
    return {**inherited, **own}


def descendants(spared: Collection[int] = ()) -> list[int]:
    """Return every process below this one.

    Parameters
    ----------
    spared : collection of int, optional
        Children that are left out, with all that is below them.

    Returns
    -------
    list of int
        Process numbers, those that have ended and were not reaped too.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of the program, in parentheses, may hold anything.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has just ended
            if int(name) not in spared:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    parents = [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += below
    return found


def signal_descendants(number: int, spared: Collection[int] = ()) -> None:
    """Send a signal to every process below this one.

    Parameters
    ----------
    number : int
    spared : collection of int, optional
        As in `descendants`.
    """
    for pid in descendants(spared):
        try:
            os.kill(pid, number)
        except OSError:
            continue  # it has just ended, or belongs to another user


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _remove(socket: str) -> None:
    """Remove the socket of `diel tuple`, and its folder, which a rank that was killed leaves."""
    if socket:
        try:
            os.unlink(socket)
            os.rmdir(os.path.dirname(socket))
        except OSError:
            pass  # there is none any more


if __name__ == "__main__":
    main(sys.argv[1:])
