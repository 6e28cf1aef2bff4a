"""The output of a network."""

from __future__ import annotations

from dnn.errors import ConfigurationError, ShapeError
from dnn.graph.node import Node, Shape
from dnn.layers.layer import Layer

__all__ = ["Output"]


class Output(Layer):
    """The last layer, if one likes: it states the shape that the network puts out for a sample.

    Parameters
    ----------
    *shape : int
        Such as ``Output(10)``.

    Raises
    ------
    ConfigurationError
        If that is no shape; when the network is built, `ShapeError` if its output has another.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        if not shape or any(length < 1 for length in shape):
            raise ConfigurationError(f"Output: {shape} is no shape of a sample")
        self.shape = shape

    def build(self, shape: Shape) -> None:
        """Compare the shapes."""
        if shape != self.shape:
            message = f"the network puts out {shape}, but {self.shape} is wanted"
            raise ShapeError(self.name, message, shape, self.shape)

    def forward(self, x: Node) -> Node:
        """Return `x`."""
        return x
