"""Compiled kernels of direct convolution by rows: tiles of sums in vector registers.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.direct_rows import ROWS_AT_ONCE, RowsFields, WeightsFields
from dnn.backend.cpu.intrinsics import address_of_words, fields_type, pointer, scratch
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, WORD, Vectors, emitted, load_word, store_zeros

__all__ = ["rows_kernel", "weights_kernel"]

CHUNK_ELEMENTS = 1024
"""Elements of a row at a time, so that the rows of a tile stay in the first-level cache."""

ROWS, WEIGHTS = fields_type(RowsFields), fields_type(WeightsFields)

RowTile = namedtuple("RowTile", "x w bias out taps_down taps_across left")
"""Where a tile of y begins, where its first tap meets x and stands in w; the taps that meet x; the
elements of the row that are left."""


class _RowTile:
    """Writes the instructions for y of a block of filters, for some vectors in a row."""

    reads = namedtuple("reads", "channels x_c x_r x_s w_f w_c w_r w_s bias_f out_f relu")

    def __init__(self, v, at, fields, filters, vectors, is_masked):
        self.v, self.builder, self.at, self.fields = v, v.builder, at, fields
        self.parts = v.parts(vectors, at.left if is_masked else None)
        self.totals = v.variables(filters, vectors)

    def write(self):
        self._start()
        self._add_taps()
        self._finish()

    def _start(self):
        for f, of_filter in enumerate(self.totals):
            start = self.v.splat(self.v.number(self._of_filter(self.at.bias, f, "bias_f")))
            for total in of_filter:
                self.builder.store(start, total)

    def _add_taps(self):
        v, builder, at, m = self.v, self.builder, self.at, self.fields
        with (
            cgutils.for_range(builder, m.channels) as over_c,
            cgutils.for_range(builder, at.taps_down) as over_r,
            cgutils.for_range(builder, at.taps_across) as over_s,
        ):
            c, r, s = over_c.index, over_r.index, over_s.index
            x_at = v.address(at.x, (c, m.x_c), (r, m.x_r), (s, m.x_s))
            w_at = v.address(at.w, (c, m.w_c), (r, m.w_r), (s, m.w_s))
            read = [v.load(builder.add(x_at, offset), mask) for offset, mask in self.parts]
            for f, of_filter in enumerate(self.totals):
                weight = v.splat(v.number(self._of_filter(w_at, f, "w_f")))
                for total, values in zip(of_filter, read, strict=True):
                    v.multiply_add(total, weight, values)

    def _finish(self):
        v, builder = self.v, self.builder
        for f, of_filter in enumerate(self.totals):
            for total, (offset, mask) in zip(of_filter, self.parts, strict=True):
                y = v.at_least(self.fields.relu, builder.load(total))
                place = self._of_filter(builder.add(self.at.out, offset), f, "out_f")
                v.store(y, place, mask)

    def _of_filter(self, start, f, step):
        return self.v.address(start, (getattr(self.fields, step), f))


def rows_kernel(code, filters, vectors):
    """Return the kernel of y or of the gradient of x, for tiles of so many filters and vectors."""
    tail_vectors = (vectors + 1) // 2
    whole = emitted(_RowTile, code, filters, vectors, False)
    tail = emitted(_RowTile, code, filters, tail_vectors, True)
    item = NUMBERS[code][2]
    width, tail_width = vectors * lanes_of(code), tail_vectors * lanes_of(code)

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), ROWS)[0]
        rows = carray(pointer(m.row_table), (4 * m.rows,), np.int64)
        segments = carray(pointer(m.segment_table), (5 * m.segments,), np.int64)
        for unit in range(m.first, m.last):
            row, rest = 4 * (unit % m.rows), unit // m.rows
            block, rest = rest % m.blocks, rest // m.blocks
            group, rest = rest % m.groups, rest // m.groups
            image, model = rest % m.images, rest // m.images
            # The last block overlaps the one before it rather than being smaller.
            f = min(block * filters, m.group_filters - filters)
            w_row = m.w + model * m.w_model + group * m.w_group + f * m.w_f + rows[row + 2]
            f += group * m.group_filters
            out_row = m.out + model * m.out_model + image * m.out_image + f * m.out_f + rows[row]
            x_row = m.x + model * m.x_model + image * m.x_image + group * m.x_group + rows[row + 1]
            bias = m.bias + model * m.bias_model + f * m.bias_f
            down = rows[row + 3]
            for segment in range(0, 5 * m.segments, 5):
                out, x = out_row + segments[segment], x_row + segments[segment + 1]
                w, across = w_row + segments[segment + 2], segments[segment + 3]
                left = segments[segment + 4]
                while left >= width:
                    whole(RowTile(x, w, bias, out, down, across, left), m)
                    x += width * item
                    out += width * item
                    left -= width
                while left > 0:
                    tail(RowTile(x, w, bias, out, down, across, left), m)
                    x += tail_width * item
                    out += tail_width * item
                    left -= tail_width

    return kernel


DotTile = namedtuple("DotTile", "dy x offsets totals segments dy_segment x_segment length")
"""Where a tile reads dy and x, in so many segments of a length and apart so many bytes; the list of
offsets of x by tap; where its sums are."""


class _DotTile:
    """Writes the instructions that add products of dy and x, of filters and taps, to sums."""

    reads = namedtuple("reads", "dy_f")

    def __init__(self, v, at, fields, filters, taps):
        self.v, self.builder, self.at, self.fields = v, v.builder, at, fields
        self.filters, self.taps = range(filters), range(taps)
        self.sums = v.variables(filters, taps)

    def write(self):
        self._move_sums(load=True)
        self.starts = self._starts()
        with cgutils.for_range(self.builder, self.at.segments) as over_segments:
            segment = over_segments.index
            dy_at = self.v.address(self.at.dy, (segment, self.at.dy_segment))
            self._add_segment(dy_at, self.builder.mul(segment, self.at.x_segment))
        self._move_sums(load=False)

    def _move_sums(self, load):
        """Load the sums from memory, or store them there."""
        v, builder = self.v, self.builder
        for f in self.filters:
            for k in self.taps:
                offset = WORD((f * len(self.taps) + k) * v.bytes)
                place = builder.add(self.at.totals, offset)
                if load:
                    builder.store(v.load(place), self.sums[f][k])
                else:
                    v.store(builder.load(self.sums[f][k]), place)

    def _starts(self):
        """Return where each tap begins to read x."""
        builder = self.builder
        places = [builder.add(self.at.offsets, WORD(8 * k)) for k in self.taps]
        return [builder.add(self.at.x, load_word(builder, place)) for place in places]

    def _add_segment(self, dy_at, x_at):
        v, builder = self.v, self.builder
        whole = builder.sdiv(self.at.length, WORD(v.lanes))
        left = builder.srem(self.at.length, WORD(v.lanes))
        with cgutils.for_range(builder, whole) as over_vectors:
            along = builder.mul(over_vectors.index, WORD(v.bytes))
            self._add(builder.add(dy_at, along), builder.add(x_at, along))
        with builder.if_then(builder.icmp_signed(">", left, WORD(0))):
            along = builder.mul(whole, WORD(v.bytes))
            self._add(builder.add(dy_at, along), builder.add(x_at, along), v.mask(left))

    def _add(self, dy_at, x_at, mask=None):
        v, builder = self.v, self.builder
        dy = [v.load(v.address(dy_at, (self.fields.dy_f, f)), mask) for f in self.filters]
        for k in self.taps:
            x = v.load(builder.add(self.starts[k], x_at), mask)
            for f in self.filters:
                v.multiply_add(self.sums[f][k], dy[f], x)


class _ColumnTile(_DotTile):
    """The same for a single tap, whose sums are among those of several: few, shorter segments."""

    def __init__(self, v, at, fields, filters, taps):
        super().__init__(v, at, fields, filters, 1)
        self.stride = taps

    def _move_sums(self, load):
        v, builder = self.v, self.builder
        for f in self.filters:
            place = builder.add(self.at.totals, WORD(f * self.stride * v.bytes))
            if load:
                builder.store(v.load(place), self.sums[f][0])
            else:
                v.store(builder.load(self.sums[f][0]), place)

    def _starts(self):
        return [self.at.x]

    def _add_segment(self, dy_at, x_at):
        v, builder = self.v, self.builder
        vectors = builder.sdiv(builder.add(self.at.length, WORD(v.lanes - 1)), WORD(v.lanes))
        with cgutils.for_range(builder, vectors) as over_vectors:
            i = over_vectors.index
            along = builder.mul(i, WORD(v.bytes))
            mask = v.mask(builder.sub(self.at.length, builder.mul(i, WORD(v.lanes))))
            self._add(builder.add(dy_at, along), builder.add(x_at, along), mask)


def _store_sum(code):
    """Return the function of kernels that stores the sum of a vector's lanes."""

    @intrinsic
    def store_sum(context, source, target):
        def generate(context, builder, signature, arguments):
            source, target = arguments
            v = Vectors(code, builder)
            builder.store(v.total(v.load(source)), v.place(target, v.element))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store_sum


Block = namedtuple("Block", "f x dy row end first_tap begin stop totals offsets out")
"""Filters and taps of a tile, and rows of the window: the first filter, x and dy of its group, rows
from `row` to `end`, the first tap, the columns of y from `begin` to `stop` that all taps meet, the
memory of sums and of offsets, and dw of the model."""


def weights_kernel(code, filters, taps):
    """Return the kernel of the gradient of the weights, for tiles of so many filters and taps."""
    dot_tile = emitted(_DotTile, code, filters, taps)
    column_tile = emitted(_ColumnTile, code, filters, taps)
    store_sum, clear = _store_sum(code), store_zeros(code)
    lanes, item = lanes_of(code), NUMBERS[code][2]
    vector = lanes * item
    sums_bytes = filters * taps * vector
    scratch_bytes, offsets_bytes = ROWS_AT_ONCE * sums_bytes, 8 * taps

    @njit(inline="always", **FLAGS)
    def ranges_of(m):
        """Return for each tap across the offset of its row of x, and its range of columns of y."""
        return carray(pointer(m.ranges), (3 * m.window_columns,), np.int64)

    @njit(inline="always", **FLAGS)
    def block_of(m, totals, offsets_at, pair, row, end):
        """Return a block, and list the offsets of its taps."""
        tap_block, rest = pair % m.tap_blocks, pair // m.tap_blocks
        filter_block, rest = rest % m.filter_blocks, rest // m.filter_blocks
        group, model = rest % m.groups, rest // m.groups
        first_tap = min(tap_block * taps, m.group_channels * m.window_columns - taps)
        f = group * m.group_filters + min(filter_block * filters, m.group_filters - filters)
        offsets, ranges = carray(pointer(offsets_at), (taps,), np.int64), ranges_of(m)
        begin, stop = np.int64(0), np.int64(1) << 60
        for k in range(taps):
            tap = first_tap + k
            s = 3 * (tap % m.window_columns)
            offsets[k] = tap // m.window_columns * m.x_c + ranges[s]
            begin, stop = max(begin, ranges[s + 1]), min(stop, ranges[s + 2])
        x = m.x + model * m.x_model + group * m.group_channels * m.x_c
        dy = m.dy + model * m.dy_model + f * m.dy_f
        out = m.out + model * m.out_model
        return Block(f, x, dy, row, end, first_tap, begin, stop, totals, offsets_at, out)

    @njit(inline="always", **FLAGS)
    def add_common(m, b, dy, x, y):
        """Add the products of the columns of a row of y that all taps meet."""
        # Where the rows lie one behind the other in both arrays, they are one segment.
        if m.stride == 1:
            segments, length = 1, (b.stop - b.begin) * m.inner
            chunk = min(length, CHUNK_ELEMENTS)
        else:
            segments, length = b.stop - b.begin, m.inner
            chunk = length
        dy_at, x_at = dy + b.begin * m.dy_column, x + b.begin * m.x_column
        at = 0
        while at < length and b.begin < b.stop:
            some = min(length - at, chunk)
            for row in range(b.row, b.end):
                h = y * m.row_stride + row * m.row_dilation - m.top
                if 0 <= h < m.height:
                    sums = b.totals + (row - b.row) * sums_bytes
                    x_row = x_at + h * m.x_row + at * item
                    dot_tile(
                        DotTile(
                            dy_at + at * item, x_row, b.offsets, sums,
                            segments, m.dy_column, m.x_column, some,
                        ),
                        m,
                    )  # fmt: skip
            at += some

    @njit(inline="always", **FLAGS)
    def add_border(m, b, dy, x, y, k, start, stop):
        """Add the products of further columns that a tap meets in a row of y."""
        offset = carray(pointer(b.offsets), (taps,), np.int64)[k]
        segments = 1 if m.stride == 1 else stop - start
        length = (stop - start) * m.inner if m.stride == 1 else m.inner
        for row in range(b.row, b.end):
            h = y * m.row_stride + row * m.row_dilation - m.top
            if 0 <= h < m.height:
                sums = b.totals + (row - b.row) * sums_bytes + k * vector
                x_at = x + h * m.x_row + start * m.x_column + offset
                column_tile(
                    DotTile(
                        dy + start * m.dy_column, x_at, 0, sums,
                        segments, m.dy_column, m.x_column, length,
                    ),
                    m,
                )  # fmt: skip

    @njit(inline="always", **FLAGS)
    def add_borders(m, b, dy, x, y):
        """Add the columns of each tap left of those that all taps meet, then right."""
        ranges = ranges_of(m)
        for k in range(taps):
            s = 3 * ((b.first_tap + k) % m.window_columns)
            for side in range(2):
                if b.begin >= b.stop:
                    start, stop = ranges[s + 1], ranges[s + 2] * (1 - side)
                elif side == 0:
                    start, stop = ranges[s + 1], b.begin
                else:
                    start, stop = b.stop, ranges[s + 2]
                if start < stop:
                    add_border(m, b, dy, x, y, k, start, stop)

    @njit(inline="always", **FLAGS)
    def write(m, b):
        """Write the sums to dw."""
        for row in range(b.row, b.end):
            for j in range(filters):
                for k in range(taps):
                    c = (b.first_tap + k) // m.window_columns
                    s = (b.first_tap + k) % m.window_columns
                    w = ((b.f + j) * m.group_channels + c) * m.window_rows + row
                    sums = b.totals + (row - b.row) * sums_bytes + (j * taps + k) * vector
                    store_sum(sums, b.out + (w * m.window_columns + s) * item)

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), WEIGHTS)[0]
        totals, offsets = scratch(scratch_bytes), scratch(offsets_bytes)
        unit = m.first
        while unit < m.last:
            pair, row = unit // m.window_rows, unit % m.window_rows
            end = min(m.window_rows, row + min(m.last - unit, ROWS_AT_ONCE))
            unit += end - row
            b = block_of(m, totals, offsets, pair, row, end)
            for place in range(0, (end - row) * sums_bytes, vector):
                clear(totals + place, lanes)
            for i in range(m.images * m.out_rows):
                image, y = i // m.out_rows, i % m.out_rows
                dy, x = b.dy + image * m.dy_image + y * m.dy_row, b.x + image * m.x_image
                add_common(m, b, dy, x, y)
                add_borders(m, b, dy, x, y)
            write(m, b)

    return kernel
