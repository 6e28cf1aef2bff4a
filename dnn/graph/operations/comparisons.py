"""Comparisons, choices by a condition, casts, and functions with a kink, such as maximum and clip.

At a kink any number between the derivatives on either side is a subgradient. The choice is
PyTorch's, so that a network that is brought over from there trains as it did:

| function | where | derivative |
|---|---|---|
| `maximum`, `minimum` | both are equal | half for each: neither is preferred, and the sum is 1 |
| `clip` | at a limit | 1: `x` is still itself there; the derivative on the inner side |
| `abs` | 0 | 0 |
| `relu` | 0 | 0 |
"""

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
from dnn.graph.operations.elementwise import Elementwise, binary, unary

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


@register
class Maximum(Elementwise):
    """The larger of `a` and `b`, element by element.

    NaN where one is NaN. Where they are equal, each gets half of the gradient.
    """

    formula = Formula("maximum", "a b", "a if a > b or a != a else b", np.maximum)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return _share(dy, a, b), _share(dy, b, a)


@register
class Minimum(Elementwise):
    """The smaller of `a` and `b`, element by element.

    NaN where one is NaN. Where they are equal, each gets half of the gradient.
    """

    formula = Formula("minimum", "a b", "a if a < b or a != a else b", np.minimum)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return _share(dy, b, a), _share(dy, a, b)


@register
class Clip(Elementwise):
    """``y = min(max(x, low), high)``, ``dx = dy [y = x]``: at a limit the derivative is 1."""

    formula = Formula("clip", "x low high", "min(max(x, low), high)")

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return apply("where_equal", dy, node, node.inputs[0]), None, None


@register
class Abs(Elementwise):
    """The absolute value, also written ``abs(x)`` of Python.

    The derivative at 0 is taken to be 0.
    """

    formula = Formula("abs", "x", "abs(x)")

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * apply("sign", node.inputs[0]),)


@register
class Sign(Elementwise):
    """``y = -1, 0 or 1``; its derivative is 0 wherever there is one."""

    formula = Formula("sign", "x", "1 if x > 0 else -1 if x < 0 else x", np.sign)
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


def _share(dy: Node, a: Node, b: Node) -> Node:
    """Return dy where a > b, dy / 2 where they are equal, else 0."""
    return apply("where_greater", dy, a, b) + apply("where_equal", dy * 0.5, a, b)


maximum = binary(Maximum)
minimum = binary(Minimum)
abs = unary(Abs)


def clip(x: Node, low: Operand | None = None, high: Operand | None = None) -> Node:
    """Return `x` no less than `low` and no more than `high`.

    Parameters
    ----------
    x : Node
    low, high : float, array or Node, optional
        No limit if left out. A node gets the gradient where it takes effect, as of `maximum` and
        `minimum`. Where `low` is above `high`, the result is `high`.

    Returns
    -------
    Node, of the shape and type of `x`
        `x` itself without limits; NaN stays NaN. No gradient goes to elements outside the limits;
        elements that equal a limit get all of it, as in PyTorch: a parameter that begins at a limit
        can be trained to leave it.

    Raises
    ------
    DtypeError
        If the type of `x` cannot hold a limit.
    """
    if low is None and high is None:
        return x
    check_nodes("clip", x)
    if isinstance(low, Node) or isinstance(high, Node):  # a node has a gradient, unlike a number
        x = x if low is None else maximum(x, low)
        return x if high is None else minimum(x, high)
    least, most = (-np.inf, np.inf) if x.dtype.kind == "f" else _ends(x.dtype)
    limits = (least if low is None else low, most if high is None else high)
    return apply("clip", *as_nodes("clip", x, *limits))


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest number of a type of integers, or of bools."""
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
