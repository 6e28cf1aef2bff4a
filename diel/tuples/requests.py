"""A request taken apart, and what it and tuples count for: what the parts of a store share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from diel.tuples.protocol import BODY_AT, TUPLE_OVERHEAD_BYTES, Out, Payload
from diel.tuples.queues import Entry
from diel.tuples.spill import Spilled

Outs: TypeAlias = "Sequence[tuple[int, bytes, Payload]]"
"""Messages on their way: to which client, and a payload that travels apart; mostly `Out`."""

NOTHING: Final[tuple[Out, ...]] = ()
FIXED_BYTES: Final = TUPLE_OVERHEAD_BYTES + BODY_AT
"""What every tuple counts for, whatever it holds."""


class Query(NamedTuple):
    """A request that asks for something, taken apart."""

    client: int
    operation: int
    serial: int
    argument: int
    timeout_s: float
    kind: int
    key: bytes
    meta: bytes


def cost_of(entry: Entry) -> int:
    """Return the bytes that a tuple counts for; a client counts the same for its message."""
    payload = entry[3]
    in_memory = payload is not None and not isinstance(payload, Spilled)
    return FIXED_BYTES + len(entry[2]) + (len(payload) if in_memory else 0)
