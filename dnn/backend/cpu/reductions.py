"""Kernels of sums, softmax and cross entropy over rows, and of counting predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dnn.backend.cpu.kernels import SPLIT_ELEMENTS, Flags, array_kernel, cuts, loop
from dnn.backend.cpu.program import Native, Record
from dnn.backend.ops import Array, Ops

__all__ = ["log_softmax", "mean_cross_entropy", "sum_of_squares", "sum_over_axes", "tally_classes"]

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


COMPARED: Flags = {"error_model": "numpy", "fastmath": {"nsz", "nnan", "ninf"}}
"""Flags for comparisons whose result may be anything where there is a NaN."""

FEW_COLUMNS = 16
"""Rows of at most so many elements have a kernel of their own for each length."""


@loop()
def log_softmax_loop(
    x: Array, exponentials: Array, out: Array, flat: Any, exp: Any, log: Any, columns: int
) -> None:
    """``out = x - log(sum(exp(x)))`` for each row, shifted by the row's largest element.

    That element's own exponential is 1, so the logarithm is of ``1 + s``, where s is what the
    others add: exact for a small s too, in the elements' own precision.
    """
    rows = x.shape[0]
    given, shifted, terms = flat(x), flat(out), flat(exponentials)
    for i in range(rows):
        at = i * columns
        largest = given[at]
        for j in range(1, columns):
            largest = given[at + j] if given[at + j] > largest else largest
        for j in range(columns):
            shifted[at + j] = given[at + j] - largest
    # All at once, since rows are often shorter than a vector register.
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for i in range(rows * columns):
        terms[i] = exp(shifted[i])
    for i in range(rows):
        largest, rest = zero, zero
        for j in range(columns):
            is_largest = shifted[i * columns + j] == zero
            largest += one if is_largest else zero
            rest += zero if is_largest else terms[i * columns + j]
        terms[i] = largest - one + rest  # at an index that has been read before
    for i in range(rows):
        total = one + terms[i]
        terms[i] = log(total) - (total - one - terms[i]) / total
    for i in range(rows):
        for j in range(columns):
            shifted[i * columns + j] -= terms[i]


def _log_softmax(
    x: Array, column: Array, exponentials: Array, out: Array
) -> Sequence[Array] | None:
    arrays = (x, exponentials, out)
    if not all(array.flags.c_contiguous and array.size for array in arrays):
        return None
    return [array.reshape(-1, x.shape[-1]) for array in arrays]


def _columns(code: str, arrays: Sequence[Array]) -> str:
    first = arrays[0]
    # With a literal length the loops over a row are unrolled.
    few = first.shape[-1] <= FEW_COLUMNS
    return f", {first.shape[-1]}" if few else f", r[{first.ndim}]"


def _softmax_extra(code: str, arrays: Sequence[Array]) -> str:
    functions = f"intrinsics.flat, vector_math.exp_{code}, vector_math.log_{code}"
    return f", {functions}{_columns(code, arrays)}"


@loop()
def mean_cross_entropy_loop(log_probabilities: Array, target: Array, out: Array) -> None:
    """``-sum(target * log_probabilities) / rows``; both of shape (groups, rows, classes).

    Where the target is 0 the term is too, though the logarithm be -inf.
    """
    groups, rows, classes = target.shape
    zero = target.dtype.type(0)
    for k in range(groups):
        total = 0.0
        for i in range(rows):
            for j in range(classes):
                term = target[k, i, j] * log_probabilities[k, i, j]
                total += term if target[k, i, j] != zero else zero
        out[k] = -total / rows


def _cross_entropy(
    log_probabilities: Array, target: Array, mask: Array, terms: Array, out: Array
) -> Sequence[Array] | None:
    arrays = (log_probabilities, target, out)
    if log_probabilities.shape != target.shape or out.shape != target.shape[:-2]:
        return None
    if not all(array.flags.c_contiguous and array.size for array in arrays):
        return None
    rows = target.shape[-2:]
    return log_probabilities.reshape(-1, *rows), target.reshape(-1, *rows), out.reshape(-1)


@loop(COMPARED)
def tally_classes_loop(outputs: Array, labels: Array, tallies: Array, width: int) -> None:
    """``tallies[k, c] += 1`` for each prediction c, ``tallies[k, -1] += 1`` for each right one."""
    models, rows = labels.shape
    for k in range(models):
        right = 0
        for i in range(rows):
            best = 0
            if width == 1:
                best = 1 if outputs[k, i, 0] > 0 else 0
            else:
                # Even and odd places separately, without a branch, which the processor would
                # mispredict more often than not.
                even, odd, at_even, at_odd = outputs[k, i, 0], outputs[k, i, 1], 0, 1
                for j in range(2, width - 1, 2):
                    x, y = outputs[k, i, j], outputs[k, i, j + 1]
                    at_even += (j - at_even) * (x > even)
                    at_odd += (j + 1 - at_odd) * (y > odd)
                    even, odd = max(even, x), max(odd, y)
                if width % 2:
                    x = outputs[k, i, width - 1]
                    at_even += (width - 1 - at_even) * (x > even)
                    even = max(even, x)
                first = (odd > even) | ((odd == even) & (at_odd < at_even))
                best = at_even + (at_odd - at_even) * first
            tallies[k, best] += 1
            right += best == labels[k, i]
        tallies[k, tallies.shape[1] - 1] += right


def _tally(outputs: Array, labels: Array, guesses: Array, tallies: Array) -> Sequence[Array] | None:
    if not all(x.flags.c_contiguous for x in (outputs, labels, tallies)):
        return None
    rows, width = outputs.shape[-2:]
    models = labels.size // rows
    return outputs.reshape(-1, rows, width), labels.reshape(-1, rows), tallies.reshape(models, -1)


log_softmax = array_kernel(
    log_softmax_loop, (2, 2, 2), _log_softmax, Ops.log_softmax, _softmax_extra
)
mean_cross_entropy = array_kernel(
    mean_cross_entropy_loop, (3, 3, 1), _cross_entropy, Ops.mean_cross_entropy
)
tally_classes = array_kernel(tally_classes_loop, (3, 2, 2), _tally, Ops.tally_classes, _columns)
