"""`Layer`, the base class of layers.

A new layer is a subclass with two methods::

    class Scale(Layer):
        def build(self, shape):
            self.factor = self.parameter("factor", shape, "ones")

        def forward(self, x):
            return x * self.factor

Gradients, training and naming follow from that. A layer that differs in training reads `training`;
a layer with running statistics declares a `state` and gives it a new value with `assign`; a layer
that needs random numbers calls `uniform_noise`.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError
from dnn.graph import operations
from dnn.graph.node import Node, Shape, placeholder, variable
from dnn.initializers import Initializer, initializer_of

__all__ = ["Layer", "NoiseSource", "Parameter", "build_all"]


class Parameter(NamedTuple):
    """A parameter or a state of a layer: its node, and the initializer of its first value."""

    node: Node
    initializer: Initializer


class NoiseSource(NamedTuple):
    """Nodes for the network's seed and the number of the step, of which noise is a function."""

    seed: Node
    step: Node


class Layer:
    """Base class of layers, of which networks are made.

    Attributes
    ----------
    name : str
        Given by the network, such as ``fully_connected_1``; part of its parameters' names.
    dtype : numpy.dtype
        Of its parameters, given by the network.
    parameters : list of Parameter
        In the order in which `build` declared them.
    states : list of Parameter
        Likewise: arrays that are kept and that no gradient changes, such as running means.
    training : bool
        Whether `forward` composes a training step, or a prediction.
    frozen : frozenset of str
        Names, in the layer, of the parameters that training leaves as they are.
    integers : bool
        Whether it is a first layer that takes integers.
    kept_bytes : bytes, optional
        What a file has to keep of it, where that is more than plain values.
    """

    name: str = ""
    integers: bool = False
    kept_bytes: bytes | None = None
    dtype: np.dtype[Any] = np.dtype(np.float32)
    training: bool = False
    frozen: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.states: list[Parameter] = []
        self._assignments: list[Node] = []
        self._noise: NoiseSource | None = None
        self._draws = 0

    @property
    def is_frozen(self) -> bool:
        """Whether it has parameters, and training leaves all of them as they are."""
        own = {each.node.name.rpartition(".")[2] for each in self.parameters}
        return bool(own) and own <= self.frozen

    @property
    def assignments(self) -> list[Node]:
        """Nodes that write into states in the training step that was composed last."""
        return self._assignments

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy or of an unpickled layer, which is not built."""
        kept: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, list):  # declared in `build`, or composed in `forward`
                kept[name] = [part for part in value if not isinstance(part, Node | Parameter)]
            elif not isinstance(value, Node | NoiseSource):
                kept[name] = value
        return {**kept, "_noise": None}

    @classmethod
    def kind(cls) -> str:
        """Return the class name in snake case, from which layers are named.

        Returns
        -------
        str
            Such as ``"fully_connected"``, and ``"conv2d"`` of ``Conv2D``.
        """
        words = r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])"
        return re.sub(words, "_", cls.__name__).lower()

    def parameter(
        self, name: str, shape: Shape, initializer: str | Initializer = "glorot_uniform"
    ) -> Node:
        """Declare a trained parameter; called from `build`.

        Parameters
        ----------
        name : str
            Unique in the layer.
        shape : tuple of int
        initializer : str or Initializer
            Initializer of its first values.

        Returns
        -------
        Node, of `shape` and the layer's dtype
        """
        return self._declared(self.parameters, name, shape, initializer)

    def state(self, name: str, shape: Shape, initializer: str | Initializer = "zeros") -> Node:
        """Declare an array that is not trained but kept, such as a running mean.

        Parameters
        ----------
        name : str
            Unique in the layer.
        shape : tuple of int
        initializer : str or Initializer
            Initializer of its first values.

        Returns
        -------
        Node, of `shape` and the layer's dtype
        """
        return self._declared(self.states, name, shape, initializer)

    def _declared(
        self, among: list[Parameter], name: str, shape: Shape, initializer: str | Initializer
    ) -> Node:
        node = variable(shape, self.dtype, f"{self.name}.{name}")
        among.append(Parameter(node, initializer_of(initializer)))
        return node

    def assign(self, state: Node, value: Node) -> None:
        """Let each training step write a value into a state; called from `forward`.

        Parameters
        ----------
        state : Node
            A node that `state` returned. The whole step still reads the old value.
        value : Node
            Broadcast to the shape of `state`.

        Raises
        ------
        ConfigurationError
            If the layer is not in training: a prediction changes nothing.
        """
        if not self.training:
            raise ConfigurationError(f"{self.name} assigns to {state!r} in a prediction")
        self._assignments.append(operations.assign(state, value))

    def whole_shape(self, parameter: Parameter) -> Shape:
        """Return the shape of a parameter in the whole network.

        Parameters
        ----------
        parameter : Parameter
            Of this layer.

        Returns
        -------
        tuple of int
            As declared, unless this layer has a slice of it, and other ranks have the rest.
        """
        return parameter.node.shape

    def check_state(self, name: str, values: Array) -> None:
        """Check values from a user for a state; called before they are written into it.

        Parameters
        ----------
        name : str
            Name of the state in the layer.
        values : array
            One value or several, in the layer's dtype.

        Raises
        ------
        ConfigurationError
            If a value is out of its range.
        """

    def check_samples(self, name: str, samples: Array) -> Array:
        """Check samples that the layer is to take; called for the first two layers of a network.

        Parameters
        ----------
        name : str
            Of the argument of `fit` or `predict`, for the message.
        samples : array, shape (n, ...)
            On the host; as returned by this method of the layer before.

        Returns
        -------
        array
            The part of the samples that the next layer reads; here all of them.

        Raises
        ------
        DataError
            If they do not fit; it names the layer, the shape and the first such row.
        """
        return samples

    def uniform_noise(self, shape: Shape) -> Node:
        """Return numbers drawn uniformly from [0, 1); called from `forward`, in training.

        They depend on the network's seed, the step, the layer's name and the element, and on how
        often this layer has drawn before in the step.

        Parameters
        ----------
        shape : tuple of int

        Returns
        -------
        Node, of `shape` and the layer's dtype

        Raises
        ------
        ConfigurationError
            If the layer is not in training: a prediction is not random.
        """
        if self._noise is None:
            raise ConfigurationError(f"{self.name} draws random numbers in a prediction")
        stream = zlib.crc32(f"{self.name}.{self._draws}".encode())
        self._draws += 1
        return operations.uniform_noise(*self._noise, stream, shape, self.dtype)

    def begin(self, noise: NoiseSource | None) -> None:
        """Prepare for a call of `forward`; called by the network.

        Parameters
        ----------
        noise : NoiseSource, optional
            Given for a training step, None for a prediction.
        """
        self.training = noise is not None
        self._assignments = []
        self._noise = noise
        self._draws = 0

    def build(self, shape: Shape) -> None:
        """Declare parameters; called once.

        Parameters
        ----------
        shape : tuple of int
            Of one sample of the input, without the axis of the batch.
        """

    def forward(self, x: Node) -> Node:
        """Compose the output; called for every size of batch.

        Parameters
        ----------
        x : Node, shape (batch, ...)

        Returns
        -------
        Node, shape (batch, ...)
        """
        raise NotImplementedError


def build_all(
    layers: Sequence[Layer], shape: Shape, dtype: np.dtype[Any], prefix: str = ""
) -> list[Node]:
    """Name and build layers, each with the output shape of the layer before it.

    `shape` is that of one sample of the first layer's input, without the axis of the batch. The
    output of each layer for a batch of one sample is returned. Names begin with `prefix`.

    Raises
    ------
    ConfigurationError
        If a member of `layers` is no layer, already part of a network, or composes no node.
    ShapeError
        If a layer does not take the output of the one before it.
    """
    outputs = []
    given = dtype
    counts: Counter[str] = Counter()
    for layer in layers:
        if not isinstance(layer, Layer):
            raise ConfigurationError(f"{layer!r} among the layers is no Layer")
        if layer.parameters or layer.states:
            raise ConfigurationError(f"{layer.name} is already part of a network")
        counts[layer.kind()] += 1
        layer.name = f"{prefix}{layer.kind()}_{counts[layer.kind()]}"
        layer.dtype = dtype
        layer.build(shape)
        layer.begin(None)
        # A batch of any size would do: only shape and type of the output are used.
        x = placeholder((1, *shape), np.dtype(np.intp) if layer.integers else given, "x")
        y: object = layer.forward(x)
        if not isinstance(y, Node):
            raise ConfigurationError(f"{layer.name}: forward(x) returned {y!r}, and not a node")
        shape, given = y.shape[1:], y.dtype
        outputs.append(y)
    return outputs
