"""Convolution as one product: the window's columns, written out, times the weights.

With channels last a chunk of rows of the result is a product of its columns and the weights; with
channels first it is the weights times columns. Chunks keep columns in the cache. The gradient of
the data is computed as columns by a product, and gathered from them; the weights' gradient is a
product with the columns of x. How chunks are cut depends on the shape of one model alone, and so do
the bits.

References
----------
.. [1] Chellapilla, Puri, Simard, High Performance Convolutional Neural Networks for Document
   Processing, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.chains import chain_kernel
from dnn.backend.cpu.columns import (
    fill_lines,
    fill_rows,
    gather_lines,
    gather_rows,
    permute,
    window_of,
)
from dnn.backend.cpu.products import gemm, gemm_add
from dnn.backend.formula import ADD, RELU
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Chain, Step

__all__ = ["Sizes", "bias_and_relu", "by_model", "routine"]

CHUNK_ELEMENTS = 1 << 18
"""Elements of columns at a time: 1 MB in float32, about the second-level cache of a core."""

LEAST_ROWS = 256
"""Least rows of a product, so that it is worthwhile to pack the weights for it."""


class Sizes:
    """Lengths that follow from a problem, of one model and one group."""

    def __init__(self, problem: Convolution) -> None:
        self.problem = problem
        self.groups = problem.groups
        self.taps = math.prod(problem.window)
        self.channels = problem.channels // problem.groups
        self.filters = problem.filters // problem.groups
        self.depth = self.taps * self.channels
        self.area = math.prod(problem.out_size)
        self.item = np.dtype(problem.dtype).itemsize


def routine(problem: Convolution) -> Routine | None:
    """Return the routine; it takes every problem in float32 that has elements."""
    if problem.dtype != "f4" or problem.is_empty:
        return None
    sizes = Sizes(problem)
    kind = problem.kind
    if problem.layout == "NHWC":
        run = {"forward": _forward_rows, "data": _data_rows, "weights": _weights_rows}[kind]
        columns = _rows_of_chunk(sizes) * sizes.depth
        weights = -(-problem.filters * sizes.depth // 16) * 16
    else:
        run = {"forward": _forward_lines, "data": _data_lines, "weights": _weights_lines}[kind]
        columns, weights = _elements_of_lines(sizes), 0

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        assert workspace is not None
        space = workspace.view(problem.dtype)
        spaces = space[:weights], space[weights : weights + columns]
        found: list[Step] = []
        for first, second, result in by_model(problem, inputs, out):
            found += run(sizes, first, second, result, *spaces)
        return found + bias_and_relu(problem, inputs, out)

    size_bytes = sizes.item * (weights + columns)
    return Routine("im2col", -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, steps)


def by_model(
    problem: Convolution, inputs: Sequence[Array], out: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """Return an iterator over the two inputs and the result of each model."""
    if problem.models is None:
        return iter([(inputs[0], inputs[1], out)])
    first, second = (
        x if stacked else [x] * problem.models
        for x, stacked in zip(inputs[:2], problem.stacked, strict=True)
    )
    return zip(first, second, out, strict=True)


def bias_and_relu(problem: Convolution, inputs: Sequence[Array], out: Array) -> list[Step]:
    """Return the calls that add a problem's bias and apply its rectifier, for all models."""
    if not (problem.bias or problem.relu):
        return []
    if not problem.bias:
        return [(chain_kernel(((RELU, 0),)), (out, out))]
    chain: Chain = ((ADD, 0, 1), (RELU, 2)) if problem.relu else ((ADD, 0, 1),)
    at = problem.layout.index("C")
    shape = tuple(problem.filters if axis == at else 1 for axis in range(4))
    bias = inputs[2]
    results = [out] if problem.models is None else list(out)
    biases = bias if bias.ndim == 2 else [bias] * len(results)
    return [
        (chain_kernel(chain), (result, vector.reshape(shape), result))
        for result, vector in zip(results, biases, strict=True)
    ]


# -- channels last --------------------------------------------------------------------------------


def _rows_of_chunk(sizes: Sizes) -> int:
    """Return how many rows of the result are computed at once."""
    problem = sizes.problem
    rows = max(LEAST_ROWS, CHUNK_ELEMENTS // sizes.depth)
    if problem.kind == "data":  # whole images, since windows overlap
        images = min(max(1, rows // sizes.area), problem.images)
        return images * sizes.area
    return min(rows // 16 * 16, problem.images * sizes.area)


def _parts(sizes: Sizes) -> Iterator[slice]:
    rows, chunk = sizes.problem.images * sizes.area, _rows_of_chunk(sizes)
    for begin in range(0, rows, chunk):
        yield slice(begin, min(begin + chunk, rows))


def _geometry(sizes: Sizes) -> tuple[int, ...]:
    """Return the arguments of the kernels of rows that come after the range of rows."""
    problem = sizes.problem
    lengths = (*problem.size, problem.channels, sizes.channels, *problem.out_size)
    return *lengths, *window_of(problem), sizes.depth, sizes.channels


def _fill_rows(
    sizes: Sizes, x: Array, columns: Array, part: slice, group: int
) -> tuple[Step, Array]:
    """Return the call that writes the columns of some rows, and these columns."""
    block = columns[: (part.stop - part.start) * sizes.depth]
    arguments = x[..., group * sizes.channels :], block, part.start, part.stop, part.start
    return (fill_rows, (*arguments, *_geometry(sizes))), block.reshape(-1, sizes.depth)


def _taps_first(sizes: Sizes, weights: Array) -> Array:
    """Return memory for weights as (filters, taps, channels)."""
    size = sizes.problem.filters * sizes.depth
    return weights[:size].reshape(-1, sizes.taps, sizes.channels)


def _taps_last(sizes: Sizes, w: Array) -> Array:
    """Return weights as (filters, taps, channels), a view."""
    return np.swapaxes(w.reshape(-1, sizes.channels, sizes.taps), 1, 2)


def _forward_rows(
    sizes: Sizes, x: Array, w: Array, y: Array, weights: Array, columns: Array
) -> list[Step]:
    by_tap = _taps_first(sizes, weights)
    steps = [permute(_taps_last(sizes, w), by_tap)]
    matrices = by_tap.reshape(sizes.groups, sizes.filters, sizes.depth)
    rows = y.reshape(-1, sizes.groups, sizes.filters)
    for part in _parts(sizes):
        for group in range(sizes.groups):
            fill, block = _fill_rows(sizes, x, columns, part, group)
            steps += [fill, (gemm, (block, matrices[group].T, rows[part, group]))]
    return steps


def _data_rows(
    sizes: Sizes, dy: Array, w: Array, dx: Array, weights: Array, columns: Array
) -> list[Step]:
    by_tap = _taps_first(sizes, weights)
    steps = [permute(_taps_last(sizes, w), by_tap)]
    matrices = by_tap.reshape(sizes.groups, sizes.filters, sizes.depth)
    rows = dy.reshape(-1, sizes.groups, sizes.filters)
    pixels = math.prod(sizes.problem.size)
    for part in _parts(sizes):
        images = slice(part.start // sizes.area, part.stop // sizes.area)
        for group in range(sizes.groups):
            block = columns[: (part.stop - part.start) * sizes.depth].reshape(-1, sizes.depth)
            steps.append((gemm, (rows[part, group], matrices[group], block)))
            target = dx[images, ..., group * sizes.channels :]
            number = (images.stop - images.start) * pixels
            steps.append((gather_rows, (block, target, 0, number, *_geometry(sizes))))
    return steps


def _weights_rows(
    sizes: Sizes, x: Array, dy: Array, dw: Array, weights: Array, columns: Array
) -> list[Step]:
    steps: list[Step] = []
    by_tap = _taps_first(sizes, weights)
    matrices = by_tap.reshape(sizes.groups, sizes.filters, sizes.depth)
    rows = dy.reshape(-1, sizes.groups, sizes.filters)
    for part in _parts(sizes):
        product = gemm_add if part.start else gemm
        for group in range(sizes.groups):
            fill, block = _fill_rows(sizes, x, columns, part, group)
            steps += [fill, (product, (rows[part, group].T, block, matrices[group]))]
    return [*steps, permute(by_tap, _taps_last(sizes, dw))]


# -- channels first -------------------------------------------------------------------------------


def _outer(sizes: Sizes, x: Array) -> Array:
    """Return images as (outer, channels, rows, columns and inner images).

    In NCHW images are outer, in CHWN they are inner.
    """
    if sizes.problem.layout == "NCHW":
        return x
    return x.reshape(1, *x.shape[:2], -1)


def _inner(sizes: Sizes) -> int:
    return sizes.problem.images if sizes.problem.layout == "CHWN" else 1


def _rows_at_once(sizes: Sizes) -> int:
    """Return for how many rows of the result columns are written at once, in "forward"."""
    height, width = sizes.problem.out_size
    each = width * _inner(sizes)
    least = -(-LEAST_ROWS // each)
    return min(height, max(least, CHUNK_ELEMENTS // (sizes.depth * each)))


def _channels_at_once(sizes: Sizes) -> int:
    """Return for how many channels columns are written at once, in gradients."""
    each = sizes.taps * sizes.area * _inner(sizes)
    return min(sizes.channels, max(1, CHUNK_ELEMENTS // each))


def _elements_of_lines(sizes: Sizes) -> int:
    inner = _inner(sizes)
    if sizes.problem.kind == "forward":
        return sizes.depth * _rows_at_once(sizes) * sizes.problem.out_size[1] * inner
    return _channels_at_once(sizes) * sizes.taps * sizes.area * inner


def _channel_parts(sizes: Sizes) -> Iterator[tuple[int, slice]]:
    """Yield each group, and in turn the parts of its channels whose columns are written at once."""
    chunk = _channels_at_once(sizes)
    for group in range(sizes.groups):
        for begin in range(0, sizes.channels, chunk):
            yield group, slice(begin, min(begin + chunk, sizes.channels))


def _columns_of(sizes: Sizes, columns: Array, channels: int) -> Array:
    rows = channels * sizes.taps
    return columns[: rows * sizes.area * _inner(sizes)].reshape(rows, -1)


def _forward_lines(
    sizes: Sizes, x: Array, w: Array, y: Array, weights: Array, columns: Array
) -> list[Step]:
    problem, steps = sizes.problem, list[Step]()
    matrices = w.reshape(sizes.groups, sizes.filters, sizes.depth)
    height, width = problem.out_size
    inner, chunk = _inner(sizes), _rows_at_once(sizes)
    for image, result in zip(_outer(sizes, x), _outer(sizes, y), strict=True):
        maps = result.reshape(sizes.groups, sizes.filters, -1)
        for begin in range(0, height, chunk):
            end = min(begin + chunk, height)
            place = slice(begin * width * inner, end * width * inner)
            block = columns[: sizes.depth * (place.stop - place.start)].reshape(sizes.depth, -1)
            for group in range(sizes.groups):
                source = image[group * sizes.channels :]
                numbers = 0, sizes.depth, *problem.size, inner, begin, end, width
                steps.append((fill_lines, (source, block, *numbers, *window_of(problem))))
                steps.append((gemm, (matrices[group], block, maps[group][:, place])))
    return steps


def _data_lines(
    sizes: Sizes, dy: Array, w: Array, dx: Array, weights: Array, columns: Array
) -> list[Step]:
    problem, steps = sizes.problem, list[Step]()
    matrices = w.reshape(sizes.groups, sizes.filters, sizes.channels, sizes.taps)
    for gradient, result in zip(_outer(sizes, dy), _outer(sizes, dx), strict=True):
        maps = gradient.reshape(sizes.groups, sizes.filters, -1)
        for group, part in _channel_parts(sizes):
            number = part.stop - part.start
            block = _columns_of(sizes, columns, number)
            matrix = matrices[group][:, part].reshape(sizes.filters, -1)
            steps.append((gemm, (matrix.T, maps[group], block)))
            target = result[group * sizes.channels + part.start :]
            numbers = 0, number * problem.size[0], *problem.size, _inner(sizes), *problem.out_size
            steps.append((gather_lines, (block, target, *numbers, *window_of(problem))))
    return steps


def _weights_lines(
    sizes: Sizes, x: Array, dy: Array, dw: Array, weights: Array, columns: Array
) -> list[Step]:
    problem, steps = sizes.problem, list[Step]()
    height, width = problem.out_size
    matrices = dw.reshape(sizes.groups, sizes.filters, sizes.depth)
    pairs = zip(_outer(sizes, x), _outer(sizes, dy), strict=True)
    for outer, (image, gradient) in enumerate(pairs):
        maps = gradient.reshape(sizes.groups, sizes.filters, -1)
        for group, part in _channel_parts(sizes):
            number = part.stop - part.start
            block = _columns_of(sizes, columns, number)
            source = image[group * sizes.channels + part.start :]
            numbers = 0, number * sizes.taps, *problem.size, _inner(sizes), 0, height, width
            steps.append((fill_lines, (source, block, *numbers, *window_of(problem))))
            lines = slice(part.start * sizes.taps, part.stop * sizes.taps)
            product = gemm_add if outer else gemm
            steps.append((product, (maps[group], block.T, matrices[group][:, lines])))
    return steps
