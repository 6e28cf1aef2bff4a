"""Memory looked at through a view, and its elements as arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.backend.device import CPU, Device
from dnn.errors import ShapeError
from dnn.graph.node import Shape
from dnn.memory import MemoryKind, MemoryManager
from dnn.tensor.view import View

__all__ = ["Elements"]


class Elements:
    """What a tensor is: memory, and the view through which it is looked at.

    Attributes
    ----------
    memory : MemoryManager
        Shared by all that look at it.
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
        """How far the next element along each axis is, in elements."""
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
        """Where it belongs: a GPU if its memory has a side there."""
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
            It looks at the same memory.

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
        array = self.view.of_device(self.memory.write_device())
        interface: dict[str, Any] = array.__cuda_array_interface__
        return interface

    def __dlpack__(self, **arguments: Any) -> Any:
        """Share the memory with another library, which may write to it.

        Of MANAGED memory with two sides the GPU's is shared, and what the host held is stale; the
        other library's later writes are not noticed.
        """
        if self.device == CPU:
            return self.view.of_host(self.memory.write_host()).__dlpack__(**arguments)
        return self.view.of_device(self.memory.write_device()).__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device == CPU:
            return 1, 0  # kDLCPU
        kind, index = self.view.of_device(self.memory.read_device()).__dlpack_device__()
        return int(kind), int(index)
