"""Functions with a kink: the larger and the smaller one, and the absolute value."""

from __future__ import annotations

from collections.abc import Sequence

from dnn.graph.node import Node, Operand, as_nodes
from dnn.graph.operation import apply, register
from dnn.graph.operations.comparisons import cast, greater, greater_equal
from dnn.graph.operations.elementwise import Elementwise

__all__ = ["abs", "clip", "maximum", "minimum"]


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
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


def _share(a: Node, b: Node) -> Node:
    """1 where a > b, 1/2 where they are equal, else 0."""
    return (cast(greater(a, b), a.dtype) + cast(greater_equal(a, b), a.dtype)) * 0.5


def maximum(a: Operand, b: Operand) -> Node:
    """Return the larger one, element by element.

    Parameters
    ----------
    a, b : Node, number or array
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type
        NaN where one is NaN. Where they are equal, each gets half of the gradient.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`.
    """
    return apply("maximum", *as_nodes("maximum", a, b))


def minimum(a: Operand, b: Operand) -> Node:
    """Return the smaller one, element by element.

    Parameters
    ----------
    a, b : Node, number or array
        At least one is a node; what is none becomes a constant of its type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type
        NaN where one is NaN. Where they are equal, each gets half of the gradient.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        As for `add`.
    """
    return apply("minimum", *as_nodes("minimum", a, b))


def clip(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """Return `x` no less than `low` and no more than `high`.

    Parameters
    ----------
    x : Node
    low, high : float, optional
        No limit if left out. Where `low` is above `high`, the result is `high`.

    Returns
    -------
    Node, of the shape and type of `x`
        `x` itself without limits; NaN stays NaN. No gradient goes to elements outside the limits,
        and half of it to those that equal one.

    Raises
    ------
    DtypeError
        If the type of `x` cannot hold a limit.
    """
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def abs(x: Node) -> Node:
    """Return the absolute value, also written ``abs(x)`` of Python.

    Parameters
    ----------
    x : Node

    Returns
    -------
    Node, of the shape and type of `x`
        The derivative at 0 is taken to be 0.
    """
    return apply("abs", x)
