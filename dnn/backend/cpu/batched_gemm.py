"""Convolution as one product for each tap of the window, over all positions of some images.

Images are copied with their padding, cut into phases where there is a stride (what a tap meets is
every second pixel, say), so that what a tap meets in a phase is the same memory, shifted::

    y[position] += phase[position + shift of the tap] w[tap]       positions: image, row, column

Rows of y are as long as those of a phase; what stands past the true ends of rows is not read, and
is 0 in the gradients. No columns are written, but each tap goes through y once more. Channels are
last (NHWC).

References
----------
.. [1] Nichols et al., MagmaDNN: Towards High-Performance Data Analytics and Machine Learning for
   Data-Driven Scientific Computing, 2019: convolution by batched products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.columns import fill_rows, gather_rows, permute
from dnn.backend.cpu.im2col import bias_and_relu, by_model
from dnn.backend.cpu.products import gemm, gemm_add
from dnn.backend.ops import Array, Step

__all__ = ["routine"]

CHUNK_ELEMENTS = 1 << 19
"""Elements of phases and of rows of y that are done at once: 2 MB."""


class _Grid:
    """Phases of padded images, all with rows and columns enough for each tap."""

    def __init__(self, problem: Convolution) -> None:
        self.problem = problem
        self.groups = problem.groups
        self.channels = problem.channels // problem.groups
        self.filters = problem.filters // problem.groups
        self.taps = math.prod(problem.window)
        self.phases = math.prod(problem.stride)
        reach = [
            (taps - 1) * dilation // step
            for taps, dilation, step in zip(
                problem.window, problem.dilation, problem.stride, strict=True
            )
        ]
        self.height, self.width = (
            length + more for length, more in zip(problem.out_size, reach, strict=True)
        )
        self.area = self.height * self.width
        self.last = reach[0] * self.width + reach[1]
        widest = self.phases * self.channels + self.filters
        self.chunk = max(1, min(problem.images, CHUNK_ELEMENTS // (self.area * widest)))
        rows = self.chunk * self.area
        self.lengths = [
            problem.filters * self.channels * self.taps,
            rows * self.phases * self.channels,
            rows * self.filters,
        ]

    def spaces(self, workspace: Array) -> list[Array]:
        """Return memory for weights, phases and rows of y."""
        space, found = workspace.view(self.problem.dtype), []
        for length in self.lengths:
            found.append(space[:length])
            space = space[-(-length // 16) * 16 :]
        return found

    @property
    def workspace_bytes(self) -> int:
        return 4 * sum(-(-length // 16) * 16 for length in self.lengths)

    def parts(self) -> Iterator[tuple[slice, int]]:
        """Yield a slice of the images that are done at once, and their number of positions."""
        for begin in range(0, self.problem.images, self.chunk):
            end = min(begin + self.chunk, self.problem.images)
            yield slice(begin, end), (end - begin) * self.area

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, phase and shift of each tap."""
        problem = self.problem
        for tap in range(self.taps):
            down = tap // problem.window[1] * problem.dilation[0]
            right = tap % problem.window[1] * problem.dilation[1]
            phase = down % problem.stride[0] * problem.stride[1] + right % problem.stride[1]
            shift = down // problem.stride[0] * self.width + right // problem.stride[1]
            yield tap, phase, shift

    def of_phases(self, rows: int) -> tuple[int, ...]:
        """Return the arguments of kernels that copy between images and phases."""
        problem, (top, _), (left, _) = self.problem, *self.problem.padding
        lengths = *problem.size, problem.channels, self.channels, self.height, self.width
        window = *problem.stride, *problem.stride, 1, 1, top, left
        return *lengths, *window, self.channels, rows * self.channels

    def of_rows(self) -> tuple[int, ...]:
        """Return the arguments of kernels that copy between y and rows."""
        problem = self.problem
        lengths = *problem.out_size, problem.filters, self.filters, self.height, self.width
        return *lengths, 1, 1, 1, 1, 1, 1, 0, 0, self.filters, self.filters


def routine(problem: Convolution) -> Routine | None:
    """Return the routine; None for other layouts than NHWC and other types than float32."""
    if problem.layout != "NHWC" or problem.dtype != "f4" or problem.is_empty:
        return None
    grid = _Grid(problem)
    run = {"forward": _forward, "data": _data, "weights": _weights}[problem.kind]

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        assert workspace is not None
        found: list[Step] = []
        for first, second, result in by_model(problem, inputs, out):
            found += run(grid, first, second, result, *grid.spaces(workspace))
        return found + bias_and_relu(problem, inputs, out)

    return Routine("batched_gemm", grid.workspace_bytes, steps)


def _by_tap(grid: _Grid, w: Array) -> Array:
    """Return weights as (filters, taps, channels), a view."""
    return np.swapaxes(w.reshape(-1, grid.channels, grid.taps), 1, 2)


def _matrices(grid: _Grid, weights: Array) -> Array:
    """Return memory for weights as (taps, groups, filters, channels)."""
    return weights.reshape(grid.taps, grid.groups, grid.filters, grid.channels)


def _copy_weights(grid: _Grid, w: Array, weights: Array) -> Step:
    return permute(_by_tap(grid, w), weights.reshape(grid.taps, -1, grid.channels).swapaxes(0, 1))


def _clear(x: Array) -> Step:
    return permute(np.broadcast_to(np.zeros((), x.dtype), x.shape), x)


def _fill_phases(grid: _Grid, x: Array, phases: Array, part: slice, rows: int, group: int) -> Step:
    start = x[part, ..., group * grid.channels :]
    return fill_rows, (start, phases, 0, rows, 0, *grid.of_phases(rows))


def _fill_gradient(
    grid: _Grid, dy: Array, rows: Array, part: slice, number: int, group: int
) -> Step:
    """Return the call that writes dy, and 0 past the ends of its rows."""
    start = dy[part, ..., group * grid.filters :]
    return fill_rows, (start, rows, 0, number, 0, *grid.of_rows())


def _forward(
    grid: _Grid, x: Array, w: Array, y: Array, weights: Array, phases: Array, rows: Array
) -> list[Step]:
    steps = [_copy_weights(grid, w, weights)]
    matrices = _matrices(grid, weights)
    for part, number in grid.parts():
        for group in range(grid.groups):
            steps.append(_fill_phases(grid, x, phases, part, number, group))
            by_phase = phases[: grid.phases * number * grid.channels]
            by_phase = by_phase.reshape(grid.phases, number, grid.channels)
            used = number - grid.last
            target = rows[: used * grid.filters].reshape(used, grid.filters)
            for tap, phase, shift in grid.places():
                met = by_phase[phase, shift : shift + used]
                product = gemm_add if tap else gemm
                steps.append((product, (met, matrices[tap, group].T, target)))
            result = y[part, ..., group * grid.filters :]
            pixels = (part.stop - part.start) * math.prod(grid.problem.out_size)
            steps.append((gather_rows, (rows, result, 0, pixels, *grid.of_rows())))
    return steps


def _data(
    grid: _Grid, dy: Array, w: Array, dx: Array, weights: Array, phases: Array, rows: Array
) -> list[Step]:
    steps = [_copy_weights(grid, w, weights)]
    matrices = _matrices(grid, weights)
    for part, number in grid.parts():
        for group in range(grid.groups):
            steps.append(_fill_gradient(grid, dy, rows, part, number, group))
            used = number - grid.last
            source = rows[: used * grid.filters].reshape(used, grid.filters)
            flat = phases[: grid.phases * number * grid.channels]
            by_phase = flat.reshape(grid.phases, number, grid.channels)
            steps.append(_clear(flat.reshape(-1, 1, grid.channels)))
            for tap, phase, shift in grid.places():
                met = by_phase[phase, shift : shift + used]
                steps.append((gemm_add, (source, matrices[tap, group], met)))
            target = dx[part, ..., group * grid.channels :]
            pixels = (part.stop - part.start) * math.prod(grid.problem.size)
            steps.append((gather_rows, (phases, target, 0, pixels, *grid.of_phases(number))))
    return steps


def _weights(
    grid: _Grid, x: Array, dy: Array, dw: Array, weights: Array, phases: Array, rows: Array
) -> list[Step]:
    steps: list[Step] = []
    matrices = _matrices(grid, weights)
    for part, number in grid.parts():
        product = gemm_add if part.start else gemm
        for group in range(grid.groups):
            steps.append(_fill_phases(grid, x, phases, part, number, group))
            steps.append(_fill_gradient(grid, dy, rows, part, number, group))
            used = number - grid.last
            source = rows[: used * grid.filters].reshape(used, grid.filters)
            flat = phases[: grid.phases * number * grid.channels]
            by_phase = flat.reshape(grid.phases, number, grid.channels)
            for tap, phase, shift in grid.places():
                met = by_phase[phase, shift : shift + used]
                steps.append((product, (source.T, met, matrices[tap, group])))
    by_filter = weights.reshape(grid.taps, -1, grid.channels).swapaxes(0, 1)
    return [*steps, permute(by_filter, _by_tap(grid, dw))]
