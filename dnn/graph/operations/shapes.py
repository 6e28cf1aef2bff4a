"""Operations that change the shape alone; where they can be, their results are views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, empty
from dnn.errors import ShapeError
from dnn.graph.arguments import axes_of, axis_of, describe, integers_of
from dnn.graph.node import Node, Shape, called_by_nodes, check_nodes
from dnn.graph.operation import Arrays, Operation, Step, apply, register, reshaped

__all__ = ["expand_dims", "flatten", "reshape", "squeeze", "transpose"]


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
        x, out = arrays.inputs[0], arrays.out
        if out.flags.c_contiguous:
            return [(ops.copy, (x, out.reshape(x.shape)))]
        # Reshaping an array whose elements lie apart, such as the parameters of K models, makes a
        # copy: values written there would be lost.
        steps: list[Step] = []
        if not x.flags.c_contiguous:
            whole = empty(ops, x.shape, x.dtype)
            steps, x = [(ops.copy, (x, whole))], whole
        return [*steps, (ops.copy, (x.reshape(out.shape), out))]

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
        return transpose(inputs[0], None if axes is None else (0, *(i + 1 for i in axes)))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (self.as_view(node, arrays.inputs[0]), arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        axes = node.attributes.get("axes")
        return (transpose(dy, axes and tuple(int(i) for i in np.argsort(axes))),)


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """Return the elements of `x`, in their order, in another shape.

    Parameters
    ----------
    x : Node
    shape : sequence of int
        One length may be -1, and follows from the number of elements.

    Returns
    -------
    Node, of `shape` and the type of `x`
        `x` itself if it has that shape.

    Raises
    ------
    ShapeError
        If the elements do not fill the shape, or the length of -1 is not determined.
    """
    check_nodes("reshape", x)
    wanted = integers_of("reshape", shape, "a shape")
    known = math.prod(n for n in wanted if n != -1)
    if any(n < -1 for n in wanted) or (
        -1 in wanted and (known < 1 or x.size % known or wanted.count(-1) > 1)
    ):
        raise ShapeError("reshape", f"{describe(x)} does not fill {wanted}", x.shape, wanted)
    return reshaped(x, tuple(x.size // known if n == -1 else n for n in wanted))


def flatten(x: Node) -> Node:
    """Return `x` with one vector for each sample.

    Parameters
    ----------
    x : Node, shape (batch, ...)

    Returns
    -------
    Node, shape (batch, elements of a sample), of the type of `x`

    Raises
    ------
    ShapeError
        If `x` has no axis.
    """
    check_nodes("flatten", x)
    if not x.ndim:
        raise ShapeError("flatten", f"{describe(x)} has no axis of samples", x.shape)
    return reshape(x, (x.shape[0], int(np.prod(x.shape[1:], dtype=np.int64))))


def squeeze(x: Node, axis: int | Sequence[int] | None = None) -> Node:
    """Return `x` without axes of length 1.

    Parameters
    ----------
    x : Node
    axis : int, sequence of int or None
        The axes to leave out, negative ones from the end; None for all of length 1.

    Returns
    -------
    Node, of the type of `x` and its shape without those axes

    Raises
    ------
    ShapeError
        If there is no such axis, or its length is not 1.
    """
    check_nodes("squeeze", x)
    if axis is None:
        return reshape(x, tuple(n for n in x.shape if n != 1))
    axes = axes_of("squeeze", x, axis)
    if any(x.shape[i] != 1 for i in axes):
        raise ShapeError("squeeze", f"{describe(x)} has not length 1 along axis {axis}", x.shape)
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def expand_dims(x: Node, axis: int) -> Node:
    """Return `x` with a new axis of length 1; also called unsqueeze.

    Parameters
    ----------
    x : Node
    axis : int
        Which axis of the result it is, negative from the end: -1 is behind the last.

    Returns
    -------
    Node, of the type of `x`, with one axis more

    Raises
    ------
    ShapeError
        If there is no such place.
    """
    check_nodes("expand_dims", x)
    at = axis_of("expand_dims", x, axis, new=True)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@called_by_nodes
def transpose(x: Node, axes: Sequence[int] | None = None) -> Node:
    """Return `x` with its axes in another order; ``x.T`` exchanges the last two.

    Parameters
    ----------
    x : Node
    axes : sequence of int, optional
        Axis ``axes[i]`` of `x`, negative from the end, becomes axis i; if left out, the last two
        are exchanged, and those before them stay.

    Returns
    -------
    Node, of the type of `x`

    Raises
    ------
    ShapeError
        If `axes` does not name each axis once, or is left out and there are fewer than two.
    """
    check_nodes("transpose", x)
    if axes is None:
        return apply("transpose", x)
    order = integers_of("transpose", axes, f"an order of the axes of {describe(x)}")
    return apply("transpose", x, axes=tuple(i + x.ndim if i < 0 else i for i in order))
