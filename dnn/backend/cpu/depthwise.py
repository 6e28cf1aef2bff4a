"""Depthwise convolution, of each channel by itself, with channels innermost (NHWC) in vectors.

Weights are transposed first, so that those of a tap for all channels are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.cache import entry_of, source_of
from dnn.backend.cpu.chains import copy
from dnn.backend.cpu.direct_rows import Line, lines_of_x, lines_of_y
from dnn.backend.cpu.kernels import SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.ops import Array, Step

__all__ = ["routine"]

VECTORS = 4
"""Vectors of channels that are computed at once."""

TAPS = 64
"""Elements of a window whose gradients are summed up at once, at most."""


def routine(problem: Convolution) -> Routine | None:
    """Return the routine of a depthwise convolution, or None for a problem that it does not take.

    Parameters
    ----------
    problem : Convolution

    Returns
    -------
    Routine or None
    """
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
        return [
            (copy, (by_channel.swapaxes(-1, -2), transposed)),
            (kernel, (x, transposed, *(bias or [kernel.zeros]), out)),
        ]

    return Routine("depthwise", size_bytes, steps)


@cache
def _kernel(problem: Convolution) -> _Depthwise:
    """Return the kernel; it exists as long as the process, since programs point to its tables."""
    return _Depthwise(problem)


class _Depthwise(Native):
    """A depthwise convolution as a kernel of arrays and, for a part of it, a range of the work."""

    def __init__(self, problem: Convolution) -> None:
        super().__init__(self._record, None, self._in_parts)
        self.problem = problem
        item, channels = np.dtype(problem.dtype).itemsize, problem.channels
        self.zeros = np.zeros(channels, problem.dtype)  # where sums begin without a bias
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
        column = channels * item
        x_row, y_row = (size[1] * column for size in (problem.size, problem.out_size))
        x_image, y_image = problem.size[0] * x_row, problem.out_size[0] * y_row
        if problem.kind == "data":
            x_row, y_row, x_image, y_image = y_row, x_row, y_image, x_image
        self.tables = [
            np.array([_entry(line, *steps) for line in lines.lines], np.int64)
            for lines, steps in (
                (down, (y_row, x_row, problem.window[1] * column)),
                (across, (column, column, column)),
            )
        ]
        rows, columns = self.tables
        self.units = (problem.models or 1) * problem.images * len(rows)
        chunks = -(-channels // (VECTORS * lanes_of(problem.dtype)))
        self.fields = [problem.images, channels, x_image, y_image]
        self.fields += [len(rows), address_of(rows), len(columns), address_of(columns)]
        if problem.kind == "weights":
            self.units = (problem.models or 1) * chunks * problem.window[0]
            self.fields += [chunks, *problem.window, *problem.stride, *problem.dilation]
            self.fields += [problem.padding[0][0], problem.padding[1][0], *problem.size]
            self.fields += [x_row, y_row]
        else:
            self.fields += [x_row * down.input_step, column * across.input_step]
            self.fields += [problem.window[1] * column * down.tap_step, column * across.tap_step]
            self.fields += [int(problem.relu)]

    def __repr__(self) -> str:
        return "depthwise"

    def _in_parts(self, arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        problem = self.problem
        operations = 2 * (problem.models or 1) * prod(problem.y_shape) * prod(problem.window)
        if operations < SPLIT_OPERATIONS:
            return []
        return [(*arguments, cut) for cut in cuts(self.units, parts)]

    def _record(self, *arguments: Any) -> Record | None:
        arrays = [x for x in arguments if not isinstance(x, slice)]
        part = arguments[-1] if isinstance(arguments[-1], slice) else slice(0, self.units)
        axes = (4, 4, 4) if self.problem.kind == "weights" else (4, 2, 1, 4)
        fields = [part.start, part.stop]
        for x, ndim in zip(arrays, axes, strict=True):
            of_model = x[0] if x.ndim > ndim else x
            if not of_model.flags.c_contiguous or x.dtype != self.problem.dtype:
                return None
            fields += [address_of(x), x.strides[0] if x.ndim > ndim else 0]
        kind = "weights" if self.problem.kind == "weights" else "taps"
        return entry_of(_source(kind, self.problem.dtype)), [*fields, *self.fields]


def _entry(line: Line, out_step: int, in_step: int, tap_step: int) -> tuple[int, int, int, int]:
    """Return where a line's result, input and first tap begin, in bytes, and its number of taps."""
    return line.place * out_step, line.of_input * in_step, line.tap * tap_step, line.taps


@cache
def _source(kind: str, code: str) -> str:
    return source_of("depthwise_kernels", f"{kind}_kernel({code!r})")
