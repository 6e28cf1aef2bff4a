"""Arithmetic, powers, exponentials and logarithms, element by element, with broadcasting.

Also written with operators: ``a + b``, ``a - b``, ``a * b``, ``a / b``, ``-x``, ``a ** b``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.backend.formula import ADD, MULTIPLY, Formula
from dnn.errors import DtypeError
from dnn.graph.arguments import describe
from dnn.graph.node import CONSTANT, Node, Operand, Shape, as_nodes, called_by_nodes, constant
from dnn.graph.operation import Arrays, Step, apply, register
from dnn.graph.operations.comparisons import equal, greater_equal, where
from dnn.graph.operations.elementwise import Elementwise, binary, unary

__all__ = [
    "add",
    "divide",
    "exp",
    "expm1",
    "log",
    "log1p",
    "multiply",
    "negative",
    "power",
    "sqrt",
    "square",
    "subtract",
]


@register
class Add(Elementwise):
    """``a + b``.

    Of bools it is "or".
    """

    formula = ADD

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, dy


@register
class Subtract(Elementwise):
    """``a - b``."""

    formula = Formula("subtract", "a b", "a - b")
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, -dy


@register
class Multiply(Elementwise):
    """``a * b``, element by element.

    Of bools it is "and".
    """

    formula = MULTIPLY

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b, dy * a


@register
class Divide(Elementwise):
    """``a / b``."""

    formula = Formula("divide", "a b", "a / b")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        b = node.inputs[1]
        da = dy / b
        return da, -da * node


@register
class Negative(Elementwise):
    """``-x``."""

    formula = Formula("negative", "x", "-x")
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-dy,)


@register
class Exp(Elementwise):
    """``e^x``."""

    formula = Formula("exp", "x", "exp(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


@register
class Expm1(Elementwise):
    """``e^x - 1``, without the rounding of ``e^x`` for small `x`.

    -1 at -infinity.
    """

    formula = Formula("expm1", "x", "expm1(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * exp(node.inputs[0]),)  # `node + 1` would be rounded to 0


@register
class Log(Elementwise):
    """The natural logarithm.

    -inf at 0, NaN below.
    """

    formula = Formula("log", "x", "log(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


@register
class Log1p(Elementwise):
    """``ln(1 + x)``, without the rounding of ``1 + x`` for small `x`.

    -inf at -1, NaN below.
    """

    formula = Formula("log1p", "x", "log1p(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1.0),)


@register
class Square(Elementwise):
    """``x^2``."""

    formula = Formula("square", "x", "x * x", np.square)
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node.inputs[0] * 2.0,)


@register
class Sqrt(Elementwise):
    """The square root.

    NaN below 0; the gradient at 0 is infinite.
    """

    formula = Formula("sqrt", "x", "sqrt(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 0.5 / node,)


@register
class Power(Elementwise):
    """``y = a^b``, ``da = dy b a^(b - 1)``, ``db = dy y ln a``.

    Where the base or the exponent is 0 these formulas are 0 times infinity, and the derivatives
    are not: ``da = 0`` for ``b = 0``, and ``db = 0`` for ``a = 0`` and ``b >= 0``, as in PyTorch.
    """

    formula = Formula("power", "a b", "a ** b")
    kinds = "fiu"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        shape, dtype = super().infer(*inputs)
        exponent = inputs[1]
        if dtype.kind == "i" and (
            exponent.kind != CONSTANT or (exponent.attributes["value"] < 0).any()
        ):
            message = f"an exponent of {describe(inputs[0])} of {dtype} is a constant of 0 or more"
            raise DtypeError(f"power: {message}: see dnn.graph.cast")
        return shape, dtype

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        together = super().with_models(node, inputs, stacked, models)
        if not stacked[1] or node.inputs[1].size != 1:
            return together
        return apply(self.name, *together.inputs, one_exponent_each=True)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        if type(ops) is not Ops or not node.attributes:
            return super().forward(ops, node, arrays)
        # NumPy computes powers of one exponent, where it is 2 for instance, as a square: not to the
        # last bit what it computes of several.
        (a, b), out = arrays.inputs, arrays.out
        return [
            (np.power, (a[k] if a.ndim == out.ndim else a, b[k].reshape(()), out[k, ...]))
            for k in range(len(out))
        ]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        zero, one = constant(0.0, dy.dtype), constant(1.0, dy.dtype)
        # Arguments are replaced and not results, so that nothing infinite is computed.
        below = where(equal(b, zero), zero, b - one)
        base = where(equal(a, zero) * greater_equal(b, zero), one, a)
        return dy * b * apply("power", a, below), dy * node * log(base)


add = binary(Add)
subtract = binary(Subtract)
multiply = binary(Multiply)
divide = binary(Divide)
negative = unary(Negative)
exp = unary(Exp)
expm1 = unary(Expm1)
log = unary(Log)
log1p = unary(Log1p)
square = unary(Square)
sqrt = unary(Sqrt)


@called_by_nodes
def power(a: Operand, b: Operand) -> Node:
    """Return ``a^b``, also written ``a ** b``.

    Parameters
    ----------
    a, b : Node, number or array, not of bools
        At least one is a node; a number or array becomes a constant of that node's type. For the
        exponents 1, 2 and 0.5 as numbers the result is `a` itself, `square` and `sqrt`.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type
        NaN for a power, other than an integer, of a negative number. The gradient of the base is
        infinite at 0 for exponents between 0 and 1; that of the exponent is 0 at a base of 0.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`; if they are of bools; or of signed integers, and `b` is no constant of 0 or
        more.
    """
    if isinstance(a, Node) and isinstance(b, int | float):
        if b == 1:
            return a
        if b in (0.5, 2):
            return apply("sqrt" if b == 0.5 else "square", a)
    return apply("power", *as_nodes("power", a, b))
