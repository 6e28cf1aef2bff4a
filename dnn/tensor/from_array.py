"""Memory with values that come from elsewhere: from NumPy, CuPy or, by DLPack, any library."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, dtype_of
from dnn.backend import Array
from dnn.backend.device import Device, import_cupy
from dnn.errors import DeviceError, DtypeError
from dnn.graph.node import Shape
from dnn.memory import MemoryKind, MemoryManager, default_kind

__all__ = [
    "dlpack_memory",
    "host_array",
    "is_foreign",
    "memory_of",
    "on_host",
    "shared_with_cupy",
]


def memory_of(values: Array, kind: str | MemoryKind | None, device: Device) -> MemoryManager:
    """Return new memory of a device that holds a copy of an array's values.

    Parameters
    ----------
    values : array
    kind : str or MemoryKind, optional
        The device's default if left out.
    device : Device

    Returns
    -------
    MemoryManager
        With as many elements as `values`, in their order.
    """
    chosen = MemoryKind(kind) if kind is not None else default_kind(device)
    memory = MemoryManager(values.size, values.dtype, chosen, device)
    memory.copy_from(MemoryManager.wrap(np.ascontiguousarray(values)))
    return memory


def host_array(values: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Array:
    """Return a contiguous copy of values.

    Parameters
    ----------
    values : array_like
    dtype : type of elements, optional
        That of the values if left out, float32 for Python's floats.

    Returns
    -------
    array

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


def is_foreign(value: Any) -> bool:
    """Return whether a value is somebody's array on a GPU, such as CuPy's."""
    return hasattr(value, "__cuda_array_interface__")


def on_host(value: Any) -> Any:
    """Return an array of CuPy as one of NumPy, and all else as it is."""
    return import_cupy().asnumpy(value) if is_foreign(value) else value


def shared_with_cupy(array: Any) -> tuple[MemoryManager, Shape]:
    """Return memory that is that of an array of CuPy, or of a contiguous copy, and its shape."""
    array = import_cupy().ascontiguousarray(array)
    memory = MemoryManager.wrap(array, Device("cuda", array.device.id))
    return memory, tuple(array.shape)


def dlpack_memory(source: Any) -> tuple[MemoryManager, Shape]:
    """Return memory that is shared with another library's array, and its shape.

    Parameters
    ----------
    source : object with ``__dlpack__`` and ``__dlpack_device__``
        What is not contiguous or may not be written is copied.

    Returns
    -------
    (MemoryManager, tuple of int)

    Raises
    ------
    DeviceError
        If it lies on a device that this process cannot use.
    DtypeError
        If its elements are no real numbers.
    """
    kind = int(source.__dlpack_device__()[0])
    if kind in (2, 13):  # kDLCUDA, kDLCUDAManaged
        return shared_with_cupy(import_cupy().from_dlpack(source))
    if kind not in (1, 3):  # kDLCPU, kDLCUDAHost
        raise DeviceError(f"DLPack device type {kind} is neither a CPU nor an NVIDIA GPU")
    array = np.from_dlpack(source)
    dtype_of("tensor", array.dtype)
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy(order="C")
    return MemoryManager.wrap(array), array.shape
