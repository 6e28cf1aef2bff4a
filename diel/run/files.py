"""Opening, writing and locking the files of a run: through no link, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from diel.errors import RunDirectoryError
from diel.run.json_values import DamagedRecord, parse_json

PART: Final = re.compile(r"\..+\.[0-9a-f]{16}\.part")
"""Names that `part_of` makes."""
_LONGEST_JSON_BYTES: Final = 2**26
_LOCK_S: Final = 0.5
"""How long to wait for a lock: a process that only tests whether it is held has it for a moment."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read it, and nothing else: a pipe would block its reader.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file.
    """
    return os.fdopen(_opened_regular(path, os.O_RDONLY), "rb")


def file_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a run to write it: the ``opener`` of Python's `open`.

    Raises
    ------
    OSError
        If it cannot be opened, is a link, which would be written through, or is no regular file.
    """
    try:
        return _opened_regular(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads
            raise _not_regular(path) from None
        if error.errno != errno.ELOOP:
            raise
        raise RunDirectoryError(
            f"{os.fspath(path)} is a link, and a run would write through it: remove it"
        ) from None


def _opened_regular(path: str | os.PathLike[str], flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _not_regular(path: str | os.PathLike[str]) -> RunDirectoryError:
    return RunDirectoryError(f"{os.fspath(path)} is no regular file")


def read_json(path: str | os.PathLike[str], *, with_nan: bool = False) -> Any:
    """Return the value that a file holds as JSON, as `parse_json` does.

    Raises
    ------
    DamagedRecord
        If it holds none: a ValueError.
    OSError
        If it cannot be read, or is no regular file.
    """
    with open_regular(path) as file:
        data = file.read(_LONGEST_JSON_BYTES + 1)
    if len(data) > _LONGEST_JSON_BYTES:
        raise DamagedRecord(f"it is larger than {_LONGEST_JSON_BYTES:,} bytes")
    return parse_json(data, with_nan=with_nan)


def part_of(path: Path) -> Path:
    """Return an unused name beside a file that nobody can know before: the file in the making."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], *, text: bool = False, mode: int = 0o666, sync: bool = False
) -> Iterator[IO[Any]]:
    """Write a file in one step: a reader finds the old content or the new, and no half of it.

    A link of that name is replaced, not followed. If the block or the file system fails, the old
    content is still there.

    Parameters
    ----------
    path : path
    text : bool, optional
        Whether the block writes text, not bytes.
    mode : int, optional
        Its permissions, less the umask.
    sync : bool, optional
        Whether the content has reached the disk when the file gets its name.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    part = part_of(Path(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        binary = os.fdopen(os.open(part, flags, mode), "wb")
        with io.TextIOWrapper(binary, "utf-8", "replace", newline="") if text else binary as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace_file(
    path: str | os.PathLike[str], content: str, *, mode: int = 0o666, sync: bool = False
) -> None:
    """Write a text to a file in one step, as `replacing` does."""
    with replacing(path, text=True, mode=mode, sync=sync) as file:
        file.write(content)


# -- lines of JSON, only ever appended ------------------------------------------------------------


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


# -- locks ----------------------------------------------------------------------------------------


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
