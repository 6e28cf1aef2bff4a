"""Checks of arguments from users: arrays, types of elements, labels and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, DtypeError, LabelError

__all__ = ["array_of", "check_labels", "checked_numbers", "dtype_of"]


def array_of(name: str, values: npt.ArrayLike) -> Array:
    """Return values as a NumPy array; an array of NumPy is returned as it is.

    `name` is the argument's, for the message. Raises `DataError` if the values have no shape, such
    as rows that differ in length.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: rows that differ in length make no array ({error})") from None


def dtype_of(where: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a NumPy dtype, checked to be one that nodes, tensors and memory can have.

    `where` names the function or class that was given it, for the message. Raises `DtypeError` if
    the type is unknown, or not of real numbers of at most 64 bits.
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


def checked_numbers(
    name: str, given: float | Sequence[float], most: float = float(np.finfo(np.float32).max)
) -> float | tuple[float, ...]:
    """Return a number checked to be in 0 .. `most`, or a tuple of K; `name` is for messages."""
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if values.ndim > 1 or not values.size or not ((values >= 0) & (values <= most)).all():
        allowed = f"in 0 .. {most:g}" if most == 1 else "0 or more, and finite"
        raise ConfigurationError(f"{name} must be {allowed}, not {given!r}")
    return tuple(values.tolist()) if values.ndim else float(values)
