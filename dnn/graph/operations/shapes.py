"""Operations that change the shape: views, broadcasting, and its transpose, summing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ShapeError
from dnn.graph.node import Node, Shape
from dnn.graph.operation import (
    Arrays,
    Operation,
    Step,
    aligned,
    apply,
    describe,
    register,
    reshaped,
)

__all__ = [
    "broadcast_to",
    "expand_dims",
    "flatten",
    "mean",
    "reshape",
    "squeeze",
    "sum",
    "sum_to",
    "tile",
    "transpose",
]


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

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return reshape(inputs[0], (models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reshape(dy, node.inputs[0].shape),)


@register
class Transpose(Operation):
    """The axes in another order; without `axes`, the last two are exchanged."""

    name = "transpose"
    view = True
    view_of_any = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        axes = attributes.get("axes")
        if axes is not None:
            if sorted(axes) != list(range(x.ndim)):
                raise ShapeError("transpose", f"{describe(x)} has no order of axes {axes}", x.shape)
            return tuple(x.shape[i] for i in axes), x.dtype
        if x.ndim < 2:
            raise ShapeError("transpose", f"{describe(x)} has fewer than two axes", x.shape)
        return (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype

    def as_view(self, node: Node, array: Array) -> Array:
        axes = node.attributes.get("axes")
        view: Array = array.swapaxes(-1, -2) if axes is None else array.transpose(axes)
        return view

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        axes = node.attributes.get("axes")
        return transpose(inputs[0], axes and (0, *(i + 1 for i in axes)))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (self.as_view(node, arrays.inputs[0]), arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        axes = node.attributes.get("axes")
        return (transpose(dy, axes and tuple(int(i) for i in np.argsort(axes))),)


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

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return broadcast_to(aligned(inputs[0], True, node.ndim), (models, *node.shape))

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

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        (x,) = inputs
        missing = x.ndim - 1 - node.ndim
        total = sum_to(x, (models, *(1,) * missing, *node.shape))
        return reshape(total, (models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (broadcast_to(dy, node.inputs[0].shape),)


def _broadcasts(shape: Shape, target: Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def reshape(x: Node, shape: Shape) -> Node:
    """Return the elements of `x` in another shape; one length may be -1: what remains."""
    if -1 in shape:
        others = int(np.prod([n for n in shape if n != -1], dtype=np.int64))
        if others < 1 or x.size % others or shape.count(-1) > 1:
            raise ShapeError("reshape", f"{describe(x)} does not fill {shape}", x.shape, shape)
        shape = tuple(x.size // others if n == -1 else n for n in shape)
    return reshaped(x, shape)


def flatten(x: Node) -> Node:
    """Return `x` (batch, ...) with one vector for each sample, (batch, -1)."""
    if not x.ndim:
        raise ShapeError("flatten", f"{describe(x)} has no axis of samples", x.shape)
    return reshape(x, (x.shape[0], int(np.prod(x.shape[1:], dtype=np.int64))))


def squeeze(x: Node, axis: int | tuple[int, ...] | None = None) -> Node:
    """Return `x` without axes of length 1: those that are named, or else all."""
    if axis is None:
        return reshape(x, tuple(n for n in x.shape if n != 1))
    axes = _axes(x, axis, "squeeze")
    if any(x.shape[i] != 1 for i in axes):
        raise ShapeError("squeeze", f"{describe(x)} is longer than 1 along axis {axis}", x.shape)
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def expand_dims(x: Node, axis: int) -> Node:
    """Return `x` with a new axis of length 1 at a place; also called unsqueeze."""
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise ShapeError("expand_dims", f"{describe(x)} has no place {axis}", x.shape)
    at = axis % (x.ndim + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def tile(x: Node, repeats: Sequence[int]) -> Node:
    """Return `x` repeated along each axis, as `numpy.tile` does.

    Parameters
    ----------
    x : Node
    repeats : sequence of int, at least 1
        One for each axis; more than there are make new leading axes.

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If there are fewer numbers than axes, or one is less than 1.
    """
    if len(repeats) < x.ndim or any(n < 1 for n in repeats):
        raise ShapeError("tile", f"{describe(x)} cannot be repeated {tuple(repeats)}", x.shape)
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    apart = tuple(n for length in shape for n in (1, length))
    wide = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    whole = tuple(n * length for n, length in zip(repeats, shape, strict=True))
    return reshape(broadcast_to(reshape(x, apart), wide), whole)


def transpose(x: Node, axes: Sequence[int] | None = None) -> Node:
    """Return `x` with its axes in another order.

    Parameters
    ----------
    x : Node
    axes : sequence of int, optional
        Axis ``axes[i]`` of `x` becomes axis i; if left out, the last two are exchanged.

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If `axes` does not name each axis once.
    """
    if axes is None:
        return apply("transpose", x)
    return apply("transpose", x, axes=tuple(i + x.ndim if i < 0 else i for i in axes))


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


def _axes(x: Node, axis: int | tuple[int, ...] | None, operation: str = "sum") -> set[int]:
    if axis is None:
        return set(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    if any(not -x.ndim <= i < x.ndim for i in axes):
        raise ShapeError(operation, f"{describe(x)} has no axis {axis}", x.shape)
    return {i % x.ndim for i in axes}
