"""The log file of the copy that runs on a rank."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


class OpenLog:
    """Keeps the last log file open: a group that iterates writes to the same one every time."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: TextIO | None = None

    def open(self, path: Path) -> TextIO:
        """Return a file to append to; the one before is closed if it is another."""
        if self._file is None or self._file.closed or path != self._path:
            self.close()
            self._file = path.open("a", encoding="utf-8", buffering=1)
            self._path = path
        return self._file

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
