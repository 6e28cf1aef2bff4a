"""Padding of sequences of different lengths to one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.errors import DataError, ShapeError, explains_arguments

__all__ = ["pad_sequences"]


@explains_arguments
def pad_sequences(
    sequences: Sequence[npt.ArrayLike] | Array,
    steps: int | None = None,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """Return sequences padded with zeros, with their lengths, as samples for a `SequenceInput`.

    Parameters
    ----------
    sequences : sequence of array_like, each of shape (length, ...)
        Of the same shape except for lengths; or, with `lengths`, an array of shape (n, steps, ...).
    steps : int, optional
        Time steps of the result; those of the longest sequence if left out.
    lengths : array_like of int, shape (n,), optional
        Lengths of sequences that are padded already.

    Returns
    -------
    array, shape (n, steps + 1, ...)
        Integers if all sequences are integers. The last row of a sample begins with its length.

    Raises
    ------
    DataError
        If there are no sequences, or one has no time steps or is not of numbers.
    ShapeError
        If one is longer than `steps`, or their shapes do not fit.
    """
    if not hasattr(sequences, "__iter__") or getattr(sequences, "ndim", 1) == 0:
        raise DataError(
            f"pad_sequences: sequences must be a list of arrays, not {sequences!r:.100}"
        )
    arrays = [array_of(f"sequence {i}", x) for i, x in enumerate(sequences)]
    if not arrays:
        raise DataError("pad_sequences: there are no sequences")
    for i, x in enumerate(arrays):
        if x.dtype.kind not in "fiub":
            raise DataError(f"pad_sequences: sequence {i} is not of numbers, but of {x.dtype}")
        if x.shape[1:] != arrays[0].shape[1:] or not x.ndim:
            message = f"sequence {i} has shape {x.shape}, but sequence 0 has {arrays[0].shape}"
            raise ShapeError("pad_sequences", message, x.shape, arrays[0].shape)
    given = np.array([len(x) for x in arrays]) if lengths is None else array_of("lengths", lengths)
    if given.shape != (len(arrays),) or given.dtype.kind not in "iu":
        message = f"lengths must be {len(arrays)} integers, not {given.dtype} {given.shape}"
        raise ShapeError("pad_sequences", message, given.shape, (len(arrays),))
    longest = int(given.max()) if steps is None else steps
    for i, (x, length) in enumerate(zip(arrays, given, strict=True)):
        if length < 1:
            message = f"sequence {i} of shape {x.shape} has length {length}: it must be at least 1"
            raise DataError(f"pad_sequences: {message}")
        if length > min(len(x), longest):
            message = f"sequence {i} of shape {x.shape} has length {length}"
            message += f", but there is room for {min(len(x), longest)} time steps"
            raise ShapeError("pad_sequences", message, x.shape)
    dtype = np.result_type(*arrays)
    if dtype.kind != "f":
        dtype = np.dtype(np.intp)
    padded = np.zeros((len(arrays), longest + 1, *arrays[0].shape[1:]), dtype)
    for row, x, length in zip(padded, arrays, given, strict=True):
        row[:length] = x[:length]
        row[longest:].reshape(-1)[0] = length
    return padded
