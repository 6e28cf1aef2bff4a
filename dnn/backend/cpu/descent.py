"""Plain gradient descent inside the matrix products that compute the gradients.

Where a step of training is known as a whole, from the first product to the last parameter, the pair

    gemm       x^T, dy -> g
    sgd_step   w -= rate (g + decay w)

becomes one product that writes into w, if nobody else looks at g and nobody reads w in between. The
pass `products_last` sees to the latter. Of K networks' buffers, of shape (K, P), the ranges of the
first stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cpu.native import Native, Step
from dnn.backend.cpu.products import descent_record
from dnn.backend.ops import Array

__all__ = ["fold_descent"]

Range = tuple[int, int]


class _Fold(NamedTuple):
    product: int
    descents: tuple[int, ...]
    step: Step
    weights: Range


def fold_descent(
    steps: Sequence[Step],
    scratch: Array,
    gemm: Callable[..., object],
    sgd_step: Callable[..., object],
) -> list[Step]:
    """Return steps that do the same to rounding, without storing the gradients of products.

    Parameters
    ----------
    steps : sequence of (function, arguments)
    scratch : array, shape (P,) or (K, P)
        The gradients; what stands there after the steps nobody reads.
    gemm, sgd_step : callable
        As they occur in `steps`.
    """
    pitch = scratch.strides[0] if scratch.ndim == 2 else None
    ranges = [[_range(_first(x, pitch)) for x in _arrays(step[1])] for step in steps]
    gradients = _range(_first(scratch, pitch))
    folds = []
    for i, (function, arguments) in enumerate(steps):
        if function is gemm and _overlap(_range(_first(arguments[-1], pitch)), gradients):
            fold = _fold(steps, ranges, i, sgd_step, pitch)
            if fold is not None:
                folds.append(fold)
    return list(_rebuilt(steps, folds, pitch))


def _fold(
    steps: Sequence[Step],
    ranges: Sequence[Sequence[Range]],
    product: int,
    sgd_step: Callable[..., object],
    pitch: int | None,
) -> _Fold | None:
    a, b, g = steps[product][1]
    wanted = _range(_first(g, pitch))
    readers = _touching(ranges, wanted)
    readers.remove(product)
    if not readers or any(steps[i][0] is not sgd_step or i < product for i in readers):
        return None
    # The blocks of the update that lie on this gradient: one behind the other, treated alike.
    pieces = [steps[i][1] for i in readers]
    _, _, rate, decay, _ = pieces[0]
    if any(piece[2] is not rate or piece[3] is not decay for piece in pieces):
        return None
    blocks = [(_range(_first(w, pitch)), _range(_first(g, pitch))) for w, g, *_ in pieces]
    shift = blocks[0][0][0] - blocks[0][1][0]
    if any(w[0] - g[0] != shift for w, g in blocks):
        return None
    if _covered([g for _, g in blocks], wanted) != wanted[1] - wanted[0]:
        return None
    weights = wanted[0] + shift, wanted[1] + shift
    if any(product < i < readers[0] for i in _touching(ranges, weights)):
        return None
    w = _find(steps, weights, g, pitch)
    if w is None or descent_record(a, b, w, rate, decay) is None:
        return None
    step: Step = (Native(descent_record, _never), (a, b, w, rate, decay))
    return _Fold(product, tuple(readers), step, weights)


def _rebuilt(
    steps: Sequence[Step], folds: Sequence[_Fold], pitch: int | None
) -> Iterator[Step]:
    products = {fold.product: fold.step for fold in folds}
    descents = {i for fold in folds for i in fold.descents}
    done = sorted(fold.weights for fold in folds)
    for i, step in enumerate(steps):
        if i in descents:
            yield from _without(step, done, pitch)
        else:
            yield products.get(i, step)


def _without(step: Step, done: Sequence[Range], pitch: int | None) -> Iterator[Step]:
    """Return a step of the update on what is left of its block."""
    function, (w, g, rate, decay, moved) = step
    start, stop = _range(_first(w, pitch))
    at = start
    for first, last in [*done, (stop, stop)]:
        first, last = min(max(first, start), stop), min(max(last, start), stop)
        if at < first:
            part = np.s_[..., (at - start) // w.itemsize : (first - start) // w.itemsize]
            yield function, (w[part], g[part], rate, decay, moved[part])
        at = max(at, last)


def _find(
    steps: Sequence[Step], where: Range, like: Array, pitch: int | None
) -> Array | None:
    """Return an array of a shape that stands exactly there, from anybody's arguments."""
    for _, arguments in steps:
        for x in _arrays(arguments):
            same = (x.shape, x.strides) == (like.shape, like.strides)
            if same and _range(_first(x, pitch)) == where:
                return x
    return None


def _first(x: Array, pitch: int | None) -> Array:
    """Return the first network's part of an array that lies in a buffer of K networks."""
    in_buffer = pitch is not None and x.ndim >= 2 and x.strides[0] == pitch
    return x[0] if in_buffer else x


def _touching(ranges: Sequence[Sequence[Range]], where: Range) -> list[int]:
    return [i for i, given in enumerate(ranges) if any(_overlap(x, where) for x in given)]


def _covered(parts: Sequence[Range], whole: Range) -> int:
    return sum(max(0, min(stop, whole[1]) - max(start, whole[0])) for start, stop in parts)


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for x in arguments:
        if isinstance(x, np.ndarray):
            yield x
        elif isinstance(x, tuple | list):
            yield from _arrays(x)


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _range(x: Array) -> Range:
    """Return the addresses between which an array lies."""
    start = stop = int(x.ctypes.data)
    if not x.size:
        return start, start
    for length, stride in zip(x.shape, x.strides, strict=True):
        if stride < 0:
            start += (length - 1) * stride
        else:
            stop += (length - 1) * stride
    return start, stop + x.itemsize


def _never(*arguments: Any) -> None:
    raise AssertionError("a product was compiled for arrays that it does not take")
