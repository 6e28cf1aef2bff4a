"""The update of each weight right behind its gradient, while that is in the cache.

Where a step of training is known as a whole, the optimizer need not wait until the last gradient is
there: what ``gemm x^T, dy -> g`` has left in the cache, the pieces of the update find there.
Nothing but the order changes, so neither does any bit. It takes that nobody else looks at these
pieces in between; the pass `products_last` sees to it that the weights are not needed then. All
gradients of products share one piece of memory, small enough to stay in the cache.

Of K networks' buffers, of shape (K, P), the ranges of the first network stand for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cpu.program import Native
from dnn.backend.cpu.updates import UpdateKernel
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Ops, Step

__all__ = ["fuse_update"]

Range = tuple[int, int]
Interval = tuple[int, int]


def fuse_update(steps: Sequence[Step], scratch: Array, gemm: Callable[..., object]) -> list[Step]:
    """Return the same steps, those of the optimizer as early as they can be.

    `scratch`, of shape (P,) or (K, P), holds the gradients: what stands there after the steps
    nobody reads. `gemm` is the product as it occurs in `steps`.
    """
    memory = _Memory(scratch)
    touching = [(step, memory.ranges(step[1])) for step in steps]
    steps, touched = zip(*_preparations_first(touching), strict=True) if steps else ((), ())
    gradients = memory.range(scratch)
    networks = math.prod(scratch.shape[:-1])
    found: dict[int, _Pieces] = {}
    moved: dict[int, list[Interval]] = {}
    for product, (function, arguments) in enumerate(steps):
        if function is not gemm or not _overlap(memory.range(arguments[-1]), gradients):
            continue
        pieces = _pieces_of(steps, touched, memory, product)
        # The product of one network alone, as of a convolution, is none of all of them.
        if pieces is not None and arguments[-1].size == networks * pieces.elements:
            found[product] = pieces
            for i, interval in pieces.intervals:
                moved.setdefault(i, []).append(interval)
    models = scratch.shape[:-1]
    size = max((pieces.elements for pieces in found.values()), default=0)
    line = ALIGNMENT_BYTES // scratch.itemsize
    shared = Ops.memory(math.prod(models) * -(-size // line) * line * scratch.itemsize)
    shared = shared.view(scratch.dtype).reshape(*models, -1)
    result: list[Step] = []
    for i, (function, arguments) in enumerate(steps):
        if i in moved:
            assert isinstance(function, UpdateKernel)
            left = _rest(arguments[0].shape[-1], moved[i])
            result += [(function, function.piece(arguments, *interval)) for interval in left]
        elif i in found:
            pieces = found[i]
            g = shared[..., : pieces.elements]
            w, _, *rest = pieces.arguments
            result.append((function, (*arguments[:-1], g.reshape(arguments[-1].shape))))
            result.append((pieces.update, (w, g, *rest)))
        else:
            result.append((function, arguments))
    return result


class _Pieces(NamedTuple):
    """What moves behind a product: an update of all of its result, in one."""

    update: UpdateKernel
    arguments: tuple[Any, ...]
    elements: int
    intervals: list[tuple[int, Interval]]


def _pieces_of(
    steps: Sequence[Step], touched: Sequence[Sequence[Range]], memory: _Memory, product: int
) -> _Pieces | None:
    """Return the update of a product's result, if there is one that may come right behind it."""
    wanted = memory.range(steps[product][1][-1])
    at = wanted[0]
    intervals: list[tuple[int, Interval]] = []
    pieces: list[tuple[Any, ...]] = []
    kernels = set()
    for i in range(product + 1, len(steps)):
        update, given = steps[i]
        if not _any_overlap(touched[i], [wanted]):
            continue
        if not isinstance(update, UpdateKernel):
            return None  # somebody else reads the gradient
        block = memory.range(given[1])
        part = _common(block, wanted)
        if part is None or part[0] != at:
            return None
        size = given[0].itemsize
        interval = (part[0] - block[0]) // size, (part[1] - block[0]) // size
        piece = update.piece(given, *interval)
        if _disturbed(steps, touched, memory, product, i, piece):
            return None
        kernels.add(update)
        pieces.append(piece)
        intervals.append((i, interval))
        at = part[1]
    if at != wanted[1] or len(kernels) != 1:
        return None
    (kernel,) = kernels
    whole = kernel.joined(pieces)
    if whole is None or kernel.record(*whole) is None:
        return None
    return _Pieces(kernel, whole, whole[0].shape[-1], intervals)


def _disturbed(
    steps: Sequence[Step],
    touched: Sequence[Sequence[Range]],
    memory: _Memory,
    product: int,
    update: int,
    piece: tuple[Any, ...],
) -> bool:
    """Say whether a step between a product and an update touches anything of a piece of it."""
    mine = memory.ranges(piece)
    kernel = steps[update][0]
    assert isinstance(kernel, UpdateKernel)
    rows = memory.ranges(kernel.rows(piece))
    for i in range(product + 1, update):
        function, arguments = steps[i]
        if isinstance(function, UpdateKernel):  # hyperparameters are read only, workspace not used
            if _any_overlap(memory.ranges(function.rows(arguments)), rows):
                return True
        elif _any_overlap(touched[i], mine):
            return True
    return False


def _preparations_first(
    steps: Sequence[tuple[Step, list[Range]]],
) -> list[tuple[Step, list[Range]]]:
    """Move kernels to the front that touch nothing which any step before them touches.

    With each step comes what it touches.
    """
    first: list[tuple[Step, list[Range]]] = []
    later: list[tuple[Step, list[Range]]] = []
    seen: list[Range] = []
    for step, mine in steps:
        if isinstance(step[0], Native) and later and not _any_overlap(mine, seen):
            first.append((step, mine))
        else:
            later.append((step, mine))
            seen += mine
    return [*first, *later]


class _Memory:
    """Where arrays lie; in the buffers of K networks, where the first network's part lies."""

    def __init__(self, buffer: Array) -> None:
        self._pitch = buffer.strides[0] if buffer.ndim == 2 else None

    def ranges(self, arguments: Sequence[Any]) -> list[Range]:
        return [self.range(x) for x in _arrays(arguments)]

    def range(self, x: Array) -> Range:
        """Return the addresses between which an array lies."""
        if self._pitch is not None and x.ndim >= 2 and x.strides[0] == self._pitch:
            x = x[0]
        start = stop = int(x.ctypes.data)
        if not x.size:
            return start, start
        for length, stride in zip(x.shape, x.strides, strict=True):
            if stride < 0:
                start += (length - 1) * stride
            else:
                stop += (length - 1) * stride
        return start, stop + x.itemsize


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for x in arguments:
        if isinstance(x, np.ndarray):
            yield x
        elif isinstance(x, tuple | list):
            yield from _arrays(x)


def _rest(size: int, taken: Sequence[Interval]) -> Iterator[Interval]:
    """Return what is left of 0 .. size."""
    at = 0
    for start, stop in [*sorted(taken), (size, size)]:
        if at < start:
            yield at, start
        at = stop


def _any_overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    for a in some:  # loops and not `any`: most of the time of `fuse_update` passes here
        for b in others:
            if a[0] < b[1] and b[0] < a[1]:
                return True
    return False


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _common(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
