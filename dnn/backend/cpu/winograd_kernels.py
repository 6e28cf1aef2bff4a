"""Compiled kernels of Winograd's convolution of 3 x 3 windows.

See `winograd` for the formulas, and for the order of the fields of a record. Everything is counted
in bytes and given by address. Points of a transformed tile are apart by a *plane*::

    tiles:    [point][tile][channel]          rows of the products
    weights:  [panel][point][channel][column of the panel]
    sums:     [point][row][column of the panel]

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from llvmlite import ir
from numba import carray, float32, int64, njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.convolution_work import FLOAT_BYTES
from dnn.backend.cpu.intrinsics import pointer, scratch
from dnn.backend.cpu.register_tiles import (
    FAST,
    LANES,
    PANEL,
    ROW_BYTES,
    ROWS,
    VECTOR,
    VECTOR_BYTES,
    WORD,
    clear,
    copy_floats,
    load_vector,
    load_word,
    product_of_columns,
    product_of_rows,
    splat,
    store_vector,
    transposed,
)
from dnn.backend.cpu.winograd import TAPS, WINDOW, matrices

__all__ = ["forward_2", "forward_4", "gradient_2", "gradient_4", "weights_2", "weights_4"]

GAP = VECTOR_BYTES
"""Bytes between planes: with a distance of a power of two all points would share a few places of
the first-level cache."""
PIECE_FLOATS = LANES * TAPS * PANEL
PIECE_BYTES = FLOAT_BYTES * PIECE_FLOATS
"""Size of the weights of as many channels as a vector has lanes, for the filters of a panel."""


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
    return builder.fmul(ir.Constant(VECTOR, [float(factor)] * LANES), value, flags=FAST)


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


def _two_sided_transform(matrix, read, write):
    """Generate ``matrix @ tile @ matrix.T`` for a vector of channels: from `read` to `write`."""

    def generate(builder):
        rows, columns = matrix.shape
        half = [
            _times(builder, matrix, [read(i * columns + j) for i in range(columns)])
            for j in range(columns)
        ]
        for i in range(rows):
            for j, value in enumerate(_times(builder, matrix, [line[i] for line in half])):
                write(i * rows + j, value)

    return generate


def _between(builder, start, step):
    """Return a function from i to the address ``start + step i``."""
    return lambda i: builder.add(start, builder.mul(step, WORD(i)))


def _from_places(matrix):
    """Return the transform of values at listed addresses, plus an offset, to planes."""

    @intrinsic
    def transform(context, places, offset, target, plane):
        def generate(context, builder, signature, arguments):
            places, offset, target, plane = arguments
            listed, to = _between(builder, places, WORD(8)), _between(builder, target, plane)

            def read(i):
                return load_vector(builder, builder.add(load_word(builder, listed(i)), offset))

            _two_sided_transform(matrix, read, lambda i, x: store_vector(builder, x, to(i)))(
                builder
            )
            return context.get_dummy_value()

        word = types.int64
        return types.void(word, word, word, word), generate

    return transform


def _from_plane(matrix):
    """Return the transform between two arrays, both given by a start and a step."""

    @intrinsic
    def transform(context, source, step, target, plane):
        def generate(context, builder, signature, arguments):
            source, step, target, plane = arguments
            at, to = _between(builder, source, step), _between(builder, target, plane)

            def read(i):
                return load_vector(builder, at(i))

            _two_sided_transform(matrix, read, lambda i, x: store_vector(builder, x, to(i)))(
                builder
            )
            return context.get_dummy_value()

        word = types.int64
        return types.void(word, word, word, word), generate

    return transform


def _to_places(matrix):
    """Return the transform to listed addresses, plus an offset, with a bias and a lower bound."""

    @intrinsic
    def transform(context, source, plane, places, offset, bias, lowest):
        def generate(context, builder, signature, arguments):
            source, plane, places, offset, bias, lowest = arguments
            at, listed = _between(builder, source, plane), _between(builder, places, WORD(8))
            added, bound = load_vector(builder, bias), splat(builder, lowest)

            def read(i):
                return load_vector(builder, at(i))

            def write(i, x):
                x = builder.fadd(x, added)
                x = builder.select(builder.fcmp_ordered("<", x, bound), bound, x)
                store_vector(builder, x, builder.add(load_word(builder, listed(i)), offset))

            _two_sided_transform(matrix, read, write)(builder)
            return context.get_dummy_value()

        word = types.int64
        return types.void(word, word, word, word, word, types.float32), generate

    return transform


@njit(inline="always", **FLAGS)
def _places(table, side, base, height, width, pixel, image, row, column, outside):
    """List the addresses of the pixels of a tile; those that are not in the image are `outside`."""
    words = carray(pointer(table), (side * side,), int64)
    for i in range(side):
        start = base + ((image * height + row + i) * width + column) * pixel
        inside = 0 <= row + i < height
        for j in range(side):
            here = inside and 0 <= column + j < width
            words[i * side + j] = start + j * pixel if here else outside


def _gathering(side, tile, matrix):
    """Return the loop that transforms tiles of images, each of ``side * side`` pixels."""
    points = side * side
    table_bytes, padded_bytes = 8 * points, VECTOR_BYTES * points
    transform = _from_places(matrix)

    @njit(inline="always", **FLAGS)
    def gather(
        source, height, width, channels, first_channel, last_channel, down, right,
        tiles_down, tiles_across, first_tile, count, rows,
        target, plane, tile_bytes, panel_bytes, zeros,
    ):  # fmt: skip
        """Write `count` tiles, and the last one again until there are `rows`."""
        table, padded_table = scratch(table_bytes), scratch(table_bytes)
        padded = scratch(padded_bytes)
        words = carray(pointer(table), (points,), int64)
        padded_words = carray(pointer(padded_table), (points,), int64)
        for i in range(points):
            padded_words[i] = padded + i * VECTOR_BYTES
        for t in range(rows):
            number = first_tile + min(t, count - 1)
            image, rest = divmod(number, tiles_down * tiles_across)
            row, column = divmod(rest, tiles_across)
            _places(
                table, side, source, height, width, channels * FLOAT_BYTES,
                image, row * tile - down, column * tile - right, zeros,
            )  # fmt: skip
            for channel in range(first_channel, last_channel, LANES):
                panel, along = divmod(channel - first_channel, PANEL)
                to = target + t * tile_bytes + panel * panel_bytes + along * FLOAT_BYTES
                offset = channel * FLOAT_BYTES
                if channel + LANES <= channels:
                    transform(table, offset, to, plane)
                else:
                    clear(padded, LANES * points)
                    for i in range(points):
                        copy_floats(words[i] + offset, padded_words[i], max(0, channels - channel))
                    transform(padded_table, 0, to, plane)

    return gather


def _kernels(tile):
    """Return the three kernels of tiles of ``tile * tile`` results."""
    side = tile + WINDOW - 1
    points = side * side
    table_bytes, partial_bytes = 8 * tile * tile, ROW_BYTES * tile * tile
    of_input, of_output, of_window = matrices(tile)
    gather_input = _gathering(side, tile, of_input)
    gather_gradients = _gathering(tile, tile, of_output.T)
    transform_window = _from_plane(of_window)
    window_of_points = _from_plane(of_window.T)
    output_of_points = _to_places(of_output)

    @njit(inline="always", **FLAGS)
    def transform_weights(w, flipped, channels, filters, panel, channel, number, target):
        """Write ``target[point][channel][column]`` for a panel of filters and `number` channels.

        For the gradient of the data windows are `flipped`, in height and width, and weights are
        stored as (channels, filters).
        """
        piece = scratch(PIECE_BYTES)
        plane = number * ROW_BYTES + GAP
        first = panel * PANEL
        width = min(PANEL, filters - first)
        tap_bytes = TAPS * FLOAT_BYTES
        for c in range(channel, channel + number, LANES):
            depth = min(LANES, channels - c)
            if depth < LANES or width < PANEL:
                clear(piece, PIECE_FLOATS)
            if flipped:
                for i in range(depth):
                    block = w + ((c + i) * filters + first) * tap_bytes
                    transposed(
                        block, tap_bytes, width, TAPS, piece + i * TAPS * ROW_BYTES, ROW_BYTES
                    )
                start, step = piece + (TAPS - 1) * ROW_BYTES, -ROW_BYTES
            else:
                block = w + (first * channels + c) * tap_bytes
                transposed(block, channels * tap_bytes, width, depth * TAPS, piece, ROW_BYTES)
                start, step = piece, ROW_BYTES
            for i in range(LANES):
                for v in range(0, ROW_BYTES, VECTOR_BYTES):
                    to = target + (c - channel + i) * ROW_BYTES + v
                    transform_window(start + i * TAPS * ROW_BYTES + v, step, to, plane)

    @njit(inline="always", **FLAGS)
    def block_offset(panel, channel, padded, depth):
        """Return where the transformed weights of a block of channels begin."""
        blocks = panel * ((padded + depth - 1) // depth) + channel // depth
        return ((panel * padded + channel) * ROW_BYTES + blocks * GAP) * points

    def weights(r):
        """Transform the weights of some panels."""
        w, target, flipped, channels, filters = r[0], r[1], r[2], r[3], r[4]
        depth, first_panel, last_panel = r[5], r[6], r[7]
        padded = (channels + LANES - 1) // LANES * LANES
        for panel in range(first_panel, last_panel):
            for c in range(0, padded, depth):
                to = target + block_offset(panel, c, padded, depth)
                transform_weights(
                    w, flipped, channels, filters, panel, c, min(depth, padded - c), to
                )

    @njit(inline="always", **FLAGS)
    def inverse(
        sums, plane, out, height, width, filters, panel, tiles_down, tiles_across,
        first_tile, count, bias, lowest, outside,
    ):  # fmt: skip
        """Write the results of some tiles, for a panel of filters."""
        table, partial_table = scratch(table_bytes), scratch(table_bytes)
        partial = scratch(partial_bytes)
        words = carray(pointer(table), (tile * tile,), int64)
        partial_words = carray(pointer(partial_table), (tile * tile,), int64)
        for i in range(tile * tile):
            partial_words[i] = partial + i * ROW_BYTES
        number = min(PANEL, filters - panel * PANEL)
        added = scratch(ROW_BYTES)
        clear(added, PANEL)
        if bias != 0:
            copy_floats(bias + panel * ROW_BYTES, added, number)
        places = table if number == PANEL else partial_table
        for t in range(count):
            image, rest = divmod(first_tile + t, tiles_down * tiles_across)
            row, column = divmod(rest, tiles_across)
            _places(
                table, tile, out + panel * ROW_BYTES, height, width, filters * FLOAT_BYTES,
                image, row * tile, column * tile, outside,
            )  # fmt: skip
            for v in range(0, ROW_BYTES, VECTOR_BYTES):
                source = sums + t * ROW_BYTES + v
                output_of_points(source, plane, places, v, added + v, lowest)
            if number < PANEL:
                for i in range(tile * tile):
                    copy_floats(partial_words[i], words[i], number)

    def forward(r):
        """Compute the results of some tiles and panels of filters."""
        x, w, out, space = r[0], r[1], r[2], r[3]
        height, width, channels, down, right = r[4], r[5], r[6], r[7], r[8]
        out_height, out_width, filters = r[9], r[10], r[11]
        tiles_down, tiles_across, chunk, first_tile, last_tile = r[12], r[13], r[14], r[15], r[16]
        first_panel, last_panel = r[17], r[18]
        depth, given, bias, relu, flipped = r[19], r[20], r[21], r[22], r[23]
        lowest = float32(0) if relu else float32(-float("inf"))
        padded = (channels + LANES - 1) // LANES * LANES
        tile_bytes = (padded + LANES) * FLOAT_BYTES
        most = (min(chunk, last_tile - first_tile) + ROWS - 1) // ROWS * ROWS
        zeros = space
        outside = zeros + padded * FLOAT_BYTES
        sums = outside + ROW_BYTES
        tiles = sums + points * (most * ROW_BYTES + GAP)
        block = tiles + points * (most * tile_bytes + GAP)
        clear(zeros, padded)
        for first in range(first_tile, last_tile, chunk):
            count = min(chunk, last_tile - first)
            rows = (count + ROWS - 1) // ROWS * ROWS
            plane, sum_plane = rows * tile_bytes + GAP, rows * ROW_BYTES + GAP
            gather_input(
                x, height, width, channels, 0, padded, down, right,
                tiles_down, tiles_across, first, count, rows,
                tiles, plane, tile_bytes, ROW_BYTES, zeros,
            )  # fmt: skip
            for panel in range(first_panel, last_panel):
                for c in range(0, padded, depth):
                    number = min(depth, padded - c)
                    u = block
                    if given != 0:
                        u = given + block_offset(panel, c, padded, depth)
                    else:
                        transform_weights(w, flipped, channels, filters, panel, c, number, u)
                    for point in range(points):
                        a = tiles + point * plane + c * FLOAT_BYTES
                        b = u + point * (number * ROW_BYTES + GAP)
                        s = sums + point * sum_plane
                        for t in range(0, rows, ROWS):
                            product_of_rows(
                                a + t * tile_bytes, tile_bytes, b, number,
                                s + t * ROW_BYTES, ROW_BYTES, c,
                            )  # fmt: skip
                inverse(
                    sums, sum_plane, out, out_height, out_width, filters, panel,
                    tiles_down, tiles_across, first, count, bias, lowest, outside,
                )  # fmt: skip

    @njit(inline="always", **FLAGS)
    def finish(sums, number, dw, channels, filters, channel, panel):
        """Write the gradient of the weights of `number` channels and a panel of filters."""
        piece = scratch(PIECE_BYTES)
        width = min(PANEL, filters - panel * PANEL)
        for c in range(0, number, LANES):
            for i in range(LANES):
                for v in range(0, ROW_BYTES, VECTOR_BYTES):
                    source = sums + (c + i) * ROW_BYTES + v
                    to = piece + i * TAPS * ROW_BYTES + v
                    window_of_points(source, number * ROW_BYTES + GAP, to, ROW_BYTES)
            depth = min(LANES, channels - channel - c)
            place = dw + (panel * PANEL * channels + channel + c) * TAPS * FLOAT_BYTES
            transposed(piece, ROW_BYTES, depth * TAPS, width, place, channels * TAPS * FLOAT_BYTES)

    def gradient(r):
        """Compute the gradient of the weights of some channels and panels of filters."""
        x, dy, dw, space = r[0], r[1], r[2], r[3]
        height, width, channels, down, right = r[4], r[5], r[6], r[7], r[8]
        out_height, out_width, filters = r[9], r[10], r[11]
        tiles_down, tiles_across, chunk, all_tiles = r[12], r[13], r[14], r[15]
        first_channel, last_channel, first_panel, last_panel = r[16], r[17], r[18], r[19]
        depth = r[20]
        panels, own = last_panel - first_panel, last_channel - first_channel
        tile_bytes = (own + LANES) * FLOAT_BYTES
        most = min(chunk, all_tiles)
        zeros = space
        widest = max(channels + LANES, filters + PANEL)
        tiles = zeros + (widest + LANES - 1) // LANES * VECTOR_BYTES
        gradients = tiles + points * (most * tile_bytes + GAP)
        sums = gradients + points * (most * panels * ROW_BYTES + GAP)
        clear(zeros, widest)
        for first in range(0, all_tiles, chunk):
            count = min(chunk, all_tiles - first)
            plane, gradient_plane = count * tile_bytes + GAP, count * panels * ROW_BYTES + GAP
            gather_input(
                x, height, width, channels, first_channel, last_channel, down, right,
                tiles_down, tiles_across, first, count, count,
                tiles, plane, tile_bytes, ROW_BYTES, zeros,
            )  # fmt: skip
            gather_gradients(
                dy, out_height, out_width, filters, first_panel * PANEL, last_panel * PANEL, 0, 0,
                tiles_down, tiles_across, first, count, count,
                gradients, gradient_plane, ROW_BYTES, count * ROW_BYTES, zeros,
            )  # fmt: skip
            for c in range(0, own, depth):
                number = min(depth, own - c)
                for p in range(panels):
                    total = sums
                    if all_tiles > chunk:
                        total += (c * panels + p * number) * points * ROW_BYTES
                        total += (c // depth * panels + p) * points * GAP
                    for point in range(points):
                        a = tiles + point * plane + c * FLOAT_BYTES
                        b = gradients + point * gradient_plane + p * count * ROW_BYTES
                        s = total + point * (number * ROW_BYTES + GAP)
                        for i in range(0, number, ROWS):
                            product_of_columns(
                                a + i * FLOAT_BYTES, tile_bytes, b, count,
                                s + i * ROW_BYTES, ROW_BYTES, first,
                            )  # fmt: skip
                    if first + count == all_tiles:
                        finish(
                            total, number, dw, channels, filters,
                            first_channel + c, first_panel + p,
                        )  # fmt: skip

    return weights, forward, gradient


weights_2, forward_2, gradient_2 = _kernels(2)
weights_4, forward_4, gradient_4 = _kernels(4)
