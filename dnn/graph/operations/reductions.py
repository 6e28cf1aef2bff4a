"""Broadcasting, and reductions over axes: sums, means, largest, smallest, product.

A sum is the transpose of broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dnn.backend import Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import axes_of, axis_of, check_kind, describe, integers_of, shape_of
from dnn.graph.node import Node, Operand, Shape, as_nodes, check_nodes, constant
from dnn.graph.operation import (
    Arrays,
    Operation,
    Step,
    aligned,
    apply,
    documented,
    register,
    reshaped,
)
from dnn.graph.operations.arithmetic import square
from dnn.graph.operations.comparisons import cast, equal, where
from dnn.graph.operations.shapes import reshape

__all__ = [
    "argmax",
    "broadcast_to",
    "max",
    "mean",
    "mean_squared_error",
    "min",
    "prod",
    "sum",
    "tile",
]


@register
class BroadcastTo(Operation):
    """`x` repeated along axes of length 1 and along new leading axes."""

    name = "broadcast_to"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        shape: Shape = attributes["shape"]
        if not broadcasts(x.shape, shape):
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
        if not broadcasts(shape, x.shape):
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
        return reshaped(total, (models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (broadcast_to(dy, node.inputs[0].shape),)


def broadcasts(shape: Shape, target: Shape) -> bool:
    """Return whether a shape broadcasts to `target`."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def broadcast_to(x: Node, shape: Sequence[int]) -> Node:
    """Return `x` repeated along axes of length 1 and along new leading axes, as NumPy does.

    Parameters
    ----------
    x : Node
    shape : sequence of int

    Returns
    -------
    Node, of `shape` and the type of `x`
        `x` itself if it has that shape.

    Raises
    ------
    ShapeError
        If `x` does not broadcast to that shape.
    """
    check_nodes("broadcast_to", x)
    wanted = shape_of("broadcast_to", shape)
    return x if x.shape == wanted else apply("broadcast_to", x, shape=wanted)


def sum_to(x: Node, shape: Shape) -> Node:
    """Return `x` summed over the axes along which `shape` would be broadcast to it."""
    return x if x.shape == shape else apply("sum_to", x, shape=shape)


def tile(x: Node, repeats: Sequence[int]) -> Node:
    """Return `x` repeated along each axis, as `numpy.tile` does.

    Parameters
    ----------
    x : Node
    repeats : sequence of int, at least 1
        A number for each axis; further numbers in front make new leading axes.

    Returns
    -------
    Node, each axis ``repeats`` times as long, of the type of `x`

    Raises
    ------
    ShapeError
        If there are fewer numbers than axes, or one is less than 1 or no integer.
    """
    check_nodes("tile", x)
    times = integers_of("tile", repeats, f"what {describe(x)} is repeated by")
    if len(times) < x.ndim or any(n < 1 for n in times):
        raise ShapeError("tile", f"{describe(x)} cannot be repeated {times}", x.shape)
    shape = (1,) * (len(times) - x.ndim) + x.shape
    apart = tuple(n for length in shape for n in (1, length))
    wide = tuple(n for pair in zip(times, shape, strict=True) for n in pair)
    whole = tuple(n * length for n, length in zip(times, shape, strict=True))
    return reshaped(broadcast_to(reshaped(x, apart), wide), whole)


def sum(x: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Node:
    """Return the sum over axes.

    Parameters
    ----------
    x : Node
    axis : int, sequence of int or None
        The axes, negative ones from the end; None for all.
    keepdims : bool
        Keep the axes, with length 1.

    Returns
    -------
    Node, of the type of `x` and its shape without `axis`
        Integers wrap as the type does; of bools it is "or".

    Raises
    ------
    ShapeError
        If there is no such axis.
    """
    return _sum("sum", x, axis, keepdims)


def mean(x: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Node:
    """Return the mean over axes.

    Parameters
    ----------
    x : Node of floats
    axis : int, sequence of int or None
        The axes, negative ones from the end; None for all.
    keepdims : bool
        Keep the axes, with length 1.

    Returns
    -------
    Node, of the type of `x` and its shape without `axis`

    Raises
    ------
    ShapeError
        If there is no such axis, or there are no elements along it.
    DtypeError
        If `x` is not of floats.

    Notes
    -----
    float16 is summed in float32.
    """
    return mean_of("mean", x, axis, keepdims)


def mean_squared_error(outputs: Operand, target: Operand) -> Node:
    """Return the mean over all elements of ``(outputs - target)^2``.

    Parameters
    ----------
    outputs, target : Node of floats, number or array
        At least one is a node; a number or array becomes a constant of that node's type.

    Returns
    -------
    Node, shape (), of their type

    Raises
    ------
    ShapeError
        If they do not broadcast, or have no elements.
    DtypeError
        If their types differ or are not of floats.
    """
    name = "mean_squared_error"
    a, b = as_nodes(name, outputs, target)
    check_kind(name, (a, b), "f")
    return mean_of(name, square(a - b), None, keepdims=False)


def mean_of(name: str, x: Node, axis: int | Sequence[int] | None, keepdims: bool) -> Node:
    """Return the mean over axes, for an operation that is called `name` in messages."""
    check_nodes(name, x)
    axes = axes_of(name, x, axis)
    check_kind(name, (x,), "f")
    count = math.prod(x.shape[i] for i in axes)
    if not count:
        raise ShapeError(name, f"{describe(x)} has no elements along {sorted(axes)}", x.shape)
    if x.dtype == np.float16:
        # A sum soon overflows float16, where a mean does not.
        return cast(_sum(name, cast(x, np.float32), axis, keepdims) * (1.0 / count), x.dtype)
    return _sum(name, x, axis, keepdims) * (1.0 / count)


def _sum(name: str, x: Node, axis: int | Sequence[int] | None, keepdims: bool) -> Node:
    check_nodes(name, x)
    axes = axes_of(name, x, axis)
    total = sum_to(x, tuple(1 if i in axes else length for i, length in enumerate(x.shape)))
    if keepdims:
        return total
    return reshaped(total, tuple(n for i, n in enumerate(x.shape) if i not in axes))


class Reduction(Operation):
    """Base class of reductions over `axes`, which stay with length 1."""

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        axes: tuple[int, ...] = attributes["axes"]
        if any(x.shape[i] == 0 for i in axes):
            raise ShapeError(self.name, f"{describe(x)} has no elements along {axes}", x.shape)
        return tuple(1 if i in axes else n for i, n in enumerate(x.shape)), x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        function = getattr(ops, self.name)
        return [(function, (arrays.inputs[0], node.attributes["axes"], arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, inputs[0], axes=tuple(i + 1 for i in node.attributes["axes"]))


class Extreme(Reduction):
    """Base class of `Max` and `Min`: equally extreme elements share the gradient."""

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, axes = node.inputs[0], node.attributes["axes"]
        is_extreme = cast(equal(x, node), x.dtype)
        return (dy * (is_extreme / sum(is_extreme, axes, keepdims=True)),)


@register
class Max(Extreme):
    """The largest element over axes.

    Elements that are equally large share the gradient.
    """

    name = "max"


@register
class Min(Extreme):
    """The smallest element over axes.

    Elements that are equally small share the gradient.
    """

    name = "min"


@register
class Prod(Reduction):
    """The product over axes.

    Its gradient, ``dy y / x``, is the product of all other elements where `x` is 0.
    """

    name = "prod"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, axes = node.inputs[0], node.attributes["axes"]
        zero = constant(0.0, x.dtype)
        is_zero = equal(x, zero)
        zeros = sum(cast(is_zero, x.dtype), axes, keepdims=True)
        rest = where(is_zero, constant(1.0, x.dtype), x)
        product = apply("prod", rest, axes=axes)
        at_zero = where(equal(zeros, 1.0), product, zero)
        elsewhere = where(equal(zeros, 0.0), product / rest, zero)
        return (dy * where(is_zero, at_zero, elsewhere),)


@register
class Argmax(Operation):
    """Where the first largest element along an axis stands, of intp; no gradient."""

    name = "argmax"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        axis: int = attributes["axis"]
        if not x.shape[axis]:
            raise ShapeError(self.name, f"{describe(x)} has no elements along {axis}", x.shape)
        return tuple(n for i, n in enumerate(x.shape) if i != axis), np.dtype(np.intp)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.argmax, (arrays.inputs[0], node.attributes["axis"], arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, inputs[0], axis=node.attributes["axis"] + 1)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


class Reducer(Protocol):
    """A function of a node and of the axes to reduce it over."""

    def __call__(
        self, x: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Node: ...


def reducer(operation: type[Reduction]) -> Reducer:
    """Return the public function of a reduction, with its documentation."""
    name = operation.name

    def function(
        x: Node, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Node:
        check_nodes(name, x)
        axes = tuple(sorted(axes_of(name, x, axis)))
        y = apply(name, x, axes=axes)
        if keepdims:
            return y
        return reshape(y, tuple(n for i, n in enumerate(x.shape) if i not in axes))

    parameters = """\
x : Node
axis : int, sequence of int or None
    The axes, negative ones from the end; None for all.
keepdims : bool
    Keep the axes, with length 1."""
    returns = "Node, of the type of `x` and its shape without `axis`"
    raises = "ShapeError\n    If there is no such axis, or there are no elements along it."
    return documented(function, operation, parameters, returns, raises)


max = reducer(Max)
min = reducer(Min)
prod = reducer(Prod)


def argmax(x: Node, axis: int = -1) -> Node:
    """Return where the first largest element along an axis stands.

    Parameters
    ----------
    x : Node
    axis : int
        Negative from the end.

    Returns
    -------
    Node of intp, of the shape of `x` without `axis`
        It has no gradient.

    Raises
    ------
    ShapeError
        If there is no such axis, or there are no elements along it.
    """
    check_nodes("argmax", x)
    return apply("argmax", x, axis=axis_of("argmax", x, axis))
