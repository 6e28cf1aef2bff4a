"""The update of each weight right behind its gradient, while that is in the cache.

Where a step of training is known as a whole, the optimizer need not wait until the last gradient is
there: what ``gemm x^T, dy -> g`` has left in the cache, the pieces of ``sgd_step w, g`` find there.
Nothing but the order changes, so neither does any bit. It takes that nobody else looks at these
pieces in between; the pass `products_last` sees to it that the weights are no longer needed then.

Of K networks' buffers, of shape (K, P), the ranges of the first network stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dnn.backend.cpu.entries import RowKernel
from dnn.backend.cpu.native import Native, Step
from dnn.backend.ops import Array

__all__ = ["interleave"]

Range = tuple[int, int]
Interval = tuple[int, int]


def interleave(steps: Sequence[Step], scratch: Array, gemm: Callable[..., object]) -> list[Step]:
    """Return the same steps, those of the optimizer as early as they can be.

    Parameters
    ----------
    steps : sequence of (function, arguments)
    scratch : array, shape (P,) or (K, P)
        The gradients; what stands there after the steps nobody reads.
    gemm : callable
        As it occurs in `steps`.
    """
    memory = _Memory(scratch)
    steps = _preparations_first(steps, memory)
    touched = [memory.ranges(arguments) for _, arguments in steps]
    gradients = memory.range(scratch)
    behind: dict[int, list[Step]] = {}
    moved: dict[int, list[Interval]] = {}
    for product, (function, arguments) in enumerate(steps):
        if function is not gemm or not _overlap(memory.range(arguments[-1]), gradients):
            continue
        wanted = memory.range(arguments[-1])
        for i in range(product + 1, len(steps)):
            update, given = steps[i]
            if not isinstance(update, RowKernel):
                continue
            part = _common(memory.range(given[1]), wanted)
            if part is None:
                continue
            start = memory.range(given[1])[0]
            size = given[0].itemsize
            interval = (part[0] - start) // size, (part[1] - start) // size
            piece = update.piece(given, *interval)
            if not _disturbed(steps, touched, memory, product, i, piece):
                behind.setdefault(product, []).append((update, piece))
                moved.setdefault(i, []).append(interval)
    result: list[Step] = []
    for i, (function, arguments) in enumerate(steps):
        if i in moved:
            assert isinstance(function, RowKernel)
            rest = _rest(arguments[0].shape[-1], moved[i])
            result += [(function, function.piece(arguments, *interval)) for interval in rest]
        else:
            result.append((function, arguments))
        result += behind.get(i, ())
    return result


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
    assert isinstance(kernel, RowKernel)
    rows = memory.ranges(kernel.rows(piece))
    for i in range(product + 1, update):
        function, arguments = steps[i]
        if isinstance(function, RowKernel):  # hyperparameters are read only, workspace not used
            if _any_overlap(memory.ranges(function.rows(arguments)), rows):
                return True
        elif _any_overlap(touched[i], mine):
            return True
    return False


def _preparations_first(steps: Sequence[Step], memory: _Memory) -> list[Step]:
    """Move kernels to the front that touch nothing which any step before them touches."""
    first: list[Step] = []
    others: list[Step] = []
    seen: list[Range] = []
    for step in steps:
        mine = memory.ranges(step[1])
        if isinstance(step[0], Native) and others and not _any_overlap(mine, seen):
            first.append(step)
        else:
            others.append(step)
            seen += mine
    return [*first, *others]


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
    return any(_overlap(a, b) for a in some for b in others)


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _common(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
