"""Operations that change the shape: views, broadcasting, and its transpose, summing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ShapeError
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, apply, describe, register

__all__ = ["broadcast_to", "mean", "reshape", "sum", "sum_to", "transpose"]


@register
class Reshape(Operation):
    """The same elements in another shape."""

    name = "reshape"
    view = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        shape: Shape = attributes["shape"]
        if np.prod(shape, dtype=np.int64) != x.size:
            raise ShapeError("reshape", f"{describe(x)} does not fill {shape}", x.shape, shape)
        return shape, x.dtype

    def as_view(self, node: Node, array: Array) -> Array:
        return array.reshape(node.shape)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out.reshape(arrays.inputs[0].shape)))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reshape(dy, node.inputs[0].shape),)


@register
class Transpose(Operation):
    """The last two axes exchanged."""

    name = "transpose"
    view = True
    view_of_any = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        if x.ndim < 2:
            raise ShapeError("transpose", f"{describe(x)} has fewer than two axes", x.shape)
        return (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype

    def as_view(self, node: Node, array: Array) -> Array:
        view: Array = array.swapaxes(-1, -2)
        return view

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (self.as_view(node, arrays.inputs[0]), arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (transpose(dy),)


@register
class BroadcastTo(Operation):
    """`x` repeated along axes of length 1 and along new leading axes."""

    name = "broadcast_to"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        shape: Shape = attributes["shape"]
        if not _broadcasts(x.shape, shape):
            message = f"{describe(x)} does not broadcast to {shape}"
            raise ShapeError("broadcast_to", message, x.shape, shape)
        return shape, x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy,)


@register
class SumTo(Operation):
    """The transpose of `broadcast_to`: the sum over the axes that broadcasting would repeat."""

    name = "sum_to"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        shape: Shape = attributes["shape"]
        if not _broadcasts(shape, x.shape):
            message = f"{describe(x)} cannot be summed to {shape}"
            raise ShapeError("sum_to", message, x.shape, shape)
        return shape, x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        (x,) = arrays.inputs
        kept = (1,) * (x.ndim - arrays.out.ndim) + arrays.out.shape
        axes = tuple(i for i in range(x.ndim) if kept[i] != x.shape[i])
        return [(ops.sum, (x, axes, arrays.out.reshape(kept)))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (broadcast_to(dy, node.inputs[0].shape),)


def _broadcasts(shape: Shape, target: Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def reshape(x: Node, shape: Shape) -> Node:
    """Return the elements of `x` in another shape."""
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def transpose(x: Node) -> Node:
    """Return `x` with its last two axes exchanged."""
    return apply("transpose", x)


def broadcast_to(x: Node, shape: Shape) -> Node:
    """Return `x` broadcast to a shape."""
    return x if x.shape == shape else apply("broadcast_to", x, shape=shape)


def sum_to(x: Node, shape: Shape) -> Node:
    """Return `x` summed over the axes along which `shape` would be broadcast to it."""
    return x if x.shape == shape else apply("sum_to", x, shape=shape)


def sum(x: Node, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Node:
    """Return the sum over axes.

    Parameters
    ----------
    x : Node
    axis : int, tuple of int or None
        The axes, negative ones from the end; None for all.
    keepdims : bool
        Keep the axes, with length 1.

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If there is no such axis.
    """
    axes = _axes(x, axis)
    total = sum_to(x, tuple(1 if i in axes else length for i, length in enumerate(x.shape)))
    if keepdims:
        return total
    return reshape(total, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def mean(x: Node, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Node:
    """Return the mean over axes; parameters as in `sum`."""
    total = sum(x, axis, keepdims=keepdims)
    return total * (total.size / x.size)


def _axes(x: Node, axis: int | tuple[int, ...] | None) -> set[int]:
    if axis is None:
        return set(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    if any(not -x.ndim <= i < x.ndim for i in axes):
        raise ShapeError("sum", f"{describe(x)} has no axis {axis}", x.shape)
    return {i % x.ndim for i in axes}
