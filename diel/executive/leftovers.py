"""What modules and runs leave behind: processes, which are ended, and files, which are removed.

A process that a module has left may serve a later copy: an idle pool of workers, say, or a database
that one module starts for the next. So it may run until its rank leaves the run; but the processes
of a copy that has failed are ended with the copy. A rank is the subreaper of all processes started
on it: those that leave its session, or whose parent ends, become its children and are found.

Of a run whose processes were all killed there remain shared memory and temporary files::

    /dev/shm/sm_segment.<host>.<uid>.*      Open MPI's shared memory (vader_segment: version 4)
    /dev/shm/mpich_shm_*                    MPICH's shared memory
    /dev/shm/diel-<uid>-*/                  sockets by which ranks wake each other
    /tmp/ompi.<pid>/                        the folder of Open MPI's launcher
    /tmp/diel-*/tuples                      the socket of ``diel tuple``

The kernel removes none of it, and 16 MiB a rank add up. So the next run removes such a file or
folder if it is this user's, is a minute old, and is not in use: no process has mapped it, none
listens at a socket in it, and the process in its name has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from diel.programs.supervisor import become_subreaper, descendants, signal_descendants

_GRACE_S: Final = 1.0
_KILLING_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.01
_SHOWN: Final = 5
_COMMAND_CHARACTERS: Final = 80
# Python's own helpers, which end with the process that they serve, and tidy up after it.
_HELPERS: Final = re.compile(r"resource_tracker|multiprocessing\.forkserver|\bloky\b")

CopyKey = tuple[str, int]
"""A module and the index of its copy."""

_SHARED_MEMORY: Final = Path("/dev/shm")
# Younger files are kept: a process may have created one and not mapped it yet.
_YOUNG_S: Final = 60.0
_CONNECTION_S: Final = 0.5


class ChildProcesses:
    """Tracks which child processes of a rank were left by which copy, and ends them.

    Children that exist already when this is created are left alone, and so are children of
    programs, which have a supervisor. `warn` is called with the module, the copy and a text that
    names the ended processes.
    """

    def __init__(self, warn: Callable[[str, int, str], None]) -> None:
        become_subreaper()
        self._warn = warn
        self._spared = children()
        self._left: dict[int, CopyKey] = {}

    def note_copy(self, copy: CopyKey, *, is_function: bool, failed: bool) -> None:
        """Record which children a copy that has just ended has left, and end them if it failed."""
        present = children()
        if not present and not self._left and not self._spared:
            return
        self._spared &= present
        self._left = {pid: owner for pid, owner in self._left.items() if pid in present}
        new = present - self._spared - self._left.keys()
        if not is_function:
            self._spared |= new
            return
        self._left.update(dict.fromkeys(new, copy))
        if failed:
            self._end(new)

    def end(self) -> None:
        """End all children that copies have left, with a warning, as the rank leaves the run."""
        self._left = {pid: self._left.get(pid, ("", 0)) for pid in children() - self._spared}
        for copy in sorted(set(self._left.values())):
            self._end([pid for pid, owner in self._left.items() if owner == copy])

    def _end(self, roots: Collection[int]) -> None:
        helpers = {pid for pid in roots if _HELPERS.search(_command(pid))}
        spared = children() - (set(roots) - helpers)
        ended = {pid: _command(pid) for pid in descendants(spared) if _is_alive(pid)}
        deadline_s = time.monotonic() + _GRACE_S
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process handles no SIGTERM
            signal_descendants(number, spared)
        while _any_alive_below(spared) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
        deadline_s = time.monotonic() + _KILLING_S
        while _any_alive_below(spared) and time.monotonic() < deadline_s:
            signal_descendants(signal.SIGKILL, spared)  # repeated: they may start new processes
            time.sleep(_LOOK_EVERY_S)
        if ended:
            named = [f"{pid} ({_shortened(command)})" for pid, command in ended.items()][:_SHOWN]
            more = f" and {len(ended) - _SHOWN} more" if len(ended) > _SHOWN else ""
            owner = next((self._left[pid] for pid in roots if pid in self._left), ("", 0))
            text = f"it left running, and diel has ended: process {', '.join(named)}{more}"
            self._warn(*owner, text)


def children() -> set[int]:
    """Return the process ids of this process's children, zombies included."""
    try:  # takes a microsecond; usually there are no children
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            words = Path("/proc/self/task", task, "children").read_text().split()
            found.update(map(int, words))
    return found


def _any_alive_below(spared: Collection[int]) -> bool:
    """Whether any descendant of this process is alive; reap the children that are not."""
    alive = False
    for pid in descendants(spared):
        if _is_alive(pid):
            alive = True
        else:
            with contextlib.suppress(ChildProcessError):  # not a child of this process
                os.waitpid(pid, os.WNOHANG)
    return alive


def _is_alive(pid: int) -> bool:
    try:
        stat = Path("/proc", str(pid), "stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _command(pid: int) -> str:
    """Return the command line of a process, or its name if it has no command line."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        text = b" ".join(words).strip() or Path("/proc", str(pid), "comm").read_bytes()
    except OSError:
        return "ended"
    return " ".join(text.decode(errors="replace").split())


def _shortened(line: str) -> str:
    return line if len(line) <= _COMMAND_CHARACTERS else f"{line[: _COMMAND_CHARACTERS - 1]}…"


# -- files of runs that were killed ---------------------------------------------------------------


def remove_leftovers(places: Sequence[Path] | None = None) -> list[Path]:
    """Remove the files of dead runs of this user on this machine, and return their paths.

    By default the folders for shared memory and temporary files are searched.
    """
    if places is None:
        import tempfile  # here, since ranks remove no files

        places = (_SHARED_MEMORY, Path(tempfile.gettempdir()), Path("/tmp"))
    found = [path for place in dict.fromkeys(places) for path in _candidates(place)]
    if not found:
        return []
    mapped = _mapped()
    removed = []
    for path in found:
        if not _is_used(path, mapped):
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError:  # another process has removed it
                continue
            removed.append(path)
    return removed


def _candidates(place: Path) -> Iterator[Path]:
    host, user = re.escape(_host()), os.geteuid()
    names = re.compile(
        rf"(sm|vader)_segment\.{host}(\.\S+)?\.{user}\.\S+|mpich_shm_\w+|diel-{user}-[0-9a-f]+"
        r"|ompi\.\d+|diel-[a-z0-9_]{8}"
    )
    try:
        entries = list(os.scandir(place))
    except OSError:
        return
    for entry in entries:
        if not names.fullmatch(entry.name):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it has just gone
            continue
        is_known = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if is_known and status.st_uid == user and time.time() - status.st_mtime > _YOUNG_S:
            yield Path(entry.path)


def _is_used(path: Path, mapped: set[str]) -> bool:
    """Whether a process may still use a file or folder; one of unknown origin counts as used."""
    inside = f"{path}{os.sep}"
    if any(name == str(path) or name.startswith(inside) for name in mapped):
        return True
    if not path.is_dir():
        return False
    try:
        names = set(os.listdir(path))
        if path.name.startswith("ompi."):
            # Only this host's: if containers share the folder, this one does not see the
            # processes of the others.
            is_ours = any(name.startswith(f"pmix.{_host()}.") for name in names)
            return not is_ours or Path("/proc", path.suffix[1:]).exists()
        if not names <= {"tuples"} and not names & {"pid", "asleep"}:
            return True
        return any(_listens(path / name) for name in names)
    except OSError:  # it is just being removed
        return True


def _host() -> str:
    return os.uname().nodename.split(".")[0]


def _listens(path: Path) -> bool:
    """Whether a process, also one in another container, receives at a socket."""
    import socket

    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(_CONNECTION_S)
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                return False
            except OSError:  # a socket of the other kind, or a busy one
                continue
            return True
    return True


def _mapped() -> set[str]:
    """Return the paths that processes of this user have mapped into their memory."""
    files: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                lines = Path("/proc", name, "maps").read_bytes().splitlines()
            except OSError:  # the process has just ended, or is another user's
                continue
            fields = (line.split(None, 5) for line in lines)
            files.update(field[5].decode(errors="replace") for field in fields if len(field) > 5)
    return files
