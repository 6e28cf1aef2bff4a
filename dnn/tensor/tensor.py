"""`Tensor`: an array on the host or a GPU, with constructors, files, moves and copies."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, dtype_of
from dnn.backend import Array
from dnn.backend.device import Device, current_device, import_cupy
from dnn.errors import DeviceError, DtypeError, ShapeError, explains_arguments
from dnn.graph.node import Shape
from dnn.initializers import Initializer, initializer_of
from dnn.memory import MemoryKind, MemoryManager, default_kind
from dnn.seeds import stream
from dnn.table import read_csv, write_csv
from dnn.tensor.arithmetic import Arithmetic
from dnn.tensor.elements import View, checked_shape, is_foreign

__all__ = ["Tensor"]

_created = itertools.count()


class Tensor(Arithmetic):
    """An array with a shape, on the host or on a GPU.

    Operators, NumPy's elementwise functions and the methods of `Arithmetic` compute with it; the
    results are tensors on the same device.

    Parameters
    ----------
    shape : int or tuple of int
    initializer : str, number or Initializer
        Of its first values: ``"zero"``, ``"one"``, ``"constant"`` by giving the number,
        ``"uniform"``, ``"glorot"``, ``"mask"``, ``"diagonal"``, ``"identity"``, the name of any
        initializer, or what the functions of `dnn.initializers` return.
    dtype : type of elements
    kind : str or MemoryKind, optional
        Of the memory. If left out, HOST on the CPU and DEVICE on a GPU; if `device` is left out
        too, MANAGED, which is on the GPU if there is one.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    seed : int, optional
        Of a random initializer: the same seed gives the same tensor. Left out, the n-th tensor that
        this process creates draws from a stream of its own, so that no two are alike and a
        program that is run again creates the same tensors.

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
        If a length is negative or no integer, or the initializer does not fit the shape.
    ConfigurationError
        If initializer, kind or device is unknown.
    DtypeError
        If elements of that type are no real numbers of at most 64 bits.
    DeviceError
        If there is no such device; it says what is missing.
    """

    __slots__ = ()

    @explains_arguments
    def __init__(
        self,
        shape: int | Shape,
        initializer: str | float | Initializer = "zeros",
        *,
        dtype: npt.DTypeLike = np.float32,
        kind: str | MemoryKind | None = None,
        device: str | Device | None = None,
        seed: int | None = None,
    ) -> None:
        checked = checked_shape(shape)
        fill = initializer_of(initializer)
        number = next(_created)
        purpose = ("tensor",) if seed is not None else ("tensor", number)
        values = fill(stream(seed or 0, *purpose), checked, dtype_of("tensor", dtype))
        if values.shape != checked:
            message = f"the initializer made {values.shape} for a tensor {checked}"
            raise ShapeError("tensor", message, values.shape, checked)
        self.memory = _memory_of(values, kind, device)
        self.view = View.dense(checked)

    # Other ways in.

    @classmethod
    def of_memory(
        cls,
        memory: MemoryManager,
        shape: int | Shape,
        offset: int = 0,
        strides: Shape | None = None,
    ) -> Tensor:
        """Return a tensor whose elements stand in given memory, which it shares.

        Parameters
        ----------
        memory : MemoryManager
        shape : int or tuple of int
        offset : int, elements
            Where the first element stands.
        strides : tuple of int, elements, optional
            If left out, elements stand one behind the other, the last axis fastest.

        Returns
        -------
        Tensor

        Raises
        ------
        ShapeError
            If an element would lie outside the memory.
        """
        lengths = checked_shape(shape)
        view = View.dense(lengths, offset) if strides is None else View(lengths, strides, offset)
        reach = [(n - 1) * step for n, step in zip(lengths, view.strides, strict=True)]
        first = offset + sum(step for step in reach if step < 0)
        last = offset + sum(step for step in reach if step > 0)
        if view.size and not 0 <= first <= last < memory.size:
            message = f"elements {first} to {last} of memory of {memory.size}"
            raise ShapeError("tensor", message, lengths, (memory.size,))
        return cls._at(memory, view)

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
        if is_foreign(values):
            tensor = cls._dense(*_shared_with_cupy(import_cupy().asarray(values)))
            return cls.from_array(tensor, dtype=dtype, kind=kind, device=device)
        array = _host_array(values, dtype)
        return cls._dense(_memory_of(array, kind, device), array.shape)

    @classmethod
    def from_dlpack(cls, source: Any) -> Tensor:
        """Return a tensor that shares the memory of another library's array.

        Parameters
        ----------
        source : object with ``__dlpack__`` and ``__dlpack_device__``
            Such as a PyTorch tensor. An array that is read-only or not contiguous is copied.

        Returns
        -------
        Tensor, of the array's shape and type, on its device

        Raises
        ------
        DeviceError
            If it lies on a device that this process cannot use.
        DtypeError
            If its elements are no real numbers.
        """
        return cls._dense(*_dlpack_memory(source))

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        delimiter: str = ",",
        header: bool = False,
        dtype: npt.DTypeLike = np.float32,
        device: str | Device | None = None,
    ) -> Tensor:
        """Read a file of numbers as a tensor (rows, columns).

        Parameters
        ----------
        path : path
        delimiter : str, one character
        header : bool
            The first row holds names and is left out.
        dtype : type of elements
        device : str, optional
            As for the class.

        Returns
        -------
        Tensor, shape (rows, columns)

        Raises
        ------
        DataError
            If the file cannot be read, has no rows, a cell is empty, not finite or no number of
            the type, or a row too short or too long; it names the line and the column.
        """
        array = read_csv(path, delimiter=delimiter, header=header, dtype=dtype).values
        return cls._dense(_memory_of(array, None, device), array.shape)

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

    def __repr__(self) -> str:
        where = f"{self.memory.kind.value} memory, {self.device}"
        head = f"Tensor {self.shape} {self.dtype}, {where}"
        values = self.numpy()
        shown = np.array2string(values, precision=4, threshold=100, edgeitems=3, prefix="  ")
        return f"<{head}:\n  {shown}>" if values.ndim else f"<{head}: {shown}>"

    # Other shapes and copies.

    def reshape(self, *shape: int | Shape) -> Tensor:
        """Return the elements in another shape.

        Parameters
        ----------
        *shape : int, or one tuple of int
            One length may be -1, and follows from the number of elements.

        Returns
        -------
        Tensor
            It shares memory where the elements stand one behind the other, and copies them else.

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
        return self._at(base.memory, View.dense(lengths, base.offset))

    def copy(self) -> Tensor:
        """Return a copy, contiguous, in memory of the same kind.

        Returns
        -------
        Tensor, of the same shape, type and device
        """
        return self.to(self.device, self.memory.kind, copy=True)

    def astype(self, dtype: npt.DTypeLike) -> Tensor:
        """Return a copy with another type of elements, in memory of the same kind.

        Parameters
        ----------
        dtype : type of elements

        Returns
        -------
        Tensor of `dtype`, of the same shape and device

        Raises
        ------
        DtypeError
            If elements of that type are no real numbers of at most 64 bits.
        """
        values = self.numpy().astype(dtype_of("tensor", dtype))
        return self._dense(_memory_of(values, self.memory.kind, self.device), self.shape)

    def to(
        self, device: str | Device, kind: str | MemoryKind | None = None, *, copy: bool = False
    ) -> Tensor:
        """Return the tensor on a device; `self` if it is there already.

        Parameters
        ----------
        device : str or Device
        kind : str or MemoryKind, optional
            Of the memory there; HOST on the CPU and DEVICE on a GPU if left out.
        copy : bool
            Copy even if it is there already.

        Returns
        -------
        Tensor
            `self`, or a contiguous copy.

        Raises
        ------
        DeviceError
            If there is no such device; it says what is missing.
        """
        where = Device.of(device)
        if where == self.device and not copy and kind in (None, self.memory.kind):
            return self
        chosen = MemoryKind(kind) if kind is not None else default_kind(where)
        target = MemoryManager(self.size, self.dtype, chosen, where)
        if self.is_contiguous:
            target.copy_from(self.memory, self.offset, self.size)
        elif self.memory.kind is MemoryKind.DEVICE:
            with current_device(self.device):
                packed = self.cupy().copy()
            target.copy_from(MemoryManager.wrap(packed, self.device))
        else:
            target.copy_from(MemoryManager.wrap(np.ascontiguousarray(self.numpy()).reshape(-1)))
        return self._dense(target, self.shape)


def _memory_of(
    values: Array, kind: str | MemoryKind | None, device: str | Device | None
) -> MemoryManager:
    """Return new memory with a copy of an array; `Tensor` documents the defaults."""
    if kind is not None:
        chosen = MemoryKind(kind)
    else:
        chosen = MemoryKind.MANAGED if device is None else default_kind(Device.of(device))
    memory = MemoryManager(values.size, values.dtype, chosen, device)
    memory.copy_from(MemoryManager.wrap(np.ascontiguousarray(values)))
    return memory


def _host_array(values: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Array:
    """Return a contiguous copy of values; without a type, Python's floats become float32.

    Raises
    ------
    DtypeError
        If they are no real numbers.
    DataError
        If they have no shape.
    """
    array = array_of("tensor", values)
    if array.dtype.kind not in "fiub":
        raise DtypeError(f"a tensor holds real numbers, not {array.dtype}")
    if dtype is None and not hasattr(values, "dtype") and array.dtype == np.float64:
        dtype = np.float32
    return array.astype(dtype_of("tensor", array.dtype if dtype is None else dtype), order="C")


def _shared_with_cupy(array: Any) -> tuple[MemoryManager, Shape]:
    """Return the memory of a CuPy array, or of a contiguous copy of it, and its shape."""
    device = Device("cuda", array.device.id)
    if not array.flags.c_contiguous:  # `ascontiguousarray` gives an array without axes one
        with current_device(device):
            array = array.copy()
    memory = MemoryManager.wrap(array, device)
    return memory, tuple(array.shape)


def _dlpack_memory(source: Any) -> tuple[MemoryManager, Shape]:
    """Return memory shared with another library's array, and its shape; see `from_dlpack`."""
    kind = int(source.__dlpack_device__()[0])
    if kind in (2, 13):  # kDLCUDA, kDLCUDAManaged
        return _shared_with_cupy(import_cupy().from_dlpack(source))
    if kind not in (1, 3):  # kDLCPU, kDLCUDAHost
        raise DeviceError(f"DLPack device type {kind} is neither a CPU nor an NVIDIA GPU")
    array = np.from_dlpack(source)
    dtype_of("tensor", array.dtype)
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy(order="C")
    return MemoryManager.wrap(array), array.shape
