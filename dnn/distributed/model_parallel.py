"""Layers whose units are cut over ranks: pairs of fully connected layers, and what is in between.

::

    x -> W1 by columns -> activation -> W2 by rows -> sum over ranks -> y
         each rank has a slice of the units in between

The units in between are never brought together, so that a pair costs one sum over ranks forward
and one backward, instead of one for each layer [1]_. The others, and what they get and put out, are
the same on all ranks.

References
----------
.. [1] Shoeybi et al., Megatron-LM: Training multi-billion parameter language models using model
   parallelism, 2019, section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.distributed.communicator import Communicator
from dnn.distributed.partition import shard_bounds
from dnn.errors import ShapeError
from dnn.graph.node import Node, Shape
from dnn.graph.operations.ranks import copy_to_ranks, sum_over_ranks
from dnn.initializers import Initializer, initializer_of
from dnn.layers import Activation, Dropout, FullyConnected, Layer
from dnn.layers.basic import Nested
from dnn.layers.layer import Parameter

__all__ = ["joined", "pairs_of", "sharded", "slices_of"]

_OF_WHOLE_SAMPLES = frozenset({"softmax", "log_softmax"})
"""Activations that are not computed element by element."""


class _Part:
    """Which of the units between a pair of layers a rank has."""

    def __init__(self, shards: Communicator, units: int) -> None:
        bounds = shard_bounds(units, shards.size)
        self.shards = shards
        self.units = units
        self.slice = slice(bounds[shards.rank], bounds[shards.rank + 1])

    def __deepcopy__(self, memo: dict[int, Any]) -> _Part:
        return self  # a communicator is one for all

    @property
    def width(self) -> int:
        return self.slice.stop - self.slice.start

    def initializer(self, whole: str | Initializer, shape: Shape, axis: int) -> Initializer:
        """Return what starts a slice along an axis as that of a whole parameter starts."""
        index = (slice(None),) * axis + (self.slice,)

        def fill(generator: np.random.Generator, _: Shape, dtype: npt.DTypeLike) -> Array:
            values: Array = initializer_of(whole)(generator, shape, dtype)[index]
            return values

        return fill


class ColumnShard(FullyConnected):
    """A fully connected layer of which this rank has some columns: some of its units.

    Parameters
    ----------
    whole : FullyConnected
    part : object
        Which units.
    """

    shard_axes: ClassVar[dict[str, int]] = {"weight": 1, "bias": 0}

    def __init__(self, whole: FullyConnected, part: _Part) -> None:
        super().__init__(whole.units, bias=whole.with_bias, initializer=whole.initializer)
        self.part = part

    @classmethod
    def kind(cls) -> str:
        """Return that of the whole layer: names are the same."""
        return FullyConnected.kind()

    def build(self, shape: Shape) -> None:
        """Declare this rank's columns of W and its biases."""
        part = self.part
        if len(shape) != 1:
            message = f"a sample must be a vector, but its shape is {shape}"
            raise ShapeError(self.name, message, shape)
        whole = (shape[0], self.units)
        first = part.initializer(self.initializer, whole, 1)
        self.weight = self.parameter("weight", (shape[0], part.width), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (part.width,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return ``x W + b`` of this rank's units."""
        return super().forward(copy_to_ranks(x, self.part.shards))

    def whole_shape(self, parameter: Parameter) -> Shape:
        """Return the shape with all units."""
        axis = self.shard_axes.get(parameter.node.name.rpartition(".")[2])
        shape = parameter.node.shape
        return tuple(self.part.units if i == axis else n for i, n in enumerate(shape))


class RowShard(FullyConnected):
    """A fully connected layer of which this rank has some rows: weights of some of its inputs.

    Parameters
    ----------
    whole : FullyConnected
    part : object
        Which inputs.
    """

    shard_axes: ClassVar[dict[str, int]] = {"weight": 0}

    def __init__(self, whole: FullyConnected, part: _Part) -> None:
        super().__init__(whole.units, bias=whole.with_bias, initializer=whole.initializer)
        self.part = part

    kind = ColumnShard.kind
    whole_shape = ColumnShard.whole_shape

    def build(self, shape: Shape) -> None:
        """Declare this rank's rows of W, and all biases, which are the same on all ranks."""
        first = self.part.initializer(self.initializer, (self.part.units, self.units), 0)
        self.weight = self.parameter("weight", (shape[0], self.units), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.units,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return ``x W + b``, where the product is summed over ranks."""
        y = sum_over_ranks(x @ self.weight, self.part.shards, alike=True)
        return y + self.bias if self.with_bias else y


class DropoutShard(Dropout):
    """Dropout of this rank's units, by the same random numbers as of all of them.

    Parameters
    ----------
    whole : Dropout
    part : object
        Which units.
    """

    def __init__(self, whole: Dropout, part: _Part) -> None:
        super().__init__(whole.rate)
        self.part = part

    @classmethod
    def kind(cls) -> str:
        """Return that of the whole layer: names are the same."""
        return Dropout.kind()

    def uniform_noise(self, shape: Shape) -> Node:
        """Return this rank's part of the random numbers for all units."""
        part = self.part
        return super().uniform_noise((*shape[:-1], part.units))[..., part.slice]


def pairs_of(layers: Sequence[Layer], shards: int) -> list[tuple[int, int]]:
    """Return which fully connected layers are cut, two and two.

    Parameters
    ----------
    layers : sequence of Layer
    shards : int
        Ranks. What has fewer units is not cut.

    Returns
    -------
    list of (int, int)
        Where the first and the second layer of each pair stand. In between is only what is computed
        element by element: activations and dropout.
    """
    pairs = []
    first: int | None = None
    for i, layer in enumerate(layers):
        if type(layer) is FullyConnected:
            if first is not None:
                pairs.append((first, i))
                first = None
            elif 1 < shards <= layer.units:
                first = i
        elif not _is_elementwise(layer):
            first = None
    return pairs


def _is_elementwise(layer: Layer) -> bool:
    if isinstance(layer, Activation):
        return not layer.is_of_own_function and layer.function not in _OF_WHOLE_SAMPLES
    return type(layer) is Dropout


def sharded(layers: Sequence[Layer], shards: Communicator) -> list[Layer]:
    """Return layers of which this rank has its part of the units; those inside of others too.

    Parameters
    ----------
    layers : sequence of Layer
        Not built; they are left as they are.
    shards : Communicator
        Of the ranks that have the other parts.

    Returns
    -------
    list of Layer
        As many, of the same names.
    """
    changed = list(layers)
    for i, layer in enumerate(changed):
        if isinstance(layer, Nested):
            changed[i] = layer = copy.copy(layer)
            layer.layers = tuple(sharded(layer.layers, shards))
            layer.shortcut = tuple(sharded(layer.shortcut, shards))
    for first, second in pairs_of(layers, shards.size):
        column, row = layers[first], layers[second]
        assert isinstance(column, FullyConnected)
        assert isinstance(row, FullyConnected)
        part = _Part(shards, column.units)
        changed[first], changed[second] = ColumnShard(column, part), RowShard(row, part)
        for i in range(first + 1, second):
            between = layers[i]
            if isinstance(between, Dropout):
                changed[i] = DropoutShard(between, part)
    return changed


def slices_of(layers: Sequence[Layer]) -> dict[str, tuple[int, int]]:
    """Return which parameters of built layers are slices.

    Parameters
    ----------
    layers : sequence of Layer

    Returns
    -------
    dict of str to (int, int)
        By the name of the parameter along which axis it was cut, and how long the whole is.
    """
    found: dict[str, tuple[int, int]] = {}
    for layer in layers:
        if isinstance(layer, Nested):
            found |= slices_of(layer.inside)
        elif isinstance(layer, ColumnShard | RowShard):
            axes = {f"{layer.name}.{name}": axis for name, axis in layer.shard_axes.items()}
            names = [parameter.node.name for parameter in layer.parameters]
            found |= {name: (axes[name], layer.part.units) for name in names if name in axes}
    return found


def joined(shards: Communicator, piece: Array, axis: int, length: int) -> Array:
    """Return an array whose slices lie on several ranks, on all of them.

    Parameters
    ----------
    shards : Communicator
    piece : array
        The slice of this rank, on the host.
    axis : int
        Along which it was cut.
    length : int
        Of the whole along this axis.

    Returns
    -------
    array
    """
    shape = list(piece.shape)
    pieces = []
    for rank, (start, stop) in enumerate(pairwise(shard_bounds(length, shards.size))):
        shape[axis] = stop - start
        each = piece.copy() if rank == shards.rank else np.empty(shape, piece.dtype)
        shards.broadcast(each, rank)
        pieces.append(each)
    return np.concatenate(pieces, axis)
