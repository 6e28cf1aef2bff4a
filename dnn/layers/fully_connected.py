"""Fully connected layers."""

from __future__ import annotations

from dnn.errors import ConfigurationError, ShapeError, explains_arguments
from dnn.graph.node import Node, Shape
from dnn.initializers import Initializer, zeros
from dnn.layers.layer import Layer

__all__ = ["FullyConnected"]


class FullyConnected(Layer):
    """``y = x W + b``, with W of shape (inputs, units) and one bias for each unit.

    Parameters
    ----------
    units : int
    bias : bool
    start : str or initializer
        What W starts from; b starts from 0.
    """

    @explains_arguments
    def __init__(
        self, units: int, *, bias: bool = True, start: str | Initializer = "glorot_uniform"
    ) -> None:
        super().__init__()
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ConfigurationError(
                f"FullyConnected: units must be an integer of at least 1, not {units!r}"
            )
        self.units = units
        self.start = start
        self.with_bias = bias

    def build(self, shape: Shape) -> None:
        """Declare W and b."""
        if len(shape) != 1:
            message = f"a sample must be a vector, but its shape is {shape}"
            raise ShapeError(self.name, message, shape)
        self.weight = self.parameter("weight", (shape[0], self.units), self.start)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.units,), zeros)

    def forward(self, x: Node) -> Node:
        """Return ``x W + b``."""
        y = x @ self.weight
        return y + self.bias if self.with_bias else y
