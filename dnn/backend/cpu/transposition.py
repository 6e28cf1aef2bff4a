"""Kernel of copies that transpose: the innermost axis of one array is not that of the other."""

from __future__ import annotations

from functools import cache
from typing import Any

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.program import Record, address_of, type_code
from dnn.backend.ops import Array

__all__ = ["transposition_record"]

_BODY = """\
    n, m, leading = r[1], r[2], r[7]
    for k in range(r[0]):
        x = carray(pointer(r[3] + k * r[4]), (m * leading,), {code})
        out = carray(pointer(r[5] + k * r[6]), (n, m), {code})
        intrinsics.transpose(x, leading, out)
"""


def transposition_record(x: Array, out: Array, lengths: list[int], strides: Any) -> Record | None:
    """Return the record of ``out[...] = x`` for matrices that are transposed, else None.

    Parameters
    ----------
    x, out : array, of one shape and type
    lengths : list of int
        Lengths of the axes of both, with neighbouring axes joined where both arrays allow it.
    strides : pair of list of int, bytes
        Strides of x and of out along these axes.
    """
    code = type_code(out.dtype)
    item = out.itemsize
    if code not in ("f4", "f8") or x.dtype != out.dtype or len(lengths) != 3:
        return None
    matrices, n, m = lengths
    (x_matrix, x_row, x_column), (out_matrix, out_row, out_column) = strides
    if x_row != item or x_column % item or x_column < n * item:
        return None
    if out_column != item or out_row != m * item:
        return None
    fields = [matrices, n, m, address_of(x), x_matrix, address_of(out), out_matrix]
    return entry_of(_source(code)), [*fields, x_column // item]


@cache
def _source(code: str) -> str:
    return HEADER + _BODY.format(code=code)
