"""Compiled kernels of pooling: a line of windows, some vectors at once, all taps in registers.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections import namedtuple
from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import carray
from numba.core import cgutils

from dnn.backend.cpu.intrinsics import address_of_words, fields_type, pointer
from dnn.backend.cpu.pooling import PoolingFields
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.cpu.vectors import NUMBERS, WORD, emitted, store_zeros

__all__ = ["pooling_kernel"]

FIELDS = fields_type(PoolingFields)

Windows = namedtuple("Windows", "x y rows columns x_row x_tap left first count")
"""The windows of some vectors of a line: the first tap in x, and y; how many rows and columns of x
they meet, and the bytes between these; elements of the line that are left; in a row of windows the
first window's column of x; the address of the number of elements of a window."""


class _Pooling:
    """Writes the instructions for the windows of some vectors: y from x, or dx from dy and x."""

    reads = namedtuple("reads", "given width across")

    def __init__(self, v, at, fields, kind, is_row, overlaps, vectors):
        self.v, self.builder, self.at, self.fields = v, v.builder, at, fields
        self.kind, self.is_row, self.overlaps, self.vectors = kind, is_row, overlaps, vectors
        self.offsets, self.masks = zip(*v.parts(vectors, at.left), strict=True)
        self.zero, self.least = ir.Constant(v.type, None), v.splat(v.element(-np.inf))

    def write(self):
        {
            "max": self._max,
            "max_gradient": self._max_gradient,
            "average": self._average,
            "average_gradient": self._average_gradient,
        }[self.kind]()

    def _max(self):
        largest, _ = self._largest(self.at.x)
        self._write_y([self.builder.load(variable) for variable in largest])

    def _max_gradient(self):
        """Give each dy to the tap that is the first largest."""
        v, builder = self.v, self.builder
        _, taps = self._largest(builder.add(self.at.x, self.fields.given))
        dy, found = self._dy(), [builder.load(variable) for variable in taps]

        def share(number, i):
            tap = v.splat(builder.sitofp(number, v.element))
            return builder.select(builder.fcmp_ordered("==", found[i], tap), dy[i], self.zero)

        self._spread(share)

    def _average(self):
        builder, totals = self.builder, self._variables(self.zero)
        with self._taps(self.at.x) as (_, places):
            for variable, place in zip(totals, places, strict=True):
                total = builder.fadd(builder.load(variable), self._load(place, self.zero))
                builder.store(total, variable)
        each = [(builder.load(total), self._count(i)) for i, total in enumerate(totals)]
        self._write_y([builder.fdiv(total, count) for total, count in each])

    def _average_gradient(self):
        parts = [self.builder.fdiv(dy, self._count(i)) for i, dy in enumerate(self._dy())]
        self._spread(lambda number, i: parts[i])

    def _variables(self, value):
        """Return a variable for each vector, set to a value."""
        variables = self.v.variables(self.vectors)
        for variable in variables:
            self.builder.store(value, variable)
        return variables

    @contextmanager
    def _taps(self, start):
        """Open loops over the taps; yield a tap's number, and where it meets x in each vector."""
        v, builder, at = self.v, self.builder, self.at
        with (
            cgutils.for_range(builder, at.rows) as over_r,
            cgutils.for_range(builder, at.columns) as over_s,
        ):
            r, s = over_r.index, over_s.index
            place = v.address(start, (r, at.x_row), (s, at.x_tap))
            if self.is_row:
                places = [self._of_row(place, s, i) for i in range(self.vectors)]
            else:
                places = [builder.add(place, offset) for offset in self.offsets]
                places = list(zip(places, self.masks, strict=True))
            yield builder.add(builder.mul(r, at.columns), s), places

    def _of_row(self, place, s, i):
        """Return where a tap meets x in a row of windows, which are apart, and which there are."""
        v, builder, across = self.v, self.builder, self.fields.across
        begin = builder.add(self.at.first, builder.mul(across, WORD(i * v.lanes)))
        columns = builder.add(
            v.splat(builder.add(begin, s)), builder.mul(v.splat(across), v.count())
        )
        inside = builder.icmp_unsigned("<", columns, v.splat(self.fields.width))
        step = builder.mul(across, WORD(v.item))
        shifted = builder.add(place, builder.mul(step, WORD(i * v.lanes)))
        return v.places(shifted, step), builder.and_(self.masks[i], inside)

    def _load(self, place, other):
        read = self.v.gather if self.is_row else self.v.load
        return read(*place, other)

    def _largest(self, start):
        """Return variables: the largest element of each window, and for a gradient its tap."""
        v, builder = self.v, self.builder
        elements, taps = self._variables(self.least), self._variables(v.splat(v.element(-1)))
        with self._taps(start) as (number, places):
            tap = v.splat(builder.sitofp(number, v.element))
            for element, tap_of, place in zip(elements, taps, places, strict=True):
                best, value = builder.load(element), self._load(place, self.least)
                # NaN counts as larger than all numbers.
                earlier = builder.or_(
                    builder.fcmp_ordered(">=", best, value),
                    builder.fcmp_unordered("uno", best, best),
                )
                if self.kind == "max_gradient":
                    # Of elements that are all -inf the first is the largest.
                    found = builder.load(tap_of)
                    is_found = builder.fcmp_ordered(">=", found, self.zero)
                    earlier = builder.and_(earlier, is_found)
                    earlier = builder.or_(earlier, builder.not_(place[1]))
                    builder.store(builder.select(earlier, found, tap), tap_of)
                builder.store(builder.select(earlier, best, value), element)
        return elements, taps

    def _count(self, i):
        """Return how many elements each window has."""
        if not self.is_row:
            return self.v.splat(self.v.number(self.at.count))
        one = self.v.splat(self.v.element(1))
        return self.v.load(self.builder.add(self.at.count, self.offsets[i]), self.masks[i], one)

    def _dy(self):
        lines = zip(self.offsets, self.masks, strict=True)
        return [self.v.load(self.builder.add(self.at.y, offset), mask) for offset, mask in lines]

    def _write_y(self, values):
        for value, offset, mask in zip(values, self.offsets, self.masks, strict=True):
            self.v.store(value, self.builder.add(self.at.y, offset), mask)

    def _spread(self, shares):
        """Write the shares of each element of dx, or add them where windows overlap."""
        with self._taps(self.at.x) as (number, places):
            for i, place in enumerate(places):
                share = shares(number, i)
                if self.overlaps:
                    share = self.builder.fadd(self._load(place, self.zero), share)
                write = self.v.scatter if self.is_row else self.v.store
                write(share, *place)


def pooling_kernel(kind, code, is_row, overlaps, vectors):
    """Return the kernel of `pooling`, where a line is a row of windows or lies within one.

    `overlaps` says of a gradient that dx is added to zeros, since windows overlap or leave gaps.
    """
    pool, clear = emitted(_Pooling, code, kind, is_row, overlaps, vectors), store_zeros(code)
    item, lanes = NUMBERS[code][2], lanes_of(code)
    some = vectors * lanes
    clears = overlaps and kind.endswith("gradient")

    def kernel(r):
        p = carray(pointer(address_of_words(r)), (1,), FIELDS)[0]
        # Fields of the loops are read once: y might be any memory.
        height, width, inner = p.height, p.width, p.inner
        out_height, out_width, counts = p.out_height, p.out_width, p.counts
        down, across, top, before = p.down, p.across, p.top, p.before
        window_rows, window_columns = p.rows, p.columns
        x_row, x_tap = width * inner * item, inner * item
        elements = height * width * inner
        lines, length = (1, out_width) if is_row else (out_width, inner)
        for a in range(p.first, p.last):
            x_map = p.x + a * elements * item
            y = p.y + a * out_height * out_width * inner * item
            if clears:
                for k in range(0, elements, lanes):
                    clear(x_map + k * item, elements - k)
            for i in range(out_height):
                h = i * down - top
                first_row, last_row = max(h, 0), min(h + window_rows, height)
                for j in range(lines):
                    w = j * across - before
                    # In a row each tap meets other columns, and which of them there are.
                    first = w if is_row else max(w, 0)
                    columns = window_columns if is_row else min(w + window_columns, width) - first
                    x = x_map + (first_row * width + first) * inner * item
                    count = counts + (i * out_width + j) * item
                    for k in range(0, length, some):
                        rows = last_row - first_row
                        pool(
                            Windows(
                                x, y + k * item, rows, columns, x_row, x_tap, length - k, first,
                                count,
                            ),
                            p,
                        )  # fmt: skip
                        x += some * item * (across if is_row else 1)
                        if is_row:
                            first += some * across
                            count += some * item
                    y += length * item

    return kernel
