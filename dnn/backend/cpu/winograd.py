"""Winograd's convolution: 3 x 3 windows with fewer multiplications, for images in NHWC.

A tile of ``m x m`` results comes from ``(m + 2) x (m + 2)`` points. With the matrices A, B, G of
`matrices`, for each image, channel c and filter k ::

    y = A' [sum over c of (G w G') * (B' x B)] A          forward; dx from dy and flipped windows
    dw = G' [sum over tiles of (B' x B) * (A dy A')] G    the transpose of the same formula

where ``*`` is elementwise: so for each of the points there is one product of matrices, tiles by
channels by filters. F(4 x 4, 3 x 3) multiplies 36 times for 16 results instead of 144 times; its
error was 6 to 26 times that of F(2 x 2, 3 x 3) where it was measured, ``docs/convolution.md``.

A thread does all of its part, tile by tile or filter by filter, so that transformed values stay in
its cache. No sum is split among threads, so results do not depend on the number of threads.

References
----------
.. [1] Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.
.. [2] Winograd, Arithmetic Complexity of Computations, 1980.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
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

__all__ = [
    "TAPS",
    "WINDOW",
    "GradientFields",
    "MapsFields",
    "WeightsFields",
    "matrices",
    "winograd2",
    "winograd4",
]

WINDOW = 3
TAPS = WINDOW * WINDOW

FEW_TILES = 128
"""Up to so many tiles are done at once, and weights are transformed piece by piece between the
products: for small images all transformed weights would be most of the memory traffic."""

CHUNK_TILES = 32
"""If there are more tiles, so many are done at once, so that they stay in the cache."""

DEPTH = 128
"""Channels that are summed up in one product."""


WeightsFields = namedtuple(
    "WeightsFields", "w target flipped channels filters depth first_panel last_panel"
)
"""Fields of the kernel that transforms the weights of some panels."""

MapsFields = namedtuple(
    "MapsFields",
    "x w out space height width channels down right out_height out_width filters tiles_down"
    " tiles_across chunk first_tile last_tile first_panel last_panel depth given bias relu flipped",
)
"""Fields of the kernel of y or of the gradient of x: addresses, `_Task.geometry`, tiles and panels,
transformed weights (0: none) and bias (0: none)."""

GradientFields = namedtuple(
    "GradientFields",
    "x dy dw space height width channels down right out_height out_width filters tiles_down"
    " tiles_across chunk all_tiles first_channel last_channel first_panel last_panel depth",
)
"""Fields of the kernel of the gradient of the weights."""


def matrices(tile: int) -> tuple[Array, Array, Array]:
    """Return ``B'``, ``A'`` and G for tiles of 2 x 2 or 4 x 4 results, float64."""
    if tile == 2:
        of_input = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
        of_output = [[1, 1, 1, 0], [0, 1, -1, 1]]
        of_window = [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    else:
        of_input = [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ]
        of_output = [
            [1, 1, 1, 1, 1, 0],
            [0, 1, -1, 2, -2, 0],
            [0, 1, 1, 4, 4, 0],
            [0, 1, -1, 8, -8, 1],
        ]
        of_window = [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    a, b, c = (np.array(x, float) for x in (of_input, of_output, of_window))
    return a, b, c


class _Task(NamedTuple):
    """Sizes of a problem for the kernels; `channels` are those of x.

    For the gradient of the data x is dy, channels are filters, and the other way round.
    """

    tile: int
    kind: str
    images: int
    channels: int
    filters: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    down: int
    right: int
    relu: bool

    @property
    def points(self) -> int:
        return (self.tile + WINDOW - 1) ** 2

    @property
    def tiles(self) -> tuple[int, int]:
        """Numbers of tiles of an image, along its height and its width."""
        down, right = (-(-length // self.tile) for length in self.out_size)
        return down, right

    @property
    def all_tiles(self) -> int:
        return self.images * self.tiles[0] * self.tiles[1]

    @property
    def few(self) -> bool:
        return self.all_tiles <= FEW_TILES

    @property
    def chunk(self) -> int:
        """Number of tiles that are done at once."""
        return self.all_tiles if self.few else CHUNK_TILES

    @property
    def padded_channels(self) -> int:
        return round_up(self.channels, registers().lanes)

    @property
    def panels(self) -> int:
        return -(-self.filters // registers().panel)

    @property
    def weight_bytes(self) -> int:
        """Size of all transformed weights, which are kept if there are many tiles, else 0."""
        if self.few or self.kind == "weights":
            return 0
        blocks = -(-self.padded_channels // self.depth)
        return self.points * self.panels * (self.padded_channels * row_bytes() + blocks * _gap())

    @property
    def operations(self) -> int:
        return 2 * self.points * self.all_tiles * self.channels * self.filters

    @property
    def geometry(self) -> list[int]:
        """Fields after the addresses, of all kernels but the transform of weights."""
        sizes = [*self.size, self.channels, self.down, self.right, *self.out_size, self.filters]
        return [*sizes, *self.tiles, self.chunk]

    def pieces(self, number: int) -> list[Piece]:
        """Cut the work: into tiles and panels of results, or channels and panels of weights."""
        if self.kind == "weights":
            length, lanes = self.padded_channels, registers().lanes
            return cut_pieces(length, lanes, self.panels, number, length // lanes < number)
        return cut_pieces(self.all_tiles, registers().rows, self.panels, number, self.few)

    def piece_bytes(self, first: slice, panels: slice) -> int:
        """Return how many bytes of memory a piece of the work takes."""
        lanes, panel, rows, _ = registers()
        row = row_bytes()
        length: int = first.stop - first.start
        across: int = panels.stop - panels.start
        if self.kind == "weights":
            most = min(self.chunk, self.all_tiles)
            zeros = round_up(max(self.channels + lanes, self.filters + panel), lanes) * FLOAT_BYTES
            tiles = most * (length + lanes) * FLOAT_BYTES
            gradients = most * across * row
            depth = min(self.depth, length) if self.few else length
            sums = depth * (1 if self.few else across) * row
            blocks = 1 if self.few else -(-length // self.depth) * across
            return zeros + self.points * (tiles + gradients + sums + (2 + blocks) * _gap())
        most = round_up(min(self.chunk, length), rows)
        zeros = self.padded_channels * FLOAT_BYTES + row
        tiles = most * (self.padded_channels + lanes) * FLOAT_BYTES
        block = min(self.depth, self.padded_channels) * row if self.few else 0
        return zeros + self.points * (most * row + tiles + block + 3 * _gap())

    @property
    def depth(self) -> int:
        """Channels of a block of weights."""
        return DEPTH


def _gap() -> int:
    """Return the unused bytes between the planes of two points."""
    return registers().lanes * FLOAT_BYTES


@cache
def _entry(kernel: str, tile: int) -> int:
    return entry_of(source_of("winograd_kernels", f"{kernel}({tile})"))


def _maps_record(*arguments: Any) -> Record:
    task, x, w, transformed, bias, out, space, (tiles, panels) = arguments
    fields = MapsFields._make(
        [
            *(address_of(x), address_of(w), address_of(out), address_of(space)),
            *(*task.geometry, tiles.start, tiles.stop, panels.start, panels.stop, task.depth),
            0 if transformed is None else address_of(transformed),
            0 if bias is None else address_of(bias),
            int(task.relu),
            int(task.kind == "data"),
        ]
    )
    return _entry("forward", task.tile), list(fields)


def _gradient_record(*arguments: Any) -> Record:
    task, x, dy, dw, space, (channels, panels) = arguments
    fields = GradientFields._make(
        [
            *(address_of(x), address_of(dy), address_of(dw), address_of(space)),
            *(*task.geometry, task.all_tiles),
            *(channels.start, channels.stop, panels.start, panels.stop, task.depth),
        ]
    )
    return _entry("gradient", task.tile), list(fields)


def _weights_record(task: _Task, w: Array, target: Array, panels: slice) -> Record:
    fields = WeightsFields._make(
        [
            *(address_of(w), address_of(target), int(task.kind == "data"), task.channels),
            *(task.filters, task.depth, panels.start, panels.stop),
        ]
    )
    return _entry("weights", task.tile), list(fields)


_KERNELS = Kernels(_weights_record, _maps_record, _gradient_record)


def _routine(tile: int, problem: Convolution) -> Routine | None:
    plain = problem.stride == (1, 1) and problem.dilation == (1, 1) and problem.groups == 1
    if problem.window != (WINDOW, WINDOW) or not plain:
        return None
    if problem.layout != "NHWC" or problem.dtype != "f4" or problem.is_empty:
        return None
    (top, _), (left, _) = problem.padding
    sizes = (problem.channels, problem.filters, problem.size, problem.out_size)
    if problem.kind == "data":
        last = WINDOW - 1
        sizes, top, left = (*sizes[1::-1], *sizes[:1:-1]), last - top, last - left
    task = _Task(tile, problem.kind, problem.images, *sizes, top, left, problem.relu)
    if task.points * prod(task.tiles) * task.padded_channels >= _met_taps(problem) * task.channels:
        return None
    return _KERNELS.routine(f"winograd{tile}", task, problem)


def _met_taps(problem: Convolution) -> int:
    """Return how often taps meet pixels of an image: the multiplications without Winograd."""
    numbers = []
    for axis in range(2):
        first = np.arange(problem.out_size[axis]) - problem.padding[axis][0]
        met = first[:, None] + np.arange(WINDOW)
        numbers.append(int(np.count_nonzero((met >= 0) & (met < problem.size[axis]))))
    return prod(numbers)


def winograd2(problem: Convolution) -> Routine | None:
    """Return the routine of F(2 x 2, 3 x 3), or None where it does not apply or saves nothing."""
    return _routine(2, problem)


def winograd4(problem: Convolution) -> Routine | None:
    """Return the routine of F(4 x 4, 3 x 3), or None where it does not apply or saves nothing."""
    return _routine(4, problem)
