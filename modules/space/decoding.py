"""The i-th point of a grid from i, by mixed radix; absent parameters are left out.

Without conditions a point's number is read digit by digit, each in the base of its parameter's
number of values. A condition makes the number of points behind a digit depend on the digit. So for
every parameter, and every set of later parameters that earlier values have ruled out, there is a
node: it has the number of points below it, and its values in runs that rule out the same. There are
as many nodes as parameters where there are no conditions, and a few more where there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, shake_256
from math import isqrt
from typing import Any

from .conditions import Conditions, breaks
from .dimensions import Dimension, Finite, SpaceError

_MOST_NODES = 50_000


@dataclass(frozen=True, eq=False, repr=False)
class ValueRun:
    """Neighbouring values of a parameter that leave the same choices for the rest of a point."""

    first: int
    """Index of the first value."""
    before: int
    """Number of points before those of this run."""
    below: PointNode


@dataclass(frozen=True, eq=False, repr=False)
class PointNode:
    """A parameter, after the values of those before it have been chosen."""

    position: int
    """Position of the parameter; one beyond the last for the end of a point."""
    size: int
    """Number of points below."""
    runs: tuple[ValueRun, ...] = ()
    """A single run, which stands for no value, if the parameter is absent here."""
    starts: tuple[int, ...] = ()
    """``before`` of each run."""
    is_present: bool = True


class PointTree:
    """The points of a space, by number.

    Each of the `names` comes after its parents; the last varies fastest. Sizes mean something only
    if every dimension is `Finite`. A `SpaceError` if a parameter is in no point at all, or
    conditions give too many nodes.
    """

    def __init__(
        self, names: Sequence[str], dimensions: Mapping[str, Dimension], conditions: Conditions
    ) -> None:
        self._names = tuple(names)
        self._dimensions = [dimensions[name] for name in names]
        place = {name: position for position, name in enumerate(names)}
        # By position: the parameters with a condition on this one, and these conditions.
        self._children: list[list[int]] = [[] for _ in names]
        asked: list[list[Any]] = [[] for _ in names]
        for name, table in conditions.items():
            for parent, condition in table.items():
                self._children[place[parent]].append(place[name])
                asked[place[parent]].append(condition)
        self._runs = [
            list(breaks(dimension, wanted))
            for dimension, wanted in zip(self._dimensions, asked, strict=True)
        ]
        self._nodes: dict[tuple[int, int], PointNode] = {}
        self._seen = 0
        self.root = self._build()
        for position, name in enumerate(names):
            if not self._seen >> position & 1:
                raise SpaceError("if: its conditions never hold together", name)

    def _build(self) -> PointNode:
        """Make every node, the last parameter's first, without recursion."""
        # Which sets of ruled-out parameters can occur at each position.
        levels: list[set[int]] = [{0}]
        for position in range(len(self._names)):
            found = set()
            for ruled_out in levels[position]:
                found |= {below for _, below in self._ways(position, ruled_out)}
            levels.append(found)
            if sum(map(len, levels)) > _MOST_NODES:
                raise SpaceError("the conditions are too tangled to count the points")
        end = len(self._names)
        self._nodes[end, 0] = PointNode(end, 1)
        for position in range(end - 1, -1, -1):
            for ruled_out in levels[position]:
                self._nodes[position, ruled_out] = self._node(position, ruled_out)
        root = self._nodes[0, 0]
        self._nodes.clear()
        return root

    def _ways(self, position: int, ruled_out: int) -> list[tuple[int, int]]:
        """Return, for each run, its number of values and the parameters that it rules out.

        Ruled-out parameters are bits; that of an earlier position means nothing any more.
        """
        children = self._children[position]
        later = ~((2 << position) - 1)
        if ruled_out >> position & 1:
            return [(0, (ruled_out | _bits(children)) & later)]
        ways = []
        for length, holds in self._runs[position]:
            denied = _bits(child for at, child in enumerate(children) if not holds >> at & 1)
            ways.append((length, (ruled_out | denied) & later))
        return ways

    def _node(self, position: int, ruled_out: int) -> PointNode:
        ways = self._ways(position, ruled_out)
        if ruled_out >> position & 1:
            below = self._nodes[position + 1, ways[0][1]]
            return PointNode(position, below.size, (ValueRun(0, 0, below),), (0,), is_present=False)
        self._seen |= 1 << position
        runs, first, before = [], 0, 0
        for length, behind in ways:
            below = self._nodes[position + 1, behind]
            runs.append(ValueRun(first, before, below))
            first, before = first + length, before + length * below.size
        return PointNode(position, before, tuple(runs), tuple(run.before for run in runs))

    def point(self, index: int) -> dict[str, Any]:
        """Return the parameters of point `index`, in the order of the names."""
        parameters = {}
        node = self.root
        while node.runs:
            run = node.runs[0]
            if node.is_present:
                if len(node.runs) > 1:
                    run = node.runs[bisect_right(node.starts, index) - 1]
                digit, index = divmod(index - run.before, run.below.size)
                dimension = self._dimensions[node.position]
                assert isinstance(dimension, Finite)
                parameters[self._names[node.position]] = dimension[run.first + digit]
            node = run.below
        return parameters


def _bits(positions: Iterable[int]) -> int:
    found = 0
    for position in positions:
        found |= 1 << position
    return found


_ROUNDS = 8
_WORD = (1 << 64) - 1


class Permutation:
    """A permutation of ``range(size)`` that follows from a seed.

    Notes
    -----
    A Feistel network over a pair of digits (left, right) with bases as near the square root of the
    size as can be: in turn, each digit is shifted by a keyed hash of the other, which can be undone
    whatever the hash. The pairs number a little more than `size`; an index that lands beyond it is
    permuted again until it is inside, which happens at most once in ``sqrt(size)``.

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
        """Return which element comes at a place; an IndexError if there is no such place."""
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
        shifted, kept = divmod(index, self._right)
        for turn, key in enumerate(self._keys):
            # The left digit is shifted in even rounds, the right one in odd rounds.
            shifted, kept = kept, (shifted + hashed(kept, key)) % bases[turn & 1]
        return shifted * self._right + kept

    def _digested(self, value: int, key: int) -> int:
        """Return a hash as wide as the digits, for grids too large for `_mixed`."""
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
