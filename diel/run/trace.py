"""``trace.json``: what each rank did and when, for https://ui.perfetto.dev.

Chrome's trace event format: complete events (``"ph": "X"``) on a line for each rank. Every rank
appends events to a part of its own::

    trace/rank-3.jsonl      one event a line, in nanoseconds since 1970

At the end of a run, or on request, the parts become one file, together with events from the
journal: the iterations of the groups, and what was running when the run was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.fields import COUNT, LATEST_S, ROW, TEXT, Kind, Record, encoded
from diel.run.files import open_regular, replacing
from diel.run.journal import JournalReader
from diel.run.json_values import DamagedRecord, parse_json, plain
from diel.run.records import (
    CheckpointSaved,
    CopiesRestarted,
    CopyFinished,
    CopyGivenUp,
    DeadlockFound,
    GroupFinished,
    GroupSkipped,
    GroupStarted,
    JournalLost,
    LeaveIgnored,
    ModuleFailed,
    RanksLost,
    RunEnded,
    RunResumed,
    RunStarted,
    StopOrdered,
    WhenFailed,
)
from diel.run.trace_part import Event, span_event

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
"""Fields of an event in ``trace/rank-3.jsonl``: ranks write complete events only."""
_PID: Final = 0
"""All ranks are lines of one process, so that they stand below each other."""

EXECUTIVE: Final = 0
"""Number of the executive's line; the line of every rank has the rank's number."""
_NOTES: Final[dict[type[Record], str]] = {
    ModuleFailed: "failed: {module}.{copy}",
    CopiesRestarted: "starts again: {module}",
    GroupSkipped: "skipped: {group}",
    CopyGivenUp: "given up: {module}.{copy}",
    CheckpointSaved: "checkpoint {number}",
    DeadlockFound: "deadlock",
    JournalLost: "journal lost",
    LeaveIgnored: "leave ignored: {module}.{copy}",
    RanksLost: "ranks lost: {ranks}",
    StopOrdered: "stop: {reason}",
    WhenFailed: "when failed: {group}",
    RunResumed: "resumed",
}
_UNNAMED_RANKS: Final = 2**16
"""Most ranks whose lines are named where their nodes are not known."""
_HIDDEN: Final = ("time_s", "event", "detail", "explanation", "finished", "format")


@dataclass
class _Iteration:
    group: str
    iteration: tuple[int, ...]
    start_ns: int
    end_ns: int = 0
    ended_by: str = ""


@dataclass
class _Copy:
    name: str
    group: str
    iteration: tuple[int, ...]
    ranks: Sequence[int]
    start_ns: int
    session_ns: int
    attempt: int = 1
    end_ns: int = 0
    written_ns: dict[int, int] = field(default_factory=dict)
    """By rank: until when its own events cover its time since the run began or was resumed."""
    ends_written_by: set[int] = field(default_factory=set)
    """Ranks that have written how the copy ended."""

    def about(self) -> dict[str, Any]:
        return {"group": self.group, "iteration": list(self.iteration), "attempt": self.attempt}


@dataclass
class _Lane:
    """A line of the executive: iterations on it are nested, or follow each other."""

    open: list[_Iteration] = field(default_factory=list)

    def takes(self, iteration: _Iteration, around: str) -> bool:
        while self.open and self.open[-1].end_ns <= iteration.start_ns:
            self.open.pop()
        if not self.open:
            return True
        top = self.open[-1]
        return top.group == around and iteration.end_ns <= top.end_ns


class TraceBuilder:
    """Events of a trace, made from the records of a journal, in nanoseconds since 1970.

    Parameters
    ----------
    records : iterable of Record
        All of a journal, resumptions included.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.workflow = ""
        self.starts: list[float] = []
        self._ranks = 0
        self._names: dict[int, str] = {EXECUTIVE: "rank 0: executive"}
        self._inside: Mapping[str, str] = {}
        self._iterations: list[_Iteration] = []
        self._running: dict[str, _Iteration] = {}
        self._copies: dict[tuple[str, str], _Copy] = {}
        self._cut_short: list[_Copy] = []
        self._notes: list[Event] = []
        self._session_ns = 0  # when the run began or was resumed
        last_ns = 0
        for record in records:
            if isinstance(record, (RunResumed, RunEnded)):
                self._cut(last_ns)
            last_ns = _nanoseconds(record.time_s)
            self._apply(record, last_ns)
        self._cut(last_ns)
        self._cut_on: dict[int, list[_Copy]] = {}
        for copy in self._cut_short:
            for rank in copy.ranks:
                self._cut_on.setdefault(rank, []).append(copy)
        self._lanes = self._arrange()

    @property
    def has_started(self) -> bool:
        """Whether the run has ever started."""
        return bool(self.starts)

    @property
    def origin_ns(self) -> int:
        """When the run began, before any resumption."""
        return _nanoseconds(self.starts[0])

    def names(self) -> Iterator[Event]:
        """Yield the metadata events that name and order the lines."""
        yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": self.workflow}}
        lines = {EXECUTIVE: self._names[EXECUTIVE]}
        for lane in range(1, len(self._lanes)):
            lines[self._line_of(lane)] = "executive: groups side by side"
        lines |= {rank: f"rank {rank}" for rank in range(1, min(self._ranks, _UNNAMED_RANKS))}
        lines |= self._names
        for place, (line, name) in enumerate(lines.items()):
            yield {"ph": "M", "name": "thread_name", "tid": line, "args": {"name": name}}
            order = {"sort_index": place}
            yield {"ph": "M", "name": "thread_sort_index", "tid": line, "args": order}

    def note(self, event: Event) -> None:
        """Record an event that a rank has written, so that `events` does not cover it again."""
        rank, start_ns = event["tid"], event.get("ts", 0)
        for copy in self._cut_on.get(rank, ()):
            if not copy.session_ns <= start_ns <= copy.end_ns:
                continue
            end_ns = start_ns + event.get("dur", 0)
            copy.written_ns[rank] = max(end_ns, copy.written_ns.get(rank, 0))
            about = event.get("args", {})
            if event["name"] == copy.name and copy.about().items() <= about.items():
                copy.ends_written_by.add(rank)

    def events(self) -> Iterator[Event]:
        """Yield events that no rank has written: groups, failures, copies that were cut short."""
        for lane, iterations in enumerate(self._lanes):
            for iteration in iterations:
                number = (
                    f" {'.'.join(map(str, iteration.iteration))}" if iteration.iteration else ""
                )
                about = {"iteration": iteration.iteration, "ended_by": iteration.ended_by}
                yield span_event(
                    f"group {iteration.group}{number}",
                    "group",
                    iteration.start_ns,
                    iteration.end_ns,
                    self._line_of(lane),
                    about,
                )
        yield from self._notes
        for copy in self._cut_short:
            for rank in copy.ranks:
                if rank in copy.ends_written_by:
                    continue
                start_ns = max(copy.start_ns, copy.written_ns.get(rank, 0))
                end_ns = max(start_ns, copy.end_ns)
                about = copy.about() | {"ended": "cut short"}
                yield span_event(copy.name, "module", start_ns, end_ns, rank, about)

    # -- reading ------------------------------------------------------------------------------

    def _apply(self, record: Record, now_ns: int) -> None:
        if isinstance(record, RunStarted):
            self._start(record)
        elif isinstance(record, GroupStarted):
            group, iteration = record.group, record.iteration
            self._running[group] = _Iteration(group, iteration, now_ns)
            for name, ranks in record.placement.items():
                copy = _Copy(name, group, iteration, ranks, now_ns, self._session_ns)
                self._copies[group, name] = copy
        elif isinstance(record, GroupFinished):
            self._finish(record.group, now_ns, record.ended_by or "")
        elif isinstance(record, (CopyFinished, CopyGivenUp)):
            self._copies.pop((record.group, record.name), None)
        elif isinstance(record, CopiesRestarted):
            for index in record.copies:
                again = self._copies.get((record.group, f"{record.module}.{index}"))
                if again is not None:
                    again.start_ns, again.attempt = now_ns, record.attempt
        if type(record) in _NOTES:
            about = {name: getattr(record, name) for name in record.layout}
            written = encoded(record, record.time_s)
            self._notes.append(
                {
                    "ph": "i",
                    "s": "t",
                    "name": _NOTES[type(record)].format(**about),
                    "cat": "run",
                    "ts": now_ns,
                    "tid": EXECUTIVE,
                    "args": {name: shown for name, shown in written.items() if name not in _HIDDEN},
                }
            )

    def _start(self, record: RunStarted) -> None:
        self.starts.append(record.time_s)
        self._session_ns = _nanoseconds(record.time_s)
        self.workflow = record.workflow
        self._ranks = max(self._ranks, record.ranks)
        self._inside = record.inside
        for rank in record.servers:
            self._names[rank] = f"rank {rank}: tuple server"
        for node in record.nodes:
            for rank in node.ranks:
                self._names[rank] = f"rank {rank} on {node.host}"

    def _finish(self, group: str, now_ns: int, ended_by: str) -> None:
        iteration = self._running.pop(group, None)
        if iteration is not None:
            iteration.end_ns, iteration.ended_by = now_ns, ended_by
            self._iterations.append(iteration)

    def _cut(self, now_ns: int) -> None:
        """End every group and copy that is running: the run was stopped or killed."""
        for group in list(self._running):
            self._finish(group, now_ns, "cut short")
        for copy in self._copies.values():
            copy.end_ns = now_ns
            self._cut_short.append(copy)
        self._copies.clear()

    # -- lines --------------------------------------------------------------------------------

    def _line_of(self, lane: int) -> int:
        return EXECUTIVE if lane == 0 else self._ranks + lane - 1

    def _arrange(self) -> list[list[_Iteration]]:
        """Return a list of iterations for each line, on which they are nested or in sequence."""
        lanes: list[_Lane] = []
        on_lanes: list[list[_Iteration]] = []
        for iteration in sorted(
            self._iterations, key=lambda iteration: (iteration.start_ns, -iteration.end_ns)
        ):
            around = self._inside.get(iteration.group, "")
            place = next(
                (i for i, lane in enumerate(lanes) if lane.takes(iteration, around)), len(lanes)
            )
            if place == len(lanes):
                lanes.append(_Lane())
                on_lanes.append([])
            lanes[place].open.append(iteration)
            on_lanes[place].append(iteration)
        return on_lanes


def _nanoseconds(time_s: float) -> int:
    # A journal's times have microseconds; further digits of a float are rounding errors.
    return round(time_s * 1e6) * 1000


# -- the file -------------------------------------------------------------------------------------


def merge_trace(directory: RunDirectory, warn: Callable[[str], None] = lambda _: None) -> Path:
    """Write ``trace.json`` from the parts and the journal, as far as these exist.

    `warn` is called with a message if a part of the journal is damaged and left out. A
    RunDirectoryError if it is no run's directory, or nothing has run there; an OSError if the file
    cannot be written.
    """
    reader = JournalReader(directory.journal)
    builder = TraceBuilder(reader.new_records())
    if not builder.has_started:
        raise RunDirectoryError(
            reader.complaint or f"{directory.path} holds no run that has started"
        )
    if reader.complaint:
        warn(reader.complaint)
    with replacing(directory.trace, text=True) as file:
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
                event = parse_event(line)
                if event is not None:
                    yield event
    except RunDirectoryError:  # no regular file, so not written by a rank
        return


def parse_event(line: bytes) -> Event | None:
    """Return the event that a line of a part holds; None if it is damaged."""
    try:
        event = parse_json(line)
    except DamagedRecord:
        return None
    is_whole = isinstance(event, dict) and all(
        name in event and kind.fits(event[name]) for name, kind in _FIELDS.items()
    )
    return event if is_whole else None


def save_trace(directory: RunDirectory) -> str:
    """Write ``trace.json`` at the end of a run that has started; return the problem, or ""."""
    try:
        merge_trace(directory)
    except RunDirectoryError:
        return ""  # nothing has run; why not is reported elsewhere
    except OSError as error:
        return f"{directory.trace} cannot be written: {error}"
    return ""
