"""Compiled kernels of depthwise convolution; `depthwise` makes their records.

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

from dnn.backend.cpu.depthwise import TAPS, VECTORS
from dnn.backend.cpu.intrinsics import address_of_words, pointer, scratch
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, WORD, Vectors

__all__ = ["taps_kernel", "weights_kernel"]


def _tile(code):
    """Return the intrinsic that computes some channels of one pixel, from the taps that meet x."""

    @intrinsic
    def tile(context, x, w, bias, out, rows, columns, left, steps):
        def generate(context, builder, signature, arguments):
            x, w, bias, out, rows, columns, left, steps = arguments
            v = Vectors(code, builder)
            x_r, x_s, w_r, w_s, relu = [
                builder.load(v.place(builder.add(steps, WORD(8 * i)), WORD)) for i in range(5)
            ]
            offsets = [WORD(i * v.bytes) for i in range(VECTORS)]
            masks = [v.mask(builder.sub(left, WORD(i * v.lanes))) for i in range(VECTORS)]
            each = list(zip(offsets, masks, v.variables(VECTORS), strict=True))
            for offset, mask, total in each:
                builder.store(v.load(builder.add(bias, offset), mask), total)
            with (
                cgutils.for_range(builder, rows) as over_r,
                cgutils.for_range(builder, columns) as over_s,
            ):
                r, s = over_r.index, over_s.index
                x_at, w_at = v.address(x, (r, x_r), (s, x_s)), v.address(w, (r, w_r), (s, w_s))
                for offset, mask, total in each:
                    read = v.load(builder.add(x_at, offset), mask)
                    v.multiply_add(total, read, v.load(builder.add(w_at, offset), mask))
            zero, least = v.element(0), v.element(-np.inf)
            floor = v.splat(builder.select(builder.icmp_signed("!=", relu, WORD(0)), zero, least))
            for offset, mask, total in each:
                y = builder.load(total)
                y = builder.select(builder.fcmp_ordered(">", floor, y), floor, y)
                v.store(y, builder.add(out, offset), mask)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 8), generate

    return tile


def taps_kernel(code):
    """Return the kernel of y, and of the gradient of x."""
    tile = _tile(code)
    item = NUMBERS[code][2]
    some = VECTORS * lanes_of(code)

    def kernel(r):
        x_start, x_model, w_start, w_model = r[2], r[3], r[4], r[5]
        bias_start, bias_model, out_start, out_model = r[6], r[7], r[8], r[9]
        images, channels, x_image, out_image = r[10], r[11], r[12], r[13]
        rows, row_table, columns, column_table = r[14], r[15], r[16], r[17]
        steps = address_of_words(r) + 8 * 18
        down = carray(pointer(row_table), (4 * rows,), np.int64)
        across = carray(pointer(column_table), (4 * columns,), np.int64)
        for unit in range(r[0], r[1]):
            row, rest = 4 * (unit % rows), unit // rows
            image, model = rest % images, rest // images
            out_row = out_start + model * out_model + image * out_image + down[row]
            x_row = x_start + model * x_model + image * x_image + down[row + 1]
            w_row = w_start + model * w_model + down[row + 2]
            bias = bias_start + model * bias_model
            for j in range(0, 4 * columns, 4):
                for c in range(0, channels, some):
                    tile(
                        x_row + across[j + 1] + c * item,
                        w_row + across[j + 2] + c * item,
                        bias + c * item,
                        out_row + across[j] + c * item,
                        down[row + 3],
                        across[j + 3],
                        channels - c,
                        steps,
                    )

    return kernel


def _dot(code):
    """Return intrinsics: to add products of x and dy along a row to sums, and to clear sums."""

    @intrinsic
    def dot(context, x, dy, x_step, dy_step, columns, left, totals):
        def generate(context, builder, signature, arguments):
            x, dy, x_step, dy_step, columns, left, totals = arguments
            v = Vectors(code, builder)
            offsets = [WORD(i * v.bytes) for i in range(VECTORS)]
            masks = [v.mask(builder.sub(left, WORD(i * v.lanes))) for i in range(VECTORS)]
            each = list(zip(offsets, masks, v.variables(VECTORS), strict=True))
            for offset, _, total in each:
                builder.store(v.load(builder.add(totals, offset)), total)
            with cgutils.for_range(builder, columns) as over_j:
                x_at, dy_at = (
                    v.address(start, (over_j.index, step))
                    for start, step in ((x, x_step), (dy, dy_step))
                )
                for offset, mask, total in each:
                    read = v.load(builder.add(x_at, offset), mask)
                    v.multiply_add(total, read, v.load(builder.add(dy_at, offset), mask))
            for offset, _, total in each:
                v.store(builder.load(total), builder.add(totals, offset))
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 7), generate

    @intrinsic
    def clear(context, totals):
        def generate(context, builder, signature, arguments):
            v = Vectors(code, builder)
            for i in range(VECTORS):
                at = builder.add(arguments[0], WORD(i * v.bytes))
                v.store(ir.Constant(v.type, None), at)
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return dot, clear


def weights_kernel(code):
    """Return the kernel of the gradient of the weights."""
    dot, clear = _dot(code)
    _, number, item = NUMBERS[code]
    some = VECTORS * lanes_of(code)
    sums_bytes = some * item
    scratch_bytes = TAPS * sums_bytes

    def kernel(r):
        x_start, x_model, dy_start, dy_model, out_start, out_model = (
            r[2], r[3], r[4], r[5], r[6], r[7],
        )  # fmt: skip
        images, channels, x_image, dy_image, out_rows, out_columns = (
            r[8], r[9], r[10], r[11], r[12], r[14],
        )  # fmt: skip
        chunks, window_rows, window_columns = r[16], r[17], r[18]
        row_stride, stride, row_dilation, dilation = r[19], r[20], r[21], r[22]
        top, left, height, width, x_row, dy_row = r[23], r[24], r[25], r[26], r[27], r[28]
        totals = scratch(scratch_bytes)
        found = carray(pointer(totals), (TAPS * some,), number)
        column = channels * item
        rows_at_once = max(1, TAPS // window_columns)
        unit = r[0]
        while unit < r[1]:
            # Some rows of the window together: x and dy are read once for all of them.
            row, rest = unit % window_rows, unit // window_rows
            end = min(window_rows, row + min(r[1] - unit, rows_at_once))
            unit += end - row
            c, model = rest % chunks * some, rest // chunks
            x = x_start + model * x_model + c * item
            dy = dy_start + model * dy_model + c * item
            for tap in range((end - row) * window_columns):
                clear(totals + tap * sums_bytes)
            for i in range(images * out_rows):
                image, y = i // out_rows, i % out_rows
                for tap_row in range(row, end):
                    h = y * row_stride + tap_row * row_dilation - top
                    if not 0 <= h < height:
                        continue
                    for s in range(window_columns):
                        shift = s * dilation - left
                        if shift >= width:
                            continue
                        # The columns j of y for which j * stride + shift is one of x.
                        begin = 0 if shift >= 0 else (stride - 1 - shift) // stride
                        stop = min(out_columns, (width - 1 - shift) // stride + 1)
                        if begin < stop:
                            dot(
                                x + image * x_image + h * x_row + (begin * stride + shift) * column,
                                dy + image * dy_image + y * dy_row + begin * column,
                                stride * column,
                                column,
                                stop - begin,
                                channels - c,
                                totals + ((tap_row - row) * window_columns + s) * sums_bytes,
                            )
            taps = window_rows * window_columns
            out = carray(pointer(out_start + model * out_model), (channels * taps,), number)
            for tap in range((end - row) * window_columns):
                for k in range(min(some, channels - c)):
                    place = (c + k) * taps + row * window_columns + tap
                    out[place] = found[tap * some + k]

    return kernel
