"""Checks of operations' arguments: shapes, axes, numbers, and nodes that have to fit together.

An argument that does not fit is a `DnnError` that begins with the name of the operation, `where`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    from dnn.graph.node import Node, Shape

__all__ = [
    "axes_of",
    "axis_of",
    "broadcast",
    "check_kind",
    "check_same_type",
    "describe",
    "integers_of",
    "numbers_of",
    "shape_of",
]


def describe(node: Node) -> str:
    """Return name (or else kind) and shape of a node, for a message."""
    return f"{node.name or node.kind} {node.shape}"


def integers_of(where: str, values: object, description: str) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple of Python integers, else raise `ShapeError`.

    `description` is that of the sequence, for the message.
    """
    try:
        return tuple(operator.index(value) for value in values)  # type: ignore[attr-defined]
    except TypeError:
        message = f"{description} is a sequence of integers, not {values!r}"
        raise ShapeError(where, message) from None


def shape_of(where: str, shape: object) -> tuple[int, ...]:
    """Return a shape as a tuple of Python integers; `ShapeError` if it is no valid shape."""
    lengths = integers_of(where, shape, "a shape")
    if any(length < 0 for length in lengths):
        raise ShapeError(where, f"a length in {lengths} is negative", lengths)
    return lengths


def axis_of(where: str, x: Node, axis: object, new: bool = False) -> int:
    """Return the number, from 0, of an axis of `x` that may be counted from the end.

    With `new` it is the place of an axis that is to be inserted, of which there is one more than
    axes. Raises `ShapeError` if there is no such axis or place.
    """
    count = x.ndim + new
    try:
        number = operator.index(axis)  # type: ignore[arg-type]
    except TypeError:
        message = f"an axis of {describe(x)} is an integer, not {axis!r}"
        raise ShapeError(where, message, x.shape) from None
    if not -count <= number < count:
        message = f"{describe(x)} has no {'place' if new else 'axis'} {axis}"
        raise ShapeError(where, message, x.shape)
    return number % count


def axes_of(where: str, x: Node, axis: object) -> set[int]:
    """Return the numbers, from 0, of one axis, of several, or of all where `axis` is None."""
    if axis is None:
        return set(range(x.ndim))
    several = axis if isinstance(axis, tuple | list) else (axis,)
    return {axis_of(where, x, number) for number in several}


def numbers_of(
    where: str, values: npt.ArrayLike, dtype: np.dtype[Any], *, copy: bool = True
) -> Array:
    """Return values as an array of a type of elements.

    Floats are rounded to other floats, but a finite number does not become infinite; integers and
    bools have to hold the values as they are.

    Raises
    ------
    DataError
        If they have no shape, such as rows that differ in length.
    DtypeError
        If they are no real numbers, or the type cannot hold them.
    """
    given = array_of(where, values)
    if given.dtype.kind not in "fiub":
        raise DtypeError(f"{where}: values must be real numbers, not {given.dtype}")
    if dtype.kind == "f" or given.dtype == dtype:
        try:
            with np.errstate(over="raise", under="ignore"):
                return given.astype(dtype, copy=copy)
        except FloatingPointError:
            largest = float(np.finfo(dtype).max)
            shown = given.item() if given.size == 1 else f"one of the values {given.shape}"
            message = f"{where}: {dtype} cannot hold {shown}: it ends at {largest:.4g}"
            raise DtypeError(message) from None
    with np.errstate(invalid="ignore"):
        array = given.astype(dtype)
    if not np.array_equal(given, array):
        shown = given.item() if given.size == 1 else f"values {given.shape} of {given.dtype}"
        raise DtypeError(f"{where}: {dtype} cannot hold {shown}")
    return array


def check_kind(kind: str, inputs: Sequence[Node], kinds: str) -> None:
    """Raise `DtypeError` unless elements of all inputs are of `kinds`, as in `numpy.dtype.kind`."""
    for x in inputs:
        if x.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "numbers"
            message = f"{describe(x)} of {x.dtype} is not of {wanted}: see dnn.graph.cast"
            raise DtypeError(f"{kind}: {message}")


def check_same_type(kind: str, inputs: Sequence[Node]) -> np.dtype[Any]:
    """Return the type of elements of all inputs; `DtypeError` if they differ."""
    dtype = inputs[0].dtype
    if any(node.dtype != dtype for node in inputs):
        given = " and ".join(describe(node) + f" of {node.dtype}" for node in inputs)
        raise DtypeError(f"{kind}: {given} have different types of elements")
    return dtype


def broadcast(kind: str, inputs: Sequence[Node]) -> tuple[Shape, np.dtype[Any]]:
    """Return shape and type of elements that inputs have after broadcasting."""
    dtype = check_same_type(kind, inputs)
    shapes = {node.shape for node in inputs}
    if len(shapes) > 1:
        shapes.discard(())
    if len(shapes) == 1:  # nearly always, and NumPy makes arrays to find out
        return shapes.pop(), dtype
    try:
        return np.broadcast_shapes(*shapes), dtype
    except ValueError:
        given = " and ".join(describe(node) for node in inputs)
        raise ShapeError(
            kind, f"{given} do not broadcast", *(node.shape for node in inputs)
        ) from None
