"""Where what a rank prints goes: to its launcher, and while a module runs, to the module's log.

::

    sys.stdout ── descriptor 1 ──┐                ┌── logs/<module>.<copy>.<rank>.log
    printf, Fortran, subprocesses┼── leads to ────┤
    sys.stderr ── descriptor 2 ──┘                └── logs/launcher.log, between modules

`sys.stdout` and `sys.stderr` are the same two objects as long as the rank works, whichever log is
the present one: a module may keep them, in a handler of `logging` for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from diel.run.files import file_opener

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_MARKER: Final = "\n\n... {:,} bytes are left out here: log_size in [workflow] is {:,} ...\n\n"
_FOUND_MARKER: Final = re.compile(
    rb"\n\n\.\.\. ([\d,]+) bytes are left out here: log_size in \[workflow\] is ([\d,]+) \.\.\.\n\n"
)
_SEARCHED_BYTES: Final = 64 * 1024 * 1024
_LOOK_EVERY_S: Final = 0.5
_ERRORS: Final = "backslashreplace"  # the name of a file may be no valid text
_FORTRAN: Final = "libgfortran.so.5"


# -- log files that may grow to a limit -----------------------------------------------------------


def shorten(path: Path, limit_bytes: int) -> int:
    """Take the middle out of a log file that has outgrown its limit: a quarter at each end stays.

    Its writers have opened it to append, and go on behind its new end. Output that is written
    meanwhile may be lost. A marker in the middle says how many bytes are missing in all, also if
    the file was shortened before.

    Returns
    -------
    int
        The bytes that were left out this time; 0 if the file is short enough, or missing.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return 0
    if size_bytes <= limit_bytes:
        return 0
    with open(path, "r+b", opener=file_opener) as file:
        return _shorten(file, limit_bytes)


def _shorten(file: BinaryIO, limit_bytes: int) -> int:
    kept_bytes = limit_bytes // 4
    file.seek(-kept_bytes, os.SEEK_END)
    last = file.read(kept_bytes).partition(b"\n")
    end = last[2] or last[0]
    file.seek(kept_bytes)
    earlier_bytes, marker_bytes = _left_out_earlier(file.read(_SEARCHED_BYTES), kept_bytes)
    size_bytes = file.seek(0, os.SEEK_END)  # what came meanwhile is lost
    left_out_bytes = size_bytes - kept_bytes - len(end) - marker_bytes
    file.truncate(kept_bytes)
    file.seek(0, os.SEEK_END)
    file.write(_MARKER.format(earlier_bytes + left_out_bytes, limit_bytes).encode() + end)
    return left_out_bytes


def _left_out_earlier(middle: bytes, begins_at_bytes: int) -> tuple[int, int]:
    """Return how many bytes a marker in the middle of a log speaks of, and its own length."""
    for found in _FOUND_MARKER.finditer(middle):
        left_out, limit = (int(number.replace(b",", b"")) for number in found.groups())
        if begins_at_bytes + found.start() == limit // 4:  # else a program has printed it
            return left_out, len(found[0])
    return 0, 0


# -- standard output and error --------------------------------------------------------------------


class _Descriptor(io.FileIO):
    """Descriptor 1 or 2, wherever it leads; never closed from here."""

    def __init__(self, number: int, output: RankOutput) -> None:
        super().__init__(number, "w", closefd=False)
        self._output = output

    def write(self, data: Buffer, /) -> int:
        written_bytes = super().write(data)
        self._output.count(written_bytes)
        return written_bytes

    def close(self) -> None:
        """Do nothing: other modules use it too."""


class _Buffer(io.BufferedWriter):
    def close(self) -> None:
        """Flush: other modules use it too."""
        self.flush()


class _Stream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr`, the same object as long as the rank works."""

    def __init__(self, number: int, output: RankOutput) -> None:
        self._is_as_it_was = True
        self._binary = _Buffer(_Descriptor(number, output))
        super().__init__(self._binary, "utf-8", _ERRORS, line_buffering=True)

    def close(self) -> None:
        """Flush: other modules use it too."""
        self.flush()

    def detach(self) -> _Buffer:
        """Return the binary stream, and keep it: other modules use this one too."""
        self.flush()
        return self._binary

    def reconfigure(self, **options: Any) -> None:
        """As that of its class; undone by `reset`."""
        super().reconfigure(**options)
        self._is_as_it_was = False

    def reset(self) -> None:
        """Undo what `reconfigure` has changed."""
        if not self._is_as_it_was:
            super().reconfigure(
                encoding="utf-8", errors=_ERRORS, line_buffering=True, write_through=False
            )
            self._is_as_it_was = True


class RankOutput:
    """Standard output and error of this process, led to the log of the module that runs.

    Parameters
    ----------
    limit_bytes : int
        A log that outgrows it is shortened.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._left_out_bytes = 0
        self._path: Path | None = None
        self._log: int | None = None  # its descriptor: a group that iterates uses the same again
        self._room_bytes = math.inf
        self._shortening = threading.Lock()
        self._is_closed = threading.Event()
        self._watch: threading.Thread | None = None
        self._libc = ctypes.CDLL(None)
        self._flush_fortran: Callable[[None], object] | None = None
        self._modules_seen = 0
        self._streams_before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
        for stream in self._streams_before:
            if stream is not None and not stream.closed:
                stream.flush()
        self._launcher = [_duplicate(number) for number in (1, 2)]
        self.stdout, self.stderr = _Stream(1, self), _Stream(2, self)
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]

    @contextlib.contextmanager
    def to(self, path: Path) -> Iterator[None]:
        """Lead all output of a block to the end of a log file."""
        log = self._open(path)
        self._room_bytes = self._limit_bytes - os.lseek(log, 0, os.SEEK_END)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if self._watch is None:
            self._watch = threading.Thread(target=self._look, name="diel-log", daemon=True)
            self._watch.start()
        try:
            yield
        finally:
            self._end()

    def count(self, written_bytes: int) -> None:
        """Take note of bytes that Python has written; shorten the log if these were too many."""
        self._room_bytes -= written_bytes
        if self._room_bytes < 0:
            self._shorten_if_too_long()

    def take_left_out_bytes(self) -> int:
        """Return how many bytes were taken out of logs since the last call."""
        left_out_bytes, self._left_out_bytes = self._left_out_bytes, 0
        return left_out_bytes

    def flush(self) -> None:
        """Flush what Python, C and Fortran have not written yet."""
        self.stdout.flush()
        self.stderr.flush()
        if sys.stdout is not self.stdout or sys.stderr is not self.stderr:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError, AttributeError):  # closed, or no stream
                    stream.flush()
        self._libc.fflush(None)
        if len(sys.modules) != self._modules_seen:
            self._modules_seen = len(sys.modules)
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(_FORTRAN, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
                self._flush_fortran = library._gfortran_flush_i4
        if self._flush_fortran is not None:
            self._flush_fortran(None)  # all units

    def begin_fork(self) -> None:
        """In a process that was just forked: have a lock that no other thread held."""
        self._shortening = threading.Lock()

    def close(self) -> None:
        """Give this process its own streams back."""
        self.flush()
        self._is_closed.set()
        if self._watch is not None:
            self._watch.join()
        sys.stdout, sys.stderr, out, err = self._streams_before
        sys.__stdout__, sys.__stderr__ = out, err  # type: ignore[misc]
        for descriptor in (*self._launcher, self._log):
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, path: Path) -> int:
        if self._log is None or path != self._path:
            log = file_opener(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            if self._log is not None:
                os.close(self._log)
            self._log, self._path = log, path
        return self._log

    def _end(self) -> None:
        assert self._log is not None
        try:
            try:
                self.flush()
            except OSError:  # the module has led it to what takes nothing: nor may the next get it
                os.dup2(self._log, 1)
                os.dup2(self._log, 2)
                self.flush()
                raise
            self.stdout.reset()
            self.stderr.reset()
        finally:
            # A module's own stream may close the descriptor as it goes: so it goes before that.
            sys.stdout, sys.stderr = self.stdout, self.stderr
            os.dup2(self._launcher[0], 1)
            os.dup2(self._launcher[1], 2)
            if os.lseek(self._log, 0, os.SEEK_END) > self._limit_bytes:
                self._shorten_if_too_long()
            self._room_bytes = math.inf

    def _look(self) -> None:
        """Shorten the present log now and then: a subprocess may write while this rank waits."""
        while not self._is_closed.wait(_LOOK_EVERY_S):
            if self._room_bytes != math.inf:
                self._shorten_if_too_long()

    def _shorten_if_too_long(self) -> None:
        path = self._path
        if path is None:
            return
        with self._shortening, contextlib.suppress(OSError):
            self._left_out_bytes += shorten(path, self._limit_bytes)
            self._room_bytes = self._limit_bytes - path.stat().st_size


def _duplicate(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:  # it is closed
        return os.open(os.devnull, os.O_WRONLY)
