"""Payloads in files: where a server puts what nobody has asked for when its memory is short."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

from diel.errors import TupleError
from diel.tuples.protocol import Payload


class Spilled:
    """A payload in a file, which goes when nothing refers to the payload any more.

    Its length is that of the payload; what it takes of a server's memory is nothing.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        weakref.finalize(self, _remove, path)

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytearray:
        """Return the payload.

        Raises
        ------
        TupleError
            If the file is gone or shorter than it was.
        """
        payload = bytearray(self._size_bytes)
        try:
            with self._path.open("rb", buffering=0) as file:
                view, read = memoryview(payload), 0
                while read < len(view) and (got := file.readinto(view[read:])):
                    read += got
        except OSError as error:
            raise TupleError(f"a payload on disk is lost: {error}") from error
        if read < len(payload):
            raise TupleError(f"a payload on disk is lost: {self._path} is too short")
        return payload


class SpillFolder:
    """Writes payloads to numbered files in a folder of its own.

    Parameters
    ----------
    folder : path
        Made with the first payload.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._files = 0

    def __str__(self) -> str:
        return str(self._folder)

    def write(self, payload: Payload) -> Spilled:
        """Return the payload in a file.

        Raises
        ------
        OSError
            If it cannot be written, as on a full disk; then no file is left.
        """
        self._files += 1
        path = self._folder / f"{self._files}.payload"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(payload)
        except OSError:
            _remove(path)
            raise
        return Spilled(path, len(payload))


def loaded(payload: Payload) -> Payload:
    """Return a payload in memory, from its file if that is where it is."""
    return payload.read() if isinstance(payload, Spilled) else payload


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
