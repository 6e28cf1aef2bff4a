"""Flat buffers: all parameters of a network in one array, and all gradients in another.

::

    flat:  | hidden_1.weight ........ | hidden_1.bias .. | hidden_2.weight ... |
             segment                    segment            segment

An optimizer makes one pass over the whole buffer; a checkpoint, a message between ranks or a
learning rate of a layer's own works on segments by name. A buffer lies in a `MemoryManager`, of the
kind that the device computes on, and a `Tensor` of a segment shares that memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.backend import ALIGNMENT_BYTES, Array, Ops
from dnn.backend.device import Device, current_device
from dnn.errors import ConfigurationError
from dnn.graph.node import Node, Shape
from dnn.memory import MemoryManager

if TYPE_CHECKING:
    from dnn.tensor import Tensor

__all__ = ["BufferSlice", "FlatBuffer", "Segment", "chosen", "matches"]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, such as ``"conv2d_*"``, is of a name or of its beginning up to a dot."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of parameters to freeze, by patterns in the order in which they count.

    A pattern, such as ``"conv2d_*"``, is of a name or of its beginning up to a dot; one that begins
    with ``!`` is of parameters to train after all. A `ConfigurationError` if one is of no name, or
    nothing is left to train.
    """
    found: set[str] = set()
    for pattern in patterns:
        meant = {name for name in names if matches(name, pattern.removeprefix("!"))}
        if not meant:
            layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
            message = f"freeze: no parameter is called {pattern!r}"
            raise ConfigurationError(f"{message}; layers with parameters: {layers}")
        found = found - meant if pattern.startswith("!") else found | meant
    if names and found.issuperset(names):
        raise ConfigurationError(f"freeze: {', '.join(patterns)}: nothing is left to train")
    return [name for name in names if name in found]


class Segment(NamedTuple):
    """A named part of a flat buffer.

    Attributes
    ----------
    name : str
        ``layer.parameter``, such as ``fully_connected_1.weight``.
    shape : tuple of int
    start : int, elements
        Where it begins in the buffer.
    """

    name: str
    shape: Shape
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Where the segment ends in the buffer, in elements."""
        return self.start + self.size


def segments_of(variables: Sequence[Node]) -> tuple[Segment, ...]:
    """Return segments for variables one behind the other, each beginning at a cache line."""
    segments: list[Segment] = []
    end = 0
    for node in variables:
        line = ALIGNMENT_BYTES // node.dtype.itemsize
        start = -(-end // line) * line
        segments.append(Segment(node.name, node.shape, start))
        end = segments[-1].stop
    return tuple(segments)


class FlatBuffer:
    """One array and its named segments, for one network or for K of them.

    Parameters
    ----------
    segments : sequence of Segment
        In the order in which they stand.
    dtype : type of elements
    ops : Ops
        Of the device where the buffer lies.
    models : int, optional
        K: as many networks of the same shapes, one row each.

    Attributes
    ----------
    memory : MemoryManager
        HOST memory on the CPU, and DEVICE memory on a GPU.
    trained : tuple of Segment
        Of a buffer of gradients: the segments that an update reads and moves; all at first.
    flat : array, shape (P,) or (K, P)
        All of it, as functions of the device take it.

    Notes
    -----
    It begins as zeros. The few elements between segments, there for alignment, stay zero.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        dtype: npt.DTypeLike,
        ops: Ops,
        models: int | None = None,
    ) -> None:
        self.segments = self.trained = tuple(segments)
        self.models = models
        item = np.dtype(dtype).itemsize
        size = self.segments[-1].stop if self.segments else 0
        leading: Shape = ()
        if models is not None:
            line = ALIGNMENT_BYTES // item
            size = -(-size // line) * line  # every row begins at a cache line
            leading = (models,)
        self.memory = MemoryManager.on(ops.device, math.prod(leading) * size, dtype)
        self.flat: Array = self.memory.write().reshape(*leading, size)
        with current_device(Device.of(ops.device)):
            self.flat[...] = 0
        self._by_name = {segment.name: segment for segment in self.segments}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Array:
        """Return a segment by name, as a view in its shape; for K networks K comes first."""
        segment = self._by_name[name]
        part = self.flat[..., segment.start : segment.stop]
        # Splitting the last axis of a strided array needs no copy.
        return part.reshape((*self.flat.shape[:-1], *segment.shape))

    def move_to(self, memory: Array, keeps: bool = True) -> None:
        """Move the elements into other memory of the host.

        Plans and updates that were bound to the buffer before keep the old memory.

        Parameters
        ----------
        memory : array of as many elements of the same type, one axis
        keeps : bool
            Whether the elements keep their values, or take those that `memory` holds.
        """
        if keeps:
            np.copyto(memory, self.flat.reshape(-1))
        self.memory = MemoryManager.wrap(memory)
        self.flat = self.memory.write().reshape(self.flat.shape)

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        """The segments of the whole buffer, also if this is a part of it."""
        return self.segments

    @property
    def trained_ranges(self) -> list[slice]:
        """The whole buffer, or ranges of the trained segments if others are between them."""
        if self.trained == self.segments:
            return [slice(None)]
        trained, ranges, joins = {*self.trained}, list[slice](), False
        for segment in self.segments:
            if segment in trained:
                start = ranges.pop().start if joins else segment.start
                ranges.append(slice(start, segment.stop))
            joins = segment in trained
        return ranges

    def cut(self, flat: Array) -> Array:
        """Return the part of an array like the whole buffer's that belongs here: all of it."""
        return flat

    def tensor(self, name: str) -> Tensor:
        """Return a segment by name as a tensor of the buffer's memory, of the same shape."""
        from dnn.tensor import Tensor
        from dnn.tensor.elements import dense_strides

        segment = self._by_name[name]
        if self.models is None:
            return Tensor.of_memory(self.memory, segment.shape, segment.start)
        shape = (self.models, *segment.shape)
        strides = (self.flat.shape[-1], *dense_strides(segment.shape))
        return Tensor.of_memory(self.memory, shape, segment.start, strides)


class BufferSlice(FlatBuffer):
    """A contiguous part of a buffer of one network on the host, which shares its memory.

    Parameters
    ----------
    whole : FlatBuffer
    start, stop : int, elements
        Segments that reach over an end are cut there, and become vectors.
    """

    def __init__(self, whole: FlatBuffer, start: int, stop: int) -> None:
        self._place = slice(start, stop)
        self._whole_segments = whole.segments
        self.segments = tuple(
            _cut(segment, start, stop)
            for segment in whole.segments
            if segment.start < stop and segment.stop > start
        )
        trained = {segment.name for segment in whole.trained}
        self.trained = tuple(segment for segment in self.segments if segment.name in trained)
        self.models = None
        self.flat = whole.flat[start:stop]
        self.memory = MemoryManager.wrap(self.flat)
        self._by_name = {segment.name: segment for segment in self.segments}

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        """The segments of the whole buffer."""
        return self._whole_segments

    def cut(self, flat: Array) -> Array:
        """Return the part of an array like the whole buffer's that belongs to this part."""
        return flat[self._place]


def _cut(segment: Segment, start: int, stop: int) -> Segment:
    """Return the part of a segment from `start` to `stop`, counted from `start`."""
    first, last = max(segment.start, start), min(segment.stop, stop)
    is_whole = (first, last) == (segment.start, segment.stop)
    shape = segment.shape if is_whole else (last - first,)
    return Segment(segment.name, shape, first - start)
