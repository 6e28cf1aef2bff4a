"""Operands seen through as few axes as will do.

A kernel turns the number of an element into an index by dividing, axis by axis, so fewer axes
are faster; and kernels are compiled for a number of axes, so fewer numbers are fewer kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["broadcast_strides", "collapse", "element_strides"]

Shape = tuple[int, ...]


def element_strides(array: Any) -> Shape:
    """Return the strides of an array in elements."""
    size = array.dtype.itemsize
    return tuple(stride // size for stride in array.strides)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Return strides that show an array in the shape it is broadcast to: 0 where it repeats."""
    missing = len(target) - len(shape)
    if missing < 0 or any(
        length not in (1, wanted) for length, wanted in zip(shape, target[missing:], strict=True)
    ):
        raise ValueError(f"{shape} does not broadcast to {target}")
    kept = (0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True))
    return (*(0,) * missing, *kept)


def collapse(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Merge axes that every operand walks through as if they were one.

    Parameters
    ----------
    shape : tuple of int
    strides : sequence of tuple of int
        Of each operand, one for each axis.

    Returns
    -------
    shape : tuple of int
        At least one axis.
    strides : list of tuple of int
    """
    axes: list[list[int]] = []  # length, then the stride of each operand; the last axis first
    for axis in reversed(range(len(shape))):
        length, steps = shape[axis], [operand[axis] for operand in strides]
        if length == 1:
            continue
        if axes and all(
            step == inner * axes[-1][0] for step, inner in zip(steps, axes[-1][1:], strict=True)
        ):
            axes[-1][0] *= length
        else:
            axes.append([length, *steps])
    axes = axes[::-1] or [[1, *(0 for _ in strides)]]
    columns = list(zip(*axes, strict=True))
    return tuple(columns[0]), [tuple(column) for column in columns[1:]]
