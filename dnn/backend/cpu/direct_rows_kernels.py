"""Compiled kernels of direct convolution by rows: tiles of sums in vector registers.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from dnn.backend.cpu.direct_rows import ROWS_AT_ONCE
from dnn.backend.cpu.intrinsics import address_of_words, pointer, scratch
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, WORD, Vectors

__all__ = ["rows_kernel", "weights_kernel"]

CHUNK_ELEMENTS = 1024
"""Elements of a row at a time, so that the rows of a tile stay in the first-level cache."""


def _tile(code, filters, vectors, masked):
    """Return the intrinsic that computes y of a block of filters, for some vectors in a row."""

    @intrinsic
    def tile(context, x, w, bias, out, rows, columns, left, steps):
        def generate(context, builder, signature, arguments):
            x, w, bias, out, rows, columns, left, steps = arguments
            v = Vectors(code, builder)
            channels, x_c, x_r, x_s, w_f, w_c, w_r, w_s, bias_f, out_f, relu = [
                builder.load(v.place(builder.add(steps, WORD(8 * i)), WORD)) for i in range(11)
            ]
            offsets = [WORD(i * v.bytes) for i in range(vectors)]
            masks = [
                v.mask(builder.sub(left, WORD(i * v.lanes))) if masked else None
                for i in range(vectors)
            ]
            totals = v.variables(filters, vectors)
            for f in range(filters):
                start = v.splat(v.number(v.address(bias, (bias_f, f))))
                for i in range(vectors):
                    builder.store(start, totals[f][i])
            with (
                cgutils.for_range(builder, channels) as over_c,
                cgutils.for_range(builder, rows) as over_r,
                cgutils.for_range(builder, columns) as over_s,
            ):
                c, r, s = over_c.index, over_r.index, over_s.index
                x_at = v.address(x, (c, x_c), (r, x_r), (s, x_s))
                w_at = v.address(w, (c, w_c), (r, w_r), (s, w_s))
                read = [
                    v.load(builder.add(x_at, offset), mask)
                    for offset, mask in zip(offsets, masks, strict=True)
                ]
                for f in range(filters):
                    weight = v.splat(v.number(v.address(w_at, (w_f, f))))
                    for i in range(vectors):
                        v.multiply_add(totals[f][i], weight, read[i])
            # Without ReLU nothing is less than the least value.
            zero, least = v.element(0), v.element(-np.inf)
            floor = v.splat(builder.select(builder.icmp_signed("!=", relu, WORD(0)), zero, least))
            for f in range(filters):
                for i, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
                    y = builder.load(totals[f][i])
                    y = builder.select(builder.fcmp_ordered(">", floor, y), floor, y)
                    v.store(y, v.address(builder.add(out, offset), (out_f, f)), mask)
            return context.get_dummy_value()

        word = types.int64
        return types.void(*(word,) * 8), generate

    return tile


def rows_kernel(code, filters, vectors):
    """Return the kernel of y or of the gradient of x, for tiles of so many filters and vectors."""
    tail_vectors = (vectors + 1) // 2
    whole = _tile(code, filters, vectors, masked=False)
    tail = _tile(code, filters, tail_vectors, masked=True)
    item = NUMBERS[code][2]
    width, tail_width = vectors * lanes_of(code), tail_vectors * lanes_of(code)

    def kernel(r):
        first, last, groups, blocks, group_filters, images = r[0], r[1], r[2], r[3], r[4], r[5]
        rows, row_table, segments, segment_table = r[6], r[7], r[8], r[9]
        x_start, x_model, w_start, w_model = r[10], r[11], r[12], r[13]
        bias_start, bias_model, out_start, out_model = r[14], r[15], r[16], r[17]
        x_image, x_group, w_group, out_image = r[18], r[19], r[20], r[21]
        w_f, bias_f, out_f = r[26], r[30], r[31]
        steps = address_of_words(r) + 8 * 22
        row_fields = carray(pointer(row_table), (4 * rows,), np.int64)
        fields = carray(pointer(segment_table), (5 * segments,), np.int64)
        for unit in range(first, last):
            row, rest = 4 * (unit % rows), unit // rows
            block, rest = rest % blocks, rest // blocks
            group, rest = rest % groups, rest // groups
            image, model = rest % images, rest // images
            # The last block overlaps the one before it rather than being smaller.
            w_row = w_start + model * w_model + group * w_group
            f = min(block * filters, group_filters - filters)
            w_row += f * w_f
            f += group * group_filters
            out_row = out_start + model * out_model + image * out_image + f * out_f
            x_row = x_start + model * x_model + image * x_image + group * x_group
            bias = bias_start + model * bias_model + f * bias_f
            out_row += row_fields[row]
            x_row += row_fields[row + 1]
            w_row += row_fields[row + 2]
            taps_down = row_fields[row + 3]
            for segment in range(0, 5 * segments, 5):
                out, x = out_row + fields[segment], x_row + fields[segment + 1]
                w, taps_across = w_row + fields[segment + 2], fields[segment + 3]
                left = fields[segment + 4]
                while left >= width:
                    whole(x, w, bias, out, taps_down, taps_across, left, steps)
                    x += width * item
                    out += width * item
                    left -= width
                while left > 0:
                    tail(x, w, bias, out, taps_down, taps_across, left, steps)
                    x += tail_width * item
                    out += tail_width * item
                    left -= tail_width

    return kernel


def _dot_tile(code, filters, taps):
    """Return the intrinsic that adds products of dy and x, of some filters and taps, to sums."""

    @intrinsic
    def dot_tile(context, dy, dy_f, x, offsets, totals, segments, dy_segment, x_segment, length):
        def generate(context, builder, signature, arguments):
            dy, dy_f, x, offsets, totals, segments, dy_segment, x_segment, length = arguments
            v = Vectors(code, builder)
            places = [[WORD((f * taps + k) * v.bytes) for k in range(taps)] for f in range(filters)]
            sums = v.variables(filters, taps)
            for f in range(filters):
                for k in range(taps):
                    builder.store(v.load(builder.add(totals, places[f][k])), sums[f][k])
            starts = [
                builder.add(x, builder.load(v.place(builder.add(offsets, WORD(8 * k)), WORD)))
                for k in range(taps)
            ]

            def add(dy_at, x_at, mask=None):
                rows = [v.load(v.address(dy_at, (dy_f, f)), mask) for f in range(filters)]
                for k in range(taps):
                    read = v.load(builder.add(starts[k], x_at), mask)
                    for f in range(filters):
                        v.multiply_add(sums[f][k], rows[f], read)

            whole = builder.sdiv(length, WORD(v.lanes))
            left = builder.srem(length, WORD(v.lanes))
            mask = v.mask(left)
            has_tail = builder.icmp_signed(">", left, WORD(0))
            with cgutils.for_range(builder, segments) as over_segments:
                segment = over_segments.index
                dy_at, x_at = v.address(dy, (segment, dy_segment)), builder.mul(segment, x_segment)
                with cgutils.for_range(builder, whole) as over_vectors:
                    along = builder.mul(over_vectors.index, WORD(v.bytes))
                    add(builder.add(dy_at, along), builder.add(x_at, along))
                with builder.if_then(has_tail):
                    along = builder.mul(whole, WORD(v.bytes))
                    add(builder.add(dy_at, along), builder.add(x_at, along), mask)
            for f in range(filters):
                for k in range(taps):
                    v.store(builder.load(sums[f][k]), builder.add(totals, places[f][k]))
            return context.get_dummy_value()

        word = types.int64
        return types.void(*(word,) * 9), generate

    return dot_tile


def _column_tile(code, filters, taps):
    """Return the intrinsic of `_dot_tile` for one tap, with its sums among those of `taps` taps."""

    @intrinsic
    def column_tile(context, dy, dy_f, x, totals, segments, dy_segment, x_segment, length):
        def generate(context, builder, signature, arguments):
            dy, dy_f, x, totals, segments, dy_segment, x_segment, length = arguments
            v = Vectors(code, builder)
            places = [builder.add(totals, WORD(f * taps * v.bytes)) for f in range(filters)]
            sums = v.variables(filters)
            for place, total in zip(places, sums, strict=True):
                builder.store(v.load(place), total)
            vectors = builder.sdiv(builder.add(length, WORD(v.lanes - 1)), WORD(v.lanes))
            with cgutils.for_range(builder, segments) as over_segments:
                segment = over_segments.index
                dy_at = v.address(dy, (segment, dy_segment))
                x_at = v.address(x, (segment, x_segment))
                with cgutils.for_range(builder, vectors) as over_vectors:
                    i = over_vectors.index
                    along = builder.mul(i, WORD(v.bytes))
                    mask = v.mask(builder.sub(length, builder.mul(i, WORD(v.lanes))))
                    read = v.load(builder.add(x_at, along), mask)
                    for f, total in enumerate(sums):
                        at = v.address(builder.add(dy_at, along), (dy_f, f))
                        v.multiply_add(total, v.load(at, mask), read)
            for place, total in zip(places, sums, strict=True):
                v.store(builder.load(total), place)
            return context.get_dummy_value()

        word = types.int64
        return types.void(*(word,) * 8), generate

    return column_tile


def _lane_sums(code):
    """Return intrinsics: to store the sum of a vector's lanes, and to store zeros in a vector."""

    @intrinsic
    def store_sum(context, source, target):
        def generate(context, builder, signature, arguments):
            source, target = arguments
            v = Vectors(code, builder)
            builder.store(v.total(v.load(source)), v.place(target, v.element))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    @intrinsic
    def store_zeros(context, target):
        def generate(context, builder, signature, arguments):
            v = Vectors(code, builder)
            v.store(ir.Constant(v.type, None), arguments[0])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return store_sum, store_zeros


def weights_kernel(code, filters, taps):
    """Return the kernel of the gradient of the weights, for tiles of so many filters and taps."""
    dot_tile, column_tile = _dot_tile(code, filters, taps), _column_tile(code, filters, taps)
    store_sum, store_zeros = _lane_sums(code)
    item = NUMBERS[code][2]
    vector = lanes_of(code) * item
    sums_bytes = filters * taps * vector
    scratch_bytes, offsets_bytes = ROWS_AT_ONCE * sums_bytes, 8 * taps

    def kernel(r):
        first, last, groups, filter_blocks, tap_blocks = r[0], r[1], r[2], r[3], r[4]
        group_filters, group_channels, window_rows, window_columns = r[5], r[6], r[7], r[8]
        images, out_rows, height, inner, stride = r[9], r[10], r[11], r[12], r[13]
        row_stride, row_dilation, top, ranges_at = r[14], r[15], r[16], r[17]
        x_start, x_model, dy_start, dy_model = r[18], r[19], r[20], r[21]
        out, out_model, x_image, x_c, x_row, x_column = r[22], r[23], r[24], r[25], r[26], r[27]
        dy_image, dy_f, dy_row, dy_column = r[28], r[29], r[30], r[31]
        # For each tap across: offset of its row of x from that of y, and its range of columns of y.
        ranges = carray(pointer(ranges_at), (3 * window_columns,), np.int64)
        totals = scratch(scratch_bytes)
        offsets_at = scratch(offsets_bytes)
        offsets = carray(pointer(offsets_at), (taps,), np.int64)
        unit = first
        while unit < last:
            pair, row = unit // window_rows, unit % window_rows
            end = min(window_rows, row + min(last - unit, ROWS_AT_ONCE))
            unit += end - row
            tap_block, rest = pair % tap_blocks, pair // tap_blocks
            filter_block, rest = rest % filter_blocks, rest // filter_blocks
            group, model = rest % groups, rest // groups
            first_tap = min(tap_block * taps, group_channels * window_columns - taps)
            f = group * group_filters + min(filter_block * filters, group_filters - filters)
            x_group = x_start + model * x_model + group * group_channels * x_c
            dy_block = dy_start + model * dy_model + f * dy_f
            begin, stop = np.int64(0), np.int64(1) << 60
            for k in range(taps):
                tap = first_tap + k
                s = 3 * (tap % window_columns)
                offsets[k] = tap // window_columns * x_c + ranges[s]
                begin, stop = max(begin, ranges[s + 1]), min(stop, ranges[s + 2])
            for place in range(0, (end - row) * sums_bytes, vector):
                store_zeros(totals + place)
            # Where the rows lie one behind the other in both arrays, they are one segment.
            if stride == 1:
                segments, length = 1, (stop - begin) * inner
                chunk = min(length, CHUNK_ELEMENTS)
            else:
                segments, length = stop - begin, inner
                chunk = length
            for i in range(images * out_rows):
                image, y = i // out_rows, i % out_rows
                dy_i = dy_block + image * dy_image + y * dy_row
                at = 0
                while at < length and begin < stop:
                    some = min(length - at, chunk)
                    for tap_row in range(row, end):
                        x_y = y * row_stride + tap_row * row_dilation - top
                        if 0 <= x_y < height:
                            dot_tile(
                                dy_i + begin * dy_column + at * item,
                                dy_f,
                                x_group
                                + image * x_image
                                + x_y * x_row
                                + begin * x_column
                                + at * item,
                                offsets_at,
                                totals + (tap_row - row) * sums_bytes,
                                segments,
                                dy_column,
                                x_column,
                                some,
                            )
                    at += some
                for k in range(taps):
                    s = 3 * ((first_tap + k) % window_columns)
                    for side in range(2):
                        # Columns of this tap to the left of those that all taps have, then right.
                        if begin >= stop:
                            start, enough = ranges[s + 1], ranges[s + 2] * (1 - side)
                        elif side == 0:
                            start, enough = ranges[s + 1], begin
                        else:
                            start, enough = stop, ranges[s + 2]
                        if start >= enough:
                            continue
                        for tap_row in range(row, end):
                            x_y = y * row_stride + tap_row * row_dilation - top
                            if 0 <= x_y < height:
                                column_tile(
                                    dy_i + start * dy_column,
                                    dy_f,
                                    x_group
                                    + image * x_image
                                    + x_y * x_row
                                    + start * x_column
                                    + offsets[k],
                                    totals + (tap_row - row) * sums_bytes + k * vector,
                                    1 if stride == 1 else enough - start,
                                    dy_column,
                                    x_column,
                                    (enough - start) * inner if stride == 1 else inner,
                                )
            for tap_row in range(row, end):
                for j in range(filters):
                    for k in range(taps):
                        c = (first_tap + k) // window_columns
                        s = (first_tap + k) % window_columns
                        w = ((f + j) * group_channels + c) * window_rows + tap_row
                        store_sum(
                            totals + (tap_row - row) * sums_bytes + (j * taps + k) * vector,
                            out + model * out_model + (w * window_columns + s) * item,
                        )

    return kernel
