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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader
from diel.run.storyline import Storyline

Event: TypeAlias = "dict[str, Any]"

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


def merge_trace(directory: RunDirectory) -> Path:
    """Write ``trace.json`` from the parts and the journal, as far as they are there.

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
    try:
        records = JournalReader(directory.journal).new_records()
        story = Storyline(records)
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{directory.journal} is no journal, or damaged") from error
    if not story.has_started:
        raise RunDirectoryError(f"{directory.path} holds no run that has started")
    unfinished = directory.trace.with_suffix(".json.part")
    with unfinished.open("w", encoding="utf-8") as file:
        about = {"workflow": story.workflow, "runs": len(story.starts)}
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}')
        file.write(', "traceEvents": [')
        between = "\n"
        for event in _all_events(directory, story):
            if "ts" in event:
                event["ts"] = (event["ts"] - story.origin_ns) / 1000
            if "dur" in event:
                event["dur"] /= 1000
            file.write(between + json.dumps({**event, "pid": _PID}))
            between = ",\n"
        file.write("\n]}\n")
    os.replace(unfinished, directory.trace)
    return directory.trace


def _all_events(directory: RunDirectory, story: Storyline) -> Iterator[Event]:
    yield from story.names()
    for part in sorted(directory.trace_parts.glob("rank-*.jsonl")):
        for event in _events_of(part):
            story.note(event)
            yield event
    yield from story.events()


def _events_of(part: Path) -> Iterator[Event]:
    """Yield the whole events of a part; a rank that is killed may leave half a line."""
    with part.open("rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def save_trace(directory: RunDirectory) -> str:
    """Write ``trace.json`` at the end of a run, if anything has run; return why it cannot be."""
    try:
        merge_trace(directory)
    except RunDirectoryError:
        return ""  # the run has its own words for what happened
    except OSError as error:
        return f"{directory.trace} cannot be written: {error}"
    return ""
