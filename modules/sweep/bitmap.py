"""Which trials are recorded: a bit each, so that a million of them take 125 KB."""

from __future__ import annotations

_FULL = 0xFF


class Bitmap:
    """A set of whole numbers from 0, that grows as need be."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        byte, bit = number >> 3, number & 7
        return byte < len(self._bytes) and bool(self._bytes[byte] >> bit & 1)

    def add(self, number: int) -> bool:
        """Add a number; return whether it was not there."""
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(self._bytes):
            self._grow(byte)
        if self._bytes[byte] & bit:
            return False
        self._bytes[byte] |= bit
        self._count += 1
        return True

    def add_range(self, start: int, stop: int) -> bool:
        """Add ``start`` to ``stop - 1`` at once, if none of them is there; return whether so."""
        if start >= stop:
            return True
        first, last = start >> 3, (stop - 1) >> 3
        if last >= len(self._bytes):
            self._grow(last)
        mask = ((1 << (stop - start)) - 1) << (start & 7)
        there = int.from_bytes(self._bytes[first : last + 1], "little")
        if there & mask:
            return False
        self._bytes[first : last + 1] = (there | mask).to_bytes(last + 1 - first, "little")
        self._count += stop - start
        return True

    def next_missing(self, start: int) -> int:
        """Return the smallest number from `start` that is not in the set."""
        byte = start >> 3
        if byte >= len(self._bytes):
            return start
        free = ~self._bytes[byte] & _FULL & (_FULL << (start & 7))
        while not free:
            byte += 1
            if byte >= len(self._bytes):
                return byte << 3
            free = ~self._bytes[byte] & _FULL
        return (byte << 3) + _lowest(free)

    def next_present(self, start: int, stop: int) -> int:
        """Return the smallest number from `start` that is in the set, `stop` at most."""
        byte = start >> 3
        if byte >= len(self._bytes):
            return stop
        there = self._bytes[byte] & (_FULL << (start & 7))
        while not there:
            byte += 1
            if byte >= len(self._bytes) or byte << 3 >= stop:
                return stop
            there = self._bytes[byte]
        return min(stop, (byte << 3) + _lowest(there))

    def _grow(self, byte: int) -> None:
        # By an eighth, so that it is not copied with every number.
        self._bytes.extend(bytes(max(byte + 1, len(self._bytes) * 9 // 8) - len(self._bytes)))


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
