"""Labels as integers and as rows of 0 and 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import LabelError

__all__ = ["from_one_hot", "to_one_hot"]


def to_one_hot(labels: npt.ArrayLike, classes: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return a row for each label, 1 at its class and 0 elsewhere.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        In ``0 .. classes - 1``.
    classes : int
    dtype : type of elements

    Returns
    -------
    array, shape (n, classes)

    Raises
    ------
    LabelError
        If a label is out of range; it names the row.
    """
    given = np.asarray(labels)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise LabelError(f"labels must be a vector of integers, not {given.dtype} {given.shape}")
    wrong = np.flatnonzero((given < 0) | (given >= classes))
    if wrong.size:
        row = int(wrong[0])
        raise LabelError(f"label {given[row]} in row {row} is not in 0 .. {classes - 1}", row)
    rows: Array = np.zeros((len(given), classes), dtype)
    rows[np.arange(len(given)), given] = 1
    return rows


def from_one_hot(rows: npt.ArrayLike) -> Array:
    """Return the label of each row.

    Parameters
    ----------
    rows : array_like, shape (n, classes)
        Each a single 1 among 0.

    Returns
    -------
    array of intp, shape (n,)

    Raises
    ------
    LabelError
        If a row is anything else; it names the first such row.
    """
    given = np.asarray(rows)
    if given.ndim != 2 or given.dtype.kind not in "iubf":
        raise LabelError(f"one-hot labels are rows of numbers, not {given.dtype} {given.shape}")
    ones = given == 1
    wrong = np.flatnonzero((ones.sum(axis=1) != 1) | ~(ones | (given == 0)).all(axis=1))
    if wrong.size:
        row = int(wrong[0])
        raise LabelError(f"row {row} of the labels is not one-hot: {given[row]}", row)
    labels: Array = ones.argmax(axis=1).astype(np.intp, copy=False)
    return labels
