"""Files of JSON lines that are only ever appended to: the journal, and files of modules."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from diel.errors import RunDirectoryError
from diel.run.files import file_opener, open_regular

_LOCK_S: Final = 0.5
"""How long to wait for a lock: a process that only tests whether it is held has it for a moment."""


class JsonLinesFile:
    """Appends lines to a file that this process alone writes.

    Half a line at its end, left by a process that was killed, is cut off.

    Parameters
    ----------
    path : path
        Made if need be.
    locked : bool, optional
        Whether to lock it against other writers. The system releases the lock when this process
        ends, however it ends.

    Attributes
    ----------
    size_bytes : int
        Of the file, with all that was appended.

    Raises
    ------
    RunDirectoryError
        If another process has locked it, or it is a link or no regular file.
    """

    def __init__(self, path: str | os.PathLike[str], *, locked: bool = False) -> None:
        self._path = Path(path)
        self._named_in_errors = _NamedInErrors(self._path)
        self._file = open(path, "ab", opener=file_opener)  # noqa: SIM115
        if locked:
            _wait_for_lock(self._file, path)
        _cut_unfinished_line(self._file, self._path)
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def append(self, lines: bytes, *, flush: bool = True) -> None:
        """Append whole lines; they are in the file when this returns, or after `flush`."""
        with self._named_in_errors:
            self._file.write(lines)
            self.size_bytes += len(lines)
            if flush:
                self._file.flush()

    def flush(self) -> None:
        """Return when everything appended so far is in the file."""
        with self._named_in_errors:
            self._file.flush()

    def sync(self) -> None:
        """Return when everything appended so far has reached the disk."""
        with self._named_in_errors:
            self._file.flush()
            os.fdatasync(self._file.fileno())

    def damage(self) -> str:
        """Return how another process has damaged the file, in words; empty if it has not."""
        self._file.flush()
        own = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return "was removed"
        except OSError:  # a file system that does not answer for a while
            return ""
        if not os.path.samestat(own, there):
            return "was replaced by another file"
        return "was cut short" if there.st_size < self.size_bytes else ""

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        self.sync()
        self._file.close()


class _NamedInErrors:
    """Has an error of the block, such as that of a full disk, name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            error.filename = os.fspath(self._path)


def whole_lines(path: str | os.PathLike[str], start: int = 0) -> Iterator[bytes]:
    """Yield the whole lines of a file one by one, without an unfinished line at its end.

    Parameters
    ----------
    path : path
    start : int, optional
        How many bytes to skip; a line has to begin there.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file.
    """
    with open_regular(path) as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


@contextlib.contextmanager
def locked_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a file locked for the length of a block, or until this process ends, however it ends.

    A RunDirectoryError if another process has locked it, or it cannot be written.
    """
    try:
        file = open(path, "ab", opener=file_opener)  # noqa: SIM115
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error
    with file:
        _wait_for_lock(file, path)
        yield


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a live process, on any machine, holds the lock of a file; False without the file.

    On a file system without locks no file is ever locked.
    """
    try:
        with open_regular(path) as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _wait_for_lock(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    deadline_s = time.monotonic() + _LOCK_S
    while not _lock(file):
        if time.monotonic() > deadline_s:
            file.close()
            raise RunDirectoryError(
                f"{path} is being written: a run goes on there, or is about to end. "
                "Wait until it has ended"
            )
        time.sleep(0.02)


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _cut_unfinished_line(written: BinaryIO, path: Path) -> None:
    size_bytes = os.fstat(written.fileno()).st_size
    with open_regular(path) as file:
        keep_bytes = size_bytes
        while keep_bytes:
            start = max(0, keep_bytes - 65536)
            file.seek(start)
            newline = file.read(keep_bytes - start).rfind(b"\n")
            keep_bytes = start + newline + 1
            if newline >= 0:
                break
    if keep_bytes != size_bytes:
        os.ftruncate(written.fileno(), keep_bytes)
