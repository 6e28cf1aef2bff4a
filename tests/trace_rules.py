"""The rules of Chrome's trace event format that Perfetto relies on."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

# Times are written to the nanosecond, in microseconds.
_ROUNDING_US = 2e-3


def checked_events(file: Path) -> list[dict[str, Any]]:
    """Return the events of a trace, after a look at each rule."""
    trace = json.loads(file.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = trace["traceEvents"]
    named = {
        event["tid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["args"]["name"]
    }
    for event in events:
        assert event["ph"] in ("X", "M", "i"), event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        if event["ph"] == "M":
            continue
        assert event["tid"] in named, event
        assert isinstance(event["ts"], float), event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
    spans = sorted(
        (event for event in events if event["ph"] == "X"),
        key=lambda event: (event["tid"], event["ts"], -event["dur"]),
    )
    for _, line in groupby(spans, key=lambda event: event["tid"]):
        check_nesting(list(line))
    return events


def check_nesting(line: list[dict[str, Any]]) -> None:
    """See that spans lie in one another or side by side, in order of their start."""
    open_ends: list[float] = []
    for event in line:
        start, end = event["ts"], event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= start + _ROUNDING_US:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + _ROUNDING_US, event
        open_ends.append(end)


def spans_of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    """Return the spans of one category, by start."""
    found = [event for event in events if event["ph"] == "X" and event["cat"] == category]
    return sorted(found, key=lambda event: event["ts"])
