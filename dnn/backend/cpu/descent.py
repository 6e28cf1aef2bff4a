"""Plain gradient descent inside the matrix products that compute the gradients.

Where a step of training is known as a whole, from the first product to the last parameter, the pair

    gemm       x^T, dy -> g
    sgd_step   w -= rate (g + decay w)

becomes one product that writes into w, if nobody else looks at g. It has to come after everything
that reads w, such as the product that takes dy further back; and what it reads must still be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn.backend.cpu.native import Native, Step
from dnn.backend.cpu.products import descent_record
from dnn.backend.ops import Array

__all__ = ["fold_descent"]

Range = tuple[int, int]


@dataclass(frozen=True)
class _Fold:
    product: int
    descents: tuple[int, ...]
    after: int
    step: Step
    weights: Range


def fold_descent(
    steps: Sequence[Step],
    scratch: Array,
    gemm: Callable[..., object],
    sgd_step: Callable[..., object],
    writes_last: Callable[[Callable[..., object]], bool],
) -> list[Step]:
    """Return steps that do the same to rounding, without storing the gradients of products.

    Parameters
    ----------
    steps : sequence of (function, arguments)
    scratch : array
        The gradients; what stands there after the steps nobody reads.
    gemm, sgd_step : callable
        As they occur in `steps`.
    writes_last : callable
        Whether a function writes into its last argument only.
    """
    gradients = _range(scratch)
    folds = []
    for i, (function, arguments) in enumerate(steps):
        if function is gemm and _overlap(_range(arguments[-1]), gradients):
            fold = _fold(steps, i, sgd_step, writes_last)
            if fold is not None:
                folds.append(fold)
    return list(_rebuilt(steps, folds))


def _fold(
    steps: Sequence[Step],
    product: int,
    sgd_step: Callable[..., object],
    writes_last: Callable[[Callable[..., object]], bool],
) -> _Fold | None:
    a, b, g = steps[product][1]
    if g.ndim != 2 or not g.flags.c_contiguous:
        return None
    wanted = _range(g)
    readers = [i for i in range(len(steps)) if i != product and _touches(steps[i], wanted)]
    if not readers or any(steps[i][0] is not sgd_step or i < product for i in readers):
        return None
    # The blocks of the update that lie on this gradient: one behind the other, treated alike.
    pieces = [steps[i][1] for i in readers]
    w0, g0, rate, decay = pieces[0][:4]
    if w0.ndim != 1 or any(piece[2] is not rate or piece[3] is not decay for piece in pieces):
        return None
    shift = _range(w0)[0] - _range(g0)[0]
    if any(_range(piece[0])[0] - _range(piece[1])[0] != shift for piece in pieces):
        return None
    if _covered([_range(piece[1]) for piece in pieces], wanted) != wanted[1] - wanted[0]:
        return None
    weights = wanted[0] + shift, wanted[1] + shift
    w = _find(steps, weights, g)
    if w is None or descent_record(a, b, w, rate, decay) is None:
        return None
    after = max(
        (i for i in range(readers[0]) if i != product and _touches(steps[i], weights)),
        default=product,
    )
    after = max(after, product)
    for between in steps[product + 1 : after + 1]:
        written = between[1][-1:] if writes_last(between[0]) else between[1]
        if any(_overlap(_range(x), _range(y)) for x in _arrays(written) for y in (a, b)):
            return None
    native = Native(descent_record, _never)
    step: Step = (native, (a, b, w, rate, decay))
    return _Fold(product, tuple(readers), after, step, weights)


def _rebuilt(steps: Sequence[Step], folds: Sequence[_Fold]) -> Iterator[Step]:
    moved = {fold.product for fold in folds}
    descents = {i for fold in folds for i in fold.descents}
    for i, step in enumerate(steps):
        if i in descents:
            yield from _without(step, [fold.weights for fold in folds])
        elif i not in moved:
            yield step
        for fold in folds:
            if fold.after == i:
                yield fold.step


def _without(step: Step, done: Sequence[Range]) -> Iterator[Step]:
    """Return a step of the update on what is left of its block."""
    function, (w, g, rate, decay, moved) = step
    start, stop = _range(w)
    at = start
    for first, last in [*sorted(done), (stop, stop)]:
        first, last = min(max(first, start), stop), min(max(last, start), stop)
        if at < first:
            part = slice((at - start) // w.itemsize, (first - start) // w.itemsize)
            yield function, (w[part], g[part], rate, decay, moved[part])
        at = max(at, last)


def _find(steps: Sequence[Step], where: Range, like: Array) -> Array | None:
    """Return an array of a shape that stands exactly there, from anybody's arguments."""
    for _, arguments in steps:
        for x in _arrays(arguments):
            if _range(x) == where and (x.shape, x.strides) == (like.shape, like.strides):
                return x
    return None


def _covered(parts: Sequence[Range], whole: Range) -> int:
    return sum(max(0, min(stop, whole[1]) - max(start, whole[0])) for start, stop in parts)


def _touches(step: Step, where: Range) -> bool:
    return any(_overlap(_range(x), where) for x in _arrays(step[1]))


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
