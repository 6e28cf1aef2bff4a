"""Powers, roots, exponentials and logarithms, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Formula
from dnn.errors import DtypeError
from dnn.graph.arguments import describe
from dnn.graph.node import CONSTANT, Node, Operand, Shape, as_nodes, called_by_nodes, constant
from dnn.graph.operation import apply, register
from dnn.graph.operations.comparisons import equal, greater_equal, where
from dnn.graph.operations.elementwise import Elementwise

__all__ = ["exp", "expm1", "log", "log1p", "power", "sqrt", "square"]


@register
class Exp(Elementwise):
    """``y = e^x``."""

    formula = Formula("exp", "x", "exp(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


@register
class Expm1(Elementwise):
    """``y = e^x - 1``, exact for small x; ``dx = dy e^x``, which ``y + 1`` would round to 0."""

    formula = Formula("expm1", "x", "expm1(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * exp(node.inputs[0]),)


@register
class Log(Elementwise):
    """``y = ln x``."""

    formula = Formula("log", "x", "log(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


@register
class Log1p(Elementwise):
    """``y = ln(1 + x)``, exact for small x."""

    formula = Formula("log1p", "x", "log1p(x)")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1.0),)


@register
class Square(Elementwise):
    """``y = x^2``."""

    formula = Formula("square", "x", "x * x", np.square)
    kinds = "fiu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node.inputs[0] * 2.0,)


@register
class Sqrt(Elementwise):
    """``y = sqrt(x)``, ``dx = dy / (2 y)``."""

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

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        zero, one = constant(0.0, dy.dtype), constant(1.0, dy.dtype)
        # Arguments are replaced and not results, so that nothing infinite is computed.
        below = where(equal(b, zero), zero, b - one)
        base = where(equal(a, zero) * greater_equal(b, zero), one, a)
        return dy * b * apply("power", a, below), dy * node * log(base)


def exp(x: Node) -> Node:
    """Return ``e^x``.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return apply("exp", x)


def expm1(x: Node) -> Node:
    """Return ``e^x - 1``, without the rounding of ``e^x`` for small `x`.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        -1 at -infinity.

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return apply("expm1", x)


def log(x: Node) -> Node:
    """Return the natural logarithm.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        -inf at 0, NaN below.

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return apply("log", x)


def log1p(x: Node) -> Node:
    """Return ``ln(1 + x)``, without the rounding of ``1 + x`` for small `x`.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        -inf at -1, NaN below.

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return apply("log1p", x)


def square(x: Node) -> Node:
    """Return ``x^2``.

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
    return apply("square", x)


def sqrt(x: Node) -> Node:
    """Return the square root.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        NaN below 0; the gradient at 0 is infinite.

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return apply("sqrt", x)


@called_by_nodes
def power(a: Operand, b: Operand) -> Node:
    """Return ``a^b``, also written ``a ** b``.

    Parameters
    ----------
    a, b : Node, number or array, not of bools
        At least one is a node; what is none becomes a constant of its type. To the power of the
        numbers 1, 2 and 0.5 it is `a` itself, `square` and `sqrt`.

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
