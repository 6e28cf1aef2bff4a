"""Kernels of sums over rows, over columns, and of squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dnn.backend.cpu.kernels import SPLIT_ELEMENTS, Flags, array_kernel, cuts, loop
from dnn.backend.cpu.program import Native, Record
from dnn.backend.ops import Array, Ops

__all__ = ["sum_of_squares", "sum_over_axes"]

REORDERED: Flags = {"error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}
"""Flags of a sum whose terms may be added in any order, so that vector registers are used. The
order still depends on nothing but the length."""


@loop()
def column_sums(x: Array, out: Array) -> None:
    """Sum x, of shape (groups, rows, columns), over rows, one after the other."""
    groups, rows, columns = x.shape
    for k in range(groups):
        if rows == 0:
            for j in range(columns):
                out[k, j] = 0
            continue
        for j in range(columns):
            out[k, j] = x[k, 0, j]
        i = 1
        while i + 4 <= rows:  # four at a time: the sums are loaded and stored once
            for j in range(columns):
                total = out[k, j] + x[k, i, j]
                total = total + x[k, i + 1, j]
                total = total + x[k, i + 2, j]
                out[k, j] = total + x[k, i + 3, j]
            i += 4
        while i < rows:
            for j in range(columns):
                out[k, j] += x[k, i, j]
            i += 1


@loop()
def row_sums(x: Array, out: Array) -> None:
    """Sum x, of shape (rows, columns), over columns: blocks, whose sums are added in float64."""
    columns = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for start in range(0, columns, 1024):
            total += _block_sum(x, i, start, min(start + 1024, columns))
        out[i] = total


@loop(REORDERED)
def _block_sum(x: Array, i: int, start: int, stop: int) -> Any:
    total = x[i, start]
    for j in range(start + 1, stop):
        total += x[i, j]
    return total


def _summed(x: Array, axes: tuple[int, ...], out: Array) -> tuple[Array, Array] | None:
    """Return x as (groups, summed, kept) and `out` as (groups, kept), None if that cannot be."""
    if not axes or not (x.flags.c_contiguous and out.flags.c_contiguous) or x.dtype != out.dtype:
        return None
    first, last = min(axes), max(axes) + 1
    if len(axes) != last - first or out.size * x.size == 0:
        return None
    groups, kept = (math.prod(part) for part in (x.shape[:first], x.shape[last:]))
    return x.reshape(groups, -1, kept), out.reshape(groups, kept)


def _summed_rows(x: Array, axes: tuple[int, ...], out: Array) -> Sequence[Array] | None:
    found = _summed(x, axes, out)
    if found is None or found[0].shape[2] != 1:
        return None
    return found[0][:, :, 0], found[1][:, 0]


def _sum() -> Native:
    columns = array_kernel(column_sums, (3, 2), _summed, Ops.sum)
    rows = array_kernel(row_sums, (2, 1), _summed_rows, Ops.sum)

    def record(*arguments: Any) -> Record | None:
        return rows.record(*arguments) or columns.record(*arguments)

    return Native(record, Ops.sum, _split_sum)


def _split_sum(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    """Split sums over groups among threads, if there are as many groups as parts."""
    found = _summed(*arguments)
    if found is None or len(found[0]) < parts or arguments[0].size < SPLIT_ELEMENTS:
        return []
    x, out = found
    return [(x[cut], (1,), out[cut]) for cut in cuts(len(x), parts)]


@loop()
def sum_of_squares_loop(x: Array, out: Array) -> None:
    """Sum the squares of x, of shape (rows, columns), over columns; as `row_sums`."""
    columns = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for start in range(0, columns, 1024):
            total += _block_of_squares(x, i, start, min(start + 1024, columns))
        out[i] = total


@loop(REORDERED)
def _block_of_squares(x: Array, i: int, start: int, stop: int) -> Any:
    total = x[i, start] * x[i, start]
    for j in range(start + 1, stop):
        total += x[i, j] * x[i, j]
    return total


def _squared_rows(g: Array, squares: Array, out: Array) -> Sequence[Array] | None:
    if not (g.flags.c_contiguous and out.flags.c_contiguous) or g.dtype != out.dtype:
        return None
    return g.reshape(-1, g.shape[-1]), out.reshape(-1)


sum_over_axes = _sum()
sum_of_squares = array_kernel(sum_of_squares_loop, (2, 1), _squared_rows, Ops.sum_of_squares)
