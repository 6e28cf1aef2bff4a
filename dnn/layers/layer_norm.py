"""Layer normalisation."""

from __future__ import annotations

from dnn.errors import ConfigurationError, ShapeError
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.layers.layer import Layer

__all__ = ["LayerNorm"]


class LayerNorm(Layer):
    """The last axis of each sample normalised to mean 0 and variance 1, then scaled and shifted.

    No sample depends on the others of its batch, so training and prediction are the same.

    Parameters
    ----------
    epsilon : float, positive
        Added to the variance.

    References
    ----------
    .. [1] Ba, Kiros and Hinton, Layer normalization, 2016, equation 3.
    """

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        if not 0 < epsilon < 1:
            raise ConfigurationError(f"LayerNorm: epsilon must be in 0 .. 1, not {epsilon!r}")
        self.epsilon = float(epsilon)

    def build(self, shape: Shape) -> None:
        """Declare scale and shift."""
        if not shape:
            raise ShapeError(self.name, "a sample must have an axis", shape)
        self.scale = self.parameter("scale", shape[-1:], "ones")
        self.shift = self.parameter("shift", shape[-1:], "zeros")

    def forward(self, x: Node) -> Node:
        """Return `x` normalised, scaled and shifted."""
        return operations.normalise(x, -1, self.epsilon).values * self.scale + self.shift
