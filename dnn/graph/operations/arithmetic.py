"""Sums, differences, products and quotients, element by element, with broadcasting.

Each function is also written with its operator: ``a + b``, ``a - b``, ``a * b``, ``a / b``, ``-x``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnn.backend import Formula
from dnn.graph.node import Node, Operand, as_nodes
from dnn.graph.operation import apply, register
from dnn.graph.operations.elementwise import Elementwise

__all__ = ["add", "divide", "multiply", "negative", "subtract"]


@register
class Add(Elementwise):
    """``y = a + b``."""

    formula = Formula("add", "a b", "a + b")

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, dy


@register
class Subtract(Elementwise):
    """``y = a - b``."""

    formula = Formula("subtract", "a b", "a - b")
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, -dy


@register
class Multiply(Elementwise):
    """``y = a b``, element by element."""

    formula = Formula("multiply", "a b", "a * b")

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b, dy * a


@register
class Divide(Elementwise):
    """``y = a / b``."""

    formula = Formula("divide", "a b", "a / b")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        b = node.inputs[1]
        da = dy / b
        return da, -da * node


@register
class Negative(Elementwise):
    """``y = -x``."""

    formula = Formula("negative", "x", "-x")
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-dy,)


def add(a: Operand, b: Operand) -> Node:
    """Return ``a + b``.

    Parameters
    ----------
    a, b : Node, number or array
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type
        Of bools it is "or".

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        If their types differ, none is a node, or the node's type cannot hold the other one.
    """
    return apply("add", *as_nodes("add", a, b))


def subtract(a: Operand, b: Operand) -> Node:
    """Return ``a - b``.

    Parameters
    ----------
    a, b : Node, number or array, not of bools
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`, or if they are of bools.
    """
    return apply("subtract", *as_nodes("subtract", a, b))


def multiply(a: Operand, b: Operand) -> Node:
    """Return the product element by element; of a number and a node, the scalar product.

    Parameters
    ----------
    a, b : Node, number or array
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type
        Of bools it is "and".

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`.
    """
    return apply("multiply", *as_nodes("multiply", a, b))


def divide(a: Operand, b: Operand) -> Node:
    """Return ``a / b``.

    Parameters
    ----------
    a, b : Node of floats, number or array
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`, or if they are not of floats.
    """
    return apply("divide", *as_nodes("divide", a, b))


def negative(x: Node) -> Node:
    """Return ``-x``.

    Parameters
    ----------
    x : Node, not of bools

    Returns
    -------
    Node, of the shape and type of `x`

    Raises
    ------
    DtypeError
        If `x` is of bools.
    """
    return apply("negative", x)
