"""Timelines: what a few ranks did in a stretch of time, as boxes for a picture.

They are read from the parts of the trace that ranks write while the run goes on (`trace`), and
drawn at a given number of steps: spans shorter than a step are drawn together, so the size of a
picture has a bound, whatever the run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.trace import parse_event

_READ_BYTES: Final = 512 * 1024
_KEPT: Final = 20_000
"""Most spans that are kept of a rank: the last ones."""
_KINDS: Final = ("module", "wait", "transfer", "tuples")


class TimelineSpan(Frozen):
    """A span of a rank's time: its kind (module, wait, ...), and when, in seconds since 1970."""

    kind: str
    name: str
    start_s: float
    end_s: float


Picture: TypeAlias = "list[tuple[int, int, str, str]]"
"""Boxes of a rank: first step, number of steps, kind, and name of the longest span."""


@dataclass
class _RankSpans:
    """The spans that have been read from the trace part of a rank, and how far it was read."""

    offset: int = 0
    rest: bytes = b""
    spans: list[TimelineSpan] = field(default_factory=list)


@dataclass
class _Box:
    first: int
    end: int
    seconds: float
    name: str


class Timeline:
    """The spans of ranks, read from the parts of a trace as these grow."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._parts: dict[int, _RankSpans] = {}

    def look(self, ranks: Sequence[int]) -> None:
        """Read new spans of some ranks, of a long part only its end; forget all other ranks."""
        self._parts = {rank: self._parts.get(rank, _RankSpans()) for rank in ranks}
        for rank, part in self._parts.items():
            self._read(rank, part)

    def spans(self, rank: int) -> Sequence[TimelineSpan]:
        """Return the spans of a rank, as far as they have been read, in the order of their ends."""
        return self._parts[rank].spans

    def _read(self, rank: int, part: _RankSpans) -> None:
        try:
            with open_regular(self._directory.trace_part(rank)) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes < part.offset:  # the file was replaced
                    part.offset, part.rest = 0, b""
                    part.spans.clear()
                if size_bytes - part.offset > _READ_BYTES:
                    part.offset, part.rest = size_bytes - _READ_BYTES, b""
                file.seek(part.offset)
                data = file.read(_READ_BYTES)
        except (OSError, RunDirectoryError):  # none yet
            return
        part.offset += len(data)
        *lines, part.rest = (part.rest + data).split(b"\n")
        part.rest = part.rest[-_READ_BYTES:]
        for line in lines:
            event = parse_event(line)
            if event is not None:
                start_s = event["ts"] / 1e9
                kind = str(event.get("cat", ""))
                part.spans.append(
                    TimelineSpan(
                        kind if kind in _KINDS else "module",
                        event["name"][:200],
                        start_s,
                        start_s + event["dur"] / 1e9,
                    )
                )
        del part.spans[:-_KEPT]


def draw_spans(spans: Sequence[TimelineSpan], start_s: float, end_s: float, steps: int) -> Picture:
    """Return the boxes of one rank between two moments.

    Modules are drawn first, and what happened within them above that. Boxes of one kind do not
    overlap: of several in one step, the longest gives it its name.

    Parameters
    ----------
    spans : sequence of TimelineSpan
    start_s, end_s : float
        Seconds since 1970.
    steps : int
        How many steps the stretch is cut into: there are at most so many boxes of a kind.
    """
    length_s = end_s - start_s
    if length_s <= 0:
        return []
    picture: Picture = []
    for kind in _KINDS:
        boxes: list[_Box] = []
        shown = [
            span
            for span in spans
            if span.kind == kind and span.end_s >= start_s and span.start_s <= end_s
        ]
        for span in sorted(shown, key=lambda span: span.start_s):
            first = max(0, int((span.start_s - start_s) / length_s * steps))
            end = min(steps, int((span.end_s - start_s) / length_s * steps) + 1)
            seconds = span.end_s - span.start_s
            last = boxes[-1] if boxes else None
            if last is None or first >= last.end:
                boxes.append(_Box(first, end, seconds, span.name))
            elif end <= last.end or first == last.first:
                last.end = max(last.end, end)
                if seconds > last.seconds:
                    last.seconds, last.name = seconds, span.name
            else:
                boxes.append(_Box(last.end, end, seconds, span.name))
        picture += [(box.first, box.end - box.first, kind, box.name) for box in boxes]
    return picture
