"""The journal: what happened in a run, one JSON record a line, only ever appended to."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from diel.errors import RunDirectoryError

# Python refuses to write longer integers as decimals (sys.set_int_max_str_digits).
_LONGEST_INTEGER_BITS: Final = 10_000

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)

# Whoever only looks whether a journal is written holds the lock for a moment.
_LOCK_S: Final = 0.5

Record: TypeAlias = "dict[str, Any]"


class JournalWriter:
    """Appends records to a journal, and keeps everybody else from doing so meanwhile.

    The system gives the lock back when this process ends, however it ends.

    Parameters
    ----------
    path : path

    Raises
    ------
    RunDirectoryError
        If another process writes this journal.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # A file name with bytes that are no UTF-8, say, may turn up in a message.
        self._file = open(path, "a", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._in_batch = False
        deadline_s = time.monotonic() + _LOCK_S
        while not _lock(self._file):
            if time.monotonic() > deadline_s:
                self._file.close()
                raise RunDirectoryError(
                    f"{path} is being written: a run goes on there, or is about to end. "
                    "Wait until it has ended"
                )
            time.sleep(0.02)
        _drop_unfinished_line(Path(path))

    def write(self, event: str, **fields: Any) -> Record:
        """Append one record; it is in the file when this returns, but within a `batch`.

        Parameters
        ----------
        event : str
            What happened, in the past tense, such as ``GroupStarted``.
        **fields
            Plain values; whatever JSON lacks is written as its ``repr``.
        """
        record = {"time_s": round(time.time(), 6), "event": event, **fields}
        self._file.write(_ENCODER.encode(plain(record)) + "\n")
        if not self._in_batch:
            self._file.flush()
        return record

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write several records at once: all are in the file at the end of the block."""
        self._in_batch = True
        try:
            yield
        finally:
            self._in_batch = False
            self._file.flush()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sync(self) -> None:
        """Return when everything written so far has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        self.sync()
        self._file.close()


class JournalReader:
    """Reads the records of a journal that may still grow.

    Parameters
    ----------
    path : path
        Need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._offset = 0

    def new_records(self) -> list[Record]:
        """Return the records that were added since the last call.

        A last line that is not finished yet is left for the next call.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _drop_unfinished_line(path: Path) -> None:
    """Cut off what a process wrote last that was killed in the middle of a record."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        keep_bytes = size_bytes
        while keep_bytes:
            start = max(0, keep_bytes - 65536)
            file.seek(start)
            newline = file.read(keep_bytes - start).rfind(b"\n")
            keep_bytes = start + newline + 1
            if newline >= 0:
                break
    if keep_bytes != size_bytes:
        os.truncate(path, keep_bytes)


def plain(value: Any) -> Any:
    """Return a value in JSON's own types.

    NumPy's numbers and arrays become numbers and lists, NaN and infinities text, since JSON has
    neither, and whatever else there is its ``repr``.
    """
    if value is None or type(value) is str or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Exactly int: a subclass of a user's, such as an IntEnum, would not travel.
        number = int(value)
        return number if number.bit_length() < _LONGEST_INTEGER_BITS else hex(number)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, type):
        return plain(value.tolist())
    return repr(value)
