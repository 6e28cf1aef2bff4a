"""Convolution as one product: the window's columns, written out, times the weights.

Columns are, for each position of a result, the part of the image under the window, 0 in the
padding. Where channels are last (NHWC), a position is a row, in which each tap of the window has
its channels; a chunk of rows of the result is a product of them and the weights. Where channels are
first (NCHW, or CHWN, where images are innermost), a channel and a tap are a line, and the result is
the weights times lines::

    rows[position, tap, channel]        positions: image, then row and column of the result
    lines[channel, tap, position, i]    positions of one image; i counts the images of CHWN

Chunks keep columns in the cache. The gradient of the data is computed as columns by a product, and
gathered from them: each element of an image is the sum of all columns that it stands in, in the
order of the taps, by whichever thread. The weights' gradient is a product with the columns of x.
How chunks are cut depends on the shape of one model alone, and so do the bits.

References
----------
.. [1] Chellapilla, Puri, Simard, High Performance Convolutional Neural Networks for Document
   Processing, 2006.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterator, Sequence

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.chains import chain_kernel
from dnn.backend.cpu.convolution_work import by_model, round_up
from dnn.backend.cpu.kernels import loop, range_kernel
from dnn.backend.cpu.products import gemm, gemm_add
from dnn.backend.formula import ADD, RELU
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Chain, Step

__all__ = ["bias_and_relu", "routine"]

CHUNK_ELEMENTS = 1 << 18
"""Elements of columns at a time: 1 MB in float32, about the second-level cache of a core."""

LEAST_ROWS = 256
"""Least rows of a product, so that it is worthwhile to pack the weights for it."""


# -- columns ---------------------------------------------------------------------------------------


Geometry = namedtuple(
    "Geometry",
    "height width out_height out_width taps_down taps_across stride_down stride_across apart_down"
    " apart_across top left channels count inner first last",
    defaults=(1, 1, 1, 0, 0),
)
"""Lengths that the loops over columns take: of images, result and window; of rows of columns, the
`channels` of images, and the number of them of which columns are written; of lines, the innermost
images; the first row of columns in memory, or the first and last row of the result."""


@loop()
def fill_rows_loop(x: Array, out: Array, begin: int, end: int, g: Geometry) -> None:
    """Write rows `begin` to `end` of columns."""
    for row in range(begin, end):
        image, position = divmod(row, g.out_height * g.out_width)
        i, j = divmod(position, g.out_width)
        for r in range(g.taps_down):
            h = i * g.stride_down + r * g.apart_down - g.top
            for s in range(g.taps_across):
                w = j * g.stride_across + s * g.apart_across - g.left
                tap = (row - g.first) * g.taps_down * g.taps_across + r * g.taps_across + s
                to = tap * g.count
                if 0 <= h < g.height and 0 <= w < g.width:
                    at = ((image * g.height + h) * g.width + w) * g.channels
                    for c in range(g.count):
                        out[to + c] = x[at + c]
                else:
                    for c in range(g.count):
                        out[to + c] = 0


@loop()
def gather_rows_loop(x: Array, out: Array, begin: int, end: int, g: Geometry) -> None:
    """Sum rows x of columns into pixels `begin` to `end` of images."""
    for pixel in range(begin, end):
        image, position = divmod(pixel, g.height * g.width)
        h, w = divmod(position, g.width)
        to = pixel * g.channels
        for c in range(g.count):
            out[to + c] = 0
        for r in range(g.taps_down):
            down = h + g.top - r * g.apart_down
            i = down // g.stride_down
            if down < 0 or down % g.stride_down != 0 or i >= g.out_height:
                continue
            for s in range(g.taps_across):
                right = w + g.left - s * g.apart_across
                j = right // g.stride_across
                if right < 0 or right % g.stride_across != 0 or j >= g.out_width:
                    continue
                row = (image * g.out_height + i) * g.out_width + j
                at = ((row * g.taps_down + r) * g.taps_across + s) * g.count
                for c in range(g.count):
                    out[to + c] += x[at + c]


@loop()
def columns_met(g: Geometry, shift: int) -> tuple[int, int]:
    """Return the range of columns of the result that meet x, of a tap that is shifted so far."""
    low = min(max(-(shift // g.stride_across), 0), g.out_width)
    return low, max(min((g.width - 1 - shift) // g.stride_across + 1, g.out_width), low)


@loop()
def fill_lines_loop(x: Array, out: Array, begin: int, end: int, g: Geometry) -> None:
    """Write lines `begin` to `end` (channel, tap) of columns, for some rows of the result."""
    run, images = g.out_width * g.inner, g.inner
    for line in range(begin, end):
        channel, tap = divmod(line, g.taps_down * g.taps_across)
        r, s = divmod(tap, g.taps_across)
        shift = s * g.apart_across - g.left
        low, high = columns_met(g, shift)
        for i in range(g.first, g.last):
            to = (line * (g.last - g.first) + i - g.first) * run
            h = i * g.stride_down + r * g.apart_down - g.top
            if h < 0 or h >= g.height:
                for k in range(run):
                    out[to + k] = 0
                continue
            at = ((channel * g.height + h) * g.width + shift) * images
            for k in range(low * images):
                out[to + k] = 0
            if g.stride_across == 1:
                for k in range(low * images, high * images):
                    out[to + k] = x[at + k]
            else:
                for j in range(low, high):
                    for k in range(images):
                        out[to + j * images + k] = x[at + j * g.stride_across * images + k]
            for k in range(high * images, run):
                out[to + k] = 0


@loop()
def gather_lines_loop(x: Array, out: Array, begin: int, end: int, g: Geometry) -> None:
    """Sum lines x of columns, of whole results, into rows `begin` to `end` (channel, h)."""
    run, images = g.out_width * g.inner, g.inner
    for row in range(begin, end):
        channel, h = divmod(row, g.height)
        to = row * g.width * images
        for k in range(g.width * images):
            out[to + k] = 0
        for r in range(g.taps_down):
            down = h + g.top - r * g.apart_down
            i = down // g.stride_down
            if down < 0 or down % g.stride_down != 0 or i >= g.out_height:
                continue
            for s in range(g.taps_across):
                shift = s * g.apart_across - g.left
                low, high = columns_met(g, shift)
                line = (channel * g.taps_down + r) * g.taps_across + s
                at = (line * g.out_height + i) * run
                if g.stride_across == 1:
                    for k in range(low * images, high * images):
                        out[to + shift * images + k] += x[at + k]
                else:
                    for j in range(low, high):
                        place = to + (j * g.stride_across + shift) * images
                        for k in range(images):
                            out[place + k] += x[at + j * images + k]


Axes = namedtuple("Axes", "rows columns x_first x_row x_column out_first out_row out_column")
"""Lengths of the last two of three axes, and steps along all three, in elements."""


@loop()
def permute_loop(x: Array, out: Array, begin: int, end: int, axes: Axes) -> None:
    """``out[a, b, c] = x[a, b, c]`` for a from `begin` to `end`."""
    for a in range(begin, end):
        for b in range(axes.rows):
            at = a * axes.x_first + b * axes.x_row
            to = a * axes.out_first + b * axes.out_row
            for c in range(axes.columns):
                out[to + c * axes.out_column] = x[at + c * axes.x_column]


_fill_rows_kernel = range_kernel(fill_rows_loop)
_gather_rows = range_kernel(gather_rows_loop)
_fill_lines = range_kernel(fill_lines_loop)
_gather_lines = range_kernel(gather_lines_loop)
_permute_kernel = range_kernel(permute_loop)


def _permute(x: Array, out: Array) -> Step:
    """Return the call that copies an array with three axes to one with other strides."""
    steps = [step // x.itemsize for array in (x, out) for step in array.strides]
    return _permute_kernel, (x, out, 0, len(x), Axes(*x.shape[1:], *steps))


# -- both orders -----------------------------------------------------------------------------------


class _Sizes:
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

    def geometry(self, **lengths: int) -> Geometry:
        """Return the argument of the loops over columns, with lengths that are theirs alone."""
        problem, ((top, _), (left, _)) = self.problem, self.problem.padding
        window = *problem.window, *problem.stride, *problem.dilation, top, left
        return Geometry(*problem.size, *problem.out_size, *window, **lengths)


def routine(problem: Convolution) -> Routine | None:
    """Return the routine; it takes every problem in float32 that has elements."""
    if problem.dtype != "f4" or problem.is_empty:
        return None
    sizes = _Sizes(problem)
    kind = problem.kind
    if problem.layout == "NHWC":
        run = {"forward": _forward_rows, "data": _data_rows, "weights": _weights_rows}[kind]
        columns = _rows_of_chunk(sizes) * sizes.depth
        weights = round_up(problem.filters * sizes.depth, 16)
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
    return Routine("im2col", round_up(size_bytes, ALIGNMENT_BYTES), steps)


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


def _rows_of_chunk(sizes: _Sizes) -> int:
    """Return how many rows of the result are computed at once."""
    problem = sizes.problem
    rows = max(LEAST_ROWS, CHUNK_ELEMENTS // sizes.depth)
    if problem.kind == "data":  # whole images, since windows overlap
        images = min(max(1, rows // sizes.area), problem.images)
        return images * sizes.area
    return min(rows // 16 * 16, problem.images * sizes.area)


def _parts(sizes: _Sizes) -> Iterator[slice]:
    rows, chunk = sizes.problem.images * sizes.area, _rows_of_chunk(sizes)
    for begin in range(0, rows, chunk):
        yield slice(begin, min(begin + chunk, rows))


def _geometry(sizes: _Sizes, first: int) -> Geometry:
    return sizes.geometry(channels=sizes.problem.channels, count=sizes.channels, first=first)


def _fill_rows(
    sizes: _Sizes, x: Array, columns: Array, part: slice, group: int
) -> tuple[Step, Array]:
    """Return the call that writes the columns of some rows, and these columns."""
    block = columns[: (part.stop - part.start) * sizes.depth]
    start, geometry = x[..., group * sizes.channels :], _geometry(sizes, part.start)
    arguments = start, block, part.start, part.stop, geometry
    return (_fill_rows_kernel, arguments), block.reshape(-1, sizes.depth)


def _taps_first(sizes: _Sizes, weights: Array) -> Array:
    """Return memory for weights as (filters, taps, channels)."""
    size = sizes.problem.filters * sizes.depth
    return weights[:size].reshape(-1, sizes.taps, sizes.channels)


def _taps_last(sizes: _Sizes, w: Array) -> Array:
    """Return weights as (filters, taps, channels), a view."""
    return np.swapaxes(w.reshape(-1, sizes.channels, sizes.taps), 1, 2)


def _forward_rows(
    sizes: _Sizes, x: Array, w: Array, y: Array, weights: Array, columns: Array
) -> list[Step]:
    by_tap = _taps_first(sizes, weights)
    steps = [_permute(_taps_last(sizes, w), by_tap)]
    matrices = by_tap.reshape(sizes.groups, sizes.filters, sizes.depth)
    rows = y.reshape(-1, sizes.groups, sizes.filters)
    for part in _parts(sizes):
        for group in range(sizes.groups):
            fill, block = _fill_rows(sizes, x, columns, part, group)
            steps += [fill, (gemm, (block, matrices[group].T, rows[part, group]))]
    return steps


def _data_rows(
    sizes: _Sizes, dy: Array, w: Array, dx: Array, weights: Array, columns: Array
) -> list[Step]:
    by_tap = _taps_first(sizes, weights)
    steps = [_permute(_taps_last(sizes, w), by_tap)]
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
            steps.append((_gather_rows, (block, target, 0, number, _geometry(sizes, 0))))
    return steps


def _weights_rows(
    sizes: _Sizes, x: Array, dy: Array, dw: Array, weights: Array, columns: Array
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
    return [*steps, _permute(by_tap, _taps_last(sizes, dw))]


# -- channels first -------------------------------------------------------------------------------


def _outer(sizes: _Sizes, x: Array) -> Array:
    """Return images as (outer, channels, rows, columns and inner images).

    In NCHW images are outer, in CHWN they are inner.
    """
    if sizes.problem.layout == "NCHW":
        return x
    return x.reshape(1, *x.shape[:2], -1)


def _inner(sizes: _Sizes) -> int:
    return sizes.problem.images if sizes.problem.layout == "CHWN" else 1


def _rows_at_once(sizes: _Sizes) -> int:
    """Return for how many rows of the result columns are written at once, in "forward"."""
    height, width = sizes.problem.out_size
    each = width * _inner(sizes)
    least = -(-LEAST_ROWS // each)
    return min(height, max(least, CHUNK_ELEMENTS // (sizes.depth * each)))


def _channels_at_once(sizes: _Sizes) -> int:
    """Return for how many channels columns are written at once, in gradients."""
    each = sizes.taps * sizes.area * _inner(sizes)
    return min(sizes.channels, max(1, CHUNK_ELEMENTS // each))


def _elements_of_lines(sizes: _Sizes) -> int:
    inner = _inner(sizes)
    if sizes.problem.kind == "forward":
        return sizes.depth * _rows_at_once(sizes) * sizes.problem.out_size[1] * inner
    return _channels_at_once(sizes) * sizes.taps * sizes.area * inner


def _channel_parts(sizes: _Sizes) -> Iterator[tuple[int, slice]]:
    """Yield each group, and in turn the parts of its channels whose columns are written at once."""
    chunk = _channels_at_once(sizes)
    for group in range(sizes.groups):
        for begin in range(0, sizes.channels, chunk):
            yield group, slice(begin, min(begin + chunk, sizes.channels))


def _columns_of(sizes: _Sizes, columns: Array, channels: int) -> Array:
    rows = channels * sizes.taps
    return columns[: rows * sizes.area * _inner(sizes)].reshape(rows, -1)


def _forward_lines(
    sizes: _Sizes, x: Array, w: Array, y: Array, weights: Array, columns: Array
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
                geometry = sizes.geometry(inner=inner, first=begin, last=end)
                steps.append((_fill_lines, (source, block, 0, sizes.depth, geometry)))
                steps.append((gemm, (matrices[group], block, maps[group][:, place])))
    return steps


def _data_lines(
    sizes: _Sizes, dy: Array, w: Array, dx: Array, weights: Array, columns: Array
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
            rows, geometry = number * problem.size[0], sizes.geometry(inner=_inner(sizes))
            steps.append((_gather_lines, (block, target, 0, rows, geometry)))
    return steps


def _weights_lines(
    sizes: _Sizes, x: Array, dy: Array, dw: Array, weights: Array, columns: Array
) -> list[Step]:
    problem, steps = sizes.problem, list[Step]()
    matrices = dw.reshape(sizes.groups, sizes.filters, sizes.depth)
    pairs = zip(_outer(sizes, x), _outer(sizes, dy), strict=True)
    for outer, (image, gradient) in enumerate(pairs):
        maps = gradient.reshape(sizes.groups, sizes.filters, -1)
        for group, part in _channel_parts(sizes):
            number = part.stop - part.start
            block = _columns_of(sizes, columns, number)
            source = image[group * sizes.channels + part.start :]
            geometry = sizes.geometry(inner=_inner(sizes), last=problem.out_size[0])
            steps.append((_fill_lines, (source, block, 0, number * sizes.taps, geometry)))
            lines = slice(part.start * sizes.taps, part.stop * sizes.taps)
            product = gemm_add if outer else gemm
            steps.append((product, (maps[group], block.T, matrices[group][:, lines])))
    return steps
