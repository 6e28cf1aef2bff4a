"""Update of weights right after the product that computes their gradient, while that is cached.

Where a step of training is known as a whole, the optimizer need not wait for the last gradient: it
finds the result of ``gemm x^T, dy -> g`` in the cache if it runs right after it. Nothing but the
order changes, so no bit of a result does. No other step may use these pieces in between; the pass
`products_last` ensures that the weights are not needed then. All gradients of products share one
piece of memory, small enough to stay in the cache.

In buffers of K networks, of shape (K, P), the ranges of the first network stand for all.
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
    """Return the same steps, with updates of weights right after the products of their gradients.

    `scratch`, of shape (P,) or (K, P), holds the gradients, and is not read after the steps. `gemm`
    is the product as it occurs in `steps`.
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
        # A product of one of K networks, as in a convolution, is not the gradient of all of them.
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
    """Pieces of updates that cover the result of a product, joined to one call after it."""

    update: UpdateKernel
    arguments: tuple[Any, ...]
    elements: int
    intervals: list[tuple[int, Interval]]


def _pieces_of(
    steps: Sequence[Step], touched: Sequence[Sequence[Range]], memory: _Memory, product: int
) -> _Pieces | None:
    """Return the update by a product's result if it may come right after the product."""
    wanted = memory.range(steps[product][1][-1])
    at = wanted[0]
    intervals: list[tuple[int, Interval]] = []
    pieces: list[tuple[Any, ...]] = []
    kernels = set()
    for i in range(product + 1, len(steps)):
        update, arguments = steps[i]
        if not _any_overlap(touched[i], [wanted]):
            continue
        if not isinstance(update, UpdateKernel):
            return None  # another step uses the gradient
        block = memory.range(arguments[1])
        part = _common(block, wanted)
        if part is None or part[0] != at:
            return None
        size = arguments[0].itemsize
        interval = (part[0] - block[0]) // size, (part[1] - block[0]) // size
        piece = update.piece(arguments, *interval)
        if _is_touched_between(steps, touched, memory, product, i, piece):
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


def _is_touched_between(
    steps: Sequence[Step],
    touched: Sequence[Sequence[Range]],
    memory: _Memory,
    product: int,
    update: int,
    piece: tuple[Any, ...],
) -> bool:
    """Return whether a step between a product and an update touches arrays of a piece of it."""
    piece_ranges = memory.ranges(piece)
    kernel = steps[update][0]
    assert isinstance(kernel, UpdateKernel)
    rows = memory.ranges(kernel.rows(piece))
    for i in range(product + 1, update):
        function, arguments = steps[i]
        if isinstance(function, UpdateKernel):  # hyperparameters are read only, workspace not used
            if _any_overlap(memory.ranges(function.rows(arguments)), rows):
                return True
        elif _any_overlap(touched[i], piece_ranges):
            return True
    return False


def _preparations_first(
    steps: Sequence[tuple[Step, list[Range]]],
) -> list[tuple[Step, list[Range]]]:
    """Move kernels to the front that touch no memory which any step before them touches.

    Each step comes with the ranges of memory that it touches.
    """
    first: list[tuple[Step, list[Range]]] = []
    later: list[tuple[Step, list[Range]]] = []
    seen: list[Range] = []
    for step, ranges in steps:
        if isinstance(step[0], Native) and later and not _any_overlap(ranges, seen):
            first.append((step, ranges))
        else:
            later.append((step, ranges))
            seen += ranges
    return [*first, *later]


class _Memory:
    """Finds the addresses of arrays; in buffers of K networks, of the first network's part."""

    def __init__(self, buffer: Array) -> None:
        self._pitch = buffer.strides[0] if buffer.ndim == 2 else None

    def ranges(self, arguments: Sequence[Any]) -> list[Range]:
        return [self.range(x) for x in _arrays(arguments)]

    def range(self, x: Array) -> Range:
        """Return the addresses of an array's first byte and behind its last."""
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
    """Yield the intervals of 0 .. size that are not taken."""
    at = 0
    for start, stop in [*sorted(taken), (size, size)]:
        if at < start:
            yield at, start
        at = stop


def _any_overlap(ranges: Sequence[Range], other_ranges: Sequence[Range]) -> bool:
    for a in ranges:  # loops and not `any`: most of the time of `fuse_update` passes here
        for b in other_ranges:
            if a[0] < b[1] and b[0] < a[1]:
                return True
    return False


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _common(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
