"""Shapes, axes and indices of tensors: checked, with the shape in the message."""

from __future__ import annotations

import math
import operator
from typing import Any, SupportsIndex

import numpy as np

from dnn.errors import OutOfRangeError, ShapeError
from dnn.graph.node import Shape

__all__ = ["check_range", "checked_axis", "checked_shape", "dense_strides", "is_integer"]


def dense_strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of elements one behind the other."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def checked_shape(shape: int | tuple[SupportsIndex, ...], size: int | None = None) -> Shape:
    """Check a shape; with a size, one length may be -1."""
    given = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        lengths = [operator.index(length) for length in given]
    except TypeError:
        raise ShapeError("tensor", f"a shape is made of integers, not {shape!r}") from None
    if size is not None and lengths.count(-1) == 1:
        rest = math.prod(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = size // rest if rest > 0 else 0
    if any(length < 0 for length in lengths):
        raise ShapeError("tensor", f"a length in {shape!r} is negative", tuple(lengths))
    return tuple(lengths)


def checked_axis(axis: int, axes: int) -> int:
    """Return the number, from 0, of an axis that may be counted from the end."""
    if not -axes <= axis < axes:
        raise OutOfRangeError(f"axis {axis} is outside {-axes} .. {axes - 1}")
    return axis % axes


def check_range(index: tuple[Any, ...], shape: Shape) -> None:
    """Raise where NumPy would, with the shape in the message."""
    taken = sum(1 for i in index if i is not None and i is not Ellipsis)
    if taken > len(shape):
        raise OutOfRangeError(f"{taken} indices for a tensor {shape}")
    if sum(1 for i in index if i is Ellipsis) > 1:
        raise OutOfRangeError("an index has at most one '...'")
    axis = 0
    for i in index:
        if i is None:
            continue
        if i is Ellipsis:
            axis += len(shape) - taken
            continue
        if is_integer(i) and not -shape[axis] <= i < shape[axis]:
            message = f"index {i} is outside axis {axis} of a tensor {shape}"
            raise OutOfRangeError(message)
        axis += 1
