"""Compiled kernels of Winograd's convolution of 3 x 3 windows.

See `winograd` for the formulas, and for the fields of each kernel. Everything is counted in bytes
and given by address. The first arguments of a step, `tile` and `side`, are constants of a kernel,
which computes ``tile * tile`` results from ``side * side`` points. Points of a transformed tile are
apart by a *plane*::

    tiles:    [point][tile][channel]          rows of the products
    weights:  [panel][point][channel][column of the panel]
    sums:     [point][row][column of the panel]

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections import namedtuple

from llvmlite import ir
from numba import carray, float32, int64, njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.convolution_work import FLOAT_BYTES
from dnn.backend.cpu.intrinsics import address_of_words, fields_type, pointer, scratch
from dnn.backend.cpu.register_tiles import (
    LANES,
    PANEL,
    ROW_BYTES,
    ROWS,
    VECTOR_BYTES,
    clear,
    copy_floats,
    product_of_columns,
    product_of_rows,
    transposed,
)
from dnn.backend.cpu.vectors import FAST, WORD, Vectors, load_word
from dnn.backend.cpu.winograd import (
    TAPS,
    WINDOW,
    GradientFields,
    MapsFields,
    WeightsFields,
    matrices,
)

__all__ = ["forward", "gradient", "weights"]

GAP = VECTOR_BYTES
"""Bytes between planes: with a distance of a power of two all points would share a few places of
the first-level cache."""
PIECE_FLOATS = LANES * TAPS * PANEL
PIECE_BYTES = FLOAT_BYTES * PIECE_FLOATS
"""Size of the weights of as many channels as a vector has lanes, for the filters of a panel."""
LIST_BYTES, POINTS_BYTES, RESULTS_BYTES = 8 * 6 * 6, VECTOR_BYTES * 6 * 6, ROW_BYTES * 4 * 4
"""Memory on the stack, as much as tiles of 4 x 4 results need."""

WEIGHTS, MAPS, GRADIENT = map(fields_type, (WeightsFields, MapsFields, GradientFields))

Images = namedtuple("Images", "start height width channels down right")
"""Images that are cut into tiles, which begin `down` and `right` pixels before the first one."""

Grid = namedtuple("Grid", "down across first count")
"""Tiles of an image along its height and width; the number of the first tile, and how many."""

Planes = namedtuple("Planes", "start plane tile_bytes panel_bytes")
"""Memory for transformed tiles: its address, and bytes from point to point, from tile to tile, and,
where channels are in panels, from panel to panel."""


def _combined(builder, factors, values):
    """Generate ``sum(factor * value)``."""
    total = None
    for factor, value in zip(factors, values, strict=True):
        if factor == 0:
            continue
        if total is None:
            total = value if factor == 1 else _scaled(builder, factor, value)
        elif factor == 1:
            total = builder.fadd(total, value, flags=FAST)
        elif factor == -1:
            total = builder.fsub(total, value, flags=FAST)
        else:
            total = builder.fadd(total, _scaled(builder, factor, value), flags=FAST)
    return total


def _scaled(builder, factor, value):
    return builder.fmul(ir.Constant(value.type, [float(factor)] * LANES), value, flags=FAST)


def _times(builder, matrix, values):
    """Generate ``matrix @ values``.

    The points of the interpolation come in pairs p and -p, which have the same even terms, and odd
    terms that differ in sign only; so half of the multiplications are saved.
    """
    points = max(matrix.shape)
    pairs = [(i, i + 1) for i in range(1, points - 1, 2)]
    rows = len(matrix)
    if rows == points:
        results = [None] * rows
        for i, j in pairs:
            even = _combined(builder, matrix[i, ::2], values[::2])
            odd = _combined(builder, matrix[i, 1::2], values[1::2])
            results[i] = builder.fadd(even, odd, flags=FAST)
            results[j] = builder.fsub(even, odd, flags=FAST)
        for i in (0, points - 1):
            results[i] = _combined(builder, matrix[i], values)
        return results
    sums = [builder.fadd(values[i], values[j], flags=FAST) for i, j in pairs]
    differences = [builder.fsub(values[i], values[j], flags=FAST) for i, j in pairs]
    results = []
    for row in range(rows):
        terms = sums if row % 2 == 0 else differences
        factors = [matrix[row, 0], matrix[row, -1], *(matrix[row, i] for i, _ in pairs)]
        results.append(_combined(builder, factors, [values[0], values[-1], *terms]))
    return results


def _two_sided(builder, matrix, read, write):
    """Generate ``matrix @ tile @ matrix.T`` for a vector of channels: from `read` to `write`."""
    rows, columns = matrix.shape
    half = [
        _times(builder, matrix, [read(i * columns + j) for i in range(columns)])
        for j in range(columns)
    ]
    for i in range(rows):
        for j, value in enumerate(_times(builder, matrix, [line[i] for line in half])):
            write(i * rows + j, value)


class _Places:
    """Places of vectors in memory: apart by a step, or at listed addresses plus an offset."""

    def __init__(self, builder, start, step, offset=None):
        self.builder, self.start, self.step, self.offset = builder, start, step, offset
        self.v = Vectors("f4", builder)

    def at(self, i):
        builder = self.builder
        place = builder.add(self.start, builder.mul(self.step, WORD(i)))
        return place if self.offset is None else builder.add(load_word(builder, place), self.offset)

    def read(self, i):
        return self.v.load(self.at(i))

    def write(self, i, x):
        self.v.store(x, self.at(i))


_WORD = types.int64


@intrinsic(prefer_literal=True)
def transform_pixels(context, tile, side, places, offset, target, plane):
    """Transform a tile of x, or of dy, from listed addresses, plus an offset, to planes."""
    tile_size, sizes = tile.literal_value, (tile, side)
    of_input, of_output, _ = matrices(tile_size)
    matrix = of_output.T if side.literal_value == tile_size else of_input

    def generate(context, builder, signature, arguments):
        _, _, places, offset, target, plane = arguments
        source = _Places(builder, places, WORD(8), offset)
        _two_sided(builder, matrix, source.read, _Places(builder, target, plane).write)
        return context.get_dummy_value()

    return types.void(*sizes, _WORD, _WORD, _WORD, _WORD), generate


@intrinsic(prefer_literal=True)
def transform_window(context, tile, source, step, target, plane):
    """Transform a window to points."""
    return _between_planes(tile, matrices(tile.literal_value)[2])


@intrinsic(prefer_literal=True)
def window_of_points(context, tile, source, step, target, plane):
    """Transform points back to a window."""
    return _between_planes(tile, matrices(tile.literal_value)[2].T)


def _between_planes(tile, matrix):
    """Return signature and generator of a transform between places that are apart by a step."""

    def generate(context, builder, signature, arguments):
        _, source, step, target, plane = arguments
        read = _Places(builder, source, step).read
        _two_sided(builder, matrix, read, _Places(builder, target, plane).write)
        return context.get_dummy_value()

    return types.void(tile, _WORD, _WORD, _WORD, _WORD), generate


@intrinsic(prefer_literal=True)
def output_of_points(context, tile, source, plane, places, offset, bias, lowest):
    """Transform points to results at listed addresses, plus an offset; add a bias, bound them."""
    matrix = matrices(tile.literal_value)[1]

    def generate(context, builder, signature, arguments):
        _, source, plane, places, offset, bias, lowest = arguments
        target = _Places(builder, places, WORD(8), offset)
        added, bound = target.v.load(bias), target.v.splat(lowest)

        def write(i, x):
            x = builder.fadd(x, added)
            x = builder.select(builder.fcmp_ordered("<", x, bound), bound, x)
            target.write(i, x)

        _two_sided(builder, matrix, _Places(builder, source, plane).read, write)
        return context.get_dummy_value()

    return types.void(tile, _WORD, _WORD, _WORD, _WORD, _WORD, types.float32), generate


@njit(inline="always", **FLAGS)
def _list_pixels(table, side, images, tile, grid, number, outside):
    """List the addresses of the pixels of a tile; those that are not in the image are `outside`."""
    words = carray(pointer(table), (side * side,), int64)
    image, rest = divmod(number, grid.down * grid.across)
    row, column = rest // grid.across * tile - images.down, rest % grid.across * tile - images.right
    pixel = images.channels * FLOAT_BYTES
    for i in range(side):
        line = (image * images.height + row + i) * images.width + column
        inside = 0 <= row + i < images.height
        for j in range(side):
            here = inside and 0 <= column + j < images.width
            words[i * side + j] = images.start + (line + j) * pixel if here else outside


@njit(inline="always", **FLAGS)
def _gather(tile, side, images, grid, rows, first_channel, last_channel, planes, zeros):
    """Transform the tiles of a grid, and the last one again until there are `rows`."""
    points = side * side
    table, padded_table = scratch(LIST_BYTES), scratch(LIST_BYTES)
    padded = scratch(POINTS_BYTES)
    words = carray(pointer(table), (points,), int64)
    padded_words = carray(pointer(padded_table), (points,), int64)
    for i in range(points):
        padded_words[i] = padded + i * VECTOR_BYTES
    for t in range(rows):
        _list_pixels(table, side, images, tile, grid, grid.first + min(t, grid.count - 1), zeros)
        for channel in range(first_channel, last_channel, LANES):
            panel, along = divmod(channel - first_channel, PANEL)
            to = planes.start + t * planes.tile_bytes + panel * planes.panel_bytes
            to += along * FLOAT_BYTES
            offset = channel * FLOAT_BYTES
            if channel + LANES <= images.channels:
                transform_pixels(tile, side, table, offset, to, planes.plane)
            else:
                clear(padded, LANES * points)
                for i in range(points):
                    number = max(0, images.channels - channel)
                    copy_floats(words[i] + offset, padded_words[i], number)
                transform_pixels(tile, side, padded_table, 0, to, planes.plane)


@njit(inline="always", **FLAGS)
def _transform_weights(tile, m, panel, channel, number, target):
    """Write ``target[point][channel][column]`` for a panel of filters and `number` channels.

    For the gradient of the data windows are `flipped`, in height and width, and weights are stored
    as (channels, filters).
    """
    piece = scratch(PIECE_BYTES)
    plane = number * ROW_BYTES + GAP
    first = panel * PANEL
    width = min(PANEL, m.filters - first)
    tap_bytes = TAPS * FLOAT_BYTES
    for c in range(channel, channel + number, LANES):
        depth = min(LANES, m.channels - c)
        if depth < LANES or width < PANEL:
            clear(piece, PIECE_FLOATS)
        if m.flipped:
            for i in range(depth):
                block = m.w + ((c + i) * m.filters + first) * tap_bytes
                place = piece + i * TAPS * ROW_BYTES
                transposed(block, tap_bytes, width, TAPS, place, ROW_BYTES)
            start, step = piece + (TAPS - 1) * ROW_BYTES, -ROW_BYTES
        else:
            block = m.w + (first * m.channels + c) * tap_bytes
            transposed(block, m.channels * tap_bytes, width, depth * TAPS, piece, ROW_BYTES)
            start, step = piece, ROW_BYTES
        for i in range(LANES):
            for v in range(0, ROW_BYTES, VECTOR_BYTES):
                to = target + (c - channel + i) * ROW_BYTES + v
                transform_window(tile, start + i * TAPS * ROW_BYTES + v, step, to, plane)


@njit(inline="always", **FLAGS)
def _block_offset(tile, panel, channel, padded, depth):
    """Return where the transformed weights of a block of channels begin."""
    points = (tile + WINDOW - 1) * (tile + WINDOW - 1)
    blocks = panel * ((padded + depth - 1) // depth) + channel // depth
    return ((panel * padded + channel) * ROW_BYTES + blocks * GAP) * points


@njit(inline="always", **FLAGS)
def _padded(channels):
    return (channels + LANES - 1) // LANES * LANES


def weights(tile):
    """Return the kernel that transforms the weights of some panels."""

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), WEIGHTS)[0]
        padded = _padded(m.channels)
        for panel in range(m.first_panel, m.last_panel):
            for c in range(0, padded, m.depth):
                to = m.target + _block_offset(tile, panel, c, padded, m.depth)
                _transform_weights(tile, m, panel, c, min(m.depth, padded - c), to)

    return kernel


@njit(inline="always", **FLAGS)
def _write_maps(tile, m, grid, sums, plane, panel, outside):
    """Write the results of some tiles, for a panel of filters."""
    results = tile * tile
    table, partial_table = scratch(LIST_BYTES), scratch(LIST_BYTES)
    partial = scratch(RESULTS_BYTES)
    words = carray(pointer(table), (results,), int64)
    partial_words = carray(pointer(partial_table), (results,), int64)
    for i in range(results):
        partial_words[i] = partial + i * ROW_BYTES
    number = min(PANEL, m.filters - panel * PANEL)
    added = scratch(ROW_BYTES)
    clear(added, PANEL)
    if m.bias != 0:
        copy_floats(m.bias + panel * ROW_BYTES, added, number)
    lowest = float32(0) if m.relu else float32(-float("inf"))
    places = table if number == PANEL else partial_table
    images = Images(m.out + panel * ROW_BYTES, m.out_height, m.out_width, m.filters, 0, 0)
    for t in range(grid.count):
        _list_pixels(table, tile, images, tile, grid, grid.first + t, outside)
        for v in range(0, ROW_BYTES, VECTOR_BYTES):
            source = sums + t * ROW_BYTES + v
            output_of_points(tile, source, plane, places, v, added + v, lowest)
        if number < PANEL:
            for i in range(results):
                copy_floats(partial_words[i], words[i], number)


@njit(inline="always", **FLAGS)
def _multiply_tiles(points, rows, tiles, channel, block, number, sums, sum_plane):
    """Multiply `number` channels of tiles by weights; add to the sums unless they are the first."""
    for point in range(points):
        a = tiles.start + channel * FLOAT_BYTES + point * tiles.plane
        b = block + point * (number * ROW_BYTES + GAP)
        s = sums + point * sum_plane
        for t in range(0, rows, ROWS):
            at, to = a + t * tiles.tile_bytes, s + t * ROW_BYTES
            product_of_rows(at, tiles.tile_bytes, b, number, to, ROW_BYTES, channel)


def forward(tile):
    """Return the kernel that computes the results of some tiles and panels of filters."""
    side = tile + WINDOW - 1

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), MAPS)[0]
        points = side * side
        padded = _padded(m.channels)
        tile_bytes = (padded + LANES) * FLOAT_BYTES
        most = (min(m.chunk, m.last_tile - m.first_tile) + ROWS - 1) // ROWS * ROWS
        zeros = m.space
        outside = zeros + padded * FLOAT_BYTES
        sums = outside + ROW_BYTES
        memory = sums + points * (most * ROW_BYTES + GAP)
        block = memory + points * (most * tile_bytes + GAP)
        clear(zeros, padded)
        images = Images(m.x, m.height, m.width, m.channels, m.down, m.right)
        for first in range(m.first_tile, m.last_tile, m.chunk):
            count = min(m.chunk, m.last_tile - first)
            rows = (count + ROWS - 1) // ROWS * ROWS
            sum_plane = rows * ROW_BYTES + GAP
            grid = Grid(m.tiles_down, m.tiles_across, first, count)
            tiles = Planes(memory, rows * tile_bytes + GAP, tile_bytes, ROW_BYTES)
            _gather(tile, side, images, grid, rows, 0, padded, tiles, zeros)
            for panel in range(m.first_panel, m.last_panel):
                for c in range(0, padded, m.depth):
                    number = min(m.depth, padded - c)
                    u = block
                    if m.given != 0:
                        u = m.given + _block_offset(tile, panel, c, padded, m.depth)
                    else:
                        _transform_weights(tile, m, panel, c, number, u)
                    _multiply_tiles(points, rows, tiles, c, u, number, sums, sum_plane)
                _write_maps(tile, m, grid, sums, sum_plane, panel, outside)

    return kernel


@njit(inline="always", **FLAGS)
def _write_weights(tile, m, sums, number, channel, panel):
    """Write the gradient of the weights of `number` channels and a panel of filters."""
    piece = scratch(PIECE_BYTES)
    width = min(PANEL, m.filters - panel * PANEL)
    filter_bytes = m.channels * TAPS * FLOAT_BYTES
    for c in range(0, number, LANES):
        for i in range(LANES):
            for v in range(0, ROW_BYTES, VECTOR_BYTES):
                source = sums + (c + i) * ROW_BYTES + v
                to = piece + i * TAPS * ROW_BYTES + v
                window_of_points(tile, source, number * ROW_BYTES + GAP, to, ROW_BYTES)
        depth = min(LANES, m.channels - channel - c)
        place = m.dw + panel * PANEL * filter_bytes + (channel + c) * TAPS * FLOAT_BYTES
        transposed(piece, ROW_BYTES, depth * TAPS, width, place, filter_bytes)


@njit(inline="always", **FLAGS)
def _multiply_gradients(points, count, tiles, channel, number, gradients, panel, sums, start):
    """Multiply `number` channels by a panel of gradients; add to the sums if `start` is not 0."""
    for point in range(points):
        a = tiles.start + channel * FLOAT_BYTES + point * tiles.plane
        b = gradients.start + panel * gradients.panel_bytes + point * gradients.plane
        s = sums + point * (number * ROW_BYTES + GAP)
        for i in range(0, number, ROWS):
            at, to = a + i * FLOAT_BYTES, s + i * ROW_BYTES
            product_of_columns(at, tiles.tile_bytes, b, count, to, ROW_BYTES, start)


def gradient(tile):
    """Return the kernel of the gradient of the weights, of some channels and panels of filters."""
    side = tile + WINDOW - 1

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), GRADIENT)[0]
        points = side * side
        panels, own = m.last_panel - m.first_panel, m.last_channel - m.first_channel
        tile_bytes = (own + LANES) * FLOAT_BYTES
        most = min(m.chunk, m.all_tiles)
        zeros = m.space
        widest = max(m.channels + LANES, m.filters + PANEL)
        x_memory = zeros + (widest + LANES - 1) // LANES * VECTOR_BYTES
        dy_memory = x_memory + points * (most * tile_bytes + GAP)
        sums = dy_memory + points * (most * panels * ROW_BYTES + GAP)
        clear(zeros, widest)
        of_x = Images(m.x, m.height, m.width, m.channels, m.down, m.right)
        of_dy = Images(m.dy, m.out_height, m.out_width, m.filters, 0, 0)
        first_filter, last_filter = m.first_panel * PANEL, m.last_panel * PANEL
        for first in range(0, m.all_tiles, m.chunk):
            count = min(m.chunk, m.all_tiles - first)
            grid = Grid(m.tiles_down, m.tiles_across, first, count)
            plane, dy_plane = count * tile_bytes + GAP, count * panels * ROW_BYTES + GAP
            tiles = Planes(x_memory, plane, tile_bytes, ROW_BYTES)
            gradients = Planes(dy_memory, dy_plane, ROW_BYTES, count * ROW_BYTES)
            _gather(tile, side, of_x, grid, count, m.first_channel, m.last_channel, tiles, zeros)
            _gather(tile, tile, of_dy, grid, count, first_filter, last_filter, gradients, zeros)
            for c in range(0, own, m.depth):
                number = min(m.depth, own - c)
                for p in range(panels):
                    total = sums
                    if m.all_tiles > m.chunk:
                        total += (c * panels + p * number) * points * ROW_BYTES
                        total += (c // m.depth * panels + p) * points * GAP
                    _multiply_gradients(points, count, tiles, c, number, gradients, p, total, first)
                    if first + count == m.all_tiles:
                        channel, panel = m.first_channel + c, m.first_panel + p
                        _write_weights(tile, m, total, number, channel, panel)

    return kernel
