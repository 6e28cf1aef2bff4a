"""Functions with a kink: maximum, minimum, clipping and the absolute value.

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

from dnn.backend import Formula
from dnn.graph.node import Node, Operand, as_nodes, check_nodes
from dnn.graph.operation import apply, register
from dnn.graph.operations.elementwise import Elementwise, binary, unary

__all__ = ["abs", "clip", "maximum", "minimum"]


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
