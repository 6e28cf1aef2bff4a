"""Indirect convolution: products of rows of images in NHWC, found by lists of addresses.

Each pixel of y is a row of a product, its columns are filters, and it is summed up over the taps of
the window and the channels of the pixel that a tap meets. Rows of one block of the product stand
anywhere in memory, so nothing is copied [1]_; any window, stride, dilation and padding is a list::

    table:   | tap | position in y  ->  pixel of x, or -1 where the tap meets padding |

Positions that meet the same taps are neighbours in it, so that whole blocks skip the other taps.
The gradient of x is the same with other lists: for each pixel of x, where the taps find it in y.
That of the weights is summed up over the rows.

Where channels are few, the pixels that all taps of a row meet are copied to a patch.

References
----------
.. [1] Dukhan, The Indirect Convolution Algorithm, 2019.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.cache import entry_of, source_of
from dnn.backend.cpu.convolution_work import (
    FLOAT_BYTES,
    Kernels,
    Piece,
    cut_pieces,
    round_up,
    row_bytes,
)
from dnn.backend.cpu.program import Record, address_of
from dnn.backend.cpu.registers import registers
from dnn.backend.ops import Array

__all__ = ["GradientFields", "MapsFields", "PackFields", "routine"]

FEW_ROWS = 512
"""Up to so many rows are done at once, and weights are packed panel by panel in between, since they
are most of the memory traffic."""

CHUNK_ROWS = 64
"""If there are more rows, so many are done at once, so that they stay in the cache; for the
gradient of the weights twice as many."""

FEW_CHANNELS = 16
"""Pixels of fewer channels are copied to patches."""

BLOCK = 64
"""Channels of a block of the weights' gradient."""


PackFields = namedtuple(
    "PackFields",
    "w target filter_bytes channel_bytes filters channels taps in_order first_panel last_panel",
)
"""Fields of the kernel that packs some panels of the weights; `in_order`: taps of a channel are
neighbours."""

MapsFields = namedtuple(
    "MapsFields",
    "x w out space table pixels starts groups taps positions images channels filters"
    " source_pixels chunk patch_bytes first_row last_row first_panel last_panel filter_bytes"
    " channel_bytes given bias relu",
)
"""Fields of the kernel of y or of the gradient of x: addresses, `_Task.geometry`, rows and panels,
`_Task.weight_strides`, packed weights (0: none) and bias (0: none)."""

GradientFields = namedtuple(
    "GradientFields",
    "x dy dw space table pixels starts groups taps positions images channels filters"
    " source_pixels chunk patch_bytes first_channel last_channel first_panel last_panel block",
)
"""Fields of the kernel of the gradient of the weights."""


class _Task(NamedTuple):
    """Sizes and lists of a problem for the kernels; `channels` are those of x.

    For the gradient of the data x is dy, channels are filters, and the other way round.
    """

    kind: str
    images: int
    channels: int
    filters: int
    source_pixels: int
    target_pixels: int
    taps: int
    relu: bool
    table: Array
    positions: Array
    starts: Array

    @property
    def rows(self) -> int:
        return self.images * self.target_pixels

    @property
    def few(self) -> bool:
        return self.rows <= FEW_ROWS

    @property
    def chunk(self) -> int:
        """Number of rows that are done at once."""
        if self.few:
            return self.rows
        return CHUNK_ROWS * (2 if self.kind == "weights" else 1)

    @property
    def patch_bytes(self) -> int:
        """Size of a patch, the pixels that all taps of a row meet; 0 where none is copied."""
        unit = registers().rows
        if self.channels >= FEW_CHANNELS and (self.kind != "weights" or not self.channels % unit):
            return 0
        return round_up(self.channels * self.taps, unit) * FLOAT_BYTES

    @property
    def heights(self) -> int:
        """Channels of the weights' gradient, or with patches the channels of all taps together."""
        return self.patch_bytes // FLOAT_BYTES or self.channels

    @property
    def panels(self) -> int:
        return -(-self.filters // registers().panel)

    @property
    def panel_bytes(self) -> int:
        """Size of a panel of packed weights."""
        return self.taps * self.channels * row_bytes()

    @property
    def weight_bytes(self) -> int:
        """Size of all packed weights, which are kept if there are many rows, else 0."""
        return 0 if self.few or self.kind == "weights" else self.panels * self.panel_bytes

    @property
    def weight_strides(self) -> list[int]:
        """Bytes from filter to filter, and from channel to channel."""
        window_bytes = self.taps * FLOAT_BYTES
        return (
            [window_bytes, self.filters * window_bytes]
            if self.kind == "data"
            else [self.channels * window_bytes, window_bytes]
        )

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.taps * self.channels * self.filters

    @property
    def geometry(self) -> list[int]:
        """Fields after the addresses, of all kernels but the one that packs weights."""
        return [
            *(address_of(self.table), address_of(self.positions), address_of(self.starts)),
            *(len(self.starts) - 1, self.taps, self.target_pixels, self.images),
            *(self.channels, self.filters, self.source_pixels, self.chunk, self.patch_bytes),
        ]

    def pieces(self, number: int) -> list[Piece]:
        """Cut the work: into rows and panels of results, or channels and panels of weights."""
        unit = registers().rows
        if self.kind == "weights":
            length = self.heights
            return cut_pieces(length, unit, self.panels, number, length // unit < number)
        return cut_pieces(self.rows, unit, self.panels, number, self.few)

    def piece_bytes(self, first: slice, panels: slice) -> int:
        """Return how many bytes of memory a piece of the work takes."""
        row, unit = row_bytes(), registers().rows
        length: int = first.stop - first.start
        across: int = panels.stop - panels.start
        most = round_up(min(self.chunk, self.rows if self.kind == "weights" else length), unit)
        # Patches, zeros that are read for padding, and lists of addresses.
        lists = self.taps * most + most + self.taps * (most // unit)
        size = most * self.patch_bytes + (self.channels * FLOAT_BYTES + row + 64) + 8 * lists
        if self.kind == "weights":
            sums = (min(BLOCK, length) if self.few else length * across) * row
            sums *= 1 if self.patch_bytes else self.taps
            return size + sums + across * most * row + 8 * self.taps * (most + 1)
        return size + most * row + (self.panel_bytes if self.few else 0)


@lru_cache(maxsize=256)
def _lists(
    of_data: bool,
    size: tuple[int, int],
    out_size: tuple[int, int],
    window: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    before: tuple[int, int],
) -> tuple[Array, Array, Array]:
    """Return the table, the pixel of each position, and the start of each group of positions.

    `of_data`: for the gradient of x; `before` is the padding above and to the left.
    """
    along = []
    for axis in range(2):
        tap = np.arange(window[axis])[:, None] * dilation[axis]
        if of_data:
            length = out_size[axis]
            reached = np.arange(size[axis]) + before[axis] - tap
            met = np.where(reached % stride[axis], -1, reached // stride[axis])
        else:
            length = size[axis]
            met = np.arange(out_size[axis]) * stride[axis] - before[axis] + tap
        along.append(np.where((met < 0) | (met >= length), -1, met))
    down, right = along[0][:, None, :, None], along[1][None, :, None, :]
    width = out_size[1] if of_data else size[1]
    table = np.where((down < 0) | (right < 0), -1, down * width + right)
    table = table.reshape(prod(window), -1)
    _, group = np.unique(table < 0, axis=1, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(group.reshape(-1)))])
    table = np.ascontiguousarray(table[:, order], np.int32)
    return table, order.astype(np.int32), starts.astype(np.int64)


@cache
def _entry(kernel: str) -> int:
    return entry_of(source_of("indirect_kernels", kernel))


def _maps_record(*arguments: Any) -> Record:
    task, x, w, packed, bias, out, space, (rows, panels) = arguments
    fields = MapsFields._make(
        [
            *(address_of(x), address_of(w), address_of(out), address_of(space)),
            *(*task.geometry, rows.start, rows.stop, panels.start, panels.stop),
            *task.weight_strides,
            0 if packed is None else address_of(packed),
            0 if bias is None else address_of(bias),
            int(task.relu),
        ]
    )
    return _entry("forward"), list(fields)


def _gradient_record(*arguments: Any) -> Record:
    task, x, dy, dw, space, (channels, panels) = arguments
    fields = GradientFields._make(
        [
            *(address_of(x), address_of(dy), address_of(dw), address_of(space)),
            *(*task.geometry, channels.start, channels.stop, panels.start, panels.stop, BLOCK),
        ]
    )
    return _entry("gradient"), list(fields)


def _pack_record(task: _Task, w: Array, target: Array, panels: slice) -> Record:
    fields = PackFields._make(
        [
            *(address_of(w), address_of(target), *task.weight_strides, task.filters, task.channels),
            *(task.taps, int(task.patch_bytes > 0), panels.start, panels.stop),
        ]
    )
    return _entry("pack"), list(fields)


_KERNELS = Kernels(_pack_record, _maps_record, _gradient_record)


def routine(problem: Convolution) -> Routine | None:
    """Return indirect convolution, or None for a problem that it does not take."""
    if problem.layout != "NHWC" or problem.dtype != "f4" or problem.groups != 1:
        return None
    if problem.is_empty:
        return None
    channels, pixels = problem.channels, prod(problem.size)
    filters, out_pixels = problem.filters, prod(problem.out_size)
    if problem.kind == "data":
        channels, filters, pixels, out_pixels = filters, channels, out_pixels, pixels
    (top, _), (left, _) = problem.padding
    lists = _lists(
        *(problem.kind == "data", problem.size, problem.out_size, problem.window),
        *(problem.stride, problem.dilation, (top, left)),
    )
    task = _Task(
        *(problem.kind, problem.images, channels, filters, pixels, out_pixels),
        *(prod(problem.window), problem.relu, *lists),
    )
    return _KERNELS.routine("indirect", task, problem)
