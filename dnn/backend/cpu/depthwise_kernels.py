"""Compiled kernels of depthwise convolution; `depthwise` makes their records.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import carray, njit
from numba.core import cgutils

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.depthwise import TAPS, VECTORS, TapsFields, WeightsFields
from dnn.backend.cpu.intrinsics import address_of_words, fields_type, pointer, scratch
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, emitted, store_zeros

__all__ = ["taps_kernel", "weights_kernel"]

OF_TAPS, OF_WEIGHTS = fields_type(TapsFields), fields_type(WeightsFields)

Pixel = namedtuple("Pixel", "x w bias out rows columns left")
"""Where a pixel of y is, where its first tap meets x and stands in w; the rows and columns of taps
that meet x; the channels that are left."""


class _Channels:
    """Writes instructions for some vectors of channels."""

    def __init__(self, v, at, fields):
        self.v, self.builder, self.at, self.fields = v, v.builder, at, fields
        parts, variables = v.parts(VECTORS, at.left), v.variables(VECTORS)
        self.each = [(*part, total) for part, total in zip(parts, variables, strict=True)]

    def _start(self, address, is_masked):
        """Begin each sum with what is at an address."""
        for offset, mask, total in self.each:
            read = self.v.load(self.builder.add(address, offset), mask if is_masked else None)
            self.builder.store(read, total)

    def _add(self, x_at, w_at):
        """Add the products of two vectors to the sums."""
        v, builder = self.v, self.builder
        for offset, mask, total in self.each:
            read = v.load(builder.add(x_at, offset), mask)
            v.multiply_add(total, read, v.load(builder.add(w_at, offset), mask))


class _Pixel(_Channels):
    """Writes the instructions for some channels of one pixel, from the taps that meet x."""

    reads = namedtuple("reads", "x_r x_s w_r w_s relu")

    def write(self):
        v, builder, at, m = self.v, self.builder, self.at, self.fields
        self._start(at.bias, True)
        with (
            cgutils.for_range(builder, at.rows) as over_r,
            cgutils.for_range(builder, at.columns) as over_s,
        ):
            r, s = over_r.index, over_s.index
            self._add(
                v.address(at.x, (r, m.x_r), (s, m.x_s)), v.address(at.w, (r, m.w_r), (s, m.w_s))
            )
        for offset, mask, total in self.each:
            v.store(v.at_least(m.relu, builder.load(total)), builder.add(at.out, offset), mask)


def taps_kernel(code):
    """Return the kernel of y, and of the gradient of x."""
    tile = emitted(_Pixel, code)
    item = NUMBERS[code][2]
    some = VECTORS * lanes_of(code)

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), OF_TAPS)[0]
        down = carray(pointer(m.row_table), (4 * m.rows,), np.int64)
        across = carray(pointer(m.column_table), (4 * m.columns,), np.int64)
        for unit in range(m.first, m.last):
            row, rest = 4 * (unit % m.rows), unit // m.rows
            image, model = rest % m.images, rest // m.images
            out_row = m.out + model * m.out_model + image * m.out_image + down[row]
            x_row = m.x + model * m.x_model + image * m.x_image + down[row + 1]
            w_row = m.w + model * m.w_model + down[row + 2]
            bias, met = m.bias + model * m.bias_model, down[row + 3]
            for j in range(0, 4 * m.columns, 4):
                x, w, out = x_row + across[j + 1], w_row + across[j + 2], out_row + across[j]
                for c in range(0, m.channels, some):
                    k, left = c * item, m.channels - c
                    tile(Pixel(x + k, w + k, bias + k, out + k, met, across[j + 3], left), m)

    return kernel


Dot = namedtuple("Dot", "x dy x_step dy_step columns left totals")
"""Where pixels of x and dy begin, and the bytes from one to the next; their number; the channels
that are left; where the sums are."""


class _Dot(_Channels):
    """Writes the instructions that add products of x and dy along a row to sums."""

    reads = namedtuple("reads", "")

    def write(self):
        v, builder, at = self.v, self.builder, self.at
        self._start(at.totals, False)
        with cgutils.for_range(builder, at.columns) as over_j:
            x_at = v.address(at.x, (over_j.index, at.x_step))
            self._add(x_at, v.address(at.dy, (over_j.index, at.dy_step)))
        for offset, _, total in self.each:
            v.store(builder.load(total), builder.add(at.totals, offset))


def weights_kernel(code):
    """Return the kernel of the gradient of the weights."""
    dot, clear = emitted(_Dot, code), store_zeros(code)
    _, number, item = NUMBERS[code]
    lanes = lanes_of(code)
    some = VECTORS * lanes
    sums_bytes = some * item
    scratch_bytes = TAPS * sums_bytes

    @njit(inline="always", **FLAGS)
    def add_row(m, x, dy, y, row, end, left, totals):
        """Add the products of a row of dy and the rows of x that rows of the window meet."""
        column = m.channels * item
        for tap_row in range(row, end):
            h = y * m.row_stride + tap_row * m.row_dilation - m.top
            if not 0 <= h < m.height:
                continue
            for s in range(m.window_columns):
                shift = s * m.dilation - m.left
                if shift >= m.width:
                    continue
                # The columns j of y for which j * stride + shift is one of x.
                begin = 0 if shift >= 0 else (m.stride - 1 - shift) // m.stride
                stop = min(m.out_columns, (m.width - 1 - shift) // m.stride + 1)
                if begin < stop:
                    x_at = x + h * m.x_row + (begin * m.stride + shift) * column
                    sums = totals + ((tap_row - row) * m.window_columns + s) * sums_bytes
                    dot(
                        Dot(
                            x_at, dy + begin * column, m.stride * column, column,
                            stop - begin, left, sums,
                        ),
                        m,
                    )  # fmt: skip

    @njit(inline="always", **FLAGS)
    def write(m, totals, model, c, row, end):
        """Write the sums of some channels and rows of the window to dw."""
        taps = m.window_rows * m.window_columns
        out = carray(pointer(m.out + model * m.out_model), (m.channels * taps,), number)
        found = carray(pointer(totals), (TAPS * some,), number)
        for tap in range((end - row) * m.window_columns):
            for k in range(min(some, m.channels - c)):
                place = (c + k) * taps + row * m.window_columns + tap
                out[place] = found[tap * some + k]

    def kernel(r):
        m = carray(pointer(address_of_words(r)), (1,), OF_WEIGHTS)[0]
        totals = scratch(scratch_bytes)
        rows_at_once = max(1, TAPS // m.window_columns)
        unit = m.first
        while unit < m.last:
            # Some rows of the window together: x and dy are read once for all of them.
            row, rest = unit % m.window_rows, unit // m.window_rows
            end = min(m.window_rows, row + min(m.last - unit, rows_at_once))
            unit += end - row
            c, model = rest % m.chunks * some, rest // m.chunks
            x = m.x + model * m.x_model + c * item
            dy = m.dy + model * m.dy_model + c * item
            for place in range(0, (end - row) * m.window_columns * sums_bytes, lanes * item):
                clear(totals + place, lanes)
            for i in range(m.images * m.out_rows):
                image, y = i // m.out_rows, i % m.out_rows
                x_image, dy_row = x + image * m.x_image, dy + image * m.dy_image + y * m.dy_row
                add_row(m, x_image, dy_row, y, row, end, m.channels - c, totals)
            write(m, totals, model, c, row, end)

    return kernel
