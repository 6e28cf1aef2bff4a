"""Printing that never raises: a pipe's reader may have left, a disk be full, a stream be closed.

A run goes on even if nobody watches it, so text that cannot be written is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# Characters that move the cursor, change colours or ring the bell, or change the direction of text.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def without_controls(text: str) -> str:
    r"""Return text with control characters written as numbers: ``\u001b`` for an escape.

    Printed text comes from the files of a run and from modules, and must not control the terminal.
    JSON text keeps its meaning, as these are JSON's own escapes.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _ForgivingStream:
    """A wrapper of a text stream whose writes never raise: text that cannot be written is dropped.

    Control characters are written as numbers, except those of Rich's own drawings.
    """

    def __init__(self, stream: TextIO, drawn_for: _ForgivingStream | None = None) -> None:
        self._stream = stream
        self._is_drawn = drawn_for is not None
        self._owner = drawn_for or self
        self.lost: OSError | None = None

    @property
    def rich_proxied_file(self) -> Any:
        """The same stream for Rich, which does not escape: `console` has escaped texts already."""
        return self if self._is_drawn else _ForgivingStream(self._stream, drawn_for=self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it if the stream cannot be written."""
        with self._forgiven():
            self._stream.write(text if self._is_drawn else without_controls(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop its content if it cannot be written."""
        with self._forgiven():
            self._stream.flush()

    @contextlib.contextmanager
    def _forgiven(self) -> Any:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EPIPE:  # that a pipe's reader has left is no error
                self._owner.lost = error
            # Text left in the stream's buffer must not fail again at the end of the process.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def console(**options: Any) -> Console:
    """Return a Rich console that shows text literally: no markup, and no control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not _CONTROLS.search(segment.text):
                    yield segment
                else:
                    yield Segment(without_controls(segment.text), segment.style)

    return PlainConsole(**{"markup": False, "emoji": False, **options})


def protect_standard_streams() -> None:
    """Wrap stdout and stderr, so that printing never raises."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for good
        if hasattr(stream, "reconfigure"):
            # Characters that the encoding lacks are written as numbers: no name may raise.
            stream.reconfigure(errors="backslashreplace")
        if not isinstance(stream, _ForgivingStream):
            setattr(sys, name, _ForgivingStream(stream))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print(f"diel: {text}", file=sys.stderr, flush=True)


def why_output_was_lost() -> str | None:
    """Return why not all printed text could be written to standard output, None if it could."""
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    return None if lost is None else f"standard output could not be written: {lost.strerror}"


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Return the lines of a table with aligned columns, control characters escaped."""
    rows = [[without_controls(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian letters take two each."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
