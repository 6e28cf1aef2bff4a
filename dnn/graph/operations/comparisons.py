"""Comparisons, selection by a condition, and casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import Formula, Ops
from dnn.errors import DtypeError
from dnn.graph.arguments import broadcast, describe
from dnn.graph.node import Node, Operand, Shape, as_nodes, check_nodes, constant
from dnn.graph.operation import Arrays, Step, apply, register
from dnn.graph.operations.elementwise import Elementwise, binary

__all__ = ["cast", "equal", "greater", "greater_equal", "where"]


class Comparison(Elementwise):
    """Base class of comparisons of two operands, of bool and without a gradient."""

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return None, None


@register
class Greater(Comparison):
    """``a > b``, also written so.

    False where one is NaN. It has no gradient.
    """

    formula = Formula("greater", "a b", "a > b", is_bool=True)


@register
class GreaterEqual(Comparison):
    """``a >= b``, also written so.

    False where one is NaN. It has no gradient.
    """

    formula = Formula("greater_equal", "a b", "a >= b", is_bool=True)


@register
class Equal(Comparison):
    """Where `a` equals `b`; the operator ``==`` compares nodes and not their values.

    False where one is NaN. It has no gradient.
    """

    formula = Formula("equal", "a b", "a == b", is_bool=True)


@register
class Cast(Elementwise):
    """The same values in another type of elements; the gradient is cast back."""

    formula = Formula("cast", "x", "x")
    overwrites = ()

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return inputs[0].shape, np.dtype(attributes["dtype"])

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        dtype = node.inputs[0].dtype
        return (cast(dy, dtype) if dtype.kind == "f" else None,)


class WhereCompared(Elementwise):
    """Base class: ``y = a`` where a comparison of b and c holds, else 0; for gradients at kinks.

    `a` is selected, not multiplied by 0 or 1: where it, the gradient that arrives, is infinite, 0
    times it would be NaN. Unlike `where` it has operands of one type, and is fused.
    """

    kinds = "f"
    # Transposing an operand first takes less time than reading it with a stride.
    contiguous = (0, 1)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return apply(self.name, dy, *node.inputs[1:]), None, None


@register
class WhereGreater(WhereCompared):
    """``y = a`` where ``b > c``, else 0."""

    formula = Formula("where_greater", "a b c", "a if b > c else 0")


@register
class WhereEqual(WhereCompared):
    """``y = a`` where ``b == c``, else 0."""

    formula = Formula("where_equal", "a b c", "a if b == c else 0")


@register
class Where(Elementwise):
    """``y = a`` where the condition holds, else ``b``; the gradient goes to the selected one."""

    formula = Formula("where", "condition a b", "a if condition else b")

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


greater = binary(Greater)
greater_equal = binary(GreaterEqual)
equal = binary(Equal)


def cast(x: Node, dtype: npt.DTypeLike) -> Node:
    """Return `x` in another type of elements.

    Parameters
    ----------
    x : Node
    dtype : type of elements
        Floats become integers by leaving out what is behind the point.

    Returns
    -------
    Node of `dtype`, of the shape of `x`
        `x` itself if it is of that type. The gradient is cast back; integers and bools have none.

    Raises
    ------
    DtypeError
        If there is no such type, or it is not of real numbers of at most 64 bits.
    """
    check_nodes("cast", x)
    wanted = dtype_of("cast", dtype)
    return x if x.dtype == wanted else apply("cast", x, dtype=wanted)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """Return `a` where a condition holds, else `b`.

    Parameters
    ----------
    condition : Node of bool
    a, b : Node, number or array
        At least one is a node; a number or array becomes a constant of that node's type.

    Returns
    -------
    Node, of the shape that all three broadcast to and of the type of `a` and `b`
        The gradient goes to `a` where the condition holds, else to `b`.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        If the condition is not of bool, or as for `add`.
    """
    return apply("where", condition, *as_nodes("where", a, b))
