"""Common layers: input, fully connected, activation, dropout, flatten, reshape, residual blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
from dnn.layers.layer import Layer, NoiseSource, Parameter, build_all

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Concat",
    "Dropout",
    "Flatten",
    "FullyConnected",
    "Gate",
    "Input",
    "LayerScale",
    "Output",
    "RadialBasis",
    "Reshape",
    "Residual",
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


class Nested(Layer):
    """Base class of layers that are made of other layers.

    Attributes
    ----------
    layers, shortcut : tuple of Layer
        The main chain of inner layers, and a second chain beside it. Their names begin with the
        name of this layer.
    """

    layers: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = tuple(layers)
        if not self.layers:
            raise ConfigurationError(f"{type(self).__name__}: there is no layer in it")

    def build_inside(self, shape: Shape) -> tuple[Shape, Shape]:
        """Build the inner layers; return the shapes of samples behind the chain and the shortcut.

        A sample without a shortcut keeps its shape there.
        """
        end = build_all(self.layers, shape, self.dtype, f"{self.name}.")[-1].shape[1:]
        if not self.shortcut:
            return end, shape
        prefix = f"{self.name}.shortcut."
        return end, build_all(self.shortcut, shape, self.dtype, prefix)[-1].shape[1:]

    def forward_inside(self, x: Node) -> tuple[Node, Node]:
        """Return the outputs of the main chain and of the shortcut."""
        y = x
        for layer in self.layers:
            y = layer.forward(y)
        for layer in self.shortcut:
            x = layer.forward(x)
        return y, x

    @property
    def inside(self) -> tuple[Layer, ...]:
        """All inner layers: those of the main chain, then those of the shortcut."""
        return (*self.layers, *self.shortcut)

    def whole_shape(self, parameter: Parameter) -> Shape:
        """Return the shape of a parameter in the whole network, from its inner layer."""
        (layer,) = (each for each in self.inside if parameter in each.parameters)
        return layer.whole_shape(parameter)

    def declare_inner(self) -> None:
        """Add parameters and states of inner layers to this layer's; called last in `build`."""
        for layer in self.inside:
            self.parameters += layer.parameters
            self.states += layer.states

    @property
    def assignments(self) -> list[Node]:
        """Assignments of all inner layers, in order."""
        return [node for layer in self.inside for node in layer.assignments]

    def begin(self, noise: NoiseSource | None) -> None:
        """Prepare this layer and all inner layers for a call of `forward`."""
        super().begin(noise)
        for layer in self.inside:
            layer.begin(noise)


def leaves_of(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield layers, with those inside in place of a `Nested`."""
    for layer in layers:
        if isinstance(layer, Nested):
            yield from leaves_of(layer.inside)
        else:
            yield layer


class Residual(Nested):
    """A residual block: ``y = x + layers(x)``, or ``y = shortcut(x) + layers(x)``.

    Parameters
    ----------
    layers : sequence of Layer
        Their names begin with the name of this layer, as in
        ``residual_1.fully_connected_1.weight``.
    shortcut : sequence of Layer, optional
        Layers that bring `x` to the shape that `layers` put out, such as a convolution with a
        window of 1 and their stride; their names begin with ``residual_1.shortcut``. If left out,
        `layers` together have to keep the shape of a sample.

    Raises
    ------
    ConfigurationError
        If there is no layer; when the network is built, `ShapeError` if the shapes of the two
        terms differ.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, equations 1 and 2.
    """

    @explains_arguments
    def __init__(self, layers: Sequence[Layer], shortcut: Sequence[Layer] | None = None) -> None:
        super().__init__(layers)
        self.shortcut = tuple(shortcut or ())

    def build(self, shape: Shape) -> None:
        """Build the inner layers, and add their parameters and states to this layer's."""
        end, beside = self.build_inside(shape)
        if end != beside:
            wanted = f"the shortcut into {beside}" if self.shortcut else "it must be the same"
            message = f"the layers inside turn samples of {shape} into {end}; {wanted}"
            raise ShapeError(self.name, message, beside, end)
        self.declare_inner()

    def forward(self, x: Node) -> Node:
        """Return the output of `layers` plus `x`, or plus the output of the shortcut."""
        y, x = self.forward_inside(x)
        return x + y


class Concat(Nested):
    """A layer that puts the output of inner layers behind the channels of their input.

    Channels stand along the first axis of an image, a sample of three axes, and along the last axis
    of other samples.

    Parameters
    ----------
    layers : sequence of Layer
        Their names begin with the name of this layer. They keep the shape of a sample, but for the
        number of its channels.
    shortcut : sequence of Layer, optional
        The output of `layers` is put behind the output of these layers; their names begin with
        ``concat_1.shortcut``. Then both may change the shape alike.

    Raises
    ------
    ConfigurationError
        If there is no layer; when the network is built, `ShapeError` if they change more.

    References
    ----------
    .. [1] Huang et al., Densely connected convolutional networks, 2017, equation 2.
    """

    @explains_arguments
    def __init__(self, layers: Sequence[Layer], shortcut: Sequence[Layer] | None = None) -> None:
        super().__init__(layers)
        if shortcut:  # set where there is one alone: older checkpoints do not have it
            self.shortcut = tuple(shortcut)

    def build(self, shape: Shape) -> None:
        """Build the inner layers, and add their parameters and states to this layer's."""
        end, beside = self.build_inside(shape)
        whose = "they may change the number of channels alone"
        if self.shortcut:
            whose = f"the shortcut into {beside}, and only the channels may differ"
        self.axis = 0 if len(beside) == 3 else len(beside) - 1
        kept = [n for i, n in enumerate(beside) if i != self.axis]
        if len(end) != len(beside) or [n for i, n in enumerate(end) if i != self.axis] != kept:
            message = f"the layers inside turn samples of {shape} into {end}; {whose}"
            raise ShapeError(self.name, message, beside, end)
        self.declare_inner()

    def forward(self, x: Node) -> Node:
        """Return `x`, or what the shortcut makes of it, and behind it the output of the layers."""
        y, x = self.forward_inside(x)
        return operations.concat([x, y], self.axis + 1)


class Gate(Nested):
    """A layer that multiplies its input by the output of inner layers: ``y = x layers(x)``.

    Squeeze-and-excitation [1]_ is one of images, whose inner layers put out a number for each
    channel, of shape (channels, 1, 1)::

        Gate([
            *(GlobalAvgPool2D(), Reshape(channels, 1, 1)),
            *(Conv2D(channels // 4, 1), Activation("relu")),
            *(Conv2D(channels, 1), Activation("sigmoid")),
        ])

    Parameters
    ----------
    layers : sequence of Layer
        Their names begin with the name of this layer. They put out samples that broadcast to the
        shape of a sample.

    Raises
    ------
    ConfigurationError
        If there is no layer; when the network is built, `ShapeError` if the shapes do not fit.

    References
    ----------
    .. [1] Hu et al., Squeeze-and-excitation networks, 2018, section 3.
    """

    @explains_arguments
    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(layers)

    def build(self, shape: Shape) -> None:
        """Build the inner layers, and add their parameters and states to this layer's."""
        end, _ = self.build_inside(shape)
        pairs = zip(end, shape, strict=False)
        if len(end) != len(shape) or any(n not in (1, wanted) for n, wanted in pairs):
            message = f"the layers inside turn samples of {shape} into {end}"
            message += ", which do not broadcast to the same shape"
            raise ShapeError(self.name, message, shape, end)
        self.declare_inner()

    def forward(self, x: Node) -> Node:
        """Return `x` times the output of the layers."""
        y, _ = self.forward_inside(x)
        return x * y


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


class StochasticDepth(Dropout):
    """In training, each sample as a whole is 0 with probability `rate`, and else larger.

    At the end of the layers in a `Residual` it leaves the shortcut alone [1]_.

    Parameters
    ----------
    rate : float, in 0 .. 1 without 1
        As for `Dropout`.

    Raises
    ------
    ConfigurationError
        As for `Dropout`.

    References
    ----------
    .. [1] Huang et al., Deep networks with stochastic depth, 2016, section 3.
    """

    def noise_shape(self, x: Node) -> Shape:
        """Return (batch, 1, ...), one random number for each sample."""
        return (x.shape[0], *(1,) * (x.ndim - 1))
