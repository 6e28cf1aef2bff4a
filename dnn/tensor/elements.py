"""Base class of tensors: elements in flat memory, by shape, strides and offset; and parts."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.backend.device import CPU, Device, current_device, import_cupy
from dnn.errors import DtypeError, OutOfRangeError, ShapeError
from dnn.graph.node import Shape
from dnn.memory import MemoryKind, MemoryManager

__all__ = ["Elements", "View", "checked_shape", "dense_strides", "is_foreign"]

Kind = TypeVar("Kind", bound="Elements")


@dataclass(frozen=True, slots=True)
class View:
    """A shape, with strides and an offset that tell where its elements stand in flat memory.

    Attributes
    ----------
    shape : tuple of int
    strides : tuple of int, elements
    offset : int, elements
        Where the first element stands.
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def dense(cls, shape: Shape, offset: int = 0) -> View:
        """Return the view of elements one behind the other, the last axis fastest."""
        return cls(shape, dense_strides(shape), offset)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements stand one behind the other, the last axis fastest."""
        return self.size <= 1 or all(
            length == 1 or stride == expected
            for length, stride, expected in zip(
                self.shape, self.strides, dense_strides(self.shape), strict=True
            )
        )

    def part(self, index: Any) -> View:
        """Return the view of a part, for integers, slices, ``...`` and None as NumPy takes them.

        Raises
        ------
        DtypeError
            If the index holds anything else.
        OutOfRangeError
            If an integer is outside its axis, there are more indices than axes, or a step is 0.
        """
        given = index if isinstance(index, tuple) else (index,)
        for i in given:
            if not (is_integer(i) or isinstance(i, slice) or i is None or i is Ellipsis):
                message = f"a tensor takes integers, slices, ... and None, not {i!r}"
                raise DtypeError(message)
            if isinstance(i, slice) and i.step == 0:
                raise OutOfRangeError("the step of a slice is 0")
        check_range(given, self.shape)
        # NumPy does the arithmetic, on an array of bytes that is never read: its strides in bytes
        # are ours in elements.
        probe = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), self.shape, self.strides)
        found = probe[given if Ellipsis in given else (*given, ...)]
        offset = self.offset + found.ctypes.data - probe.ctypes.data
        return View(found.shape, found.strides, offset if found.size else 0)

    def squeeze(self, axis: int | None) -> View:
        """Return the view without its axes of length 1, or without the given axis."""
        if axis is None:
            dropped = {i for i, length in enumerate(self.shape) if length == 1}
        else:
            dropped = {checked_axis(axis, len(self.shape))}
            if self.shape[axis] != 1:
                message = f"axis {axis} of {self.shape} has not length 1"
                raise ShapeError("squeeze", message, self.shape)
        kept = [i for i in range(len(self.shape)) if i not in dropped]
        shape, strides = (tuple(x[i] for i in kept) for x in (self.shape, self.strides))
        return View(shape, strides, self.offset)

    def unsqueeze(self, axis: int) -> View:
        """Return the view with a new axis of length 1."""
        at = checked_axis(axis, len(self.shape) + 1)
        shape, strides = ((*x[:at], 1, *x[at:]) for x in (self.shape, self.strides))
        return View(shape, strides, self.offset)

    def of_host(self, flat: Array) -> Array:
        """Return the view's elements in flat memory of the host, as an array of NumPy."""
        if not self.size:
            return np.empty(self.shape, flat.dtype)
        step = flat.dtype.itemsize
        strides = tuple(stride * step for stride in self.strides)
        view: Array = np.ndarray(self.shape, flat.dtype, flat.data, self.offset * step, strides)
        return view

    def of_device(self, flat: Any) -> Any:
        """Return the view's elements in flat memory of a GPU, as an array of CuPy."""
        step = flat.dtype.itemsize
        strides = tuple(stride * step for stride in self.strides)
        memory = flat.data + self.offset * step
        return import_cupy().ndarray(self.shape, flat.dtype, memory, strides)


def dense_strides(shape: Shape) -> Shape:
    """Return strides, in elements, of elements one behind the other, the last axis fastest."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def checked_shape(shape: int | tuple[SupportsIndex, ...], size: int | None = None) -> Shape:
    """Return a checked shape as a tuple of int; if `size` is given, one length may be -1."""
    given: Any = shape
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        given = (given,)
    try:
        given = tuple(given)
        lengths = [operator.index(length) for length in given if not isinstance(length, bool)]
    except TypeError:
        lengths = None
    if lengths is None or len(lengths) < len(given):
        raise ShapeError("tensor", f"a shape is made of integers, not {shape!r}")
    if size is not None and lengths.count(-1) == 1:
        rest = math.prod(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = size // rest if rest > 0 else 0
    if any(length < 0 for length in lengths):
        raise ShapeError("tensor", f"a length in {shape!r} is negative", tuple(lengths))
    if any(length >= 2**63 for length in lengths):
        raise ShapeError("tensor", "a length in the shape is beyond 64 bits")
    return tuple(lengths)


def checked_axis(axis: int, axes: int) -> int:
    """Return the number, from 0, of an axis that may be counted from the end."""
    if not -axes <= axis < axes:
        raise OutOfRangeError(f"axis {axis} is outside {-axes} .. {axes - 1}")
    return axis % axes


def check_range(index: tuple[Any, ...], shape: Shape) -> None:
    """Raise `OutOfRangeError` where NumPy raises `IndexError`, with the shape in the message."""
    taken = sum(1 for i in index if i is not None and i is not Ellipsis)
    if taken > len(shape):
        raise OutOfRangeError(f"{taken} indices for a tensor {shape}")
    if sum(1 for i in index if i is Ellipsis) > 1:
        raise OutOfRangeError("an index has at most one '...'")
    axis = 0
    for i in index:
        if i is None:
            continue
        if i is Ellipsis:
            axis += len(shape) - taken
            continue
        if is_integer(i) and not -shape[axis] <= i < shape[axis]:
            message = f"index {i} is outside axis {axis} of a tensor {shape}"
            raise OutOfRangeError(message)
        axis += 1


def is_foreign(value: Any) -> bool:
    """Return whether a value is another library's array on a GPU, such as CuPy's."""
    return hasattr(value, "__cuda_array_interface__")


def on_host(value: Any) -> Any:
    """Return an array of CuPy as an array of NumPy, and any other value as it is."""
    return import_cupy().asnumpy(value) if is_foreign(value) else value


class Elements:
    """Base class of tensors: memory, and the shape, strides and offset of elements in it.

    Attributes
    ----------
    memory : MemoryManager
        Shared by all tensors that have elements in it.
    view : View
    """

    __slots__ = ("memory", "view")

    memory: MemoryManager
    view: View

    @property
    def shape(self) -> Shape:
        """Lengths of the axes."""
        return self.view.shape

    @property
    def strides(self) -> Shape:
        """Distance to the next element along each axis, in elements."""
        return self.view.strides

    @property
    def offset(self) -> int:
        """Where the first element stands in the memory, in elements."""
        return self.view.offset

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of elements."""
        return self.memory.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.view.size

    @property
    def device(self) -> Device:
        """The device of the tensor: a GPU if its memory has a side there."""
        return getattr(self.memory.device, "name", CPU)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements stand one behind the other, the last axis fastest."""
        return self.view.is_contiguous

    def numpy(self) -> Array:
        """Return the elements on the host.

        Returns
        -------
        array, of the tensor's shape and type
            A view that is not to be written, or, of DEVICE memory, a copy.
        """
        if self.memory.kind is not MemoryKind.DEVICE:
            return self.view.of_host(self.memory.read_host())
        host = MemoryManager(self.memory.size, self.dtype, MemoryKind.HOST)
        host.copy_from(self.memory)
        return self.view.of_host(host.read_host())

    def cupy(self) -> Any:
        """Return the elements on the GPU, for reading.

        Returns
        -------
        array of CuPy, of the tensor's shape and type
            It shares memory with the tensor.

        Raises
        ------
        DeviceError
            If the tensor is not on a GPU.
        """
        return self.view.of_device(self.memory.read_device())

    def item(self) -> float | int | bool:
        """Return the only element.

        Returns
        -------
        float, int or bool of Python

        Raises
        ------
        ShapeError
            If there are more elements, or none.
        """
        if self.size != 1:
            raise ShapeError("item", f"a tensor {self.shape} has {self.size} elements", self.shape)
        value: float | int | bool = self.numpy().item()
        return value

    def tolist(self) -> Any:
        """Return the elements as NumPy does.

        Returns
        -------
        nested list of float, int or bool
            A single number if the tensor has no axis.
        """
        return self.numpy().tolist()

    def tobytes(self) -> bytes:
        """Return a copy of the elements, the last axis fastest.

        Returns
        -------
        bytes
        """
        return self.numpy().tobytes()

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        values = self.numpy()
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"{self.dtype} becomes {np.dtype(dtype)} only in a copy")
            return values.astype(dtype)
        if self.memory.kind is MemoryKind.DEVICE and copy is False:
            raise ValueError("a tensor on a GPU becomes an array of NumPy only in a copy")
        return values.copy() if copy else values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device == CPU:
            raise AttributeError("a tensor on the CPU has no __cuda_array_interface__")
        interface: dict[str, Any] = self._array(True).__cuda_array_interface__
        return interface

    def __dlpack__(self, **arguments: Any) -> Any:
        """Share the memory with another library, which may write to it.

        Of MANAGED memory with two sides the GPU's is shared, and the host's becomes stale; the
        other library's later writes are not noticed.
        """
        return self._array(True).__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device == CPU:
            return 1, 0  # kDLCPU
        kind, index = self._array().__dlpack_device__()
        return int(kind), int(index)

    def _array(self, for_writing: bool = False, on_host: bool = False) -> Any:
        """Return an array of the elements on the tensor's device, or on the host if asked for."""
        if on_host or self.device == CPU:
            memory = self.memory.write_host() if for_writing else self.memory.read_host()
            return self.view.of_host(memory)
        memory = self.memory.write_device() if for_writing else self.memory.read_device()
        return self.view.of_device(memory)

    @classmethod
    def _at(cls: type[Kind], memory: MemoryManager, view: View) -> Kind:
        tensor = cls.__new__(cls)
        tensor.memory = memory
        tensor.view = view
        return tensor

    @classmethod
    def _dense(cls: type[Kind], memory: MemoryManager, shape: Shape) -> Kind:
        return cls._at(memory, View.dense(shape))

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", "a tensor without axes has no length", ())
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self: Kind, index: Any) -> Any:
        """Return a part that shares memory, or a number where every axis has an integer.

        The index is made of integers, slices, ``...`` and None, as in NumPy. Errors are those of
        `View.part`.
        """
        part = self._at(self.memory, self.view.part(index))
        whole = index if isinstance(index, tuple) else (index,)
        integers = all(is_integer(i) for i in whole) and len(whole) == self.ndim
        return part.item() if integers else part

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a number, an array of NumPy or CuPy or a tensor that broadcasts to the part.

        Raises `ShapeError` if the value does not broadcast, and the errors of reading.
        """
        part = self.view.part(index)
        array = np.asarray(value if isinstance(value, Elements) else on_host(value))
        try:
            fits = np.broadcast_shapes(array.shape, part.shape) == part.shape
        except ValueError:
            fits = False
        if not fits:
            message = f"{array.shape} does not broadcast to {part.shape}"
            raise ShapeError("tensor", message, array.shape, part.shape)
        if self.memory.kind is MemoryKind.DEVICE:
            # Not through the host: the rest of the memory need not be copied there and back.
            with current_device(self.device):
                values = import_cupy().asarray(array.astype(self.dtype))
                part.of_device(self.memory.write_device())[...] = values
        else:
            part.of_host(self.memory.write_host())[...] = array

    def squeeze(self: Kind, axis: int | None = None) -> Kind:
        """Return a tensor without axes of length 1 that shares memory.

        Parameters
        ----------
        axis : int, optional
            The axis to leave out, negative from the end; all of length 1 if left out.

        Returns
        -------
        Tensor

        Raises
        ------
        OutOfRangeError
            If there is no such axis.
        ShapeError
            If its length is not 1.
        """
        return self._at(self.memory, self.view.squeeze(axis))

    def unsqueeze(self: Kind, axis: int = 0) -> Kind:
        """Return a tensor with a new axis of length 1 that shares memory.

        Parameters
        ----------
        axis : int
            Which axis of the result it is, negative from the end: -1 is behind the last.

        Returns
        -------
        Tensor

        Raises
        ------
        OutOfRangeError
            If there is no such place.
        """
        return self._at(self.memory, self.view.unsqueeze(axis))
