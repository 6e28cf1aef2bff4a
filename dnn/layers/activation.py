"""Activation layers."""

from __future__ import annotations

from collections.abc import Callable

from dnn.errors import unknown_name
from dnn.graph import operations
from dnn.graph.node import Node
from dnn.layers.layer import Layer

__all__ = ["ACTIVATIONS", "Activation"]

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "elu": operations.elu,
    "gelu": operations.gelu,
    "leaky_relu": operations.leaky_relu,
    "relu": operations.relu,
    "sigmoid": operations.sigmoid,
    "softmax": operations.softmax,
    "softplus": operations.softplus,
    "tanh": operations.tanh,
}


class Activation(Layer):
    """A function applied to every element; ``"softmax"`` to the last axis of each sample.

    Parameters
    ----------
    function : str
        ``"relu"``, ``"sigmoid"``, ``"tanh"``, ``"softmax"``, ``"leaky_relu"``, ``"elu"``,
        ``"gelu"`` or ``"softplus"``.
    """

    def __init__(self, function: str) -> None:
        super().__init__()
        if function not in ACTIVATIONS:
            raise unknown_name("activation", function, ACTIVATIONS)
        self.function = function

    def forward(self, x: Node) -> Node:
        """Return the function of `x`."""
        return ACTIVATIONS[self.function](x)
