"""Elementwise arithmetic, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dnn.backend import Ops
from dnn.graph.node import Node, Operand, Shape, as_nodes
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply, broadcast, register

__all__ = [
    "Elementwise",
    "add",
    "divide",
    "exp",
    "log",
    "log1p",
    "multiply",
    "negative",
    "power",
    "sqrt",
    "square",
    "subtract",
]


class Elementwise(Operation):
    """An operation that the `Ops` method of its name computes element by element."""

    # Element i of the result needs only element i of the inputs, so either may be overwritten.
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return what broadcasting gives."""
        return broadcast(self.name, inputs)

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Insert axes, so that the axes of each model broadcast as they did."""
        pairs = zip(inputs, stacked, strict=True)
        return apply(
            self.name, *(aligned(x, has, node.ndim) for x, has in pairs), **node.attributes
        )

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Call the method of the operation's name."""
        return [(getattr(ops, self.name), (*arrays.inputs, *arrays.workspace, arrays.out))]


@register
class Add(Elementwise):
    """``y = a + b``."""

    name = "add"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, dy


@register
class Subtract(Elementwise):
    """``y = a - b``."""

    name = "subtract"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, -dy


@register
class Multiply(Elementwise):
    """``y = a b``, element by element."""

    name = "multiply"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b, dy * a


@register
class Divide(Elementwise):
    """``y = a / b``."""

    name = "divide"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        b = node.inputs[1]
        da = dy / b
        return da, -da * node


@register
class Negative(Elementwise):
    """``y = -x``."""

    name = "negative"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-dy,)


@register
class Exp(Elementwise):
    """``y = e^x``."""

    name = "exp"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


@register
class Log(Elementwise):
    """``y = ln x``."""

    name = "log"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


@register
class Square(Elementwise):
    """``y = x^2``."""

    name = "square"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node.inputs[0] * 2.0,)


@register
class Sqrt(Elementwise):
    """``y = sqrt(x)``, ``dx = dy / (2 y)``."""

    name = "sqrt"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 0.5 / node,)


@register
class Log1p(Elementwise):
    """``y = ln(1 + x)``, exact for small x."""

    name = "log1p"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1.0),)


@register
class Power(Elementwise):
    """``y = a^b``, ``da = dy b a^(b - 1)``, ``db = dy y ln a``."""

    name = "power"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b * power(a, b - 1.0), dy * node * log(a)


def add(a: Operand, b: Operand) -> Node:
    """Return ``a + b``; at least one of them is a node."""
    return apply("add", *as_nodes(a, b))


def subtract(a: Operand, b: Operand) -> Node:
    """Return ``a - b``; at least one of them is a node."""
    return apply("subtract", *as_nodes(a, b))


def multiply(a: Operand, b: Operand) -> Node:
    """Return the product element by element; one of them may be a number, a scalar product."""
    return apply("multiply", *as_nodes(a, b))


def negative(x: Node) -> Node:
    """Return ``-x``."""
    return apply("negative", x)


def power(a: Operand, b: Operand) -> Node:
    """Return ``a^b``, also written ``a ** b``; squares and roots take the shorter way."""
    if isinstance(a, Node) and isinstance(b, int | float):
        if b == 1:
            return a
        if b in (0.5, 2):
            return apply("sqrt" if b == 0.5 else "square", a)
    return apply("power", *as_nodes(a, b))


def sqrt(x: Node) -> Node:
    """Return the square root."""
    return apply("sqrt", x)


def log1p(x: Node) -> Node:
    """Return ``ln(1 + x)``."""
    return apply("log1p", x)


def divide(a: Operand, b: Operand) -> Node:
    """Return ``a / b``; at least one of them is a node."""
    return apply("divide", *as_nodes(a, b))


def exp(x: Node) -> Node:
    """Return ``e^x``."""
    return apply("exp", x)


def log(x: Node) -> Node:
    """Return the natural logarithm of `x`."""
    return apply("log", x)


def square(x: Node) -> Node:
    """Return ``x^2``."""
    return apply("square", x)
