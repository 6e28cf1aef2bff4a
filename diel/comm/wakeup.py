"""Waking ranks of the same host that sleep until a message comes.

MPI has no call that sleeps until something arrives, so a rank that waits has to poll. Between two
polls it may sleep for long if its senders wake it::

    receiver                                sender
    flag = 1: about to sleep                starts its MPI send: the message is in shared memory
    polls MPI again, twice                  flag is 1? then flag = 0, and a datagram
    sleeps in poll(), until a datagram
    comes or a time is over; flag = 0

The flags of a host's ranks lie in a file that all of them map, each in a cache line of its own. The
datagram goes to the receiver's Unix socket; both are in a folder of the run that only its owner can
enter. A sender whose receiver does not sleep pays for one look at a byte.

The processor may swap the sender's two steps, so very rarely a wake-up is missing: the timeout of
the sleep covers that, and senders that are killed in between. Messages of other hosts wake no rank.
Where there are other hosts, and for ranks that cannot open the folder, sleeps are short.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

    from _typeshed import FileDescriptorLike
    from mpi4py import MPI

LINE: Final = 64
"""Bytes of a rank in the shared file: a cache line. The first is its flag."""
_RUNS_MODULE: Final = 1  # offset of the byte that says whether the rank runs a module
_PID: Final = struct.Struct("4xi")  # in the same line, once the rank's socket is there
_FLAGS: Final = "asleep"
_OWNER: Final = "pid"
_SHORTEST_S: Final = 1e-3  # poll() counts in milliseconds


class Wakeup:
    """Sleeps of one rank until a message comes, and wake-ups of the ranks that it sends to.

    Before `open` no rank is woken, and sleeps end by their timeout alone.

    Parameters
    ----------
    rank, size : int
        Of the communicator whose messages wake ranks.

    Attributes
    ----------
    flags : bytearray or mmap
        Byte ``LINE * rank`` says whether a rank is asleep; time-critical senders read it directly.
    sending : list of callable
        Each says whether a message of this rank has yet to leave, or arrives in pieces. MPI moves
        such messages only while it is called: the rank polls meanwhile.
    sleeps_long : bool
        Whether sleeps may be long. Not while a module has messages of its own under way.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._at = LINE * rank
        self.flags: bytearray | mmap.mmap = bytearray(LINE * size)
        self.sending: list[Callable[[], bool]] = []
        self.sleeps_long = True
        self._folder: Path | None = None
        self._socket: socket.socket | None = None
        self._addresses: list[str] = []
        self._all_ranks_are_here = False
        cores = len(os.sched_getaffinity(0))
        self._cores = cores if cores > 1 else os.cpu_count() or 1  # one: it is bound to its own

    def open(self, token: str, place: Path | None = None) -> None:
        """Map the flags of this host's ranks, and bind the socket by which they wake this one.

        The token is the same for all ranks of the run, and for no other run. By default the folder
        is made in ``/dev/shm``, else where temporary files are. An OSError if that is not possible;
        the rank can go on without.
        """
        folder = private_folder(token, place)
        file = os.open(folder / _FLAGS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(file, LINE * self._size)
            flags = mmap.mmap(file, LINE * self._size)
        finally:
            os.close(file)
        import socket  # not for a rank that is only imported

        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.bind(str(folder / str(self._rank)))
        except OSError:
            receiver.close()
            raise
        _PID.pack_into(flags, self._at, os.getpid())
        self._addresses = [str(folder / str(rank)) for rank in range(self._size)]
        self._folder, self._socket, self.flags = folder, receiver, flags

    @property
    def wakes_all(self) -> bool:
        """Whether sleeps may last until a wake-up: all ranks of the run are on this host."""
        if not self._all_ranks_are_here and self._socket is not None:
            # Read anew until all have come: some may still be starting.
            self._all_ranks_are_here = all(
                _PID.unpack_from(self.flags, LINE * rank)[0] for rank in range(self._size)
            )
        return self._all_ranks_are_here and self.sleeps_long

    @property
    def is_crowded(self) -> bool:
        """Whether other ranks of this host that run modules and are awake need all of its cores.

        A rank that polls then holds them up, perhaps the one that it waits for; and once it has
        given its core to one of them, it gets it back milliseconds later.
        """
        if self._size <= self._cores:
            return False
        running = int.from_bytes(self.flags[_RUNS_MODULE::LINE], "little")
        asleep = int.from_bytes(self.flags[::LINE], "little")
        return (running & ~asleep).bit_count() - self.runs_module >= self._cores

    @property
    def runs_module(self) -> bool:
        """Whether a module runs on this rank, even while it waits."""
        return bool(self.flags[self._at + _RUNS_MODULE])

    @runs_module.setter
    def runs_module(self, runs: bool) -> None:
        self.flags[self._at + _RUNS_MODULE] = runs

    def wake(self, rank: int) -> None:
        """Wake a rank if it sleeps; to be called after the message to it has been started."""
        at = LINE * rank
        if self.flags[at]:
            self.flags[at] = 0
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the rank is gone, or its queue is full
                    self._socket.sendto(b"\0", self._addresses[rank])

    def can_sleep(self) -> bool:
        """Whether this rank can be woken, and no message of its own is under way."""
        return self._socket is not None and not any(is_under_way() for is_under_way in self.sending)

    def announce(self) -> None:
        """Say that this rank is about to sleep; it has to look at MPI once more before it does."""
        self.flags[self._at] = 1

    def call_off(self) -> None:
        """Take `announce` back: this rank does not sleep."""
        self.flags[self._at] = 0

    def sleep(self, timeout_s: float, files: Sequence[FileDescriptorLike] = ()) -> bool:
        """Sleep after `announce`, until another rank wakes this one; return whether one has.

        The sleep also ends with the timeout, or when one of the files can be read.
        """
        assert self._socket is not None
        if not self.flags[self._at]:  # woken between `announce` and now
            self._drain()
            return True
        woken = self._socket.fileno() in sleep_on([self._socket, *files], timeout_s)
        self.flags[self._at] = 0
        if woken:
            self._drain()
        return woken

    def _drain(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            while self._socket.recv(1):
                pass

    def close(self) -> None:
        """Close and remove this rank's socket; the last rank removes the folder."""
        folder, receiver = self._folder, self._socket
        self._folder = self._socket = None
        if folder is None or receiver is None:
            return
        self.flags[self._at] = 0
        self.flags = bytearray(LINE * self._size)
        receiver.close()
        with contextlib.suppress(OSError):
            os.unlink(folder / str(self._rank))
        with contextlib.suppress(OSError):
            if {entry.name for entry in os.scandir(folder)} <= {_FLAGS, _OWNER}:
                import shutil

                shutil.rmtree(folder)

    def remove(self) -> None:
        """Remove the folder: the other ranks are about to be ended."""
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)


def sleep_on(files: Sequence[FileDescriptorLike], timeout_s: float) -> list[int]:
    """Sleep until one of some files can be read; return the descriptors of those that can."""
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    return [file for file, _ in poller.poll(max(timeout_s, _SHORTEST_S) * 1e3)]


def private_folder(token: str, place: Path | None = None) -> Path:
    """Return the folder of a run on this host, which its first rank makes.

    An OSError if it cannot be made, or another user has made it.
    """
    if place is None:
        place = Path("/dev/shm")
        if not os.access(place, os.W_OK | os.X_OK):
            import tempfile

            place = Path(tempfile.gettempdir())
    folder = place / f"diel-{os.geteuid()}-{token}"
    try:
        folder.mkdir(mode=0o700)
        (folder / _OWNER).write_text(f"{os.getpid()}\n")
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise
    return folder


_keyval: list[int] = []


def attach(wakeup: Wakeup, comm: MPI.Intracomm) -> None:
    """Attach a wakeup to a communicator, so that all that send on it wake its receivers."""
    from mpi4py import MPI

    if not _keyval:
        _keyval.append(MPI.Comm.Create_keyval())
    comm.Set_attr(_keyval[0], wakeup)


def wakeup_of(comm: MPI.Intracomm) -> Wakeup:
    """Return the wakeup attached to a communicator, else a new one that wakes no rank."""
    found = comm.Get_attr(_keyval[0]) if _keyval else None
    return found if isinstance(found, Wakeup) else Wakeup(comm.Get_rank(), comm.Get_size())
