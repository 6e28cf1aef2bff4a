"""Layers made of other layers: residual blocks, concatenation, gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dnn.errors import ConfigurationError, ShapeError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.layers.layer import Layer, NoiseSource, Parameter, build_all

__all__ = ["Concat", "Gate", "Residual"]


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
