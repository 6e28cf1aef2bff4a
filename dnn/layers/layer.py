"""What a layer is.

A layer of one's own is a subclass with two methods::

    class Scale(Layer):
        def build(self, shape):
            self.factor = self.parameter("factor", shape, "ones")

        def forward(self, x):
            return x * self.factor

Gradients, training and naming follow from that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn.graph.node import Node, Shape, variable
from dnn.initializers import Initializer, initializer

__all__ = ["Layer", "Parameter"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a layer: its node, and what it starts from."""

    node: Node
    initializer: Initializer


class Layer:
    """A part of a network.

    Attributes
    ----------
    name : str
        Given by the network, such as ``fully_connected_1``; part of its parameters' names.
    dtype : numpy.dtype
        Of its parameters, given by the network.
    parameters : list of Parameter
        In the order in which `build` declared them.
    """

    name: str = ""
    dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []

    @classmethod
    def kind(cls) -> str:
        """Return the class name in snake case, from which layers are named."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def parameter(
        self, name: str, shape: Shape, start: str | Initializer = "glorot_uniform"
    ) -> Node:
        """Declare a trained parameter; called from `build`.

        Parameters
        ----------
        name : str
            Unique in the layer.
        shape : tuple of int
        start : str or initializer
            What it starts from.

        Returns
        -------
        Node
        """
        node = variable(shape, self.dtype, f"{self.name}.{name}")
        self.parameters.append(Parameter(node, initializer(start)))
        return node

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
