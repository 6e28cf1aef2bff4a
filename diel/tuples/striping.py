"""Striped tuples: the payload in pieces on all servers, the layout of the pieces under the tag.

Each piece is a tuple with a key that no tag and no pattern matches; piece i is on server i modulo
the number of servers. The layout is on the server of the tag, and is put only when every server has
confirmed its piece, so that a striped tuple is visible only when it is complete. The client that
takes the layout owns the pieces.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.codec import np
from diel.tuples.protocol import (
    INLINE_BYTES,
    PIECE,
    STRIPED,
    Operation,
    Payload,
    Reply,
    Status,
    message_cost,
    pack_put,
)
from diel.tuples.requests import Requests
from diel.tuples.tags import Tag, decode_tag

_LAYOUT: Final = struct.Struct("<BxxxI8sQ")
_VERSION: Final = 1
_SMALLEST_PIECE_BYTES: Final = 4096
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True)
class PieceLayout:
    """The layout of a striped payload: the name, the number and the total size of its pieces."""

    name: bytes  # random, distinguishes the pieces of this tuple from those of other tuples
    pieces: int
    size_bytes: int

    @classmethod
    def plan(cls, size_bytes: int, servers: int) -> PieceLayout:
        """Return the layout for a new payload: a piece per server, fewer if they would be tiny."""
        pieces = max(1, min(servers, -(-size_bytes // _SMALLEST_PIECE_BYTES)))
        return cls(os.urandom(8), pieces, size_bytes)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> PieceLayout:
        """Return the layout from the bytes of `pack`; raise ValueError for another version."""
        version, pieces, name, size_bytes = _LAYOUT.unpack(data)
        if version != _VERSION:
            raise ValueError(f"a striped tuple of version {version}; this is version {_VERSION}")
        return cls(name, pieces, size_bytes)

    def pack(self) -> bytes:
        """Return the layout as bytes."""
        return _LAYOUT.pack(_VERSION, self.pieces, self.name, self.size_bytes)

    def piece_keys(self) -> list[bytes]:
        """Return the key of each piece."""
        ends = [self.name + index.to_bytes(4, "little") for index in range(self.pieces)]
        return [PIECE + len(end).to_bytes(4, "little") + end for end in ends]

    @property
    def _step_bytes(self) -> int:
        even = -(-self.size_bytes // self.pieces)
        return -(-even // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    def piece_sizes(self) -> list[int]:
        """Return the size of each piece, in bytes."""
        starts = [min(self.size_bytes, i * self._step_bytes) for i in range(self.pieces + 1)]
        return [end - start for start, end in pairwise(starts)]

    def cut(self, buffer: memoryview) -> list[memoryview]:
        """Return views of a payload's pieces."""
        step = self._step_bytes
        return [buffer[index * step : (index + 1) * step] for index in range(self.pieces)]


class Striper:
    """Puts striped tuples, and takes or reads their pieces."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def put(self, tag: Tag, value: object, timeout: float | None) -> None:
        """Put a tuple whose payload is spread over all servers."""
        requests = self._requests
        key, server = requests.place(tag)
        kind, _, meta, buffer = requests.encode(value, key, tag)
        payload = memoryview(buffer)
        layout = PieceLayout.plan(len(payload), requests.servers)
        message, _ = pack_put(Operation.PUT, 0, 0, kind | STRIPED, key, meta, layout.pack())
        parts = self._parts(layout, payload)
        layout_put = (server, message, None)
        # All credit first, so that no server can refuse a piece after others have been sent.
        costs = [(at, message_cost(part, apart)) for at, part, apart in [*parts, layout_put]]
        requests.spend(costs, tag, timeout)
        requests.send_puts(parts)
        requests.ask_all(Operation.FLUSH, [(at, b"") for at, _, _ in parts])
        requests.send_puts([layout_put])

    def put_pieces(self, reply: Reply, payload: memoryview) -> None:
        """Put the pieces of a striped tuple that were taken, before its layout is put back."""
        parts = self._parts(PieceLayout.unpack(reply.payload), payload)
        costs = [(at, message_cost(part, apart)) for at, part, apart in parts]
        self._requests.spend(costs, decode_tag(reply.key), None)
        self._requests.send_puts(parts)
        self._requests.ask_all(Operation.FLUSH, [(at, b"") for at, _, _ in parts])

    def _parts(self, layout: PieceLayout, payload: memoryview) -> list[tuple[int, bytes, Payload]]:
        """Return (server, message, separate payload) for each piece."""
        parts = []
        for key, piece in zip(layout.piece_keys(), layout.cut(payload), strict=True):
            message, apart = pack_put(Operation.PUT, 0, 0, codec.BYTES, key, b"", piece)
            parts.append((self._requests.route(key), message, apart))
        return parts

    def take(
        self, reply: Reply, target: memoryview | None = None, *, on_device: bool = False
    ) -> memoryview:
        """Take the pieces of a striped tuple whose layout was taken; return the payload."""
        payload = self.fetch(Operation.TAKE, reply, target, on_device=on_device)
        if payload is None:
            raise PayloadError("a damaged tuple: a piece of a striped tuple is not there")
        return payload

    def fetch(
        self,
        operation: int,
        reply: Reply,
        target: memoryview | None = None,
        *,
        on_device: bool = False,
    ) -> memoryview | None:
        """Take or read all pieces of a tuple; None if another client has taken any of them.

        They are received into `target`, unless that is in GPU memory and some piece is so small
        that it is part of a message, which is in host memory.
        """
        layout = PieceLayout.unpack(reply.payload)
        if target is None or (on_device and min(layout.piece_sizes()) <= INLINE_BYTES):
            target = np.empty(layout.size_bytes, np.uint8).data
        cuts = layout.cut(target)
        places = [(self._requests.route(key), key) for key in layout.piece_keys()]
        replies = self._requests.ask_all(operation, places, cuts)
        for answer, cut in zip(replies, cuts, strict=True):
            if answer.status != Status.OK:
                return None
            if answer.payload is not cut:
                cut[:] = answer.payload
        return target
