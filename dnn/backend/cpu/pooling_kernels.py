"""Compiled kernels of pooling: a line of windows, some vectors at once, all taps in registers.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, WORD, Vectors

__all__ = ["pooling_kernel"]


class _Taps:
    """Loops over the taps of windows, and reads and writes the elements of x that they meet."""

    def __init__(self, v, is_row, x, rows, columns, steps, masks, row):
        self.v, self.is_row, self.x, self.masks = v, is_row, x, masks
        self.rows, self.columns, self.steps, self.row = rows, columns, steps, row

    @contextmanager
    def each(self):
        """Open the loops; yield a tap's number, from 0, and pointers and mask of each vector."""
        b, v = self.v.builder, self.v
        with (
            cgutils.for_range(b, self.rows) as over_r,
            cgutils.for_range(b, self.columns) as over_s,
        ):
            r, s = over_r.index, over_s.index
            at = v.address(self.x, (r, self.steps[0]), (s, self.steps[1]))
            places = []
            for i, mask in enumerate(self.masks):
                if not self.is_row:
                    places.append((b.add(at, WORD(i * v.bytes)), mask))
                    continue
                # Windows of a row: which columns of x this tap meets, and which of them there are.
                first, width, stride = self.row
                begin = b.add(first, b.mul(stride, WORD(i * v.lanes)))
                columns = b.add(v.words(b.add(begin, s)), b.mul(v.words(stride), v.count()))
                inside = b.icmp_unsigned("<", columns, v.words(width))
                step = b.mul(stride, WORD(v.item))
                shifted = b.add(at, b.mul(step, WORD(i * v.lanes)))
                places.append((v.places(shifted, step), b.and_(mask, inside)))
            yield b.add(b.mul(r, self.columns), s), places

    def load(self, place, other):
        at, mask = place
        return self.v.gather(at, mask, other) if self.is_row else self.v.load(at, mask, other)

    def store(self, values, place):
        at, mask = place
        if self.is_row:
            self.v.scatter(values, at, mask)
        else:
            self.v.store(values, at, mask)


def _tile(kind, code, is_row, overlaps, vectors):
    """Return the intrinsic of some vectors of a line; gradients add to dx if windows overlap."""

    @intrinsic
    def tile(context, x, y, given, rows, columns, x_row, x_tap, left, first, width, stride, counts):
        """Compute y from x; or dx, at `x`, from dy, at `y`, and x, `given` bytes further on."""

        def generate(context, builder, signature, arguments):
            x, y, given, rows, columns, x_row, x_tap, left, first, width, stride, counts = arguments
            v = Vectors(code, builder)
            masks = [v.mask(builder.sub(left, WORD(i * v.lanes))) for i in range(vectors)]
            lines = [builder.add(y, WORD(i * v.bytes)) for i in range(vectors)]
            start = builder.add(x, given) if kind == "max_gradient" else x
            shape = rows, columns, (x_row, x_tap), masks, (first, width, stride)
            taps = _Taps(v, is_row, start, *shape)
            zero = ir.Constant(v.type, None)
            least = v.splat(v.element(-np.inf))

            def count(i):
                """Return how many elements each window has."""
                if is_row:
                    one = v.splat(v.element(1))
                    return v.load(builder.add(counts, WORD(i * v.bytes)), masks[i], one)
                return v.splat(v.number(counts))

            def spread(shares):
                """Write the shares of each element of dx, or add them where windows overlap."""
                with _Taps(v, is_row, x, *shape).each() as (number, places):
                    for i, place in enumerate(places):
                        share = shares(number, i)
                        if overlaps:
                            share = builder.fadd(taps.load(place, zero), share)
                        taps.store(share, place)

            if kind == "average_gradient":
                dy = [v.load(line, mask) for line, mask in zip(lines, masks, strict=True)]
                parts = [builder.fdiv(part, count(i)) for i, part in enumerate(dy)]
                spread(lambda number, i: parts[i])
                return context.get_dummy_value()

            found = v.variables(vectors)
            for variable in found:
                builder.store(zero if kind == "average" else least, variable)
            if kind == "average":
                with taps.each() as (_, places):
                    for variable, place in zip(found, places, strict=True):
                        total = builder.fadd(builder.load(variable), taps.load(place, zero))
                        builder.store(total, variable)
                for i, variable in enumerate(found):
                    mean = builder.fdiv(builder.load(variable), count(i))
                    v.store(mean, lines[i], masks[i])
                return context.get_dummy_value()

            # NaN counts as larger than all numbers.
            where = v.variables(vectors)
            for variable in where:
                builder.store(v.splat(v.element(-1)), variable)
            with taps.each() as (number, places):
                tap = v.splat(builder.sitofp(number, v.element))
                for i, place in enumerate(places):
                    best, value = builder.load(found[i]), taps.load(place, least)
                    earlier = builder.or_(
                        builder.fcmp_ordered(">=", best, value),
                        builder.fcmp_unordered("uno", best, best),
                    )
                    if kind == "max_gradient":
                        at = builder.load(where[i])
                        # Of elements that are all -inf the first is the largest.
                        is_found = builder.fcmp_ordered(">=", at, zero)
                        earlier = builder.and_(earlier, is_found)
                        earlier = builder.or_(earlier, builder.not_(place[1]))
                        builder.store(builder.select(earlier, at, tap), where[i])
                    builder.store(builder.select(earlier, best, value), found[i])
            if kind == "max":
                for variable, line, mask in zip(found, lines, masks, strict=True):
                    v.store(builder.load(variable), line, mask)
                return context.get_dummy_value()
            dy = [v.load(line, mask) for line, mask in zip(lines, masks, strict=True)]
            at = [builder.load(variable) for variable in where]

            def share(number, i):
                tap = v.splat(builder.sitofp(number, v.element))
                return builder.select(builder.fcmp_ordered("==", at[i], tap), dy[i], zero)

            spread(share)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 12), generate

    return tile


def _zeros(code):
    @intrinsic
    def store_zeros(context, start, left):
        def generate(context, builder, signature, arguments):
            start, left = arguments
            v = Vectors(code, builder)
            v.store(ir.Constant(v.type, None), start, v.mask(left))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store_zeros


def pooling_kernel(kind, code, is_row, overlaps, vectors):
    """Return the kernel of `pooling`, where a line is a row of windows or lies within one.

    `overlaps` says of a gradient that dx is added to zeros, since windows overlap or leave gaps.
    """
    tile, store_zeros = _tile(kind, code, is_row, overlaps, vectors), _zeros(code)
    item, lanes = NUMBERS[code][2], lanes_of(code)
    some = vectors * lanes
    clears = overlaps and kind.endswith("gradient")

    def kernel(r):
        first_map, last_map, height, width, inner = r[0], r[1], r[2], r[3], r[4]
        out_height, out_width, rows, columns = r[5], r[6], r[7], r[8]
        down, across, top, before, counts = r[9], r[10], r[11], r[12], r[13]
        x_start, y_start, given = r[14], r[15], r[16]
        map_elements = height * width * inner
        lines, length = (1, out_width) if is_row else (out_width, inner)
        for a in range(first_map, last_map):
            x_map = x_start + a * map_elements * item
            y = y_start + a * out_height * out_width * inner * item
            if clears:
                for k in range(0, map_elements, lanes):
                    store_zeros(x_map + k * item, map_elements - k)
            for i in range(out_height):
                h = i * down - top
                first_row, last_row = max(h, 0), min(h + rows, height)
                for j in range(lines):
                    w = j * across - before
                    # In a row each tap meets other columns, which the tile checks by itself.
                    first = w if is_row else max(w, 0)
                    last = w + columns if is_row else min(w + columns, width)
                    x = x_map + (first_row * width + first) * inner * item
                    count = counts + (i * out_width + j) * item
                    for k in range(0, length, some):
                        tile(
                            x,
                            y + k * item,
                            given,
                            last_row - first_row,
                            last - first,
                            width * inner * item,
                            inner * item,
                            length - k,
                            first,
                            width,
                            across,
                            count,
                        )
                        x += some * item * (across if is_row else 1)
                        if is_row:
                            first += some * across
                            last += some * across
                            count += some * item
                    y += length * item

    return kernel
