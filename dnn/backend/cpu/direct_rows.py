"""Direct convolution by rows: for few channels, with the images innermost (CHWN) or alone (NCHW).

In CHWN a row of an image map, its columns and all images of the batch, is one piece of memory, and
so is what a tap of the window meets in x: the same piece, shifted. So a tile of y, of several
filters and several vectors of such a row, stays in registers while all channels and taps are added,
and what vectors hold depends neither on the number of channels nor on that of images::

    y[f, i, t] = sum over c, r, s of w[f, c, r, s] x[c, i + r, t + s images]      t: column, image

Columns at a border meet fewer taps, so a row consists of segments, each with its taps, listed once.
The gradient of x is the same with other lists: for each row of x the rows of y that have met it.
That of the weights holds tiles of filters and taps in registers, and goes along the rows of y and
x. What is cut into parts for threads is the result, so no bit depends on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.cache import entry_of, source_of
from dnn.backend.cpu.kernels import SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.cpu.registers import vector_registers
from dnn.backend.ops import Array, Step

__all__ = [
    "ROWS_AT_ONCE",
    "Line",
    "Lines",
    "lines_of_x",
    "lines_of_y",
    "routine",
]

ROWS_AT_ONCE = 8
"""Rows of the window whose sums the kernel of weights holds at once."""

MOST_FILTERS, MOST_VECTORS = 8, 12
"""Limits of a tile."""


def routine(problem: Convolution) -> Routine | None:
    """Return the direct convolution by rows, or None for a problem that it does not take.

    Parameters
    ----------
    problem : Convolution

    Returns
    -------
    Routine or None
    """
    if problem.layout == "NHWC" or problem.dtype not in ("f4", "f8") or problem.is_empty:
        return None
    if problem.layout == "NCHW" and problem.stride[1] != 1:
        return None  # neighbours in a row of y do not meet neighbours in x
    kernel = _kernel(problem)

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        bias = () if problem.bias or problem.kind == "weights" else (kernel.zero,)
        return [(kernel, (*inputs, *bias, out))]

    return Routine("direct_rows", 0, steps)


@cache
def _kernel(problem: Convolution) -> _Kernel:
    """Return the kernel; it exists as long as the process, since programs point to its tables."""
    return _Weights(problem) if problem.kind == "weights" else _Rows(problem)


class _Strides(NamedTuple):
    """Strides of an array of images, in bytes."""

    image: int
    channel: int
    row: int
    column: int


def _strides(problem: Convolution, channels: int, size: tuple[int, int]) -> _Strides:
    item = np.dtype(problem.dtype).itemsize
    inner = problem.images * item if problem.layout == "CHWN" else item
    row = size[1] * inner
    channel = size[0] * row
    return _Strides(channels * channel, channel, row, inner)


def _model_step(x: Array, axes: int) -> int | None:
    """Return the bytes from model to model, 0 if all share x; None if a model is not contiguous."""
    of_model = x[0] if x.ndim > axes else x
    if not of_model.flags.c_contiguous:
        return None
    return x.strides[0] if x.ndim > axes else 0


class _Kernel(Native):
    """A direct convolution as a kernel of arrays and, for a part of it, a range of the work."""

    def __init__(self, problem: Convolution) -> None:
        super().__init__(self._record, None, self._in_parts)
        self.problem = problem
        self.inner = problem.images if problem.layout == "CHWN" else 1
        self.images = 1 if problem.layout == "CHWN" else problem.images
        self.operations = 2 * (problem.models or 1) * prod(problem.w_shape)
        self.operations *= problem.images * prod(problem.out_size)
        self.x = _strides(problem, problem.channels, problem.size)
        self.y = _strides(problem, problem.filters, problem.out_size)
        self.item = np.dtype(problem.dtype).itemsize
        self.zero = np.zeros(1, problem.dtype)  # where sums begin without a bias
        # A subclass sets these: units of work, of which a part has at least one, and the fields.
        self.units = 0
        self.axes: tuple[int, ...] = (4, 4, 4)
        self.source = ""
        self.shape: list[int] = []
        self.strides: list[int] = []

    def __repr__(self) -> str:
        return "direct_rows"

    def _in_parts(self, arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        if self.operations < SPLIT_OPERATIONS:
            return []
        return [(*arguments, cut) for cut in cuts(self.units, parts)]

    def _record(self, *arguments: Any) -> Record | None:
        *arrays, out = (x for x in arguments if not isinstance(x, slice))
        steps = [_model_step(x, axes) for x, axes in zip((*arrays, out), self.axes, strict=True)]
        if None in steps or any(x.dtype != out.dtype for x in arrays):
            return None
        part = arguments[-1] if isinstance(arguments[-1], slice) else slice(0, self.units)
        fields = [part.start, part.stop, *self.shape]
        for x, step in zip((*arrays, out), steps, strict=True):
            fields += [address_of(x), step or 0]
        return entry_of(self.source), [*fields, *self.strides]


@cache
def _source(maker: str, code: str, *sizes: int) -> str:
    made = f"{maker}({', '.join(map(repr, (code, *sizes)))})"
    return source_of("direct_rows_kernels", made)


class Line(NamedTuple):
    """One row, or one column, of the result, and the input and taps that it is computed from."""

    place: int
    """Index of the row of the result."""
    of_input: int
    """Index of the row of the input at the first tap."""
    tap: int
    """First tap that meets the input."""
    taps: int
    """Number of taps that meet the input."""


class Lines(NamedTuple):
    """All rows, or all columns, of the result, and the steps from tap to tap."""

    lines: list[Line]
    input_step: int
    tap_step: int
    is_dense: bool
    """Whether neighbouring rows with the same taps meet neighbouring rows of the input."""


def lines_of_y(out: int, size: int, window: int, stride: int, dilation: int, before: int) -> Lines:
    """Return which rows of x each row i of y meets: i stride + r dilation - before."""
    lines = []
    for i in range(out):
        met = [r for r in range(window) if 0 <= i * stride + r * dilation - before < size]
        first = met[0] if met else 0
        lines.append(Line(i, i * stride + first * dilation - before, first, len(met)))
    return Lines(lines, dilation, 1, stride == 1)


def lines_of_x(out: int, size: int, window: int, stride: int, dilation: int, before: int) -> Lines:
    """Return which rows of y have met each row h of x: h = i stride + r dilation - before."""
    common = gcd(stride, dilation)
    lines = []
    for h in range(size):
        met = [
            r
            for r in range(window)
            if (h + before - r * dilation) % stride == 0
            and 0 <= (h + before - r * dilation) // stride < out
        ]
        first = met[0] if met else 0
        lines.append(Line(h, (h + before - first * dilation) // stride, first, len(met)))
    return Lines(lines, -dilation // common, stride // common, stride == 1)


class _Rows(_Kernel):
    """The kernel of y, or of the gradient of x."""

    def __init__(self, problem: Convolution) -> None:
        super().__init__(problem)
        find = lines_of_y if problem.kind == "forward" else lines_of_x
        self.down, self.across = (
            find(out, size, window, stride, dilation, padding[0])
            for out, size, window, stride, dilation, padding in zip(
                problem.out_size,
                problem.size,
                problem.window,
                problem.stride,
                problem.dilation,
                problem.padding,
                strict=True,
            )
        )
        both = (problem.filters // problem.groups, problem.channels // problem.groups)
        self.outs, self.sums = both if problem.kind == "forward" else both[::-1]
        self.block = min(
            range(min(self.outs, MOST_FILTERS), 0, -1),
            key=lambda block: -(-self.outs // block) * (block + 0.5),
        )
        self.vectors = min(MOST_VECTORS, vector_registers()[0] * 3 // 4 // self.block)
        self.blocks = -(-self.outs // self.block)
        self.units = (problem.models or 1) * self.images * problem.groups
        self.units *= len(self.down.lines) * self.blocks
        self.axes = (4, 4, 1, 4)
        self.source = _source("rows_kernel", problem.dtype, self.block, self.vectors)
        x, y = (self.x, self.y) if problem.kind == "forward" else (self.y, self.x)
        *taps, w_row, w_column = self._weight_steps()
        w_out, w_sum = taps if problem.kind == "forward" else taps[::-1]
        self.rows, self.segments = self._tables(x, y, w_row, w_column)
        self.shape = [problem.groups, self.blocks, self.outs, self.images]
        self.shape += [len(self.rows), address_of(self.rows)]
        self.shape += [len(self.segments), address_of(self.segments)]
        self.strides = [x.image, x.channel * self.sums, taps[0] * problem.filters // problem.groups]
        self.strides += [y.image, self.sums, x.channel, x.row * self.down.input_step]
        self.strides += [x.column * self.across.input_step, w_out, w_sum]
        self.strides += [w_row * self.down.tap_step, w_column * self.across.tap_step]
        self.strides += [self.item if problem.bias else 0, y.channel, int(problem.relu)]

    def _weight_steps(self) -> list[int]:
        """Return the strides of the weights in bytes: of filters, channels, rows and columns."""
        lengths = self.problem.w_shape
        return [self.item * prod(lengths[axis + 1 :]) for axis in range(4)]

    def _tables(self, x: _Strides, y: _Strides, w_row: int, w_column: int) -> tuple[Array, Array]:
        """Return tables of where each row, and each segment of a row, begins, and of its taps."""
        rows = [(i * y.row, h * x.row, r * w_row, taps) for i, h, r, taps in self.down.lines]
        segments: list[list[int]] = []
        last: Line | None = None
        for line in self.across.lines:
            place, of_input, tap, taps = line
            alike = last is not None and (last.tap, last.taps) == (tap, taps)
            if alike and self.across.is_dense:
                segments[-1][-1] += self.inner
            else:
                start = [place * y.column, of_input * x.column, tap * w_column]
                segments.append([*start, taps, self.inner])
            last = line
        return np.array(rows, np.int64), np.array(segments, np.int64)


class _Weights(_Kernel):
    """The kernel of the gradient of the weights."""

    def __init__(self, problem: Convolution) -> None:
        super().__init__(problem)
        filters, channels = problem.filters // problem.groups, problem.channels // problem.groups
        across = channels * problem.window[1]
        block, taps = _tile_of_weights(filters, across)
        self.source = _source("weights_kernel", problem.dtype, block, taps)
        blocks, tap_blocks = -(-filters // block), -(-across // taps)
        self.units = (problem.models or 1) * problem.groups * blocks * tap_blocks
        self.units *= problem.window[0]
        x, y = self.x, self.y
        width, (left, _) = problem.size[1], problem.padding[1]
        ranges = []
        for s in range(problem.window[1]):
            shift = s * problem.dilation[1] - left
            met = [
                j for j in range(problem.out_size[1]) if 0 <= j * problem.stride[1] + shift < width
            ]
            ranges.append((shift * x.column, *((met[0], met[-1] + 1) if met else (0, 0))))
        self.ranges = np.array(ranges, np.int64)
        self.shape = [problem.groups, blocks, tap_blocks, filters, channels, *problem.window]
        self.shape += [self.images, problem.out_size[0], problem.size[0], self.inner]
        self.shape += [problem.stride[1], problem.stride[0], problem.dilation[0]]
        self.shape += [problem.padding[0][0], address_of(self.ranges)]
        self.strides = [x.image, x.channel, x.row, x.column * problem.stride[1]]
        self.strides += [y.image, y.channel, y.row, y.column]


@cache
def _tile_of_weights(filters: int, taps: int) -> tuple[int, int]:
    """Return the numbers of filters and taps of the tile that is held in registers."""
    registers = vector_registers()[0]

    def cost(sizes: tuple[int, int]) -> tuple[float, int]:
        block, tap_block = sizes
        # Multiplications are issued two at a time, and so are loads, most of them of two lines.
        once = max(block * tap_block / 2, (block + tap_block) * 0.75)
        return -(-filters // block) * -(-taps // tap_block) * once, -block * tap_block

    sizes = [
        (block, tap_block)
        for block in range(1, min(filters, MOST_FILTERS) + 1)
        for tap_block in range(1, min(taps, MOST_FILTERS) + 1)
        if block * tap_block + block + 1 < registers
    ]
    return min(sizes, key=cost)
