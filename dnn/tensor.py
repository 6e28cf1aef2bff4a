"""Tensors: arrays with a shape, on the host or on a GPU.

A tensor looks at memory through a shape, strides and an offset, so slices, reshaped and squeezed
tensors share the memory of the one they come from, and what is written through one is read
through all of them, on whichever side. Plans of the graph never see tensors: they work on the
arrays that a tensor hands out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.backend.device import CPU, Device, import_cupy
from dnn.errors import DeviceError, DtypeError, OutOfRangeError, ShapeError
from dnn.fillers import filler as filler_of
from dnn.graph.node import Shape
from dnn.initializers import Initializer
from dnn.memory import MemoryKind, MemoryManager, checked_dtype
from dnn.seeds import stream
from dnn.table import read_csv, write_csv
from dnn.tensor_shapes import check_range, checked_axis, checked_shape, dense_strides, is_integer

__all__ = ["Tensor"]

_created = itertools.count()


class Tensor:
    """An array with a shape, on the host or on a GPU.

    Parameters
    ----------
    shape : int or tuple of int
    filler : str, number or Initializer
        What it starts from: ``"zero"``, ``"one"``, ``"constant"`` by giving the number,
        ``"uniform"``, ``"glorot"``, ``"mask"``, ``"diagonal"``, ``"identity"``, the name of any
        initializer, or what the functions of `dnn.fillers` return.
    dtype : type of elements
    kind : str or MemoryKind, optional
        Of the memory; HOST on the CPU and DEVICE on a GPU if left out.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    seed : int, optional
        Of a random filler: the same seed gives the same tensor. Left out, the n-th tensor that
        this process creates draws from a stream of its own, so that no two are alike and a
        program that is run again creates the same ones.

    Attributes
    ----------
    shape, dtype
    strides : tuple of int, elements
    offset : int, elements
    memory : MemoryManager
        Shared with the tensors that this one was made from.

    Raises
    ------
    ShapeError
        If a length is negative or no integer, or the filler does not fit the shape.
    ConfigurationError
        If filler, kind or device is unknown.
    DeviceError
        If there is no such device; it says what is missing.
    """

    __slots__ = ("dtype", "memory", "offset", "shape", "strides")

    def __init__(
        self,
        shape: int | Shape,
        filler: str | float | Initializer = "zero",
        *,
        dtype: npt.DTypeLike = np.float32,
        kind: str | MemoryKind | None = None,
        device: str | Device = "cpu",
        seed: int | None = None,
    ) -> None:
        checked = checked_shape(shape)
        fill = filler_of(filler)
        number = next(_created)
        purpose = ("tensor",) if seed is not None else ("tensor", number)
        values = fill(stream(seed or 0, *purpose), checked, checked_dtype(dtype))
        if values.shape != checked:
            message = f"the filler made {values.shape} for a tensor {checked}"
            raise ShapeError("tensor", message, values.shape, checked)
        self._look(_memory_of(values, kind, Device.of(device)), checked, dense_strides(checked), 0)

    def _look(self, memory: MemoryManager, shape: Shape, strides: Shape, offset: int) -> None:
        self.memory = memory
        self.dtype = memory.dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset

    @classmethod
    def _at(
        cls, memory: MemoryManager, shape: Shape, strides: Shape | None = None, offset: int = 0
    ) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._look(memory, shape, dense_strides(shape) if strides is None else strides, offset)
        return tensor

    # Other ways in.

    @classmethod
    def from_array(
        cls,
        values: npt.ArrayLike,
        *,
        dtype: npt.DTypeLike | None = None,
        kind: str | MemoryKind | None = None,
        device: str | Device | None = None,
    ) -> Tensor:
        """Return a tensor with a copy of an array's values.

        Parameters
        ----------
        values : array_like, Tensor or CuPy array
            Python's floats become float32.
        dtype : type of elements, optional
            That of the values if left out.
        kind, device
            As for the class; a CuPy array stays on its GPU if `device` is left out.

        Returns
        -------
        Tensor

        Raises
        ------
        DtypeError
            If the values are no real numbers.
        """
        if isinstance(values, Tensor):
            source = values if dtype is None else values.astype(dtype)
            return source.to(source.device if device is None else device, kind, copy=True)
        if hasattr(values, "__cuda_array_interface__"):
            tensor = cls._from_cupy(import_cupy().asarray(values))
            return cls.from_array(tensor, dtype=dtype, kind=kind, device=device)
        array = _host_array(values, dtype)
        return cls._at(_memory_of(array, kind, Device.of(device or CPU)), array.shape)

    @classmethod
    def from_dlpack(cls, source: Any) -> Tensor:
        """Return a tensor that shares the memory of another library's array.

        Parameters
        ----------
        source : object with ``__dlpack__`` and ``__dlpack_device__``
            Such as a PyTorch tensor. What is not contiguous or may not be written is copied.

        Raises
        ------
        DeviceError
            If it lies on a device that this process cannot use.
        DtypeError
            If its elements are no real numbers.
        """
        kind = int(source.__dlpack_device__()[0])
        if kind in (2, 13):  # kDLCUDA, kDLCUDAManaged
            return cls._from_cupy(import_cupy().from_dlpack(source))
        if kind not in (1, 3):  # kDLCPU, kDLCUDAHost
            raise DeviceError(f"DLPack device type {kind} is neither a CPU nor an NVIDIA GPU")
        array = np.from_dlpack(source)
        checked_dtype(array.dtype)
        if not array.flags.writeable or not array.flags.c_contiguous:
            array = array.copy(order="C")
        return cls._at(MemoryManager.wrap(array), array.shape)

    @classmethod
    def _from_cupy(cls, array: Any) -> Tensor:
        array = import_cupy().ascontiguousarray(array)
        memory = MemoryManager.wrap_device(array, Device("cuda", array.device.id))
        return cls._at(memory, tuple(array.shape))

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        delimiter: str = ",",
        header: bool = False,
        dtype: npt.DTypeLike = np.float32,
        device: str | Device = "cpu",
    ) -> Tensor:
        """Read a file of numbers as a tensor (rows, columns).

        Parameters
        ----------
        path : path
        delimiter : str, one character
        header : bool
            The first row holds names and is left out.
        dtype : type of elements
        device : str

        Returns
        -------
        Tensor, shape (rows, columns)

        Raises
        ------
        DataError
            If the file cannot be read, has no rows, a cell is empty, no number or not finite, or
            a row too short or too long; it names the line and the column.
        """
        table = read_csv(path, delimiter=delimiter, header=header)
        array = table.values.astype(checked_dtype(dtype))
        return cls._at(_memory_of(array, None, Device.of(device)), array.shape)

    def to_csv(self, path: str | Path, *, delimiter: str = ",") -> None:
        """Write a tensor of one or two axes; reading gives the same elements exactly.

        Parameters
        ----------
        path : path
        delimiter : str, one character

        Raises
        ------
        ShapeError
            If it has no axis, or more than two.
        """
        write_csv(path, self.numpy(), delimiter)

    # What it is.

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> Device:
        """Where it belongs: a GPU if its memory has a side there."""
        return getattr(self.memory.device, "name", CPU)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements stand one behind the other, the last axis fastest."""
        return self.size <= 1 or all(
            length == 1 or stride == expected
            for length, stride, expected in zip(
                self.shape, self.strides, dense_strides(self.shape), strict=True
            )
        )

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", "a tensor without axes has no length", ())
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        where = f"{self.memory.kind.value} memory, {self.device}"
        head = f"Tensor {self.shape} {self.dtype}, {where}"
        values = self.numpy()
        shown = np.array2string(values, precision=4, threshold=100, edgeitems=3, prefix="  ")
        return f"<{head}:\n  {shown}>" if values.ndim else f"<{head}: {shown}>"

    # Its elements, as arrays.

    def _host_view(self, flat: Array) -> Array:
        step = self.dtype.itemsize
        if not self.size:
            return np.empty(self.shape, self.dtype)
        view: Array = np.ndarray(
            self.shape,
            self.dtype,
            flat.data,
            self.offset * step,
            tuple(stride * step for stride in self.strides),
        )
        return view

    def _device_view(self, flat: Any) -> Any:
        step = self.dtype.itemsize
        strides = tuple(stride * step for stride in self.strides)
        memory = flat.data + self.offset * step
        return import_cupy().ndarray(self.shape, self.dtype, memory, strides)

    def numpy(self) -> Array:
        """Return the elements on the host: a view that is not to be written, or a copy.

        A copy is what DEVICE memory gives.
        """
        if self.memory.kind is not MemoryKind.DEVICE:
            return self._host_view(self.memory.read_host())
        host = MemoryManager(self.memory.size, self.dtype, MemoryKind.HOST)
        host.copy_from(self.memory)
        return self._host_view(host.read_host())

    def cupy(self) -> Any:
        """Return the elements as a CuPy array that looks at the same memory, for reading.

        Raises
        ------
        DeviceError
            If the tensor is not on a GPU.
        """
        return self._device_view(self.memory.read_device())

    def item(self) -> float | int | bool:
        """Return the only element as a number of Python.

        Raises
        ------
        ShapeError
            If there are more elements, or none.
        """
        if self.size != 1:
            raise ShapeError("item", f"a tensor {self.shape} has {self.size} elements", self.shape)
        value: float | int | bool = self.numpy().item()
        return value

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
        interface: dict[str, Any] = self._device_view(
            self.memory.write_device()
        ).__cuda_array_interface__
        return interface

    def __dlpack__(self, **arguments: Any) -> Any:
        """Share the memory with another library, which may write to it.

        Of MANAGED memory with two sides the GPU's is shared, and what the host held is stale; the
        other library's later writes are not noticed.
        """
        if self.device == CPU:
            return self._host_view(self.memory.write_host()).__dlpack__(**arguments)
        return self._device_view(self.memory.write_device()).__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device == CPU:
            return 1, 0  # kDLCPU
        kind, index = self._device_view(self.memory.read_device()).__dlpack_device__()
        return int(kind), int(index)

    # Parts and shapes.

    def __getitem__(self, index: Any) -> Any:
        """Return a part that shares memory, or a number where every axis has an integer.

        Integers count from the end where negative; slices, ``...`` and ``None`` as in NumPy.

        Raises
        ------
        OutOfRangeError
            If an integer is outside its axis, or there are more than there are axes.
        """
        part = self._part(index)
        whole = index if isinstance(index, tuple) else (index,)
        integers = all(is_integer(i) for i in whole) and len(whole) == self.ndim
        return part.item() if integers else part

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a number, an array or a tensor that broadcasts to the part."""
        part = self._part(index)
        array = np.asarray(_on_host(value))
        try:
            fits = np.broadcast_shapes(array.shape, part.shape) == part.shape
        except ValueError:
            fits = False
        if not fits:
            message = f"{array.shape} does not broadcast to {part.shape}"
            raise ShapeError("tensor", message, array.shape, part.shape)
        if self.memory.kind is MemoryKind.DEVICE:
            xp = import_cupy()
            # Not through the host: other parts of the memory stay where they are.
            self._device_part(part)[...] = xp.asarray(array.astype(self.dtype))
        else:
            part._host_view(self.memory.write_host())[...] = array

    @staticmethod
    def _device_part(part: Tensor) -> Any:
        return part._device_view(part.memory.write_device())

    def _part(self, index: Any) -> Tensor:
        given = index if isinstance(index, tuple) else (index,)
        for i in given:
            if not (is_integer(i) or isinstance(i, slice) or i is None or i is Ellipsis):
                message = f"a tensor takes integers, slices, ... and None, not {i!r}"
                raise DtypeError(message)
            if isinstance(i, slice) and i.step == 0:
                raise OutOfRangeError("the step of a slice is 0")
        check_range(given, self.shape)
        # NumPy does the arithmetic, on an array of bytes that nobody reads: its strides in bytes
        # are ours in elements.
        probe = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), self.shape, self.strides)
        found = probe[given if Ellipsis in given else (*given, ...)]
        offset = self.offset + found.ctypes.data - probe.ctypes.data
        return self._at(self.memory, found.shape, found.strides, offset if found.size else 0)

    def reshape(self, *shape: int | Shape) -> Tensor:
        """Return the elements in another shape; one length may be -1 and is found.

        Shares memory where the elements stand one behind the other, and copies them else.

        Raises
        ------
        ShapeError
            If the elements don't fill the shape.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        lengths = checked_shape(tuple(wanted), self.size)  # type: ignore[arg-type]
        if math.prod(lengths) != self.size:
            message = f"a tensor {self.shape} does not fill {lengths}"
            raise ShapeError("reshape", message, self.shape, lengths)
        base = self if self.is_contiguous else self.copy()
        return self._at(base.memory, lengths, dense_strides(lengths), base.offset)

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Return a view without the axes of length 1, or without the one given.

        Raises
        ------
        OutOfRangeError
            If there is no such axis.
        ShapeError
            If its length is not 1.
        """
        if axis is None:
            dropped = {i for i, length in enumerate(self.shape) if length == 1}
        else:
            dropped = {checked_axis(axis, self.ndim)}
            if self.shape[checked_axis(axis, self.ndim)] != 1:
                message = f"axis {axis} of {self.shape} has not length 1"
                raise ShapeError("squeeze", message, self.shape)
        kept = [i for i in range(self.ndim) if i not in dropped]
        shape, strides = (tuple(x[i] for i in kept) for x in (self.shape, self.strides))
        return self._at(self.memory, shape, strides, self.offset)

    def unsqueeze(self, axis: int = 0) -> Tensor:
        """Return a view with a new axis of length 1; -1 puts it behind the last.

        Raises
        ------
        OutOfRangeError
            If there is no such place.
        """
        at = checked_axis(axis, self.ndim + 1)
        shape, strides = ((*x[:at], 1, *x[at:]) for x in (self.shape, self.strides))
        return self._at(self.memory, shape, strides, self.offset)

    # Copies.

    def copy(self) -> Tensor:
        """Return a copy, contiguous, in memory of the same kind."""
        return self.to(self.device, self.memory.kind, copy=True)

    def astype(self, dtype: npt.DTypeLike) -> Tensor:
        """Return a copy with another type of elements."""
        values = self.numpy().astype(checked_dtype(dtype))
        return self._at(_memory_of(values, self.memory.kind, self.device), self.shape)

    def to(
        self, device: str | Device, kind: str | MemoryKind | None = None, *, copy: bool = False
    ) -> Tensor:
        """Return the tensor on a device, itself where it is there already.

        Parameters
        ----------
        device : str or Device
        kind : str or MemoryKind, optional
            Of the memory there; HOST on the CPU and DEVICE on a GPU if left out.
        copy : bool
            Even if it is there already.

        Raises
        ------
        DeviceError
            If there is no such device; it says what is missing.
        """
        where = Device.of(device)
        if where == self.device and not copy and kind in (None, self.memory.kind):
            return self
        chosen = MemoryKind.of(kind) if kind is not None else _default_kind(where)
        target = MemoryManager(self.size, self.dtype, chosen, where)
        if self.is_contiguous:
            target.copy_from(self.memory, self.offset, self.size)
        elif self.memory.kind is MemoryKind.DEVICE:
            packed = import_cupy().ascontiguousarray(self.cupy())
            target.copy_from(MemoryManager.wrap_device(packed, self.device))
        else:
            target.copy_from(MemoryManager.wrap(np.ascontiguousarray(self.numpy()).reshape(-1)))
        return self._at(target, self.shape)


def _memory_of(values: Array, kind: str | MemoryKind | None, device: Device) -> MemoryManager:
    """Put values into new memory of a device."""
    chosen = MemoryKind.of(kind) if kind is not None else _default_kind(device)
    memory = MemoryManager(values.size, values.dtype, chosen, device)
    memory.copy_from(MemoryManager.wrap(np.ascontiguousarray(values)))
    return memory


def _default_kind(device: Device) -> MemoryKind:
    return MemoryKind.HOST if device == CPU else MemoryKind.DEVICE


def _host_array(values: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Array:
    array = array_of("tensor", values)
    if array.dtype.kind not in "fiub":
        raise DtypeError(f"a tensor holds real numbers, not {array.dtype}")
    if dtype is None and not hasattr(values, "dtype") and array.dtype == np.float64:
        dtype = np.float32
    return array.astype(checked_dtype(array.dtype if dtype is None else dtype), order="C")


def _on_host(value: Any) -> Any:
    """Copy an array of CuPy to the host: it refuses to be taken for one of NumPy."""
    foreign = hasattr(value, "__cuda_array_interface__") and not isinstance(value, Tensor)
    return import_cupy().asnumpy(value) if foreign else value
