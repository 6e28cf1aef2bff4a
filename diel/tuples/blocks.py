"""Memory for large payloads, used again: touching fresh pages costs more than copying into them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any, Final, TypeAlias

from diel.tuples.arrays import np

_Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_IDLE_BYTES: Final = 256 * 2**20
_SIZES_AN_OCTAVE: Final = 8


class BlockPool:
    """Hands out blocks of memory and takes them back by itself.

    Parameters
    ----------
    idle_bytes : int, optional
        How much is kept for later at most.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._room_bytes = idle_bytes
        self._idle: dict[int, list[_Bytes]] = defaultdict(list)
        self._lent: dict[int, tuple[weakref.ref[_Bytes], _Bytes]] = {}

    def __len__(self) -> int:
        """Return how many blocks are kept for later."""
        return sum(map(len, self._idle.values()))

    def take(self, size_bytes: int) -> memoryview:
        """Return writable memory of this size; it comes back once nothing refers to it."""
        rounded = _round_up(size_bytes)
        idle = self._idle[rounded]
        if idle:
            array = idle.pop()
            self._room_bytes += rounded
        else:
            array = np.empty(rounded, np.uint8)
        block = array[:size_bytes]  # an object of its own, so that its end can be noticed
        end = weakref.ref(block, self._give_back)
        self._lent[id(end)] = end, array
        return block.data

    def _give_back(self, end: weakref.ref[_Bytes]) -> None:
        _, array = self._lent.pop(id(end))
        if array.nbytes <= self._room_bytes:
            self._room_bytes -= array.nbytes
            self._idle[array.nbytes].append(array)


def _round_up(size_bytes: int) -> int:
    """Return one of eight sizes an octave, so that blocks of about one size are shared."""
    step = max(1, 1 << max(0, size_bytes.bit_length() - 1 - _SIZES_AN_OCTAVE.bit_length() + 1))
    return -(-size_bytes // step) * step
