"""Common layers: input, fully connected, activation, dropout, flatten, reshape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.errors import (
    ConfigurationError,
    ShapeError,
    check_count,
    explains_arguments,
    is_integer,
    unknown_name,
)
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.graph.operations.activations import ACTIVATIONS
from dnn.initializers import Initializer, constant, zeros
from dnn.layers.images import check_image
from dnn.layers.layer import Layer

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Dropout",
    "Flatten",
    "FullyConnected",
    "Input",
    "LayerScale",
    "Output",
    "RadialBasis",
    "Reshape",
    "SpatialDropout",
    "StochasticDepth",
]


def _check_shape(kind: str, shape: Sequence[Any]) -> None:
    """Raise `ConfigurationError` unless a shape has at least one length, and all are positive."""
    if not shape or not all(is_integer(length) and length >= 1 for length in shape):
        given = ", ".join(map(repr, shape))
        message = f"{kind}({given}): no shape of a sample; give its lengths, as in {kind}(3, 8, 8)"
        raise ConfigurationError(message)


class Input(Layer):
    """The first layer: it states the shape of one sample.

    Parameters
    ----------
    *shape : int
        Such as ``Input(784)``.
    dtype : type, optional
        ``int`` where samples are integers, such as for an `Embedding`; else they are numbers of the
        network's type.

    Raises
    ------
    ConfigurationError
        If that is no shape, or `dtype` neither ``int`` nor ``float``.
    """

    @explains_arguments
    def __init__(self, *shape: int, dtype: type | None = None) -> None:
        super().__init__()
        _check_shape(type(self).__name__, shape)
        if dtype not in (None, int, float):
            message = f"{type(self).__name__}: dtype must be int or float, not {dtype!r}"
            raise ConfigurationError(message)
        self.shape = shape
        if dtype is int:  # set for integers alone: checkpoints of other inputs do not have it
            self.integers = True

    def forward(self, x: Node) -> Node:
        """Return `x`."""
        return x


class Output(Layer):
    """An optional last layer, which checks the shape of the network's output for a sample.

    Parameters
    ----------
    *shape : int
        Such as ``Output(10)``.

    Raises
    ------
    ConfigurationError
        If that is no shape; when the network is built, `ShapeError` if its output has another.
    """

    @explains_arguments
    def __init__(self, *shape: int) -> None:
        super().__init__()
        _check_shape("Output", shape)
        self.shape = shape

    def build(self, shape: Shape) -> None:
        """Raise `ShapeError` if the output for a sample has not the stated shape."""
        if shape != self.shape:
            message = f"the network puts out {shape}, but {self.shape} is wanted"
            raise ShapeError(self.name, message, shape, self.shape)

    def forward(self, x: Node) -> Node:
        """Return `x`."""
        return x


class Flatten(Layer):
    """A layer that turns each sample into a vector, its last axis running fastest."""

    def forward(self, x: Node) -> Node:
        """Return `x` in shape (batch, elements of a sample)."""
        return operations.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


class Reshape(Layer):
    """A layer that gives each sample another shape, its last axis running fastest.

    Parameters
    ----------
    *shape : int
        Such as ``Reshape(1, 28, 28)``: images, of rows of 784 numbers.

    Raises
    ------
    ConfigurationError
        If that is no shape; when the network is built, `ShapeError` if a sample has another number
        of elements.
    """

    @explains_arguments
    def __init__(self, *shape: int) -> None:
        super().__init__()
        _check_shape("Reshape", shape)
        self.shape = shape

    def build(self, shape: Shape) -> None:
        """Raise `ShapeError` if the two shapes have different numbers of elements."""
        if math.prod(shape) != math.prod(self.shape):
            message = f"a sample of shape {shape} cannot become {self.shape}"
            raise ShapeError(self.name, message, shape, self.shape)

    def forward(self, x: Node) -> Node:
        """Return `x` in shape (batch, ...)."""
        return operations.reshape(x, (x.shape[0], *self.shape))


class FullyConnected(Layer):
    """``y = x W + b``, with W of shape (inputs, units) and one bias for each unit.

    Parameters
    ----------
    units : int
    bias : bool
    initializer : str or Initializer
        Initializer of W; b starts from 0.
    """

    @explains_arguments
    def __init__(
        self,
        units: int,
        *,
        bias: bool = True,
        initializer: str | Initializer = "glorot_uniform",
    ) -> None:
        super().__init__()
        self.units = check_count("FullyConnected: units", units)
        self.initializer = initializer
        self.with_bias = bias

    def build(self, shape: Shape) -> None:
        """Declare W and b."""
        if len(shape) != 1:
            message = f"a sample must be a vector, but its shape is {shape}: flatten it before"
            raise ShapeError(self.name, message, shape)
        self.weight = self.parameter("weight", (shape[0], self.units), self.initializer)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.units,), zeros)

    def forward(self, x: Node) -> Node:
        """Return ``x W + b``."""
        y = x @ self.weight
        return y + self.bias if self.with_bias else y


class Activation(Layer):
    """A layer that applies a function to every element, or ``"softmax"`` to the last axis.

    Parameters
    ----------
    function : str or callable (x : Node) -> Node
        One of `dnn.graph.operations.activations.ACTIVATIONS`: ``"relu"``, ``"sigmoid"``,
        ``"tanh"``, ``"softmax"`` and so on; or a function of one's own, written in nodes.

    Raises
    ------
    ConfigurationError
        If no activation has that name; when the network is built, if a function of one's own
        returns no node.

    Examples
    --------
    >>> from dnn import Activation, graph
    >>> layer = Activation(lambda x: x * graph.sigmoid(1.702 * x))
    """

    @explains_arguments
    def __init__(self, function: str | Callable[[Node], Node]) -> None:
        super().__init__()
        if callable(function):
            self.function = getattr(function, "__name__", type(function).__name__)
            self._apply = function
            return
        if function not in ACTIVATIONS:
            raise unknown_name("activation", function, sorted(ACTIVATIONS))
        self.function = function
        self._apply = ACTIVATIONS[function]

    @property
    def is_of_own_function(self) -> bool:
        """Whether the function is the user's own, even if `ACTIVATIONS` has one of its name."""
        return ACTIVATIONS.get(self.function) is not self._apply

    def forward(self, x: Node) -> Node:
        """Return the function of `x`."""
        return self._apply(x)


class RadialBasis(Layer):
    """Gaussian radial basis functions of each element, ``e^(-(epsilon x)^2)`` [1]_.

    Parameters
    ----------
    epsilon : float, above 0
        How narrow they are; where it is trained, the first value.
    trained : bool
        Whether `epsilon` is a parameter of the layer; else it stays as it is.

    Raises
    ------
    ConfigurationError
        If `epsilon` is not above 0.

    References
    ----------
    .. [1] Broomhead and Lowe, Multivariable functional interpolation and adaptive networks, 1988.
    """

    @explains_arguments
    def __init__(self, epsilon: float = 1.0, trained: bool = True) -> None:
        super().__init__()
        if not 0 < epsilon < math.inf:
            raise ConfigurationError(f"RadialBasis: epsilon must be above 0, not {epsilon!r}")
        self.epsilon = float(epsilon)
        self.trained = bool(trained)
        self._width: Node | float = self.epsilon

    def build(self, shape: Shape) -> None:
        """Declare the width, if it is trained."""
        if self.trained:
            self._width = self.parameter("epsilon", (1,), constant(self.epsilon))

    def forward(self, x: Node) -> Node:
        """Return the functions of `x`."""
        return operations.rbf(x, self._width)


class LayerScale(Layer):
    """A trained factor for each channel, which begins small at the end of a `Residual` [1]_.

    Channels stand along the first axis of an image, a sample of three axes, and along the last axis
    of other samples.

    Parameters
    ----------
    start : float
        First value of each factor.

    References
    ----------
    .. [1] Touvron et al., Going deeper with image transformers, 2021, section 2.
    """

    @explains_arguments
    def __init__(self, start: float = 1e-6) -> None:
        super().__init__()
        self.start = float(start)

    def build(self, shape: Shape) -> None:
        """Declare the factors, of shape (channels, 1, 1) for images."""
        if not shape:
            raise ShapeError(self.name, "a sample must have an axis of channels", shape)
        channels = (shape[0], 1, 1) if len(shape) == 3 else shape[-1:]
        self.factor = self.parameter("factor", channels, constant(self.start))

    def forward(self, x: Node) -> Node:
        """Return `x` with each channel times its factor."""
        return x * self.factor


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
        As for `Dropout`. It is a `ShapeError` if samples are no images.

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


class StochasticDepth(Dropout):
    """In training, each sample as a whole is 0 with probability `rate`, and else larger.

    At the end of the layers in a `Residual` it leaves the shortcut alone [1]_.

    Parameters
    ----------
    rate : float, in 0 .. 1 without 1
        As for `Dropout`.

    References
    ----------
    .. [1] Huang et al., Deep networks with stochastic depth, 2016, section 3.
    """

    def noise_shape(self, x: Node) -> Shape:
        """Return (batch, 1, ...), one random number for each sample."""
        return (x.shape[0], *(1,) * (x.ndim - 1))
