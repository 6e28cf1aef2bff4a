"""Shapes, strides and offsets: arithmetic on them, checked, without any memory."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from dnn.backend import Array
from dnn.backend.device import import_cupy
from dnn.errors import DtypeError, OutOfRangeError, ShapeError
from dnn.graph.node import Shape

__all__ = ["View", "checked_shape", "is_integer"]


@dataclass(frozen=True, slots=True)
class View:
    """A shape, and where its elements stand in flat memory.

    Attributes
    ----------
    shape : tuple of int
    strides : tuple of int, elements
    offset : int, elements
        Where the first element stands.
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def dense(cls, shape: Shape, offset: int = 0) -> View:
        """Return the view of elements one behind the other, the last axis fastest."""
        return cls(shape, dense_strides(shape), offset)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements stand one behind the other, the last axis fastest."""
        return self.size <= 1 or all(
            length == 1 or stride == expected
            for length, stride, expected in zip(
                self.shape, self.strides, dense_strides(self.shape), strict=True
            )
        )

    def part(self, index: Any) -> View:
        """Return the view of a part.

        Parameters
        ----------
        index : int, slice, ..., None, or a tuple of them
            With NumPy's meaning.

        Returns
        -------
        View

        Raises
        ------
        DtypeError
            If there is something else in the index.
        OutOfRangeError
            If an integer is outside its axis, there are more than axes, or a step is 0.
        """
        given = index if isinstance(index, tuple) else (index,)
        for i in given:
            if not (is_integer(i) or isinstance(i, slice) or i is None or i is Ellipsis):
                message = f"a tensor takes integers, slices, ... and None, not {i!r}"
                raise DtypeError(message)
            if isinstance(i, slice) and i.step == 0:
                raise OutOfRangeError("the step of a slice is 0")
        check_range(given, self.shape)
        # NumPy does the arithmetic, on an array of bytes that nobody reads: its strides in bytes
        # are ours in elements.
        probe = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), self.shape, self.strides)
        found = probe[given if Ellipsis in given else (*given, ...)]
        offset = self.offset + found.ctypes.data - probe.ctypes.data
        return View(found.shape, found.strides, offset if found.size else 0)

    def squeeze(self, axis: int | None) -> View:
        """Return the view without the axes of length 1, or without the one given."""
        if axis is None:
            dropped = {i for i, length in enumerate(self.shape) if length == 1}
        else:
            dropped = {checked_axis(axis, len(self.shape))}
            if self.shape[axis] != 1:
                message = f"axis {axis} of {self.shape} has not length 1"
                raise ShapeError("squeeze", message, self.shape)
        kept = [i for i in range(len(self.shape)) if i not in dropped]
        shape, strides = (tuple(x[i] for i in kept) for x in (self.shape, self.strides))
        return View(shape, strides, self.offset)

    def unsqueeze(self, axis: int) -> View:
        """Return the view with a new axis of length 1."""
        at = checked_axis(axis, len(self.shape) + 1)
        shape, strides = ((*x[:at], 1, *x[at:]) for x in (self.shape, self.strides))
        return View(shape, strides, self.offset)

    def of_host(self, flat: Array) -> Array:
        """Return what is seen of flat memory of the host, as an array of NumPy."""
        if not self.size:
            return np.empty(self.shape, flat.dtype)
        step = flat.dtype.itemsize
        strides = tuple(stride * step for stride in self.strides)
        view: Array = np.ndarray(self.shape, flat.dtype, flat.data, self.offset * step, strides)
        return view

    def of_device(self, flat: Any) -> Any:
        """Return what is seen of flat memory of a GPU, as an array of CuPy."""
        step = flat.dtype.itemsize
        strides = tuple(stride * step for stride in self.strides)
        memory = flat.data + self.offset * step
        return import_cupy().ndarray(self.shape, flat.dtype, memory, strides)


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
