"""Kernels written by hand: gathering, reductions, softmax, cross entropy, clipping.

Plain loops over arrays, one body for all types of elements; `entries` wraps each into a C function.
Arrays are contiguous. What a body writes never overlaps what it only reads.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit

from dnn.backend.cpu.intrinsics import pointer
from dnn.backend.cpu.vector_math import FLAGS

__all__ = [
    "adam_coefficients",
    "clip_factor",
    "column_sums",
    "end_batch",
    "log_softmax",
    "mean_cross_entropy",
    "row_sums",
    "sum_of_squares",
    "take_batch",
    "take_rows",
    "tally_classes",
    "uniform_noise",
]

# A sum whose terms may be added in any order, so that it is done in vector registers. The order
# still depends on nothing but the length.
REORDERED = {"error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}


@njit(**FLAGS)
def take_rows(x, rows, out):
    """``out[i] = x[rows[i]]``."""
    for i in range(out.shape[0]):
        row = rows[i]
        for j in range(out.shape[1]):
            out[i, j] = x[row, j]


@njit(**FLAGS)
def take_batch(x, order, position, out):
    """``out[k, i] = x[order[k, position[0] + i]]``."""
    start = position[0]
    for k in range(out.shape[0]):
        for i in range(out.shape[1]):
            row = order[k, start + i]
            for j in range(out.shape[2]):
                out[k, i, j] = x[row, j]


@njit(**FLAGS)
def end_batch(loss, losses, position):
    """``losses[position[1]] = loss``, and on to the next batch."""
    for k in range(loss.size):
        losses[position[1], k] = loss[k]
    position[0] += position[2]
    position[1] += 1


# Comparisons in which NaN may be anything.
COMPARED = {"error_model": "numpy", "fastmath": {"nsz", "nnan", "ninf"}}

# Reductions.


@njit(**FLAGS)
def column_sums(x, out):
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


@njit(**FLAGS)
def row_sums(x, out):
    """Sum x, of shape (rows, columns), over columns: blocks, whose sums are added in float64."""
    columns = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for start in range(0, columns, 1024):
            total += _block_sum(x, i, start, min(start + 1024, columns))
        out[i] = total


@njit(**REORDERED)
def _block_sum(x, i, start, stop):
    total = x[i, start]
    for j in range(start + 1, stop):
        total += x[i, j]
    return total


# Classification.


@njit(**FLAGS)
def _flat(x):
    """Return a contiguous array with one axis; `reshape` calls a function of Numba's own."""
    return carray(pointer(x.ctypes.data), (x.size,), x.dtype)


@njit(**FLAGS)
def log_softmax(x, exponentials, out, exp, log, columns):
    """``out = x - log(sum(exp(x)))`` for each row, shifted by the row's largest element.

    That element's own exponential is 1, so the logarithm is of ``1 + s``, where s is what the
    others add: exact for a small s too, in the elements' own precision.
    """
    rows = x.shape[0]
    given, shifted, flat = _flat(x), _flat(out), _flat(exponentials)
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
        flat[i] = exp(shifted[i])
    for i in range(rows):
        largest, others = zero, zero
        for j in range(columns):
            is_largest = shifted[i * columns + j] == zero
            largest += one if is_largest else zero
            others += zero if is_largest else flat[i * columns + j]
        flat[i] = largest - one + others  # never in front of what is still to be read
    for i in range(rows):
        total = one + flat[i]
        flat[i] = log(total) - (total - one - flat[i]) / total
    for i in range(rows):
        for j in range(columns):
            shifted[i * columns + j] -= flat[i]


@njit(**FLAGS)
def mean_cross_entropy(log_probabilities, target, out):
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


@njit(**COMPARED)
def tally_classes(outputs, labels, tallies, width):
    """``tallies[k, c] += 1`` for each prediction c, ``tallies[k, -1] += 1`` for each right one."""
    models, rows = labels.shape
    for k in range(models):
        right = 0
        for i in range(rows):
            best = 0
            if width == 1:
                best = 1 if outputs[k, i, 0] > 0 else 0
            else:
                # Even and odd places by themselves, without a branch: a guess of the processor
                # would be wrong more often than not.
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


# Random numbers, as in `dnn.backend.philox`. All in uint64: beside a signed integer Numba makes a
# float of it.

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENT_0, _INCREMENT_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(**FLAGS)
def uniform_noise(seed, step, out, stream):
    """Fill out, of shape (K, n), with floats in [0, 1): Philox-4x32-10."""
    upper = np.uint64(8)  # 24 bits of a word
    for k in range(out.shape[0]):
        n = out.shape[1]
        for block in range((n + 3) // 4):
            c0, c1, c2, c3 = np.uint64(block), step[0] & _LOW, step[0] >> _WORD, np.uint64(stream)
            k0, k1 = seed[k] & _LOW, seed[k] >> _WORD
            for _ in range(10):
                p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
                c0, c2 = (p1 >> _WORD) ^ c1 ^ k0, (p0 >> _WORD) ^ c3 ^ k1
                c1, c3 = p1 & _LOW, p0 & _LOW
                k0, k1 = (k0 + _INCREMENT_0) & _LOW, (k1 + _INCREMENT_1) & _LOW
            at = 4 * block
            words = (c0 >> upper, c1 >> upper, c2 >> upper, c3 >> upper)
            for lane in range(min(4, n - at)):
                out[k, at + lane] = np.int64(words[lane]) * 5.9604644775390625e-08


# Clipping of gradients.


@njit(**FLAGS)
def sum_of_squares(x, out):
    """Sum the squares of x, of shape (rows, columns), over columns; as `row_sums`."""
    columns = x.shape[1]
    for i in range(x.shape[0]):
        total = 0.0
        for start in range(0, columns, 1024):
            total += _block_of_squares(x, i, start, min(start + 1024, columns))
        out[i] = total


@njit(**REORDERED)
def _block_of_squares(x, i, start, stop):
    total = x[i, start] * x[i, start]
    for j in range(start + 1, stop):
        total += x[i, j] * x[i, j]
    return total


@njit(**FLAGS)
def clip_factor(sums, limit, out):
    """``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` for each row."""
    for i in range(out.size):
        total = sums[i, 0]
        for j in range(1, sums.shape[1]):
            total += sums[i, j]
        norm = np.sqrt(total)
        out[i] = limit[i] / (limit[i] if norm < limit[i] else norm)


@njit(**FLAGS)
def adam_coefficients(
    count, learning_rate, beta1, beta2, weight_decay, complement1, complement2, step_size,
    correction, keep,
):  # fmt: skip
    """Count a step, and compute for each network what depends on its number alone."""
    count[0] += 1
    for k in range(beta1.size):
        complement1[k] = 1 - beta1[k]
        complement2[k] = 1 - beta2[k]
        step_size[k] = learning_rate[k] / (1.0 - np.float64(beta1[k]) ** np.float64(count[0]))
        correction[k] = math.sqrt(1.0 - np.float64(beta2[k]) ** np.float64(count[0]))
        keep[k] = 1 - learning_rate[k] * weight_decay[k]
