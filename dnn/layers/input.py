"""The input of a network."""

from __future__ import annotations

from dnn.errors import ConfigurationError
from dnn.graph.node import Node
from dnn.layers.layer import Layer

__all__ = ["Input"]


class Input(Layer):
    """The first layer: it states the shape of one sample.

    Parameters
    ----------
    *shape : int
        Such as ``Input(784)``.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        if not shape or any(length < 1 for length in shape):
            raise ConfigurationError(f"Input: {shape} is no shape of a sample")
        self.shape = shape

    def forward(self, x: Node) -> Node:
        """Return `x`."""
        return x
