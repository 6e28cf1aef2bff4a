"""The end of a log file, followed as it grows."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Final

from diel.run.files import open_regular

_LAST_BYTES: Final = 64 * 1024
_MOST_LOGS: Final = 20_000


class LogTail:
    """Reads the end of a text file, and then what is added to it; at most `last_bytes` at once."""

    def __init__(self, path: Path, last_bytes: int = _LAST_BYTES) -> None:
        self.path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._identity: tuple[int, int] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def new_text(self) -> tuple[str, bool]:
        """Return the text that was added, and whether it follows the text returned before.

        It does not follow where the file was cut short or replaced, or more was added than is read
        at once. An OSError if it cannot be read, or is no regular file.
        """
        with open_regular(self.path) as file:
            about = os.fstat(file.fileno())
            follows = self._identity == (about.st_dev, about.st_ino)
            begin = self._offset if follows and self._offset <= about.st_size else 0
            follows = begin > 0
            is_cut = about.st_size - begin > self._last_bytes
            if is_cut:
                begin, follows = about.st_size - self._last_bytes, False
            self._identity = (about.st_dev, about.st_ino)
            file.seek(begin)
            data = file.read(self._last_bytes)
            self._offset = begin + len(data)
        if not follows:
            self._decoder.reset()
            if is_cut:
                data = data.partition(b"\n")[2] or data  # the rest of a line
        return self._decoder.decode(data), follows


def log_names(folder: Path) -> list[str]:
    """Return the names of the log files of a run: the launcher's, those of copies, crash files."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and entry.name.endswith((".log", ".crash")):
                    names.append(entry.name)
                    if len(names) == _MOST_LOGS:
                        break
    except OSError:  # none yet
        return []
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Return the sort key of a log file's name: the launcher's first, then by numbers in names."""
    parts = name.replace("-", ".").split(".")
    return name != "launcher.log", [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]
