"""Checks of arguments from users: arrays, types of elements, labels and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, DtypeError, LabelError

__all__ = [
    "array_of",
    "check_labels",
    "checked_numbers",
    "dtype_of",
    "fits",
    "is_numbers",
    "narrowed",
    "range_of",
]


def array_of(name: str, values: npt.ArrayLike) -> Array:
    """Return values as a NumPy array; an array of NumPy is returned as it is.

    `name` is the argument's, for the message. Raises `DataError` if the values have no shape, such
    as rows that differ in length.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: rows that differ in length make no array ({error})") from None


def is_numbers(values: object) -> bool:
    """Whether values are a number or an array of real numbers: no text, and no true or false."""
    try:
        return np.asarray(values).dtype.kind in "iuf"
    except (TypeError, ValueError):
        return False


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


def narrowed(values: Array, dtype: npt.DTypeLike, where: Callable[..., str]) -> Array:
    """Return numbers in a type of floats, as a contiguous array, each checked to be in its range.

    A number too small for the type becomes 0, one with more digits is rounded. `where` is called
    with the place of the first number that is too large, and returns the beginning of the message
    of a `DataError`. NaN and infinity are passed on.
    """
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(values, dtype)
    if values.dtype.kind == "f" and narrow.dtype.itemsize < values.dtype.itemsize:
        wrong = np.isinf(narrow)
        if wrong.any():
            wrong &= np.isfinite(values)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise DataError(f"{where(*at)}: {values[at]:g} is beyond {range_of(narrow.dtype)}")
    return narrow


def fits(number: float, dtype: np.dtype[Any]) -> bool:
    """Whether a number is in the range of a type of elements."""
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        return bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
    with np.errstate(over="ignore"):
        return bool(np.isfinite(dtype.type(number)))


def range_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type of elements and its largest number, for messages."""
    if dtype.kind == "b":
        return "bool, which has 0 and 1"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return f"{dtype}, which has {limits.min} .. {limits.max}"
    return f"{dtype}, which ends at {float(np.finfo(dtype).max):.6g}"


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
    values = np.asarray(given, np.float64) if is_numbers(given) else np.array(np.nan)
    if values.ndim > 1 or not values.size or not ((values >= 0) & (values <= most)).all():
        allowed = f"in 0 .. {most:g}" if most == 1 else "0 or more, and finite"
        raise ConfigurationError(f"{name} must be {allowed}, not {given!r}")
    return tuple(values.tolist()) if values.ndim else float(values)
