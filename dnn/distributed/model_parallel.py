"""Model parallelism: pairs of layers whose units are cut over ranks, and layers in between.

::

    x -> W1 by columns -> activation -> W2 by rows -> sum over ranks -> y
         each rank has a slice of the units in between

The units in between are never gathered, so that a pair costs one sum over ranks forward and one
backward, instead of one for each layer [1]_. Of two convolutions the filters of the first are cut,
and the channels of the second. All other layers, with their inputs and outputs, are the same on all
ranks.

References
----------
.. [1] Shoeybi et al., Megatron-LM: Training multi-billion parameter language models using model
   parallelism, 2019, section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.distributed.communicator import Communicator
from dnn.distributed.partition import even_bounds
from dnn.errors import ShapeError
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.graph.operations.ranks import copy_to_ranks, sum_over_ranks
from dnn.initializers import Initializer, initializer_of
from dnn.layers import (
    Activation,
    AvgPool2D,
    BatchNorm,
    Conv2D,
    Dropout,
    FullyConnected,
    Layer,
    MaxPool2D,
    SpatialDropout,
    Upsample2D,
)
from dnn.layers.images import FilterInitializer
from dnn.layers.layer import Parameter
from dnn.layers.nested import Nested
from dnn.layers.normalisation import IMAGES

__all__ = ["is_cut", "joined", "pairs_of", "sharded", "slices_of"]

_OF_WHOLE_SAMPLES = frozenset({"softmax", "log_softmax"})
"""Activations that are not computed element by element."""


class _UnitSlice:
    """Slice of the units between a pair of layers that a rank has."""

    def __init__(self, shards: Communicator, units: int) -> None:
        bounds = even_bounds(units, shards.size)
        self.shards = shards
        self.units = units
        self.slice = slice(bounds[shards.rank], bounds[shards.rank + 1])

    @property
    def width(self) -> int:
        return self.slice.stop - self.slice.start

    def initializer(self, whole: Initializer, shape: Shape, axis: int) -> Initializer:
        """Return an initializer of this rank's slice, along an axis, of a whole parameter."""
        index = (slice(None),) * axis + (self.slice,)

        def fill(generator: np.random.Generator, _: Shape, dtype: npt.DTypeLike) -> Array:
            values: Array = whole(generator, shape, dtype)[index]
            return values

        return fill


class Shard(Layer):
    """Base of layers of which this rank has a part of the units.

    Attributes
    ----------
    whole : type
        Type of the layer that is cut; names of parameters are the same.
    axes : dict of str to int
        Axis along which each parameter or state is cut; others are the same on all ranks.
    part : object
        This rank's slice of the units between a pair of layers.
    """

    whole: ClassVar[type[Layer]]
    axes: ClassVar[dict[str, int]] = {}
    part: _UnitSlice

    @classmethod
    def of(cls, layer: Layer, part: _UnitSlice) -> Shard:
        """Return this rank's part of a layer that is not built yet."""
        shard = cls.__new__(cls)
        vars(shard).update(layer.__getstate__())
        shard.part = part
        return shard

    @classmethod
    def kind(cls) -> str:
        """Return the kind of the whole layer."""
        return cls.whole.kind()

    def whole_shape(self, parameter: Parameter) -> Shape:
        """Return the shape of a parameter with all units."""
        axis = self.axes.get(parameter.node.name.rpartition(".")[2])
        shape = parameter.node.shape
        return tuple(self.part.units if i == axis else n for i, n in enumerate(shape))


class ColumnShard(Shard, FullyConnected):
    """First fully connected layer of a pair: this rank has the columns of W of its units."""

    whole = FullyConnected
    axes: ClassVar[dict[str, int]] = {"weight": 1, "bias": 0}

    def build(self, shape: Shape) -> None:
        """Declare this rank's columns of W and its biases."""
        part = self.part
        if len(shape) != 1:
            message = f"a sample must be a vector, but its shape is {shape}: flatten it before"
            raise ShapeError(self.name, message, shape)
        first = part.initializer(initializer_of(self.initializer), (shape[0], self.units), 1)
        self.weight = self.parameter("weight", (shape[0], part.width), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (part.width,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return ``x W + b`` of this rank's units."""
        return super().forward(copy_to_ranks(x, self.part.shards))


class RowShard(Shard, FullyConnected):
    """Second fully connected layer of a pair: this rank has the rows of W of some inputs."""

    whole = FullyConnected
    axes: ClassVar[dict[str, int]] = {"weight": 0}

    def build(self, shape: Shape) -> None:
        """Declare this rank's rows of W, and all biases, which are the same on all ranks."""
        whole = self.part.units, self.units
        first = self.part.initializer(initializer_of(self.initializer), whole, 0)
        self.weight = self.parameter("weight", (shape[0], self.units), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.units,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return ``x W + b``, where the product is summed over ranks."""
        y = sum_over_ranks(x @ self.weight, self.part.shards, alike=True)
        return y + self.bias if self.with_bias else y


class FilterShard(Shard, Conv2D):
    """First convolution of a pair: this rank has some filters."""

    whole = Conv2D
    axes: ClassVar[dict[str, int]] = {"weight": 0, "bias": 0}

    def build(self, shape: Shape) -> None:
        """Declare this rank's filters and their biases."""
        part = self.part
        self.zeros_around = self.padding_for(shape)
        filters = FilterInitializer(initializer_of(self.initializer))
        first = part.initializer(filters, (self.filters, shape[0], *self.window), 0)
        self.weight = self.parameter("weight", (part.width, shape[0], *self.window), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (part.width,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return the convolution with this rank's filters."""
        return super().forward(copy_to_ranks(x, self.part.shards))


class ChannelShard(Shard, Conv2D):
    """Second convolution of a pair: this rank has all filters for some channels."""

    whole = Conv2D
    axes: ClassVar[dict[str, int]] = {"weight": 1}

    def build(self, shape: Shape) -> None:
        """Declare the filters for this rank's channels, and all biases."""
        self.zeros_around = self.padding_for(shape)
        filters = FilterInitializer(initializer_of(self.initializer))
        whole = self.filters, self.part.units, *self.window
        first = self.part.initializer(filters, whole, 1)
        self.weight = self.parameter("weight", (self.filters, shape[0], *self.window), first)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.filters,), "zeros")

    def forward(self, x: Node) -> Node:
        """Return the convolution of all channels, summed over ranks."""
        y = operations.conv2d(
            x, self.weight, stride=self.stride, dilation=self.dilation, padding=self.zeros_around
        )
        y = sum_over_ranks(y, self.part.shards, alike=True)
        return y + operations.reshape(self.bias, (self.filters, 1, 1)) if self.with_bias else y


class BatchNormShard(Shard, BatchNorm):
    """Batch norm of this rank's channels; each channel is normalised by itself."""

    whole = BatchNorm
    axes: ClassVar[dict[str, int]] = {"scale": 0, "shift": 0, "mean": 0, "variance": 0}


class _NoiseShard(Shard, Dropout):
    """Dropout of this rank's units, by the random numbers that the whole layer would draw."""

    def uniform_noise(self, shape: Shape) -> Node:
        """Return this rank's part of the random numbers for all units."""
        axis = 1 if len(shape) == IMAGES else len(shape) - 1
        every = tuple(self.part.units if i == axis else n for i, n in enumerate(shape))
        return super().uniform_noise(every)[(slice(None),) * axis + (self.part.slice,)]


class DropoutShard(_NoiseShard):
    """Part of a `Dropout` layer for this rank's units."""

    whole = Dropout


class SpatialDropoutShard(_NoiseShard, SpatialDropout):
    """Part of a `SpatialDropout` layer for this rank's channels."""

    whole = SpatialDropout


_PAIRS: dict[type[Layer], tuple[type[Shard], type[Shard]]] = {
    FullyConnected: (ColumnShard, RowShard),
    Conv2D: (FilterShard, ChannelShard),
}
_BETWEEN: dict[type[Layer], type[Shard]] = {
    shard.whole: shard for shard in (BatchNormShard, DropoutShard, SpatialDropoutShard)
}
_BY_CHANNEL = (AvgPool2D, MaxPool2D, Upsample2D)


def pairs_of(layers: Sequence[Layer], shards: int) -> list[tuple[int, int]]:
    """Return the pairs of layers to cut: two fully connected layers, or two convolutions.

    Layers with fewer units than `shards` ranks are not cut. In between are only layers that compute
    each unit by itself: activations, dropout, batch norm, pooling.
    """
    pairs = []
    first: int | None = None
    for i, layer in enumerate(layers):
        units = _units(layer)
        if units is not None:
            if first is not None and type(layer) is type(layers[first]):
                pairs.append((first, i))
                first = None
            else:
                first = i if 1 < shards <= units else None
        elif not _keeps_units_apart(layer):
            first = None
    return pairs


def is_cut(layers: Sequence[Layer], shards: int) -> bool:
    """Whether layers, or those inside of them, have a pair that can be cut over `shards` ranks."""
    nested = [layer for layer in layers if isinstance(layer, Nested)]
    chains = [layers, *(chain for each in nested for chain in (each.layers, each.shortcut))]
    return any(pairs_of(chain, shards) for chain in chains)


def _units(layer: Layer) -> int | None:
    """Return the number of units of a layer that may be cut, None for other layers."""
    if type(layer) is FullyConnected:
        return layer.units
    return layer.filters if type(layer) is Conv2D and layer.groups == 1 else None


def _keeps_units_apart(layer: Layer) -> bool:
    if isinstance(layer, Activation):
        return not layer.is_of_own_function and layer.function not in _OF_WHOLE_SAMPLES
    return type(layer) in _BETWEEN or type(layer) in _BY_CHANNEL


def sharded(layers: Sequence[Layer], shards: Communicator) -> list[Layer]:
    """Return layers with this rank's part of the units, in nested layers too, and the same names.

    `layers` are not built, and left as they are; `shards` connects the ranks with the other parts.
    """
    changed = list(layers)
    for i, layer in enumerate(layers):
        if isinstance(layer, Nested):
            changed[i] = nested = copy.copy(layer)
            nested.layers = tuple(sharded(layer.layers, shards))
            nested.shortcut = tuple(sharded(layer.shortcut, shards))
    for first, second in pairs_of(layers, shards.size):
        units = _units(layers[first])
        assert units is not None
        part = _UnitSlice(shards, units)
        first_type, second_type = _PAIRS[type(layers[first])]
        changed[first], changed[second] = (
            first_type.of(layers[first], part),
            second_type.of(layers[second], part),
        )
        for i in range(first + 1, second):
            if type(layers[i]) in _BETWEEN:
                changed[i] = _BETWEEN[type(layers[i])].of(layers[i], part)
    return changed


def slices_of(layers: Sequence[Layer]) -> dict[str, tuple[int, int]]:
    """Return by name the axis and the whole length of parameters and states that are slices."""
    found: dict[str, tuple[int, int]] = {}
    for layer in layers:
        if isinstance(layer, Nested):
            found |= slices_of(layer.inside)
        elif isinstance(layer, Shard):
            axes = {f"{layer.name}.{name}": axis for name, axis in layer.axes.items()}
            names = [each.node.name for each in (*layer.parameters, *layer.states)]
            found |= {name: (axes[name], layer.part.units) for name in names if name in axes}
    return found


def joined(shards: Communicator, piece: Array, axis: int, length: int) -> Array:
    """Return, on all ranks, the whole array of which each rank has a slice, `piece`, on the host.

    It was cut along `axis`, of which `length` is the whole length.
    """
    shape = list(piece.shape)
    pieces = []
    for rank, (start, stop) in enumerate(pairwise(even_bounds(length, shards.size))):
        shape[axis] = stop - start
        each = piece.copy() if rank == shards.rank else np.empty(shape, piece.dtype)
        shards.broadcast(each, rank)
        pieces.append(each)
    return np.concatenate(pieces, axis)
