"""Elementwise arithmetic, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.graph.node import Node, Operand, Shape, as_nodes
from dnn.graph.operation import Arrays, Operation, Step, apply, broadcast, register

__all__ = ["Elementwise", "divide", "exp", "log", "square"]


class Elementwise(Operation):
    """An operation that the `Ops` method of its name computes element by element."""

    # Element i of the result needs only element i of the inputs, so either may be overwritten.
    overwrites = (0, 1)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return what broadcasting gives."""
        return broadcast(self.name, inputs)

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
