"""``trace.json``: what each rank did and when, for https://ui.perfetto.dev.

Chrome's trace event format: complete events (``"ph": "X"``) on a line for each rank. Every rank
appends events to a part of its own::

    trace/rank-3.jsonl      one event a line, in nanoseconds since 1970

At the end of a run, or whenever somebody asks, the parts become one file, together with what the
journal knows: the iterations of the groups, and what was running when the run was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory, open_anew, open_regular
from diel.run.fields import COUNT, LATEST_S, ROW, TEXT, DamagedRecord, Kind, parsed
from diel.run.journal import JournalReader, plain
from diel.run.trace_builder import TraceBuilder

Event: TypeAlias = "dict[str, Any]"

_ENCODER: Final = json.JSONEncoder(allow_nan=False)
_LONGEST_EVENT_BYTES: Final = 2**20
_NANOSECONDS: Final = Kind(
    "a number of nanoseconds",
    lambda value: type(value) in (int, float) and 0 <= value <= LATEST_S * 1e9,
)
_FIELDS: Final = {
    "ph": TEXT,
    "name": TEXT,
    "tid": COUNT,
    "ts": _NANOSECONDS,
    "dur": _NANOSECONDS,
    "args": ROW,
}
"""Of an event in ``trace/rank-3.jsonl``: ranks write complete events only."""
_PID: Final = 0
"""All ranks are lines of one process, so that they stand below each other."""


class TracePart:
    """Appends the events of one rank to its part of a run's trace.

    Parameters
    ----------
    directory : RunDirectory
    rank : int
    """

    def __init__(self, directory: RunDirectory, rank: int) -> None:
        path = directory.trace_part(rank)
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("a", encoding="utf-8", errors="replace")
        if self._file.tell():
            self._file.write("\n")  # whoever wrote here before may have been killed in a line

    def write(self, events: Iterable[Event]) -> None:
        """Append events; they are in the file when this returns."""
        self._file.write("".join(f"{json.dumps(event)}\n" for event in events))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def merge_trace(directory: RunDirectory, warn: Callable[[str], None] = lambda _: None) -> Path:
    """Write ``trace.json`` from the parts and the journal, as far as they are there.

    Parameters
    ----------
    directory : RunDirectory
    warn : callable, optional
        Told what is damaged and had to be left out.

    Returns
    -------
    Path

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, or nothing has run there.
    OSError
        If it cannot be written.
    """
    reader = JournalReader(directory.journal)
    builder = TraceBuilder(reader.new_records())
    if not builder.has_started:
        raise RunDirectoryError(
            reader.complaint or f"{directory.path} holds no run that has started"
        )
    if reader.complaint:
        warn(reader.complaint)
    unfinished = directory.trace.with_suffix(".json.part")
    with open_anew(unfinished) as file:
        about = {"workflow": builder.workflow, "runs": len(builder.starts)}
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}')
        file.write(', "traceEvents": [')
        between = "\n"
        for event in _all_events(directory, builder):
            if "ts" in event:
                event["ts"] = (event["ts"] - builder.origin_ns) / 1000
            if "dur" in event:
                event["dur"] /= 1000
            file.write(between + _encoded({**event, "pid": _PID}))
            between = ",\n"
        file.write("\n]}\n")
    os.replace(unfinished, directory.trace)
    return directory.trace


def _encoded(event: Event) -> str:
    try:
        return _ENCODER.encode(event)
    except ValueError:  # a number that JSON does not have
        return _ENCODER.encode(plain(event))


def _all_events(directory: RunDirectory, builder: TraceBuilder) -> Iterator[Event]:
    named = set()
    for event in builder.names():
        named.add(event["tid"])
        yield event
    for part in sorted(directory.trace_parts.glob("rank-*.jsonl")):
        for event in _events_of(part):
            if event["tid"] in named:
                builder.note(event)
                yield event
    yield from builder.events()


def _events_of(part: Path) -> Iterator[Event]:
    """Yield the whole events of a part; a rank that is killed may leave half a line."""
    try:
        with open_regular(part) as file:
            while line := file.readline(_LONGEST_EVENT_BYTES):
                try:
                    event = parsed(line)
                except DamagedRecord:
                    continue
                if isinstance(event, dict) and all(
                    name in event and kind.fits(event[name]) for name, kind in _FIELDS.items()
                ):
                    yield event
    except RunDirectoryError:  # no file: nothing of ours
        return


def save_trace(directory: RunDirectory) -> str:
    """Write ``trace.json`` at the end of a run, if anything has run; return why it cannot be."""
    try:
        merge_trace(directory)
    except RunDirectoryError:
        return ""  # the run has its own words for what happened
    except OSError as error:
        return f"{directory.trace} cannot be written: {error}"
    return ""
