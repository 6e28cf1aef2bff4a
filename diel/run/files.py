"""Opening and writing the files of a run: through no link, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from diel.errors import RunDirectoryError
from diel.run.json_values import DamagedRecord, parse_json

PART: Final = re.compile(r"\..+\.[0-9a-f]{16}\.part")
"""Names that `part_of` makes."""
_LONGEST_JSON_BYTES: Final = 2**26


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
