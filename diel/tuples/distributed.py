"""Striped tuples: a payload in pieces on all servers, its layout under its tag.

A piece lies under a key of its own that no tag and no pattern can name; piece i of a tuple is on
server i modulo the number of servers. The layout lies under the tag, on the server that the tag
belongs to, and is put only when every server has confirmed its piece: a striped tuple is visible
when it is whole. Whoever takes the layout owns the pieces.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from diel.tuples.protocol import PIECE

_LAYOUT: Final = struct.Struct("<BxxxI8sQ")
_VERSION: Final = 1
_SMALLEST_PIECE_BYTES: Final = 4096
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True)
class Layout:
    """Where the pieces of a payload are.

    Attributes
    ----------
    name : bytes
        Tells the pieces of this tuple from those of all others.
    pieces : int
    size_bytes : int
        Of the whole payload.
    """

    name: bytes
    pieces: int
    size_bytes: int

    @classmethod
    def plan(cls, size_bytes: int, servers: int) -> Layout:
        """Return the layout for a new payload: a piece a server, none of them tiny."""
        pieces = max(1, min(servers, -(-size_bytes // _SMALLEST_PIECE_BYTES)))
        return cls(os.urandom(8), pieces, size_bytes)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Layout:
        """Return the layout that `pack` made bytes of.

        Raises
        ------
        ValueError
            If it is of another version.
        """
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
        """Return the pieces of a payload, as views."""
        step = self._step_bytes
        return [buffer[index * step : (index + 1) * step] for index in range(self.pieces)]


def server_of_piece(key: bytes, servers: int) -> int:
    """Return the server on which a piece lies."""
    return int.from_bytes(key[-4:], "little") % servers
