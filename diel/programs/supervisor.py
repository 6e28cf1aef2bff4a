"""The supervisor: a small process between a rank and the programs that it runs.

    python -I -S supervisor.py SOCKET_FD PARENT REMOVED

::

    rank ──── starts once ────> supervisor ── posix_spawn ──> program ──> its descendants
         ── requests, a program each ──>
         <── answers: these programs have ended, and all their descendants ──

A rank may be killed at any moment, without a chance to end what it has started, and a program may
start processes that leave its session. So the supervisor asks the kernel for two things: to be told
when the rank dies (PR_SET_PDEATHSIG), and to become the parent of every orphan among the program's
descendants (PR_SET_CHILD_SUBREAPER). An answer is given when all of them have ended, and so the
next request finds none. To end a program, the rank sends SIGTERM or closes the socket: the
supervisor ends the program and itself, and at last removes REMOVED, a socket in a folder of its
own, if one is named. A supervisor that is killed leaves its orphans to the rank, which has become a
subreaper too (see `diel.programs.supervised`).

It is run as a file: a rank has loaded MPI and may be large, and the supervisor has to start within
milliseconds and to spawn within fractions of one. It imports little for the same reason. A program
is spawned, not forked, which takes a tenth of the time: nothing between the two may run any Python.

Requests come as a list, and so do their answers, of dictionaries in Python's marshal format behind
four bytes, their length. If a program is ended on request, its answer is the last of the list.

request
    ``command``, a list of words; ``directory``; ``added``, variables beside those of the
    supervisor; ``files``, a path each for standard input (or None), output and error, the last two
    appended to; ``grace_s``, for the program to end by itself; ``memory``, the bytes that it and
    its descendants may have, or None; ``cpus``, a list of those that it is bound to, or None;
    ``signal``, one that its process group gets while it runs, and when by the monotonic clock, or
    None.
answer
    ``exited`` a status, or ``killed`` by a signal, or ``failed``, an error's number, with ``path``
    where a file or a folder is meant and not the program; ``ended``, how many processes that it
    left behind were ended; ``errors_from``, the size of its file of errors when it began;
    ``memory``, the bytes that it had when it was killed for that; ``starved``, whether the kernel
    has killed processes for want of memory while it ran, and it ended by SIGKILL; ``warned``, the
    number of ``signal`` if it was sent.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection

TYPE_CHECKING = False  # to import typing takes as long as all the rest
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

# Processes that a program leaves often end by themselves in a moment: the `tee` of its output, say.
_LINGER_S = 1.0
_KILL_EVERY_S = 0.005
# Some processes cannot be killed: of another user, or in the middle of a failing disk's I/O.
_KILLING_S = 2.0

_FOR_EVER_S = 1e6

# How often to look how much memory a program has: a look takes a fiftieth of the time at most.
_LOOK_EVERY_S = 0.1
_LOOK_SHARE = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main(arguments: list[str]) -> None:
    """Run the programs that a rank requests, until it closes the socket, sends SIGTERM or dies."""
    socket_fd, parent, removed = arguments
    supervisor = _Supervisor(int(socket_fd))
    become_subreaper()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        if os.getppid() == int(parent):  # else it died before the signal was set
            supervisor.serve()
    finally:
        _remove(removed)


class _Supervisor:
    """The parent of one program after the other, and of every orphan among their descendants."""

    def __init__(self, socket_fd: int) -> None:
        self._socket_fd = socket_fd
        os.set_inheritable(socket_fd, False)
        self._program = 0
        self._has_ended = False
        self._ended: dict[str, Any] = {}
        self._environment = dict(os.environb)
        self._cpus = os.sched_getaffinity(0)
        self._is_alone = True
        self._is_asked_to_end = False
        # A signal does nothing but end a wait: it is a byte in this pipe.
        self._signals_fd, wake_fd = os.pipe()
        for fd in (self._signals_fd, wake_fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_END):
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._signals_fd, select.POLLIN)
        self._poll.register(socket_fd, select.POLLIN)

    def serve(self) -> None:
        """Run the requested programs, one after the other, and send an answer for each request."""
        while True:
            self._wait(lambda: self._is_asked_to_end, for_request=True)
            requests = [] if self._is_asked_to_end else self._receive()
            if not requests:
                return
            answers = []
            for request in requests:
                self._run(request)
                answers.append(self._ended)
                if self._is_asked_to_end or not self._is_alone:
                    break
            answer = marshal.dumps(answers)
            try:
                os.write(self._socket_fd, len(answer).to_bytes(4, "little") + answer)
            except OSError:
                return  # the rank is gone
            if not self._is_alone:
                return  # something cannot be killed: the next program gets another supervisor

    def _run(self, request: dict[str, Any]) -> None:
        try:
            self._start(request)
        except OSError as error:
            self._ended |= {"failed": error.errno or 0, "path": error.filename}
        except ValueError:  # a null character in a word
            self._ended |= {"failed": errno.EINVAL, "path": None}
        else:
            self._await_end(request["grace_s"], request["memory"], request["signal"])

    def _receive(self) -> list[dict[str, Any]]:
        length = self._read(4)
        data = self._read(int.from_bytes(length, "little")) if length else b""
        requests: list[dict[str, Any]] = marshal.loads(data) if data else []
        return requests

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            try:
                part = os.read(self._socket_fd, length - len(data))
            except OSError:
                return b""
            if not part:
                return b""
            data += part
        return data

    def _start(self, request: dict[str, Any]) -> None:
        """Start a program.

        An OSError has a file name if not the program itself is the reason; a ValueError is for a
        word with a null character.
        """
        self._ended, self._program, self._has_ended = {}, 0, False
        self._starved_before = starved_processes()
        environment = {**self._environment, **request["added"]}
        stdin, stdout, stderr = request["files"]
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        opened: list[int] = []
        try:
            os.chdir(request["directory"])
            actions = []
            for number, path, flags in (
                (0, stdin, os.O_RDONLY),
                (1, stdout, append),
                (2, stderr, append),
            ):
                if path is not None:  # this process has /dev/null as its standard input
                    opened.append(os.open(path, flags, 0o666))
                    actions.append((os.POSIX_SPAWN_DUP2, opened[-1], number))
            self._ended["errors_from"] = os.fstat(opened[-1]).st_size
            if request["cpus"] is not None:  # a program inherits them
                os.sched_setaffinity(0, request["cpus"])
            self._program = _spawn(request["command"], environment, actions)
        finally:
            if request["cpus"] is not None:
                os.sched_setaffinity(0, self._cpus)
            os.chdir("/")  # so that no folder is in use after its program
            for fd in opened:
                os.close(fd)
        self._is_alone = False

    def _await_end(
        self, grace_s: float, memory: int | None, warning: tuple[int, float] | None
    ) -> None:
        """Wait until the program has ended, or has to; then end it and all its descendants."""
        if self._exceeds(memory, warning):
            kill_descendants(lambda _: self._reap())  # what asks for memory cannot wait for a grace
            return
        if self._ended.get("killed") == signal.SIGKILL:
            self._ended["starved"] = starved_processes() > self._starved_before
        if not self._is_asked_to_end:
            self._wait(lambda: self._is_alone or self._is_asked_to_end, _LINGER_S)
        if self._is_alone:
            return
        left = len(descendants()) if self._has_ended else 0
        signal_descendants(signal.SIGTERM)
        signal_descendants(signal.SIGCONT)  # a stopped one would never receive it
        self._wait(lambda: self._is_alone, grace_s)
        if not self._is_alone:
            kill_descendants(lambda _: self._reap())
        if left:
            self._ended["ended"] = left

    def _exceeds(self, memory: int | None, warning: tuple[int, float] | None) -> bool:
        """Wait until the program has ended, or has to; True if it has more memory than it may.

        It is sent its signal meanwhile, unless the time of that had passed when it began.
        """
        pause_s = _FOR_EVER_S if memory is None else _LOOK_EVERY_S
        number, at_s = warning or (0, 0.0)
        if at_s <= time.monotonic():
            number = 0
        while not self._has_ended and not self._is_asked_to_end:
            left_s = at_s - time.monotonic() if number else _FOR_EVER_S
            self._wait(lambda: self._has_ended or self._is_asked_to_end, min(pause_s, left_s))
            began_s = time.monotonic()
            if number and began_s >= at_s and not self._has_ended:
                self._warn(number)
                number = 0
            if memory is None:
                continue
            has = 0 if self._has_ended else memory_of(descendants())
            if has > memory:
                self._ended["memory"] = has
                return True
            pause_s = max(_LOOK_EVERY_S, _LOOK_SHARE * (time.monotonic() - began_s))
        return False

    def _warn(self, number: int) -> None:
        """Send a signal to the program and its process group."""
        try:
            os.killpg(self._program, number)
        except OSError:  # it belongs to another user
            return
        self._ended["warned"] = number

    def _wait(
        self,
        until: Callable[[], bool],
        timeout_s: float = _FOR_EVER_S,
        *,
        for_request: bool = False,
    ) -> None:
        """Wait until a condition holds, a timeout is over, or, with `for_request`, data comes."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._reap()
            left_s = deadline_s - time.monotonic()
            if until() or left_s <= 0:
                return
            for fd, _ in self._poll.poll(left_s * 1e3):
                if fd == self._signals_fd:
                    self._is_asked_to_end |= not _END.isdisjoint(os.read(fd, 4096))
                elif for_request:
                    return
                else:  # the end of the socket, since a rank sends nothing meanwhile: it is gone
                    self._is_asked_to_end = True
                    self._poll.unregister(fd)

    def _reap(self) -> None:
        while not self._is_alone:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if not pid:
                return
            if pid == self._program:
                self._has_ended = True
                if os.WIFSIGNALED(status):
                    self._ended["killed"] = os.WTERMSIG(status)
                else:
                    self._ended["exited"] = os.WEXITSTATUS(status)


def _spawn(
    command: list[bytes], environment: dict[bytes, bytes], actions: list[tuple[int, int, int]]
) -> int:
    """Start a program that is found on the PATH of its own environment."""
    path = environment.get(b"PATH", os.fsencode(os.defpath))
    first = command[0]
    places = [first] if b"/" in first else [os.path.join(d, first) for d in path.split(b":")]
    errors = []
    for place in places:
        try:
            if place is not first:
                os.stat(place)  # raises as a spawn would, in less time
            return os.posix_spawn(
                place,
                command,
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            errors.append(error.errno)
        except OSError as error:  # the file exists, so this error says more
            errors.insert(0, error.errno)
    raise OSError(errors[0], "")


# -- processes ------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Make this process the parent of every orphan among its descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(spared: Collection[int] = (), since_ticks: int = 0) -> list[int]:
    """Return the process ids of all descendants of this process, also of those not reaped yet.

    Children in `spared` are left out, with all that is below them. So are children that were
    started before `since_ticks`, in clock ticks since the kernel started (see `now_ticks`), and
    those of that tick in the session of this process, which no program is in.
    """
    own_pid, session = os.getpid(), os.getsid(0)
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of the program, in parentheses, may hold anything.
                    fields = file.read().rpartition(b")")[2].split()
                parent, started_ticks = int(fields[1]), int(fields[19])
            except (OSError, IndexError):
                continue  # it has just ended
            # A tick is 10 ms.
            is_meant = started_ticks >= since_ticks + (
                since_ticks > 0 and int(fields[3]) == session
            )
            if parent != own_pid or (is_meant and int(name) not in spared):
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    parents = [own_pid]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += below
    return found


def memory_of(pids: Collection[int]) -> int:
    """Return the bytes of memory that processes have for themselves, without files and shared ones.

    Pages that a process has in common with the one that it was forked from are counted for both.
    """
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except (OSError, ValueError):
            continue  # it has just ended
        total += resident - shared
    return total * _PAGE_BYTES


def starved_processes() -> int:
    """Return how many processes the kernel has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def now_ticks() -> int:
    """Return the time in clock ticks since the kernel started, as /proc has it of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def signal_descendants(number: int, spared: Collection[int] = ()) -> None:
    """Send a signal to all descendants of this process, as `descendants` returns them."""
    for pid in descendants(spared):
        try:
            os.kill(pid, number)
        except OSError:
            continue  # it has just ended, or belongs to another user


def kill_descendants(reap: Callable[[int], object], since_ticks: int = 0) -> None:
    """Kill all descendants of this process, and what they start meanwhile, until none is left.

    `reap` is called with the id of each killed process, which may be a child of this one.
    """
    killed_s: dict[int, float] = {}
    while pids := descendants(since_ticks=since_ticks):
        for pid in pids:
            killed_s.setdefault(pid, time.monotonic())
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has just ended, or belongs to another user
            finally:
                reap(pid)
        if time.monotonic() - max(killed_s[pid] for pid in pids) > _KILLING_S:
            return  # these stay, and start no others
        time.sleep(_KILL_EVERY_S)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _remove(socket: str) -> None:
    """Remove a tuple socket and its folder, which a rank that was killed leaves behind."""
    if socket:
        try:
            os.unlink(socket)
            os.rmdir(os.path.dirname(socket))
        except OSError:
            pass  # the rank has removed it


if __name__ == "__main__":
    main(sys.argv[1:])
