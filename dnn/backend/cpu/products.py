"""Matrix products by BLAS as kernels, single and batched."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np

from dnn.backend.cpu.blas import TRANSPOSED, UNCHANGED, find_gemm
from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import LINE_ELEMENTS, SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.ops import Array, Ops

__all__ = ["gemm", "gemm_add"]

_BODY = """\
    for k in range(r[1]):
        intrinsics.call_gemm_{bits}(
            r[0], r[2], r[3], r[4], r[5], r[6], {code}(1),
            r[7] + k * r[8], r[9], r[10] + k * r[11], r[12],
            {code}({beta}), r[13] + k * r[14], r[15],
        )
"""

# OpenBLAS multiplies by a small transposed matrix at half its speed, so such a matrix is copied in
# the usual order to memory on the stack first.
_TRANSPOSED_BODY = """\
    place = intrinsics.scratch({bytes})
    for k in range(r[1]):
        stored = carray(pointer(r[10] + k * r[11]), (r[5] * r[12],), {code})
        intrinsics.transpose(stored, r[12], carray(pointer(place), (r[6], r[5]), {code}))
        intrinsics.call_gemm_{bits}(
            r[0], r[2], {unchanged}, r[4], r[5], r[6], {code}(1),
            r[7] + k * r[8], r[9], place, r[5], {code}({beta}), r[13] + k * r[14], r[15],
        )
"""
TRANSPOSED_ELEMENTS = 96 * 96
"""A matrix of up to so many elements is transposed; with larger ones BLAS is as fast."""


@cache
def _source(code: str, bits: int, transposed: bool, beta: int) -> str:
    size = TRANSPOSED_ELEMENTS * np.dtype(code).itemsize
    body = _TRANSPOSED_BODY if transposed else _BODY
    return HEADER + body.format(code=code, bits=bits, bytes=size, unchanged=UNCHANGED, beta=beta)


def gemm_record(a: Array, b: Array, out: Array, beta: int = 0) -> Record | None:
    """Return the record of ``out = a @ b + beta * out``; None for arrays that BLAS does not take.

    `beta` is 0 or 1.
    """
    code = type_code(out.dtype)
    if code not in ("f4", "f8") or not a.dtype == b.dtype == out.dtype:
        return None
    found = find_gemm(code)
    if found is None or not a.size or not b.size or not out.size or out.ndim > 3:
        return None
    batch = out.shape[0] if out.ndim == 3 else 1
    sides = [_side(np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:]))) for x in (a, b)]
    target = _side(out)
    if sides[0] is None or sides[1] is None or target is None or target[0] != UNCHANGED:
        return None
    (a_form, lda, a_step), (b_form, ldb, b_step) = sides[0], sides[1]
    fields = [
        *(found.address, batch, a_form, b_form, *out.shape[-2:], a.shape[-1]),
        *(address_of(a), a_step, lda, address_of(b), b_step, ldb),
        *(address_of(out), target[2], target[1]),
    ]
    transposed = b_form == TRANSPOSED and b.shape[-2] * b.shape[-1] <= TRANSPOSED_ELEMENTS
    return entry_of(_source(code, found.integer_bits, transposed, beta)), fields


def _side(x: Array) -> tuple[int, int, int] | None:
    """Return a matrix's form, leading dimension and bytes to the next one; None if BLAS cannot."""
    rows, columns = x.shape[-2:]
    item = x.itemsize
    step = x.strides[0] if x.ndim == 3 else 0
    down, right = x.strides[-2:]
    if (right == item or columns == 1) and (rows == 1 or _leads(down, columns, item)):
        return UNCHANGED, down // item if rows > 1 else columns, step
    if (down == item or rows == 1) and (columns == 1 or _leads(right, rows, item)):
        return TRANSPOSED, right // item if columns > 1 else rows, step
    return None


def _leads(stride: int, length: int, item: int) -> bool:
    return stride % item == 0 and stride // item >= length


def _split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    a, b, out = arguments
    rows, columns = out.shape[-2:]
    operations = 2 * rows * columns * a.shape[-1]
    if operations * math.prod(out.shape[:-2]) < SPLIT_OPERATIONS:
        return []
    # Each of K products is cut as it would be alone, since with some kernels of OpenBLAS the bits
    # of an element depend on its place in the matrix.
    if operations < SPLIT_OPERATIONS:
        a, b = (np.broadcast_to(x, (len(out), *x.shape[-2:])) for x in (a, b))
        return [(a[cut], b[cut], out[cut]) for cut in cuts(len(out), parts)]
    if rows >= columns:
        pieces = cuts(rows, parts, LINE_ELEMENTS)
        return [(a[..., cut, :], b, out[..., cut, :]) for cut in pieces]
    pieces = cuts(columns, parts, LINE_ELEMENTS)
    return [(a, b[..., cut], out[..., cut]) for cut in pieces]


def _add_in_numpy(a: Array, b: Array, out: Array) -> None:
    np.add(out, a @ b, out)


gemm = Native(gemm_record, Ops.gemm, _split)
gemm_add = Native(partial(gemm_record, beta=1), _add_in_numpy, _split)
"""``out += a @ b``."""
