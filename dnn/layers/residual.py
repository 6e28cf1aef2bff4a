"""Residual connections."""

from __future__ import annotations

from collections.abc import Sequence

from dnn.errors import ConfigurationError, ShapeError
from dnn.graph.node import Node, Shape
from dnn.layers.layer import Layer, NoiseSource, build_all

__all__ = ["Residual"]


class Residual(Layer):
    """``y = x + layers(x)``.

    Parameters
    ----------
    layers : sequence of Layer
        Together they keep the shape of a sample. Their names begin with the name of this layer, as
        in ``residual_1.fully_connected_1.weight``.

    Raises
    ------
    ConfigurationError
        If there is no layer; when the network is built, `ShapeError` if they change the shape.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, equation 1.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = tuple(layers)
        if not self.layers:
            raise ConfigurationError("Residual: there is no layer in it")

    def build(self, shape: Shape) -> None:
        """Build the layers inside, and take over what they declare."""
        end = build_all(self.layers, shape, self.dtype, f"{self.name}.")[-1]
        if end != shape:
            message = f"the layers inside turn samples of {shape} into {end}; it must be the same"
            raise ShapeError(self.name, message, shape, end)
        for layer in self.layers:
            self.parameters += layer.parameters
            self.states += layer.states

    @property
    def assignments(self) -> list[Node]:
        """Those of all layers inside."""
        return [node for layer in self.layers for node in layer.assignments]

    def begin(self, noise: NoiseSource | None) -> None:
        """Make ready for `forward`, with all layers inside."""
        super().begin(noise)
        for layer in self.layers:
            layer.begin(noise)

    def forward(self, x: Node) -> Node:
        """Return the sum of `x` and what the layers make of it."""
        y = x
        for layer in self.layers:
            y = layer.forward(y)
        return x + y
