"""A shuffled order of 0 .. n - 1 that stores nothing but a few keys."""

from __future__ import annotations

from hashlib import blake2b, shake_256
from math import isqrt

_ROUNDS = 8
_WORD = (1 << 64) - 1


class Permutation:
    """A permutation of ``range(size)`` that follows from a seed.

    Parameters
    ----------
    size : int
    seed : int

    Notes
    -----
    A Feistel network over a pair of digits (left, right) with bases as near the square root of the
    size as can be: in turn, each digit is shifted by a keyed hash of the other, which can be undone
    whatever the hash. The pairs number a little more than `size`; who lands beyond it walks on
    along the same cycle until it is inside again, which happens at most once in ``sqrt(size)``.

    References
    ----------
    .. [1] Black, Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002, sections 4 and 5.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._left = isqrt(max(size - 1, 0)) + 1
        self._right = -(-size // self._left)
        digest = blake2b(f"permutation/{seed}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = [
            int.from_bytes(digest[start : start + 8], "little")
            for start in range(0, 8 * _ROUNDS, 8)
        ]
        self._hash = _mixed if self._left <= _WORD >> 16 else self._digested

    def __getitem__(self, index: int) -> int:
        """Return which element comes at a place.

        Raises
        ------
        IndexError
            If the place is not in ``range(size)``.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"place {index} of {self.size}")
        while True:
            index = self._network(index)
            if index < self.size:
                return index

    def __len__(self) -> int:
        return self.size

    def _network(self, index: int) -> int:
        bases, hashed = (self._left, self._right), self._hash
        one, other = divmod(index, self._right)
        for turn, key in enumerate(self._keys):
            # `one` is the left digit in even rounds, the right one in odd rounds.
            one, other = other, (one + hashed(other, key)) % bases[turn & 1]
        return one * self._right + other

    def _digested(self, value: int, key: int) -> int:
        """Return a hash as wide as the digits, for grids beyond all counting."""
        width = self._left.bit_length() // 8 + 9
        return int.from_bytes(shake_256(f"{value}/{key}".encode()).digest(width), "little")


def _mixed(value: int, key: int) -> int:
    """Return 64 well-mixed bits of two 64-bit numbers.

    References
    ----------
    .. [1] Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014: the
       finalizer, with the constants of its variant 13.
    """
    value = (value ^ key) & _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31
