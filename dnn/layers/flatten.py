"""Samples of any shape as vectors."""

from __future__ import annotations

import math

from dnn.graph import operations
from dnn.graph.node import Node
from dnn.layers.layer import Layer

__all__ = ["Flatten"]


class Flatten(Layer):
    """Each sample becomes a vector, its last axis running fastest."""

    def forward(self, x: Node) -> Node:
        """Return `x` in shape (batch, elements of a sample)."""
        return operations.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
