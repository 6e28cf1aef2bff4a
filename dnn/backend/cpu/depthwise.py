"""Depthwise convolution, of each channel by itself, with channels innermost (NHWC) in vectors.

Weights are transposed first, so that those of a tap for all channels are contiguous.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import cache, partial
from math import prod

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.cache import source_of
from dnn.backend.cpu.chains import copy
from dnn.backend.cpu.convolution_work import UnitKernel
from dnn.backend.cpu.direct_rows import Line, both_lines
from dnn.backend.cpu.program import address_of
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.ops import Array, Step

__all__ = ["TAPS", "VECTORS", "TapsFields", "WeightsFields", "routine"]

VECTORS = 4
"""Vectors of channels that are computed at once."""

TAPS = 64
"""Elements of a window whose gradients are summed up at once, at most."""


TapsFields = namedtuple(
    "TapsFields",
    "first last x x_model w w_model bias bias_model out out_model images channels x_image out_image"
    " rows row_table columns column_table x_r x_s w_r w_s relu",
)
"""Fields of the kernel of y or of the gradient of x, where x is dy: units, arrays, numbers, tables,
and bytes from one to the next."""

WeightsFields = namedtuple(
    "WeightsFields",
    "first last x x_model dy dy_model out out_model images channels x_image dy_image out_rows"
    " out_columns chunks window_rows window_columns row_stride stride row_dilation dilation"
    " top left height width x_row dy_row",
)
"""Fields of the kernel of the gradient of the weights."""


def routine(problem: Convolution) -> Routine | None:
    """Return the routine of a depthwise convolution, or None for a problem it does not take."""
    is_depthwise = problem.groups == problem.channels == problem.filters
    if problem.layout != "NHWC" or not is_depthwise or problem.dtype not in ("f4", "f8"):
        return None
    if problem.kind == "weights" and problem.window[1] > TAPS:
        return None
    if min(problem.images, *problem.size, *problem.out_size, problem.models or 1) < 1:
        return None
    kernel = _kernel(problem)
    if problem.kind == "weights":
        return Routine("depthwise", 0, lambda inputs, out, _: [(kernel, (*inputs, out))])
    models = (problem.models,) if problem.models is not None and problem.stacked[1] else ()
    shape = (*models, prod(problem.window), problem.channels)
    size_bytes = prod(shape) * np.dtype(problem.dtype).itemsize

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        assert workspace is not None
        x, w, *bias = inputs
        transposed = workspace[:size_bytes].view(problem.dtype).reshape(shape)
        by_channel = w.reshape(*models, problem.channels, -1)
        starts = bias or [np.zeros(problem.channels, problem.dtype)]
        return [
            (copy, (by_channel.swapaxes(-1, -2), transposed)),
            (kernel, (x, transposed, *starts, out)),
        ]

    return Routine("depthwise", size_bytes, steps)


@cache
def _kernel(problem: Convolution) -> UnitKernel:
    """Return the kernel; it exists as long as the process, since programs point to its tables."""
    item, channels, models = np.dtype(problem.dtype).itemsize, problem.channels, problem.models or 1
    column = channels * item
    x_row, y_row = (size[1] * column for size in (problem.size, problem.out_size))
    x_image, y_image = problem.size[0] * x_row, problem.out_size[0] * y_row
    if problem.kind == "weights":
        chunks = -(-channels // (VECTORS * lanes_of(problem.dtype)))
        weights = partial(
            WeightsFields, images=problem.images, channels=channels, x_image=x_image,
            dy_image=y_image, out_rows=problem.out_size[0], out_columns=problem.out_size[1],
            chunks=chunks, window_rows=problem.window[0], window_columns=problem.window[1],
            row_stride=problem.stride[0], stride=problem.stride[1],
            row_dilation=problem.dilation[0], dilation=problem.dilation[1],
            top=problem.padding[0][0], left=problem.padding[1][0],
            height=problem.size[0], width=problem.size[1], x_row=x_row, dy_row=y_row,
        )  # fmt: skip
        source = source_of("depthwise_kernels", f"weights_kernel({problem.dtype!r})")
        axes = {"x": 4, "dy": 4, "out": 4}
        units = models * chunks * problem.window[0]
        return UnitKernel("depthwise", problem, units, source, weights, axes, ())
    if problem.kind == "data":
        x_row, y_row, x_image, y_image = y_row, x_row, y_image, x_image
    down, across = both_lines(problem)
    w_row = problem.window[1] * column
    rows, columns = (
        np.array([_entry(line, *steps) for line in lines.lines], np.int64)
        for lines, steps in ((down, (y_row, x_row, w_row)), (across, (column, column, column)))
    )
    taps = partial(
        TapsFields, images=problem.images, channels=channels, x_image=x_image, out_image=y_image,
        rows=len(rows), row_table=address_of(rows),
        columns=len(columns), column_table=address_of(columns),
        x_r=x_row * down.input_step, x_s=column * across.input_step,
        w_r=w_row * down.tap_step, w_s=column * across.tap_step, relu=int(problem.relu),
    )  # fmt: skip
    source = source_of("depthwise_kernels", f"taps_kernel({problem.dtype!r})")
    axes = {"x": 4, "w": 2, "bias": 1, "out": 4}
    units = models * problem.images * len(rows)
    return UnitKernel("depthwise", problem, units, source, taps, axes, (rows, columns))


def _entry(line: Line, out_step: int, in_step: int, tap_step: int) -> tuple[int, int, int, int]:
    """Return where a line's result, input and first tap begin, in bytes, and its number of taps."""
    return line.place * out_step, line.of_input * in_step, line.tap * tap_step, line.taps
