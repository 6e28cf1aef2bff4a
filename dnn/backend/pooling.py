"""Pooling of images: its description, and a generic routine for any device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import ALIGNMENT_BYTES, Routine, image_view, in_layout
from dnn.backend.formula import ADD, Formula, Step
from dnn.backend.rounding import Array

__all__ = ["Pooling", "pool_by_taps"]

MAXIMUM = Formula("maximum", "a b", "a if a > b or a != a else b", np.maximum)
DIVIDE = Formula("divide", "a b", "a / b")
# Whether an element is the first maximum of its window; NaN counts as larger than all numbers.
_FIRST = Formula("first", "x best done", "1 if (x == best or x != x) and done == 0 else 0")
_ADD_WHERE = Formula("add_where", "sum mask y", "sum + y if mask != 0 else sum")


class Pooling(NamedTuple):
    """One pooling: what is computed, of which shapes.

    There is no axis of models: K models are K times as many images, or channels in layout CHWN.

    Attributes
    ----------
    kind : str
        ``"max"``, ``"average"``: y from x. ``"max_gradient"``: the gradient of x from (dy, x), each
        dy going to the first largest element of its window, row by row; ``"max_taken"``: from
        (v, x), of the shape of x both, what v holds at those elements. ``"average_gradient"``: the
        gradient of x from dy.
    layout : str
        Order of the axes of all arrays, one of `dnn.backend.convolution.LAYOUTS`.
    dtype : str
        ``"f4"`` or ``"f8"``, in which it is computed. Where `Ops.takes_narrow` arrays of a pooling
        in float32 may be narrow, each by itself; the result is rounded once.
    images, channels : int
    size : pair of int
        Height and width of x.
    window, stride : pairs of int
        Along the height and along the width.
    padding : pair of pairs of int
        Above and below, left and right; each less than the window, so that each window meets x. A
        maximum is taken over elements of x only.
    counts_padding : bool
        Averages only: whether zeros around x count as elements, or the mean is that of x alone.
    """

    kind: str
    layout: str
    dtype: str
    images: int
    channels: int
    size: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    counts_padding: bool = False

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of y."""
        height, width = (
            (n + sum(pad) - taps) // step + 1
            for n, pad, taps, step in zip(
                self.size, self.padding, self.window, self.stride, strict=True
            )
        )
        return height, width

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of x and its gradient in the layout."""
        return in_layout(self.layout, self.images, self.channels, *self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of y and its gradient in the layout."""
        return in_layout(self.layout, self.images, self.channels, *self.out_size)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs, and of the result."""
        x, y = self.x_shape, self.y_shape
        return {
            "max": (x, y),
            "max_gradient": (y, x, x),
            "max_taken": (x, x, y),
            "average": (x, y),
            "average_gradient": (y, x),
        }[self.kind]

    def counts(self) -> Array:
        """Return the divisor of each average, of shape `out_size`."""
        along = []
        for axis in (0, 1):
            length, (before, _) = self.size[axis], self.padding[axis]
            begin = np.arange(self.out_size[axis]) * self.stride[axis] - before
            end = begin + self.window[axis]
            inside = np.minimum(end, length) - np.maximum(begin, 0)
            along.append(np.full_like(inside, self.window[axis]) if self.counts_padding else inside)
        counts: Array = np.multiply.outer(*along).astype(self.dtype)
        return counts


def _taps(problem: Pooling) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield for each element of the window, row by row, a slice of x and the windows in y."""
    for r in range(problem.window[0]):
        for s in range(problem.window[1]):
            of_x, of_y = [slice(None)] * 2, [slice(None)] * 2
            for axis, tap in enumerate((r, s)):
                step, shift = problem.stride[axis], tap - problem.padding[axis][0]
                first = max(0, -(shift // step))  # the least i with i * step + shift >= 0
                last = min(problem.out_size[axis] - 1, (problem.size[axis] - 1 - shift) // step)
                if last < first:
                    break
                of_y.append(slice(first, last + 1))
                of_x.append(slice(first * step + shift, last * step + shift + 1, step))
            else:
                yield tuple(of_x), tuple(of_y)


def pool_by_taps(ops: Any, problem: Pooling) -> Routine:
    """Return the generic routine: one element of the window at a time, in all windows at once.

    It computes every problem, and with calls that every device has; other routines are tested
    against it.
    """
    y_size = problem.images * problem.channels * math.prod(problem.out_size)
    dtype = np.dtype(problem.dtype)
    wanted = []  # arrays of the shape of y
    if problem.kind in ("max_gradient", "max_taken"):
        wanted = [dtype] * 3 + _FIRST.workspace(dtype) + _ADD_WHERE.workspace(dtype)
    elif problem.kind == "average_gradient":
        wanted = [dtype]
    sizes = [-(-y_size * kind.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for kind in wanted]

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        spaces = []
        begin = 0
        for kind, size in zip(wanted, sizes, strict=True):
            assert workspace is not None
            part = workspace[begin : begin + y_size * kind.itemsize].view(kind)
            spaces.append(part.reshape(problem.images, problem.channels, *problem.out_size))
            begin += size
        views = [image_view(x, problem.layout) for x in (*inputs, out)]
        return _STEPS[problem.kind](ops, problem, views, spaces)

    return Routine("by_taps", sum(sizes), steps)


def _largest(ops: Any, problem: Pooling, x: Array, out: Array) -> list[Step]:
    steps: list[Step] = [(ops.fill, (-math.inf, out))]
    for of_x, of_y in _taps(problem):
        steps.append(ops.elementwise(MAXIMUM, (out[of_y], x[of_x]), out[of_y]))
    return steps


def _max(ops: Any, problem: Pooling, views: Sequence[Array], spaces: list[Array]) -> list[Step]:
    x, y = views
    return _largest(ops, problem, x, y)


def _first_maximum(
    ops: Any, problem: Pooling, views: Sequence[Array], spaces: list[Array]
) -> list[Step]:
    """Return the calls of ``"max_gradient"`` or ``"max_taken"``, at each window's first maximum."""
    given, x, out = views
    best, done, mask, *rest = spaces
    number = len(_FIRST.workspace(x.dtype))
    for_first, for_add = rest[:number], rest[number:]
    to_x = problem.kind == "max_gradient"
    steps = _largest(ops, problem, x, best)
    steps += [(ops.fill, (0.0, done)), (ops.fill, (0.0, out))]
    for of_x, of_y in _taps(problem):
        target, source = (out[of_x], given[of_y]) if to_x else (out[of_y], given[of_x])
        found, earlier = mask[of_y], done[of_y]
        space = [each[of_y] for each in for_first]
        steps.append(ops.elementwise(_FIRST, (x[of_x], best[of_y], earlier), found, space))
        space = [each[of_y] for each in for_add]
        steps.append(ops.elementwise(_ADD_WHERE, (target, found, source), target, space))
        steps.append(ops.elementwise(MAXIMUM, (earlier, found), earlier))
    return steps


def _average(ops: Any, problem: Pooling, views: Sequence[Array], spaces: list[Array]) -> list[Step]:
    x, y = views
    steps: list[Step] = [(ops.fill, (0.0, y))]
    for of_x, of_y in _taps(problem):
        steps.append(ops.elementwise(ADD, (y[of_y], x[of_x]), y[of_y]))
    counts = ops.asarray(problem.counts())
    return [*steps, ops.elementwise(DIVIDE, (y, counts), y)]


def _average_gradient(
    ops: Any, problem: Pooling, views: Sequence[Array], spaces: list[Array]
) -> list[Step]:
    dy, dx = views
    (share,) = spaces
    counts = ops.asarray(problem.counts())
    steps: list[Step] = [ops.elementwise(DIVIDE, (dy, counts), share), (ops.fill, (0.0, dx))]
    for of_x, of_y in _taps(problem):
        steps.append(ops.elementwise(ADD, (dx[of_x], share[of_y]), dx[of_x]))
    return steps


_STEPS = {
    "max": _max,
    "max_gradient": _first_maximum,
    "max_taken": _first_maximum,
    "average": _average,
    "average_gradient": _average_gradient,
}
