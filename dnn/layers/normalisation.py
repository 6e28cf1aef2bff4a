"""Layers that normalise: over the batch, and over a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.errors import ConfigurationError, ShapeError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant
from dnn.graph.operations.normalisation import Normalised
from dnn.graph.operations.ranks import Ranks
from dnn.layers.images import check_image
from dnn.layers.layer import Layer

__all__ = ["BatchNorm", "LayerNorm", "LayerNorm2D"]

IMAGES = 4
"""Axes of a batch of images."""


class BatchNorm(Layer):
    """Batch normalisation: each channel to mean 0 and variance 1, then a trained scale and shift.

    ::

        y = (x - mean) / sqrt(variance + epsilon) scale + shift

    Channels stand along the first axis of an image, a sample of three axes, and along the last axis
    of other samples. In training, mean and variance are those of the batch, and

    ::

        running <- momentum running + (1 - momentum) of the batch

    is kept for predictions, which use the running ones. So does the training of a layer whose scale
    and shift are frozen, and it leaves them as they are.

    Parameters
    ----------
    momentum : float, in 0 .. 1 without 1
        Of the running statistics. (PyTorch's ``momentum`` is 1 minus this.)
    epsilon : float, positive

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range.

    Notes
    -----
    The running variance takes that of the batch with its number of elements less one, so that it
    is not biased. A batch with one element to a channel says nothing about the variance and leaves
    the running statistics alone.

    References
    ----------
    .. [1] Ioffe and Szegedy, Batch normalization: accelerating deep network training by reducing
       internal covariate shift, 2015, algorithms 1 and 2.
    """

    @explains_arguments
    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            message = f"BatchNorm: momentum must be in 0 .. 1 without 1, not {momentum!r}"
            raise ConfigurationError(message)
        if not 0 < epsilon < 1:
            raise ConfigurationError(f"BatchNorm: epsilon must be in 0 .. 1, not {epsilon!r}")
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self._ranks: Ranks | None = None

    def normalise_over(self, ranks: Ranks | None) -> None:
        """Use mean and variance of the batches of all ranks together in training from now on.

        Parameters
        ----------
        ranks : Ranks, optional
            Each has one sample at least in every batch. None: use those of this rank's batch, which
            is the default.
        """
        self._ranks = ranks

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which belongs to one process."""
        return {**super().__getstate__(), "_ranks": None}

    def build(self, shape: Shape) -> None:
        """Declare scale, shift and running statistics, one number for each channel."""
        if not shape:
            raise ShapeError(self.name, "a sample must have an axis of channels", shape)
        axis = 0 if len(shape) == IMAGES - 1 else len(shape) - 1
        channels = shape[axis : axis + 1]
        self.scale = self.parameter("scale", channels, "ones")
        self.shift = self.parameter("shift", channels, "zeros")
        self.mean = self.state("mean", channels, "zeros")
        self.variance = self.state("variance", channels, "ones")
        self._axis = axis + 1  # behind the axis of the batch; the shape of the samples fixes it

    @property
    def axis(self) -> int:
        """The axis of the channels in a batch."""
        return self._axis

    def forward(self, x: Node) -> Node:
        """Return `x` normalised, scaled and shifted."""
        if not self.training or self.is_frozen:
            # One product and one sum for each element, with numbers computed once for each channel.
            factor = self.scale / operations.sqrt(self.variance + self.epsilon)
            shift = self.shift - self.mean * factor
            return x * self._along(factor, x) + self._along(shift, x)
        if self._ranks is not None:
            return self._over_ranks(x, self._ranks)
        if x.ndim == IMAGES:
            numbers = self.scale, self.shift, self.axis, self.epsilon
            normalised = operations.batch_norm(x, *numbers)
            self._update_statistics(x, normalised)
            return normalised.values
        normalised = operations.normalise(x, tuple(range(x.ndim - 1)), self.epsilon)
        self._update_statistics(x, normalised)
        return normalised.values * self.scale + self.shift

    def _over_ranks(self, x: Node, ranks: Ranks) -> Node:
        """Return `x` normalised over the batches of all ranks, which may differ in size.

        Every rank's loss depends on all samples, and so do gradients: two sums over ranks forward
        and two backward, of a number or two for each channel.
        """
        channels = x.shape[self.axis]
        axes = tuple(axis for axis in range(x.ndim) if axis != self.axis)
        count = constant(np.array([x.size // channels]), x.dtype)
        both = operations.concat([operations.sum(x, axes), count])
        joined = operations.sum_over_ranks(both, ranks)
        mean, elements = joined[:channels] / joined[channels:], joined[channels:]
        centred = x - self._along(mean, x)
        squares = operations.sum(operations.square(centred), axes)
        squares = operations.sum_over_ranks(squares, ranks)
        inverse = 1.0 / operations.sqrt(squares / elements + self.epsilon)
        self._update(self.mean, mean)
        self._update(self.variance, squares / operations.clip(elements - 1.0, 1.0))
        return centred * self._along(inverse * self.scale, x) + self._along(self.shift, x)

    def _update_statistics(self, x: Node, normalised: Normalised) -> None:
        elements = x.size // x.shape[self.axis]
        if elements > 1:
            unbiased = normalised.variance * (elements / (elements - 1))
            self._update(self.mean, normalised.mean)
            self._update(self.variance, unbiased)

    def _along(self, of_channels: Node, x: Node) -> Node:
        """Return numbers, one for each channel, in a shape that broadcasts to `x`."""
        behind = x.ndim - 1 - self.axis
        return operations.reshape(of_channels, (*of_channels.shape, *(1,) * behind))

    def _update(self, state: Node, of_batch: Node) -> None:
        flat = operations.reshape(of_batch, state.shape)
        self.assign(state, state * self.momentum + flat * (1.0 - self.momentum))


class LayerNorm(Layer):
    """Layer normalisation: the last axis to mean 0 and variance 1, then scaled and shifted.

    No sample depends on other samples of its batch, so training and prediction are the same.

    Parameters
    ----------
    epsilon : float, positive
        Added to the variance.

    References
    ----------
    .. [1] Ba, Kiros and Hinton, Layer normalization, 2016, equation 3.
    """

    @explains_arguments
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


class LayerNorm2D(LayerNorm):
    """Layer normalisation of images: the channels of each pixel to mean 0 and variance 1.

    Parameters
    ----------
    epsilon : float, positive
        Added to the variance.

    References
    ----------
    .. [1] Liu et al., A ConvNet for the 2020s, 2022, section 2.6.
    """

    @explains_arguments
    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__(epsilon)

    def build(self, shape: Shape) -> None:
        """Declare scale and shift, one number for each channel."""
        check_image(self, shape)
        super().build(shape[:1])

    def forward(self, x: Node) -> Node:
        """Return `x` normalised, scaled and shifted."""
        scale, shift = (operations.reshape(each, (-1, 1, 1)) for each in (self.scale, self.shift))
        return operations.normalise(x, 1, self.epsilon).values * scale + shift
