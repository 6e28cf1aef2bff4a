"""How a rank spends its time: its spans, for the run's trace, and their sums, for rank 0.

Of the calls of the tuple space the trace has only the waits, unless a full trace is requested.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from diel.comm.meter import Meter, Span, Times
from diel.run.trace_part import Event, TracePart, span_event
from diel.tuples.handles import Claim
from diel.tuples.protocol import is_piece
from diel.tuples.tags import decode_tag, format_tag

if TYPE_CHECKING:
    from diel.executive.plans import CopyPlan
    from diel.run.directory import RunDirectory
    from diel.tuples.client import TupleClient

_SAVE_EVERY_S: Final = 0.5
_LONGEST_NAME: Final = 120
_CLOCK_LOOKS: Final = 5

TRACED: Final = (
    "tput",
    "put_if_absent",
    "increment",
    "update",
    "tget",
    "tread",
    "tget_nowait",
    "tread_nowait",
    "claim",
    "count",
    "collect",
    "dist_tput",
    "dist_tget",
    "dist_tread",
)
"""Calls of a tuple client whose first argument is a tag."""


def trace_calls(client: TupleClient, meter: Meter) -> None:
    """Have a client record when each of its calls began and ended, with tag and bytes."""
    for name in TRACED:
        setattr(client, name, _traced(getattr(client, name), meter))


def _traced(call: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    @functools.wraps(call)
    def traced(tag: Any, *arguments: Any, **options: Any) -> Any:
        value = arguments[0] if arguments else None
        since_s = meter.clock()
        try:
            returned = call(tag, *arguments, **options)
            if returned is not None:
                value = returned[1] if options.get("with_tag") else returned
            return returned
        finally:
            size_bytes = _size_of(value)
            meter.keep(Span("tuples", since_s, meter.clock(), call.__name__, tag, size_bytes))

    return traced


def _size_of(value: object) -> int | None:
    if isinstance(value, Claim):
        value = value.value
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else None


class SpanRecorder:
    """Writes the spans that a rank's meter keeps into the run directory, at intervals.

    A disk that is full costs the trace, never the run.
    """

    def __init__(self, directory: RunDirectory, rank: int, meter: Meter) -> None:
        self.meter = meter
        self._directory = directory
        self._rank = rank
        self._part: TracePart | None = None
        self._offset_ns = round(clock_offset_s(meter.clock) * 1e9)
        self._next_s = 0.0

    @contextlib.contextmanager
    def copy(self, plan: CopyPlan) -> Iterator[dict[str, Any]]:
        """Record the block as a span of a copy; the caller may add fields to the dictionary."""
        span_fields: dict[str, Any] = {
            "group": plan.group,
            "iteration": plan.iteration,
            "attempt": plan.attempt,
        }
        since_s = self.meter.clock()
        try:
            yield span_fields
        finally:
            self.meter.keep(Span("module", since_s, self.meter.clock(), plan.name, span_fields))

    def save_if_due(self) -> None:
        """Write the spans that the meter has kept, if the last write is half a second ago."""
        now_s = self.meter.clock()
        if now_s >= self._next_s:
            self._next_s = now_s + _SAVE_EVERY_S
            self._save()

    def close(self) -> Times:
        """Write the remaining spans; return how the rank spent its time."""
        times = self.meter.times()
        self._save()
        if self.meter.left_out:
            now_ns = round(self.meter.clock() * 1e9) + self._offset_ns
            text = f"{self.meter.left_out:,} later events are left out"
            self._write([span_event(text, "note", now_ns, now_ns, self._rank, {})])
        if self._part is not None:
            with contextlib.suppress(OSError):
                self._part.close()
        return times

    def _save(self) -> None:
        spans = self.meter.take_spans()
        if spans:
            self._write([event_of(span, self._rank, self._offset_ns) for span in spans])

    def _write(self, events: list[Event]) -> None:
        with contextlib.suppress(OSError):
            if self._part is None:
                self._part = TracePart(self._directory, self._rank)
            self._part.write(events)


def clock_offset_s(clock: Callable[[], float]) -> float:
    """Return the difference between seconds since 1970 and a clock's seconds.

    The process may be descheduled between two readings: of several tries the fastest counts.
    """
    tries = []
    for _ in range(_CLOCK_LOOKS):
        before_s, now_s, after_s = clock(), time.time(), clock()
        tries.append((after_s - before_s, now_s - (before_s + after_s) / 2))
    return min(tries)[1]


def event_of(span: Span, rank: int, offset_ns: int) -> Event:
    """Return a span as an event of a trace, with times in nanoseconds since 1970.

    The offset is added to the meter's clock for that.
    """
    tag = span.about
    if isinstance(tag, bytes):
        tag = decode_tag(tag) if tag and not is_piece(tag) else None
    about: dict[str, Any] = dict(tag) if isinstance(tag, Mapping) else {}
    name = span.what
    if tag is not None and not isinstance(tag, Mapping):
        about["tag"] = format_tag(tag)
        name = f"{name}({about['tag']})"
    if span.kind == "wait":
        about["what"] = span.what
        name = f"wait: {name}"
    if span.size_bytes is not None:
        about["bytes"] = span.size_bytes
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 3]}..."
    start_ns = round(span.start_s * 1e9) + offset_ns
    end_ns = round(span.end_s * 1e9) + offset_ns
    return span_event(name, span.kind, start_ns, end_ns, rank, about)
