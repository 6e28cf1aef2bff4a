"""Dropout of single elements, and of whole channels of images."""

from __future__ import annotations

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.initializers import constant
from dnn.layers.images import check_image
from dnn.layers.layer import Layer

__all__ = ["Dropout", "SpatialDropout"]


class Dropout(Layer):
    """In training, each element is 0 with probability `rate`, and else divided by ``1 - rate``.

    So the output has the same mean in training as in prediction, where it equals the input.

    Parameters
    ----------
    rate : float, in 0 .. 1 without 1
        It becomes the state ``rate``, which may be changed between steps.

    Raises
    ------
    ConfigurationError
        If the rate is out of its range; when the network is built, if it is 1 in the network's
        type of elements.

    References
    ----------
    .. [1] Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting,
       2014, section 10, last paragraph.
    """

    @explains_arguments
    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigurationError(f"Dropout: rate must be in 0 .. 1 without 1, not {rate!r}")
        self.rate = float(rate)

    def build(self, shape: Shape) -> None:
        """Declare the rate."""
        if self.dtype.type(self.rate) >= 1:
            message = f"a rate of {self.rate!r} is 1 in {self.dtype}: it must be below"
            raise ConfigurationError(f"{self.name}: {message}")
        self.dropped = self.state("rate", (), constant(self.rate))

    def check_state(self, name: str, values: Array) -> None:
        """Raise `ConfigurationError` if a rate is outside its range, such as 1 after rounding."""
        wrong = np.ravel(values)[~((np.ravel(values) >= 0) & (np.ravel(values) < 1))]
        if wrong.size:
            message = f"rate must be in 0 .. 1 without 1, not {wrong[0]:g} in {values.dtype}"
            raise ConfigurationError(f"{self.name}: {message}")

    def forward(self, x: Node) -> Node:
        """Return `x`, in training with elements set to 0."""
        if not self.training:
            return x
        return operations.dropout(x, self.uniform_noise(self.noise_shape(x)), self.dropped)

    def noise_shape(self, x: Node) -> Shape:
        """Return the shape of the random numbers, which broadcasts to that of `x`."""
        return x.shape


class SpatialDropout(Dropout):
    """In training, each channel of an image as a whole is 0 with probability `rate`.

    Else it is divided by ``1 - rate``. Neighbours in an image are much alike, so that dropping
    single elements has little effect [1]_.

    Parameters
    ----------
    rate : float, in 0 .. 1 without 1
        As for `Dropout`.

    Raises
    ------
    ConfigurationError
        As for `Dropout`. When the network is built, `ShapeError` if samples are no images.

    References
    ----------
    .. [1] Tompson et al., Efficient object localization using convolutional networks, 2015,
       section 3.2.
    """

    def build(self, shape: Shape) -> None:
        """Check that samples are images, and declare the rate."""
        check_image(self, shape)
        super().build(shape)

    def noise_shape(self, x: Node) -> Shape:
        """Return (batch, channels, 1, 1), one random number for each channel."""
        return (*x.shape[:2], 1, 1)
