"""Reductions other than sums: largest, smallest, product, and where the largest stands.

Sums and means are in `sums`, as the transpose of broadcasting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dnn.backend import Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import axes_of, axis_of, describe
from dnn.graph.node import Node, Shape, check_nodes, constant
from dnn.graph.operation import Arrays, Operation, Step, apply, documented, register
from dnn.graph.operations.comparisons import cast, equal, where
from dnn.graph.operations.shapes import reshape
from dnn.graph.operations.sums import sum

__all__ = ["argmax", "max", "min", "prod"]


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
