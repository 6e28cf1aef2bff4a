"""The log file of the copy that runs on a rank, and what keeps log files short."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_MARKER: Final = "\n\n... {:,} bytes are left out here: log_size in [workflow] is {:,} ...\n\n"


def shorten(path: Path, limit_bytes: int) -> int:
    """Take the middle out of a log file that has outgrown its limit: a quarter at each end stays.

    Whoever writes it has opened it to append, and goes on behind its new end. What is written at
    this very moment may be lost.

    Returns
    -------
    int
        The bytes that were left out; 0 if it is short enough, or not there.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return 0
    kept_bytes = limit_bytes // 4
    if size_bytes <= limit_bytes:
        return 0
    with path.open("r+b") as file:
        file.seek(-kept_bytes, os.SEEK_END)
        end = file.read(kept_bytes).partition(b"\n")
        left_out_bytes = size_bytes - kept_bytes - len(end[2] or end[0])
        file.truncate(kept_bytes)
        file.seek(0, os.SEEK_END)
        file.write(_MARKER.format(left_out_bytes, limit_bytes).encode() + (end[2] or end[0]))
    return left_out_bytes


class LimitedFile(io.FileIO):
    """A file to append to that is shortened when it has outgrown its limit.

    Parameters
    ----------
    path : Path
    limit_bytes : int

    Attributes
    ----------
    left_out_bytes : int
        What was taken out of it so far.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        super().__init__(path, "a")
        self._path, self._limit_bytes = path, limit_bytes
        self._room_bytes = limit_bytes - path.stat().st_size
        self.left_out_bytes = 0

    def write(self, data: Buffer, /) -> int:
        """Write, and shorten the file if that was too much."""
        written_bytes = super().write(data)
        self._room_bytes -= written_bytes
        if self._room_bytes < 0:
            self.left_out_bytes += shorten(self._path, self._limit_bytes)
            self._room_bytes = self._limit_bytes - os.fstat(self.fileno()).st_size
        return written_bytes


class OpenLog:
    """Keeps the last log file open: a group that iterates writes to the same one every time.

    Parameters
    ----------
    limit_bytes : int
        What a file may grow to.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._path: Path | None = None
        self._file: LimitedFile | None = None
        self._text: TextIO | None = None

    def open(self, path: Path) -> TextIO:
        """Return a file to append to; the one before is closed if it is another."""
        if self._text is None or self._text.closed or path != self._path:
            self.close()
            self._file = LimitedFile(path, self._limit_bytes)
            buffer = io.BufferedWriter(self._file)
            self._text = io.TextIOWrapper(buffer, encoding="utf-8", line_buffering=True)
            self._path = path
        return self._text

    def take_left_out_bytes(self) -> int:
        """Return what was taken out of the present file since this was asked last."""
        if self._file is None:
            return 0
        left_out_bytes, self._file.left_out_bytes = self._file.left_out_bytes, 0
        return left_out_bytes

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._text is not None:
            self._text.close()
