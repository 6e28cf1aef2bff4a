"""Boundary exchanges that compiled modules make by themselves: which memory, to whom, which tags.

Where all modules of a boundary are libraries that were compiled with MPI, `diel.h` makes persistent
requests of these lanes, and an exchange runs no Python. All ranks come to the same conclusion, from
what they know of the workflow file: so nobody asks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from diel.coupling.boundary import Piece, SharedBoundary, pieces

if TYPE_CHECKING:
    import numpy as np

    from diel.coupling.channel import Channel
    from diel.workflow.boundary import Boundary

_BOUNDARIES: Final = 64
_PIECES: Final = 64  # of a boundary, between the same two ranks
_LONGEST: Final = 2**31 - 1
"""MPI counts in 32 bits."""


class Lane(NamedTuple):
    """What this rank sends to another in each exchange, or receives from it."""

    view: np.ndarray[Any, Any]
    peer: int  # a rank of the parent communicator
    tag: int
    is_send: bool


class Lanes(NamedTuple):
    """Those of one boundary, receives first, and the communicator's handle in Fortran."""

    handle: int
    lanes: tuple[Lane, ...]

    @classmethod
    def of(
        cls, boundary: Boundary, number: int, shared: SharedBoundary, channel: Channel
    ) -> Lanes | None:
        """Return the lanes of a boundary, the so-manieth of the file; None where Python has it."""
        peers, port = channel.peers, channel.port
        handle = port.handle
        if handle is None or boundary.ahead is not None or number >= _BOUNDARIES:
            return None
        if not all(module in peers.by_mpi for module in boundary.modules):
            return None
        numbers = _numbers(pieces(boundary, peers))
        if numbers is None:
            return None

        def lane(piece: Piece, view: np.ndarray[Any, Any], *, is_send: bool) -> Lane | None:
            other = peers.place(piece.reader if is_send else piece.owner)
            serial = max(peers.place(piece.owner)[0], peers.place(piece.reader)[0])
            tag = port.lane_tag(serial, number * _PIECES + numbers[piece.key])
            return None if tag is None else Lane(view, other[1], tag, is_send)

        incoming, outgoing = shared.exchanged_views()
        found = [lane(piece, view, is_send=False) for piece, view in incoming]
        found += [lane(piece, view, is_send=True) for piece, view in outgoing]
        known = tuple(each for each in found if each is not None)
        return cls(handle, known) if len(known) == len(found) else None


def _numbers(found: list[Piece]) -> dict[bytes, int] | None:
    """Return for each piece how many before it are between the same ranks; None if too many are."""
    before: Counter[tuple[object, object]] = Counter()
    numbers = {}
    for piece in found:
        pair = piece.owner, piece.reader
        numbers[piece.key] = before[pair]
        before[pair] += 1
        longest = max(end - begin for begin, end in piece.box)
        if before[pair] > _PIECES or longest > _LONGEST:
            return None
    return numbers
