"""Checks of what users hand over: arrays, types of elements, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import DataError, DtypeError, LabelError

__all__ = ["array_of", "check_labels", "dtype_of"]


def array_of(name: str, values: npt.ArrayLike) -> Array:
    """Return values as an array, without a copy where they are one.

    `name` is that of the argument. It raises `DataError` if they have no shape, such as rows that
    differ in length.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: rows that differ in length make no array ({error})") from None


def dtype_of(where: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a type of elements, one that nodes, tensors and memory may have.

    `where` is what was given it, for the message. It raises `DtypeError` if the type is unknown,
    or not of real numbers of at most 64 bits.
    """
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise DtypeError(f"{where}: {dtype!r} is no type of elements") from None
    if known.kind not in "fiub" or known.itemsize > 8:
        message = f"elements must be real numbers of at most 64 bits, not {known}"
        raise DtypeError(f"{where}: {message}")
    return known


def check_labels(labels: Array, classes: int, where: str = "") -> None:
    """Raise `LabelError` if a label is not in ``0 .. classes - 1``; it names the first such row.

    The message begins with `where`.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        row = int(wrong[0])
        message = f"{where}label {labels[row]} in row {row} is not in 0 .. {classes - 1}"
        raise LabelError(f"{message} ({classes} classes; {wrong.size} such rows)", row)
