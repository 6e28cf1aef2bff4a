"""A shared boundary, as one rank sees it: ``ctx.boundary("wall")``.

Each overlap of a section that one rank owns and one that another rank reads is a message of its
own, directly between the two. Both know all sections, from the workflow file, so nothing is
agreed upon at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diel.coupling.address import Address, Roster
from diel.coupling.channel import BOUNDARY, SEPARATOR, Arrival, Channel, Sending
from diel.errors import BoundaryError
from diel.tuples import codec
from diel.workflow.boundary import Part
from diel.workflow.sections import Box, intersection, is_empty, slices

if TYPE_CHECKING:
    from diel.comm.direct import Transfer
    from diel.workflow.boundary import Boundary

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """What one rank sends to another in each exchange."""

    owner: Address
    reader: Address
    box: Box
    key: bytes


def pieces(boundary: Boundary, roster: Roster) -> list[Piece]:
    """Return everything that travels in an exchange; the same on all ranks, in the same order."""
    owners = list(_shares(boundary, boundary.owners, roster))
    readers = list(_shares(boundary, boundary.readers, roster))
    found = []
    for i, (owner, owned) in enumerate(owners):
        for j, (reader, read) in enumerate(readers):
            shared = intersection(owned, read) if owner != reader else None
            if shared is not None:
                key = BOUNDARY + boundary.name.encode() + SEPARATOR + b"%d-%d" % (i, j)
                found.append(Piece(owner, reader, shared, key))
    return found


def _shares(
    boundary: Boundary, parts: tuple[Part, ...], roster: Roster
) -> Iterator[tuple[Address, Box]]:
    for part in parts:
        ranks_of = [len(copy.ranks) for copy in roster.copies.get(part.module, ())]
        for copy, rank, box in part.shares(boundary.shape, ranks_of):
            if not is_empty(box):
                yield Address(part.module, copy, rank), box


@dataclass
class _Outgoing:
    """A piece that this rank sends, and the buffers that it has been packed into."""

    piece: Piece
    view: Array
    meta: bytes
    packed: list[tuple[Array, Transfer | None]] = field(default_factory=list)

    def buffer(self) -> Array:
        """Return a buffer that is not under way; there are as many as pushes nobody has pulled."""
        for index, (array, transfer) in enumerate(self.packed):
            if transfer is None or transfer():
                del self.packed[index]
                return array
        return np.empty(self.view.shape, self.view.dtype)


@dataclass
class _Incoming:
    """A piece that this rank receives; it lands in its place, if that is contiguous memory."""

    piece: Piece
    view: Array
    landing: Array


class SharedBoundary:
    """An array of which this rank owns sections, or reads those of others.

    Parameters
    ----------
    boundary : Boundary
        What the workflow file says of it.
    channel : Channel

    Attributes
    ----------
    name : str
    array : ndarray
        Of the declared shape, on every rank: indices mean the same everywhere. It begins as
        zeros; what lies outside of a rank's own sections and those that it reads stays so.
    owned, read : tuple of ndarray
        Views of the sections that this rank owns and reads, in the order of the file.

    Raises
    ------
    BoundaryError
        If this rank has no part in it, or not all of its modules are in this group.
    """

    def __init__(self, boundary: Boundary, channel: Channel) -> None:
        me, roster = channel.address, channel.roster
        self.name = boundary.name
        self._channel = channel
        absent = [module for module in boundary.modules if module not in roster.copies]
        if absent:
            raise BoundaryError(
                f'boundary "{self.name}" is shared with {", ".join(absent)}, and group '
                f'"{roster.group}" has {", ".join(roster.copies)} only'
            )
        # Untouched pages of zeros take no memory.
        self.array: Array = np.zeros(boundary.shape, boundary.dtype)
        owned = _shares(boundary, boundary.owners, roster)
        read = _shares(boundary, boundary.readers, roster)
        self.owned = tuple(self.array[slices(box)] for owner, box in owned if owner == me)
        self.read = tuple(self.array[slices(box)] for reader, box in read if reader == me)
        if not self.owned and not self.read:
            raise BoundaryError(
                f'{me} has no part in boundary "{self.name}": name it among its owners or readers'
            )
        everything = pieces(boundary, roster)
        self._outgoing = [self._send(one) for one in everything if one.owner == me]
        self._incoming = [self._receive(one) for one in everything if one.reader == me]
        self._readers = sorted({one.piece.reader for one in self._outgoing})

    def _send(self, piece: Piece) -> _Outgoing:
        view = self.array[slices(piece.box)]
        return _Outgoing(piece, view, codec.array_meta(view))

    def _receive(self, piece: Piece) -> _Incoming:
        view = self.array[slices(piece.box)]
        landing = view if view.flags.c_contiguous else np.empty(view.shape, view.dtype)
        return _Incoming(piece, view, landing)

    def push(self) -> Sending:
        """Send what this rank owns to whoever reads it; never waits.

        The sections are copied, so that the array may be changed at once. Each push is for one
        pull of each reader; pushes that have not been pulled yet are kept, in order.

        Returns
        -------
        Sending
            Its ``wait()`` returns when all readers have what does not fit into a head.

        Raises
        ------
        BoundaryError
            If this rank owns nothing of it.
        """
        if not self.owned:
            raise BoundaryError(f'{self._channel.address} owns nothing of boundary "{self.name}"')
        return Sending(self._channel, list(self._push(in_place=False)), self._readers)

    def pull(self, timeout: float | None = None) -> None:
        """Wait for the next push of every owner, and receive what this rank reads of it.

        Parameters
        ----------
        timeout : float, seconds, optional
            How long to wait; what has come by then stays for the next pull.

        Raises
        ------
        BoundaryError
            If this rank reads nothing of it.
        CouplingTimeout
            If an owner has not pushed in time.
        RunStopped
            If the run is stopping.
        """
        if not self.read:
            raise BoundaryError(f'{self._channel.address} reads nothing of boundary "{self.name}"')
        arrivals = [
            (self._await(one.piece, timeout), codec.memory_of(one.landing))
            for one in self._incoming
        ]
        self._channel.take(arrivals)
        for one in self._incoming:
            if one.landing is not one.view:
                one.view[...] = one.landing

    def _await(self, piece: Piece, timeout: float | None) -> Arrival:
        subject = _Of(self.name, piece)
        return self._channel.await_arrival(piece.key, piece.owner, subject, timeout, "pull")

    def exchange(self, timeout: float | None = None) -> None:
        """Push what this rank owns, pull what it reads, and wait until the readers have theirs.

        All of its ranks take part, as in a Sendrecv; nothing is copied that need not be.

        Parameters
        ----------
        timeout : float, seconds, optional
            For each of its waits.

        Raises
        ------
        CouplingTimeout
            If an owner has not pushed, or a reader not pulled, in time. What was pushed still
            can be pulled; it must not be changed before.
        RunStopped
            If the run is stopping.
        """
        sending = Sending(self._channel, list(self._push(in_place=True)), self._readers)
        if self.read:
            self.pull(timeout)
        sending.wait(timeout)

    def _push(self, *, in_place: bool) -> Iterator[Transfer]:
        for one in self._outgoing:
            if in_place and one.view.flags.c_contiguous:
                buffer = one.view
            else:
                buffer = one.buffer()
                buffer[...] = one.view
            encoded = codec.Encoded(codec.ARRAY, one.meta, codec.memory_of(buffer))
            transfer = self._channel.post(one.piece.reader, one.piece.key, encoded)
            if buffer is not one.view:
                one.packed.append((buffer, transfer))
            if transfer is not None:
                yield transfer


class _Of:
    """What a pull waits for; put into words only where somebody asks."""

    def __init__(self, name: str, piece: Piece) -> None:
        self._name = name
        self._piece = piece

    def __repr__(self) -> str:
        return f'boundary "{self._name}" from {self._piece.owner}'
