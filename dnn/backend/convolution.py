"""Convolutions: their description, the type of routines that compute them, and a generic routine.

`Convolution`, which is hashable, describes a problem completely; a `Routine` turns it, and the
arrays, into the calls that a plan replays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.formula import ADD, RELU, Step
from dnn.backend.rounding import BFLOAT16, HALF, Array

__all__ = ["ALIGNMENT_BYTES", "LAYOUTS", "Convolution", "Routine", "direct", "image_view"]

LAYOUTS = ("NCHW", "NHWC", "CHWN")
"""Orders of the axes of images: N counts images, C channels, H rows and W columns."""

ALIGNMENT_BYTES = 64
"""Alignment of arrays in memory: a cache line, which is as wide as the widest vector registers."""

COLUMNS_BYTES = 8 << 20
"""The direct routine takes as many images at once as have columns of at most this size."""


class Convolution(NamedTuple):
    """One convolution: what is computed, of which shapes.

    With x padded by zeros, for each image and filter (of a group, its channels alone)::

        y[i, j] = sum(x[c, i stride + r dilation, j stride + s dilation] w[c, r, s])

    as neural networks define it: a cross-correlation, which does not flip the window.

    Attributes
    ----------
    kind : str
        ``"forward"``: y from (x, w), and from the bias if there is one; ``"data"``: the gradient
        of x from (dy, w); ``"weights"``: the gradient of w from (x, dy).
    layout : str
        Order of the axes of x, y and their gradients, one of `LAYOUTS`. Weights are (filters,
        channels / groups, rows, columns) in all layouts.
    dtype : str
        ``"f4"`` or ``"f8"``.
    models : int or None
        K where arrays have a leading axis of K models; the result then has it too.
    stacked : pair of bool
        Whether the first and the second input have that axis.
    images, channels : int
    size : pair of int
        Height and width of x.
    filters : int
    window, stride, dilation : pairs of int
        Along the height and along the width.
    padding : pair of pairs of int
        Zeros above and below x; to its left and right.
    groups : int
        Groups of channels, each with filters of its own; it divides channels and filters.
    bias : bool
        Forward only: a third input, shape (filters,) or (K, filters), is added.
    relu : bool
        Forward only: negative results become 0, after the bias is added.
    precision : str
        Precision of the operands where `dtype` is ``"f4"``: ``"float32"``, ``"tf32"``,
        ``"float16"`` or ``"bfloat16"``. Sums are of float32, and are rounded once, to the type of
        the result.
    """

    kind: str
    layout: str
    dtype: str
    models: int | None
    stacked: tuple[bool, bool]
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    window: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    groups: int
    bias: bool = False
    relu: bool = False
    precision: str = "float32"

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of y."""
        height, width = (
            (n + sum(pad) - (taps - 1) * dilation - 1) // step + 1
            for n, pad, taps, dilation, step in zip(
                self.size, self.padding, self.window, self.dilation, self.stride, strict=True
            )
        )
        return height, width

    @property
    def is_empty(self) -> bool:
        """Whether any of the arrays has no elements."""
        lengths = (self.images, self.channels, self.filters, *self.window)
        return min(*lengths, *self.size, *self.out_size, self.models or 1) < 1

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of x and its gradient in the layout, of one model."""
        return in_layout(self.layout, self.images, self.channels, *self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of y and its gradient in the layout, of one model."""
        return in_layout(self.layout, self.images, self.filters, *self.out_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weights and their gradient, of one model."""
        return (self.filters, self.channels // self.groups, *self.window)

    @property
    def dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]:
        """Types of the two inputs and of the result, where images are kept in the precision.

        Gradients of weights are not rounded.
        """
        wide = np.dtype(self.dtype)
        kept = {"float16": HALF, "bfloat16": BFLOAT16}.get(self.precision, wide)
        return kept, kept, wide if self.kind == "weights" else kept

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of the two inputs and of the result, with the axis of models if they have it."""
        first, second, out = {
            "forward": (self.x_shape, self.w_shape, self.y_shape),
            "data": (self.y_shape, self.w_shape, self.x_shape),
            "weights": (self.x_shape, self.y_shape, self.w_shape),
        }[self.kind]
        if self.models is None:
            return first, second, out
        axis = (self.models,)
        a, b = (
            (*axis, *x) if has else x for x, has in zip((first, second), self.stacked, strict=True)
        )
        return a, b, (*axis, *out)


class Routine(NamedTuple):
    """One way to compute a convolution.

    Attributes
    ----------
    name : str
        Such as ``"direct"``, ``"im2col"``, ``"winograd4"``.
    workspace_bytes : int
        Size of the block of memory that it needs while it runs, aligned to `ALIGNMENT_BYTES`.
    steps : function (inputs, out, workspace) -> list of Step
        The calls that write the result. Arrays are contiguous, and images in the layout of the
        problem; only along the axis of models weights and biases may have any stride, as in a
        buffer with a row for each model. `workspace` is an array of uint8, or None where none is
        needed.
    is_timed : bool
        Whether it is timed with others to find the fastest; if not, a table has to name it.
    """

    name: str
    workspace_bytes: int
    steps: Callable[[Sequence[Array], Array, Array | None], list[Step]]
    is_timed: bool = True


def in_layout(layout: str, *lengths: int) -> tuple[int, ...]:
    """Return four lengths, given in the order NCHW, in the order of a layout."""
    return tuple(lengths["NCHW".index(letter)] for letter in layout)


def image_view(x: Array, layout: str) -> Array:
    """Return a view with axes (..., N, C, H, W) of images in any layout, of one or more models."""
    front = x.ndim - 4
    axes = (*range(front), *(front + layout.index(letter) for letter in "NCHW"))
    view: Array = x.transpose(axes)
    return view


class _Arrays:
    """Cuts arrays out of a block of memory; without a block it only adds up their sizes."""

    def __init__(self, dtype: str, block: Array | None) -> None:
        self.dtype = np.dtype(dtype)
        self.block = block
        self.size_bytes = 0

    def __call__(self, *shape: int) -> Any:
        begin = self.size_bytes
        size = math.prod(shape) * self.dtype.itemsize
        self.size_bytes += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self.block is None:
            return None
        return self.block[begin : begin + size].view(self.dtype).reshape(shape)


class _Space(NamedTuple):
    """Workspace arrays of the direct routine, which takes `chunk` images at once."""

    chunk: int
    padded: Any
    columns: Any
    maps: Any
    term: Any


def direct(ops: Any, problem: Convolution) -> Routine:
    """Return the generic routine: copies of x for each tap of the window, then matrix products.

    It computes every problem, and with calls that every device has: copies, sums of two arrays and
    products. Other routines are tested against it.
    """
    counted = _Arrays(problem.dtype, None)
    _space(problem, counted)
    run = {"forward": _forward, "data": _data, "weights": _weights}[problem.kind]

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        space = _space(problem, _Arrays(problem.dtype, workspace))
        return run(ops, problem, space, inputs, out)

    return Routine("direct", counted.size_bytes, steps)


def _space(problem: Convolution, new_array: _Arrays) -> _Space:
    models = problem.models or 1
    groups, (height, width) = problem.groups, problem.out_size
    taps = math.prod(problem.w_shape[1:])
    each = max(groups * taps * height * width * new_array.dtype.itemsize, 1)
    chunk = max(1, min(problem.images, COLUMNS_BYTES // each))
    of_x = models if problem.kind == "data" or problem.stacked[0] else 1
    of_y = models if problem.kind == "forward" or problem.stacked[problem.kind == "weights"] else 1
    (top, bottom), (left, right) = problem.padding
    padded = None
    if problem.kind == "data" or any((top, bottom, left, right)):
        high, wide = problem.size[0] + top + bottom, problem.size[1] + left + right
        padded = new_array(of_x, chunk, problem.channels, high, wide)
    columns = new_array(of_x, groups, taps, chunk, height, width)
    maps = new_array(of_y, groups, problem.filters // groups, chunk, height, width)
    term = None
    if problem.kind == "weights" and chunk < problem.images:
        term = new_array(models, groups, problem.filters // groups, taps)
    return _Space(chunk, padded, columns, maps, term)


def _with_models(x: Array, problem: Convolution, stacked: bool) -> Array:
    """Return an array with a leading axis of models, of length 1 where it had no such axis."""
    return x if problem.models is not None and stacked else x[None]


def _chunks(problem: Convolution, space: _Space) -> Iterator[tuple[slice, int]]:
    for begin in range(0, problem.images, space.chunk):
        end = min(begin + space.chunk, problem.images)
        yield slice(begin, end), end - begin


def _by_group(x: Array, problem: Convolution) -> Array:
    """Return (models, N, C, H, W) as (models, groups, C of a group, N, H, W)."""
    groups = problem.groups
    models, images, channels, *size = x.shape
    by_group = x.reshape(models, images, groups, channels // groups, *size)
    view: Array = by_group.transpose(0, 2, 3, 1, 4, 5)
    return view


def _taps(problem: Convolution, padded: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
    """Yield for each tap of the window the pixels of x that it meets, and its columns."""
    height, width = problem.out_size
    rows, across = problem.window
    images = _by_group(padded, problem)
    by_tap = columns.reshape(*images.shape[:3], rows, across, *columns.shape[-3:])
    for r in range(rows):
        for s in range(across):
            down, right = r * problem.dilation[0], s * problem.dilation[1]
            part = images[
                ...,
                down : down + (height - 1) * problem.stride[0] + 1 : problem.stride[0],
                right : right + (width - 1) * problem.stride[1] + 1 : problem.stride[1],
            ]
            yield part, by_tap[:, :, :, r, s]


def _inside(problem: Convolution, padded: Array) -> Array:
    """Return a view of padded images without their padding."""
    (top, _), (left, _) = problem.padding
    height, width = problem.size
    return padded[..., top : top + height, left : left + width]


def _fill_columns(
    ops: Any, problem: Convolution, space: _Space, x: Array, part: slice, number: int
) -> tuple[list[Step], Array]:
    """Return the calls that write the columns of some images, and the columns."""
    steps: list[Step] = []
    images = x[:, part]
    if space.padded is not None:
        padded = space.padded[:, :number]
        steps += [(ops.fill, (0.0, padded)), (ops.copy, (images, _inside(problem, padded)))]
        images = padded
    columns = space.columns.reshape(-1)[: space.columns.size // space.chunk * number]
    columns = columns.reshape(*space.columns.shape[:3], number, *problem.out_size)
    steps += [(ops.copy, pair) for pair in _taps(problem, images, columns)]
    return steps, columns.reshape(*columns.shape[:3], -1)


def _maps(space: _Space, number: int) -> Array:
    """Return workspace for y of `number` images, of shape (models, groups, filters, N, H, W)."""
    shape = space.maps.shape
    maps: Array = space.maps.reshape(-1)[: space.maps.size // space.chunk * number]
    return maps.reshape(*shape[:3], number, *shape[4:])


def _products(ops: Any, a: Array, b: Array, out: Array) -> list[Step]:
    """Return a call of `gemm` for each model, the same as for a network of that model alone."""
    return [
        (ops.gemm, (a[min(k, len(a) - 1)], b[min(k, len(b) - 1)], out[k])) for k in range(len(out))
    ]


def _forward(
    ops: Any, problem: Convolution, space: _Space, inputs: Sequence[Array], out: Array
) -> list[Step]:
    x = image_view(_with_models(inputs[0], problem, problem.stacked[0]), problem.layout)
    w = _with_models(inputs[1], problem, problem.stacked[1])
    w = w.reshape(len(w), problem.groups, problem.filters // problem.groups, -1)
    y = image_view(_with_models(out, problem, True), problem.layout)
    steps: list[Step] = []
    for part, number in _chunks(problem, space):
        filled, columns = _fill_columns(ops, problem, space, x, part, number)
        maps = _maps(space, number)
        steps += filled
        steps += _products(ops, w, columns, maps.reshape(*maps.shape[:3], -1))
        if problem.bias:
            bias = _with_models(inputs[2], problem, inputs[2].ndim == 2)
            bias = bias.reshape(len(bias), *maps.shape[1:3], 1, 1, 1)
            steps.append(ops.elementwise(ADD, (maps, bias), maps))
        if problem.relu:
            steps.append(ops.elementwise(RELU, (maps,), maps))
        steps.append((ops.copy, (maps, _by_group(y[:, part], problem))))
    return steps


def _data(
    ops: Any, problem: Convolution, space: _Space, inputs: Sequence[Array], out: Array
) -> list[Step]:
    dy = image_view(_with_models(inputs[0], problem, problem.stacked[0]), problem.layout)
    w = _with_models(inputs[1], problem, problem.stacked[1])
    w = w.reshape(len(w), problem.groups, problem.filters // problem.groups, -1)
    dx = image_view(_with_models(out, problem, True), problem.layout)
    steps: list[Step] = []
    for part, number in _chunks(problem, space):
        maps, padded = _maps(space, number), space.padded[:, :number]
        columns = space.columns.reshape(-1)[: space.columns.size // space.chunk * number]
        columns = columns.reshape(*space.columns.shape[:3], number, *problem.out_size)
        steps.append((ops.copy, (_by_group(dy[:, part], problem), maps)))
        flat = columns.reshape(*columns.shape[:3], -1)
        steps += _products(ops, w.swapaxes(-1, -2), maps.reshape(*maps.shape[:3], -1), flat)
        steps.append((ops.fill, (0.0, padded)))
        for met, columns_of_tap in _taps(problem, padded, columns):
            steps.append(ops.elementwise(ADD, (met, columns_of_tap), met))
        steps.append((ops.copy, (_inside(problem, padded), dx[:, part])))
    return steps


def _weights(
    ops: Any, problem: Convolution, space: _Space, inputs: Sequence[Array], out: Array
) -> list[Step]:
    x = image_view(_with_models(inputs[0], problem, problem.stacked[0]), problem.layout)
    dy = image_view(_with_models(inputs[1], problem, problem.stacked[1]), problem.layout)
    dw = _with_models(out, problem, True)
    dw = dw.reshape(len(dw), problem.groups, problem.filters // problem.groups, -1)
    steps: list[Step] = [] if problem.images else [(ops.fill, (0.0, dw))]
    for part, number in _chunks(problem, space):
        filled, columns = _fill_columns(ops, problem, space, x, part, number)
        maps = _maps(space, number)
        steps += filled
        steps.append((ops.copy, (_by_group(dy[:, part], problem), maps)))
        target = dw if part.start == 0 else space.term
        flat = maps.reshape(*maps.shape[:3], -1)
        steps += _products(ops, flat, columns.swapaxes(-1, -2), target)
        if target is not dw:
            steps.append(ops.elementwise(ADD, (dw, target), dw))
    return steps
