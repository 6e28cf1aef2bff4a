"""Comparisons, choices between elements, and functions with a kink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Ops
from dnn.errors import DtypeError
from dnn.graph.node import Node, Operand, Shape, as_nodes, constant
from dnn.graph.operation import Arrays, Step, apply, broadcast, describe, register
from dnn.graph.operations.elementwise import Elementwise

__all__ = [
    "abs",
    "cast",
    "clip",
    "equal",
    "greater",
    "greater_equal",
    "maximum",
    "minimum",
    "where",
]


class Comparison(Elementwise):
    """Two operands to bool; no gradient."""

    overwrites = ()

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return broadcast(self.name, inputs)[0], np.dtype(bool)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return None, None


@register
class Greater(Comparison):
    """``y = a > b``."""

    name = "greater"


@register
class GreaterEqual(Comparison):
    """``y = a >= b``."""

    name = "greater_equal"


@register
class Equal(Comparison):
    """``y = a == b``."""

    name = "equal"


@register
class Cast(Elementwise):
    """The same values in another type of elements; the gradient is cast back."""

    name = "cast"
    overwrites = ()

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return inputs[0].shape, np.dtype(attributes["dtype"])

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        dtype = node.inputs[0].dtype
        return (cast(dy, dtype) if dtype.kind == "f" else None,)


@register
class Where(Elementwise):
    """``y = a`` where the condition holds, else ``b``; the gradient goes the same way."""

    name = "where"
    overwrites = (2,)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        condition, a, b = inputs
        if condition.dtype != bool:
            given = f"{describe(condition)} is of {condition.dtype}"
            raise DtypeError(f"where: {given}: a condition must be of bool, such as greater(a, b)")
        _, dtype = broadcast(self.name, (a, b))
        shape, _ = broadcast(self.name, [Node(x.kind, x.shape, dtype, name=x.name) for x in inputs])
        return shape, dtype

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        condition = node.inputs[0]
        zero = constant(0.0, dy.dtype)
        return None, where(condition, dy, zero), where(condition, zero, dy)


@register
class Maximum(Elementwise):
    """``y = max(a, b)``; where they are equal, each gets half of the gradient."""

    name = "maximum"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        da = dy * _share(a, b)
        return da, dy - da


@register
class Minimum(Elementwise):
    """``y = min(a, b)``; where they are equal, each gets half of the gradient."""

    name = "minimum"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        da = dy * _share(b, a)
        return da, dy - da


@register
class Abs(Elementwise):
    """``y = |x|``, ``dx = dy sign(x)``: the derivative at 0 is taken to be 0."""

    name = "abs"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * apply("sign", node.inputs[0]),)


@register
class Sign(Elementwise):
    """``y = -1, 0 or 1``; its derivative is 0 wherever there is one."""

    name = "sign"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


def _share(a: Node, b: Node) -> Node:
    """1 where a > b, 1/2 where they are equal, else 0."""
    return (cast(greater(a, b), a.dtype) + cast(greater_equal(a, b), a.dtype)) * 0.5


def greater(a: Operand, b: Operand) -> Node:
    """Return ``a > b``, of bool."""
    return apply("greater", *as_nodes(a, b))


def greater_equal(a: Operand, b: Operand) -> Node:
    """Return ``a >= b``, of bool."""
    return apply("greater_equal", *as_nodes(a, b))


def equal(a: Operand, b: Operand) -> Node:
    """Return ``a == b``, of bool; the operator compares nodes and not their values."""
    return apply("equal", *as_nodes(a, b))


def cast(x: Node, dtype: npt.DTypeLike) -> Node:
    """Return `x` in another type of elements."""
    return x if x.dtype == dtype else apply("cast", x, dtype=np.dtype(dtype))


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """Return `a` where the condition holds, else `b`; one of the two is a node."""
    return apply("where", condition, *as_nodes(a, b))


def maximum(a: Operand, b: Operand) -> Node:
    """Return the larger one, element by element; NaN wins."""
    return apply("maximum", *as_nodes(a, b))


def minimum(a: Operand, b: Operand) -> Node:
    """Return the smaller one, element by element; NaN wins."""
    return apply("minimum", *as_nodes(a, b))


def clip(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """Return `x` no less than `low` and no more than `high`."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def abs(x: Node) -> Node:
    """Return the absolute value."""
    return apply("abs", x)
