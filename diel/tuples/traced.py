"""A tuple client that records each call for the trace; used only if a full trace is requested."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from diel.comm.meter import Meter, Span
from diel.tuples.client import TupleClient
from diel.tuples.handles import Claim

if TYPE_CHECKING:
    from diel.tuples.transport import Transport

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
"""Calls whose first argument is a tag."""


class TracedClient(TupleClient):
    """A `TupleClient` that records when each call began and ended, its tag and its bytes."""

    def __init__(self, transport: Transport, meter: Meter) -> None:
        super().__init__(transport)
        self._meter = meter


def _traced(name: str) -> Any:
    call = getattr(TupleClient, name)

    @functools.wraps(call)
    def traced(self: TracedClient, tag: Any, *arguments: Any, **options: Any) -> Any:
        meter = self._meter
        value = arguments[0] if arguments else None
        since_s = meter.clock()
        try:
            returned = call(self, tag, *arguments, **options)
            if returned is not None:
                value = returned[1] if options.get("with_tag") else returned
            return returned
        finally:
            size_bytes = _size_of(value)
            meter.keep(Span("tuples", since_s, meter.clock(), name, tag, size_bytes))

    return traced


def _size_of(value: object) -> int | None:
    if isinstance(value, Claim):
        value = value.value
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else None


for _name in TRACED:
    setattr(TracedClient, _name, _traced(_name))
