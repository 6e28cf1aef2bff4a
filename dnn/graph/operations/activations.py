"""Activation functions.

Their gradients are written in terms of their output, so that the forward pass may overwrite
their input, the sum of a product and a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.graph.node import Node, Shape
from dnn.graph.operation import apply, register
from dnn.graph.operations.elementwise import Elementwise

__all__ = ["relu", "sigmoid", "tanh"]


@register
class Relu(Elementwise):
    """``y = max(x, 0)``, ``dx = dy [y > 0]``: the derivative at 0 is taken to be 0."""

    name = "relu"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * apply("positive", node),)


@register
class Positive(Elementwise):
    """``y = [x > 0]``, 1 or 0; its derivative is 0 wherever there is one."""

    name = "positive"

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        return [(node.shape, np.dtype(bool))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


@register
class Sigmoid(Elementwise):
    """``y = 1 / (1 + exp(-x))``, ``dx = dy y (1 - y)``."""

    name = "sigmoid"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        dy_y = dy * node
        return (dy_y - dy_y * node,)


@register
class Tanh(Elementwise):
    """``y = tanh(x)``, ``dx = dy (1 - y^2)``."""

    name = "tanh"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy - dy * node * node,)


def relu(x: Node) -> Node:
    """Return ``max(x, 0)``."""
    return apply("relu", x)


def sigmoid(x: Node) -> Node:
    """Return the logistic function of `x`, ``1 / (1 + exp(-x))``."""
    return apply("sigmoid", x)


def tanh(x: Node) -> Node:
    """Return the hyperbolic tangent of `x`."""
    return apply("tanh", x)
