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

from collections import namedtuple
from collections.abc import Sequence
from functools import cache, partial
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.cache import source_of
from dnn.backend.cpu.convolution_work import UnitKernel
from dnn.backend.cpu.program import address_of
from dnn.backend.cpu.registers import vector_registers
from dnn.backend.ops import Array, Step

__all__ = [
    "ROWS_AT_ONCE",
    "Line",
    "Lines",
    "RowsFields",
    "WeightsFields",
    "both_lines",
    "routine",
]

ROWS_AT_ONCE = 8
"""Rows of the window whose sums the kernel of weights holds at once."""

MOST_FILTERS, MOST_VECTORS = 8, 12
"""Limits of a tile."""


RowsFields = namedtuple(
    "RowsFields",
    "first last groups blocks group_filters images rows row_table segments segment_table"
    " x x_model w w_model bias bias_model out out_model x_image x_group w_group out_image"
    " channels x_c x_r x_s w_f w_c w_r w_s bias_f out_f relu",
)
"""Fields of the kernel of y or of the gradient of x, where x is dy: units, numbers, tables, arrays,
and bytes from one to the next (x_c: channel of x, w_f: filter, w_r: row of the window)."""

WeightsFields = namedtuple(
    "WeightsFields",
    "first last groups filter_blocks tap_blocks group_filters group_channels window_rows"
    " window_columns images out_rows height inner stride row_stride row_dilation top ranges"
    " x x_model dy dy_model out out_model x_image x_c x_row x_column"
    " dy_image dy_f dy_row dy_column",
)
"""Fields of the kernel of the gradient of the weights."""


def routine(problem: Convolution) -> Routine | None:
    """Return the direct convolution by rows, or None for a problem that it does not take."""
    if problem.layout == "NHWC" or problem.dtype not in ("f4", "f8") or problem.is_empty:
        return None
    if problem.layout == "NCHW" and problem.stride[1] != 1:
        return None  # neighbours in a row of y do not meet neighbours in x
    kernel = _kernel(problem)

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        has_all = problem.bias or problem.kind == "weights"
        bias = () if has_all else (np.zeros(1, problem.dtype),)  # where sums begin
        return [(kernel, (*inputs, *bias, out))]

    return Routine("direct_rows", 0, steps)


@cache
def _kernel(problem: Convolution) -> UnitKernel:
    """Return the kernel; it exists as long as the process, since programs point to its tables."""
    return (_weights_kernel if problem.kind == "weights" else _rows_kernel)(problem)


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


def _split(problem: Convolution) -> tuple[int, int]:
    """Return how many images stand side by side, and how many by themselves."""
    return (problem.images, 1) if problem.layout == "CHWN" else (1, problem.images)


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


def both_lines(problem: Convolution) -> tuple[Lines, Lines]:
    """Return rows and columns of y, or for the gradient of the data those of x."""
    find = lines_of_x if problem.kind == "data" else lines_of_y
    down, across = (
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
    return down, across


def _rows_kernel(problem: Convolution) -> UnitKernel:
    """Return the kernel of y, or of the gradient of x."""
    down, across = both_lines(problem)
    outs, sums = problem.filters // problem.groups, problem.channels // problem.groups
    x = _strides(problem, problem.channels, problem.size)
    y = _strides(problem, problem.filters, problem.out_size)
    item = np.dtype(problem.dtype).itemsize
    w_f, w_c, w_r, w_s = (item * prod(problem.w_shape[axis + 1 :]) for axis in range(4))
    w_group = w_f * outs
    if problem.kind == "data":
        outs, sums, x, y, w_f, w_c = sums, outs, y, x, w_c, w_f
    block = min(
        range(min(outs, MOST_FILTERS), 0, -1), key=lambda block: -(-outs // block) * (block + 0.5)
    )
    vectors = min(MOST_VECTORS, vector_registers()[0] * 3 // 4 // block)
    blocks = -(-outs // block)
    inner, images = _split(problem)
    rows, segments = _tables(down, across, x, y, w_r, w_s, inner)
    fields = partial(
        RowsFields, groups=problem.groups, blocks=blocks, group_filters=outs, images=images,
        rows=len(rows), row_table=address_of(rows),
        segments=len(segments), segment_table=address_of(segments),
        x_image=x.image, x_group=x.channel * sums, w_group=w_group, out_image=y.image,
        channels=sums, x_c=x.channel, x_r=x.row * down.input_step,
        x_s=x.column * across.input_step, w_f=w_f, w_c=w_c,
        w_r=w_r * down.tap_step, w_s=w_s * across.tap_step,
        bias_f=item if problem.bias else 0, out_f=y.channel, relu=int(problem.relu),
    )  # fmt: skip
    units = (problem.models or 1) * images * problem.groups * len(rows) * blocks
    source = _source("rows_kernel", problem.dtype, block, vectors)
    axes = {"x": 4, "w": 4, "bias": 1, "out": 4}
    return UnitKernel("direct_rows", problem, units, source, fields, axes, (rows, segments))


def _tables(
    down: Lines, across: Lines, x: _Strides, y: _Strides, w_row: int, w_column: int, inner: int
) -> tuple[Array, Array]:
    """Return tables of where each row, and each segment of a row, begins, and of its taps."""
    rows = [(i * y.row, h * x.row, r * w_row, taps) for i, h, r, taps in down.lines]
    segments: list[list[int]] = []
    last: Line | None = None
    for line in across.lines:
        place, of_input, tap, taps = line
        alike = last is not None and (last.tap, last.taps) == (tap, taps)
        if alike and across.is_dense:
            segments[-1][-1] += inner
        else:
            start = [place * y.column, of_input * x.column, tap * w_column]
            segments.append([*start, taps, inner])
        last = line
    return np.array(rows, np.int64), np.array(segments, np.int64)


def _weights_kernel(problem: Convolution) -> UnitKernel:
    """Return the kernel of the gradient of the weights."""
    filters, channels = problem.filters // problem.groups, problem.channels // problem.groups
    taps_across = channels * problem.window[1]
    block, taps = _tile_of_weights(filters, taps_across)
    blocks, tap_blocks = -(-filters // block), -(-taps_across // taps)
    x = _strides(problem, problem.channels, problem.size)
    y = _strides(problem, problem.filters, problem.out_size)
    inner, images = _split(problem)
    (top, _), (left, _) = problem.padding
    ranges = []
    for s in range(problem.window[1]):
        shift = s * problem.dilation[1] - left
        pixels = (j * problem.stride[1] + shift for j in range(problem.out_size[1]))
        met = [j for j, pixel in enumerate(pixels) if 0 <= pixel < problem.size[1]]
        ranges.append((shift * x.column, *((met[0], met[-1] + 1) if met else (0, 0))))
    table = np.array(ranges, np.int64)
    fields = partial(
        WeightsFields, groups=problem.groups, filter_blocks=blocks, tap_blocks=tap_blocks,
        group_filters=filters, group_channels=channels,
        window_rows=problem.window[0], window_columns=problem.window[1], images=images,
        out_rows=problem.out_size[0], height=problem.size[0], inner=inner,
        stride=problem.stride[1], row_stride=problem.stride[0],
        row_dilation=problem.dilation[0], top=top, ranges=address_of(table),
        x_image=x.image, x_c=x.channel, x_row=x.row, x_column=x.column * problem.stride[1],
        dy_image=y.image, dy_f=y.channel, dy_row=y.row, dy_column=y.column,
    )  # fmt: skip
    units = (problem.models or 1) * problem.groups * blocks * tap_blocks * problem.window[0]
    source = _source("weights_kernel", problem.dtype, block, taps)
    axes = {"x": 4, "dy": 4, "out": 4}
    return UnitKernel("direct_rows", problem, units, source, fields, axes, (table,))


@cache
def _source(maker: str, code: str, *sizes: int) -> str:
    made = f"{maker}({', '.join(map(repr, (code, *sizes)))})"
    return source_of("direct_rows_kernels", made)


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
