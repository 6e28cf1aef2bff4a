"""Sums, differences, products and quotients, element by element, with broadcasting.

Each function is also written with its operator: ``a + b``, ``a - b``, ``a * b``, ``a / b``, ``-x``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnn.backend import Formula
from dnn.graph.node import Node
from dnn.graph.operation import register
from dnn.graph.operations.elementwise import Elementwise, binary, unary

__all__ = ["add", "divide", "multiply", "negative", "subtract"]


@register
class Add(Elementwise):
    """``a + b``.

    Of bools it is "or".
    """

    formula = Formula("add", "a b", "a + b")

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
    """The product element by element; of a number and a node, the scalar product.

    Of bools it is "and".
    """

    formula = Formula("multiply", "a b", "a * b")

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


add = binary(Add)
subtract = binary(Subtract)
multiply = binary(Multiply)
divide = binary(Divide)
negative = unary(Negative)
