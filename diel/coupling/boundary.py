"""A shared boundary, as one rank sees it: ``ctx.boundary("wall")``.

Each overlap of a section that one rank owns and one that another rank reads is a message of its
own, directly between the two. Both know all sections, from the workflow file, so ranks need not
negotiate at run time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diel.comm.device_arrays import HostStaging, is_contiguous, is_on_device, layout_of, to_host
from diel.coupling.address import Address, Peers
from diel.coupling.channel import Bound, Channel, Subject
from diel.coupling.messages import INLINE_BYTES, Sending, boundary_key
from diel.errors import BoundaryError
from diel.tuples import codec
from diel.workflow.boundary import Box, Part, intersection, is_empty, slices

if TYPE_CHECKING:
    from diel.comm.direct import Transfer
    from diel.coupling.messages import ArrivedMessage, OutboxLane
    from diel.workflow.boundary import Boundary

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """A part of the array that one rank sends to another in each exchange."""

    owner: Address
    reader: Address
    box: Box
    key: bytes
    owned: int  # which of all sections that are owned it is of
    read: int


def pieces(boundary: Boundary, peers: Peers) -> list[Piece]:
    """Return all pieces that are sent in an exchange; the same list on all ranks."""
    owners = list(_shares(boundary, boundary.owners, peers))
    readers = list(_shares(boundary, boundary.readers, peers))
    found = []
    for i, (owner, owned) in enumerate(owners):
        for j, (reader, read) in enumerate(readers):
            shared = intersection(owned, read) if owner != reader else None
            if shared is not None:
                key = boundary_key(boundary.name, i, j)
                found.append(Piece(owner, reader, shared, key, i, j))
    return found


def _shares(
    boundary: Boundary, parts: tuple[Part, ...], peers: Peers
) -> Iterator[tuple[Address, Box]]:
    for part in parts:
        ranks_of = [len(copy.ranks) for copy in peers.copies.get(part.module, ())]
        for copy, rank, box in part.shares(boundary.shape, ranks_of):
            if not is_empty(box):
                yield Address(part.module, copy, rank), box


def _piece_of(arrays: Sequence[Array], sections: Mapping[int, Box], number: int, box: Box) -> Array:
    """Return a piece within the memory of the section that it is of."""
    section = sections[number]
    array = arrays[list(sections).index(number)]
    return array[
        tuple(
            slice(start - begin, stop - begin)
            for (start, stop), (begin, _) in zip(box, section, strict=True)
        )
    ]


@dataclass(frozen=True)
class Sections:
    """The sections of a boundary that one rank owns and reads, by their places among all."""

    owned: dict[int, Box]
    read: dict[int, Box]

    @classmethod
    def of(cls, boundary: Boundary, channel: Channel) -> Sections:
        """Return those of the rank that a channel belongs to.

        Raises
        ------
        BoundaryError
            If it has no part in the boundary, or not all of its modules are in this group.
        """
        me, peers = channel.address, channel.peers
        absent = [module for module in boundary.modules if module not in peers.copies]
        if absent:
            raise BoundaryError(
                f'boundary "{boundary.name}" is shared with {", ".join(absent)}, and group '
                f'"{peers.group}" has {", ".join(peers.copies)} only'
            )
        owners = enumerate(_shares(boundary, boundary.owners, peers))
        readers = enumerate(_shares(boundary, boundary.readers, peers))
        owned = {i: box for i, (owner, box) in owners if owner == me}
        read = {i: box for i, (reader, box) in readers if reader == me}
        if not owned and not read:
            raise BoundaryError(
                f'{me} has no part in boundary "{boundary.name}": name it among its owners or '
                "readers"
            )
        return cls(owned, read)


@dataclass
class _OutgoingPiece:
    """A piece that this rank sends."""

    piece: Piece
    view: Array  # the piece within the array
    meta: bytes
    lane: OutboxLane | None = None
    """Sends the piece from the array, where it is contiguous and too large for a head."""
    packed: deque[tuple[Array, Transfer | None]] = field(default_factory=deque)
    """Buffers for copies of the piece, in the order of their pushes, which is that of pulls."""

    def buffer(self) -> Array:
        """Return a buffer for a copy: a free one, or a new one if all are under way.

        Only the oldest is tested, since each test has MPI go through all that is under way. Free
        buffers beyond this one are freed: the reader was late, and has caught up.
        """
        found = None
        while self.packed and ((transfer := self.packed[0][1]) is None or transfer()):
            found = self.packed.popleft()[0]
        return np.empty(self.view.shape, self.view.dtype) if found is None else found


@dataclass
class _IncomingPiece:
    """A piece that this rank receives."""

    piece: Piece
    view: Array  # the piece within the array
    landing: Array  # what it is received into: `view` if that is contiguous
    memory: memoryview  # of `landing`
    subject: object  # describes the piece in reports of a wait for it


class SharedBoundary:
    """An array of which this rank owns sections, or reads sections that other ranks own.

    Parameters
    ----------
    boundary : Boundary
        Its declaration in the workflow file.
    channel : Channel
    owned, read : sequence of ndarray, optional
        The memory of the sections that this rank owns or reads, in place of views of `array`.

    Attributes
    ----------
    name : str
    array : ndarray
        Of the declared shape, on every rank: indices mean the same everywhere. It begins as
        zeros; elements outside of the sections that a rank owns or reads stay zero.
    owned, read : tuple of ndarray
        Views of the sections that this rank owns and reads, in the order of the file.
    step : int
        Which push the last `pull` has received, counted from 0 by its owners; -1 before the first.

    Raises
    ------
    BoundaryError
        If this rank has no part in it, or not all of its modules are in this group.
    """

    def __init__(
        self,
        boundary: Boundary,
        channel: Channel,
        *,
        owned: Sequence[Array] = (),
        read: Sequence[Array] = (),
    ) -> None:
        me = channel.address
        self.name = boundary.name
        self.step = -1
        self._bound = None if boundary.ahead is None else Bound(boundary.ahead, boundary.policy)
        self._drops = self._bound is not None and self._bound.policy == "drop oldest"
        self._channel = channel
        self._sections = Sections.of(boundary, channel)
        # Untouched pages of zeros take no memory.
        self.array: Array = np.zeros(boundary.shape, boundary.dtype)
        self.owned = self._memory_of(self._sections.owned, owned)
        self.read = self._memory_of(self._sections.read, read)
        everything = pieces(boundary, channel.peers)
        self._outgoing = [self._send(piece) for piece in everything if piece.owner == me]
        self._incoming = [self._receive(piece) for piece in everything if piece.reader == me]
        self._lanes = [sent.lane for sent in self._outgoing if sent.lane is not None]
        self._readers = sorted({sent.piece.reader for sent in self._outgoing})
        self._places = [(sent.piece.reader, sent.piece.key) for sent in self._outgoing]

    def exchanged_views(self) -> tuple[list[tuple[Piece, Array]], list[tuple[Piece, Array]]]:
        """Return the pieces that this rank receives, and those that it sends, as they lie."""
        incoming = [(read.piece, read.view) for read in self._incoming]
        return incoming, [(sent.piece, sent.view) for sent in self._outgoing]

    def _memory_of(self, sections: Mapping[int, Box], given: Sequence[Array]) -> tuple[Array, ...]:
        if not given:
            return tuple(self.array[slices(box)] for box in sections.values())
        expected = [self.array[slices(box)] for box in sections.values()]
        self._check_fit(given, expected, "a section")
        return tuple(given)

    def _send(self, piece: Piece) -> _OutgoingPiece:
        view = _piece_of(self.owned, self._sections.owned, piece.owned, piece.box)
        meta = codec.array_meta(view)
        if view.nbytes <= INLINE_BYTES or not view.flags.c_contiguous:
            return _OutgoingPiece(piece, view, meta)
        encoded = codec.Encoded(codec.ARRAY, meta, codec.memory_of(view))
        return _OutgoingPiece(
            piece, view, meta, self._channel.lane(piece.reader, piece.key, encoded)
        )

    def _receive(self, piece: Piece) -> _IncomingPiece:
        view = _piece_of(self.read, self._sections.read, piece.read, piece.box)
        landing = view if view.flags.c_contiguous else np.empty(view.shape, view.dtype)
        memory = codec.memory_of(landing)
        subject = Subject(lambda: f'boundary "{self.name}" from {piece.owner}')
        return _IncomingPiece(piece, view, landing, memory, subject)

    def push(self, *values: Any, timeout: float | None = None) -> Sending:
        """Send the sections that this rank owns to the ranks that read them.

        The sections are copied, so that the array may be changed at once. Each push is for one
        pull of each reader; pushes that have not been pulled yet are kept, in order. It never
        waits, unless the boundary has ``ahead`` with the policy "wait".

        Parameters
        ----------
        *values : array, optional
            Of NumPy or on a GPU, one for each section that this rank owns: copied into `owned`.
        timeout : float, seconds, optional
            How long to wait for readers that are ``ahead`` pushes behind.

        Returns
        -------
        Sending
            Its ``wait()`` returns when all readers have received the pieces that are too large for
            a head, or these have been dropped.

        Raises
        ------
        BoundaryError
            If this rank owns no section, or the values do not fit its sections.
        TooFarAhead
            If a reader is ``ahead`` pushes behind, and the policy is "error". Nothing is pushed.
        CouplingTimeout
            If a reader still is after the timeout. Nothing is pushed.
        """
        if not self.owned:
            raise BoundaryError(f'{self._channel.address} owns nothing of boundary "{self.name}"')
        self._check_fit(values, self.owned, "a value")
        if self._bound is not None:
            self._channel.await_room(self._places, self._bound, timeout)
        self._write(values)
        transfers = [self._push_copy(sent) for sent in self._outgoing]
        return Sending(
            self._channel, [transfer for transfer in transfers if transfer], self._readers
        )

    def pull(self, timeout: float | None = None, *, out: Sequence[Any] = ()) -> None:
        """Wait for the next push of every owner, and receive the sections that this rank reads.

        If pushes may be dropped it is the oldest one that no owner has dropped; all sections are of
        the same push, which `step` names.

        Parameters
        ----------
        timeout : float, seconds, optional
            How long to wait; pushes that have come by then stay for the next pull.
        out : sequence of array, optional
            Of NumPy or on a GPU, one for each section that this rank reads: `read` is copied there
            too.

        Raises
        ------
        BoundaryError
            If this rank reads no section, or `out` does not fit its sections.
        CouplingTimeout
            If an owner has not pushed in time.
        RunStopped
            If the run is stopping.
        """
        if not self.read:
            raise BoundaryError(f'{self._channel.address} reads nothing of boundary "{self.name}"')
        self._check_out(out)
        arrivals = self._await_pieces(timeout)
        self._channel.receive(arrivals)
        self.step = arrivals[0][0].head.number if self._drops and arrivals else self.step + 1
        for read in self._incoming:
            if read.landing is not read.view:
                read.view[...] = read.landing
        for section, array in zip(self.read, out, strict=False):
            if is_on_device(array):
                landing = HostStaging.of(array)
                landing.host[...] = section
                landing.finish(self._channel.meter, self.name)
            else:
                array[...] = section

    def _await_pieces(self, timeout: float | None) -> list[tuple[ArrivedMessage, memoryview]]:
        """Wait for a piece of the same push from every owner."""
        least = 0
        while True:
            arrivals = [
                (
                    self._channel.await_arrival(
                        read.piece.key, read.piece.owner, read.subject, timeout, "pull", least
                    ),
                    read.memory,
                )
                for read in self._incoming
            ]
            least = max((arrival.head.number for arrival, _ in arrivals), default=0)
            behind = [found for found in arrivals if found[0].head.number < least]
            if not behind:
                return arrivals
            self._channel.receive(behind)  # another owner has dropped its piece of that push

    def _write(self, values: Sequence[Any]) -> None:
        """Copy values into the sections that this rank owns, if values are given."""
        self._check_fit(values, self.owned, "a value")
        for value in values:
            if not is_on_device(value) and not codec.is_plain_array(value):
                raise BoundaryError(
                    f'boundary "{self.name}": a section holds numbers alone, and not what else a '
                    f"{type(value).__name__} has: give it numpy.asarray(...) of it"
                )
        for section, value in zip(self.owned, values, strict=False):
            is_there = is_on_device(value)
            section[...] = to_host(value, self._channel.meter, self.name) if is_there else value

    def _check_out(self, out: Sequence[Any]) -> None:
        self._check_fit(out, self.read, "out")
        if not all(is_contiguous(array) for array in out if is_on_device(array)):
            raise BoundaryError(f'boundary "{self.name}": out on a GPU has to be C-contiguous')

    def _check_fit(self, arrays: Sequence[Any], sections: Sequence[Array], noun: str) -> None:
        """Raise a BoundaryError unless there are no arrays, or one for each section."""
        if arrays and len(arrays) != len(sections):
            raise BoundaryError(
                f'boundary "{self.name}": this rank has {len(sections)} such sections, and '
                f"{len(arrays)} arrays are given"
            )
        for section, array in zip(sections, arrays, strict=False):
            if is_on_device(array):
                dtype, shape = layout_of(array)
            elif isinstance(array, np.ndarray):
                dtype, shape = array.dtype, array.shape
            else:
                raise BoundaryError(
                    f'boundary "{self.name}": {noun} is an array, not a {type(array).__name__}'
                )
            if (dtype, shape) != (section.dtype, section.shape):
                raise BoundaryError(
                    f'boundary "{self.name}": {noun} of dtype {dtype} and shape {shape} for a '
                    f"section of dtype {section.dtype} and shape {section.shape}"
                )

    def exchange(
        self,
        timeout: float | None = None,
        *,
        values: Sequence[Any] = (),
        out: Sequence[Any] = (),
    ) -> None:
        """Push the sections that this rank owns, pull those that it reads, and wait for readers.

        As MPI's Sendrecv: sections that are contiguous memory are sent from the array itself, and
        it returns when their readers have pulled them; then the array may be changed. The other
        ranks may push and pull, or exchange. With ``ahead`` it is a push, then a pull.

        Parameters
        ----------
        timeout : float, seconds, optional
            For each of its waits.
        values, out : sequence of array, optional
            As for `push` and `pull`.

        Raises
        ------
        BoundaryError
            If the values or `out` do not fit.
        CouplingTimeout
            If an owner has not pushed, or a reader not pulled, in time. The sections that were
            pushed can still be pulled; they must not be changed before.
        RunStopped
            If the run is stopping.
        """
        self._check_out(out)
        if self._bound is not None:
            self.push(*values, timeout=timeout)
            if self.read:
                self.pull(timeout, out=out)
            return
        if values:
            self._await_lanes(timeout)  # an exchange before this one may have ended early
            self._write(values)
        for sent in self._outgoing:
            piece = sent.piece
            if sent.lane is None or self._channel.is_holding(piece.reader, piece.key):
                self._push_copy(sent)
            else:
                if not sent.lane.is_idle():  # an exchange before this one ended early
                    self._await_lanes(timeout)
                sent.lane.send()
        if self.read:
            self.pull(timeout, out=out)
        self._await_lanes(timeout)

    def _push_copy(self, sent: _OutgoingPiece) -> Transfer | None:
        buffer = sent.buffer()
        buffer[...] = sent.view
        encoded = codec.Encoded(codec.ARRAY, sent.meta, codec.memory_of(buffer))
        transfer = self._channel.post(sent.piece.reader, sent.piece.key, encoded, bound=self._bound)
        sent.packed.append((buffer, transfer))
        return transfer

    def _await_lanes(self, timeout: float | None) -> None:
        for lane in self._lanes:
            if not lane.is_idle():
                self._channel.await_receipt(self._all_is_idle, self._readers, timeout)

    def _all_is_idle(self) -> Literal[True] | None:
        return True if all(lane.is_idle() for lane in self._lanes) else None
