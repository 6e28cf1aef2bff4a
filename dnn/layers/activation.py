"""Activation layers."""

from __future__ import annotations

from dnn.errors import unknown_name
from dnn.graph.node import Node
from dnn.graph.operations.activations import ACTIVATIONS
from dnn.layers.layer import Layer

__all__ = ["ACTIVATIONS", "Activation"]


class Activation(Layer):
    """A function applied to every element; ``"softmax"`` to the last axis of each sample.

    Parameters
    ----------
    function : str
        One of `dnn.graph.operations.activations.ACTIVATIONS`: ``"relu"``, ``"sigmoid"``,
        ``"tanh"``, ``"softmax"`` and so on.
    """

    def __init__(self, function: str) -> None:
        super().__init__()
        if function not in ACTIVATIONS:
            raise unknown_name("activation", function, sorted(ACTIVATIONS))
        self.function = function

    def forward(self, x: Node) -> Node:
        """Return the function of `x`."""
        return ACTIVATIONS[self.function](x)
