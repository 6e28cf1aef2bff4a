"""The part of a run's trace that one rank writes, see `diel.run.trace`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from diel.run.directory import RunDirectory
from diel.run.files import file_opener

Event: TypeAlias = "dict[str, Any]"


def span_event(
    name: str, category: str, start_ns: int, end_ns: int, line: int, about: Mapping[str, Any]
) -> Event:
    """Return a complete event of the trace: a name on a line, between two times in nanoseconds."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_ns,
        "dur": max(0, end_ns - start_ns),
        "tid": line,
        "args": dict(about),
    }


class TracePart:
    """Appends the events of one rank to its part of a run's trace."""

    def __init__(self, directory: RunDirectory, rank: int) -> None:
        path = directory.trace_part(rank)
        path.parent.mkdir(exist_ok=True)
        self._file = open(  # noqa: SIM115
            path, "a", encoding="utf-8", errors="replace", opener=file_opener
        )
        if self._file.tell():
            self._file.write("\n")  # an earlier writer may have been killed within a line

    def write(self, events: Iterable[Event]) -> None:
        """Append events; they are in the file when this returns."""
        self._file.write("".join(f"{json.dumps(event)}\n" for event in events))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
