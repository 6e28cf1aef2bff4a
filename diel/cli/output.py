"""Standard output that may go away: a pipe whose reader has left, a full disk, none at all.

A run goes on without anybody who watches, so what cannot be shown is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO


class _ForgivingStream:
    """A text stream whose writes never fail; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; what cannot be written is dropped."""
        with self._forgiven():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; what cannot be flushed is dropped."""
        with self._forgiven():
            self._stream.flush()

    @contextlib.contextmanager
    def _forgiven(self) -> Any:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EPIPE:  # a reader that leaves has seen enough
                self.lost = error
            # What lies in the stream's buffer must not fail again at the end of the process.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def protect_standard_streams() -> None:
    """Let nothing that is printed from now on raise."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for good
        if hasattr(stream, "reconfigure"):
            # What an encoding lacks is written as its number: a name must not end a command.
            stream.reconfigure(errors="backslashreplace")
        if not isinstance(stream, _ForgivingStream):
            setattr(sys, name, _ForgivingStream(stream))


def warn(text: str) -> None:
    """Print something that a person should know, beside what was asked for."""
    print(f"diel: {text}", file=sys.stderr, flush=True)


def why_output_was_lost() -> str | None:
    """Return why standard output did not take all that was printed, None if it did."""
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    return None if lost is None else f"standard output could not be written: {lost.strerror}"


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Return the lines of a table whose columns are as wide as they have to be."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of Asia take two each."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
