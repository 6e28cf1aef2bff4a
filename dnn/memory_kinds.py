"""Kinds of memory, what memory asks of a device, and which one answers."""

from __future__ import annotations

import enum
from typing import Any, Protocol

import numpy as np

from dnn.backend import device as devices
from dnn.backend.device import Device
from dnn.backend.ops import Array
from dnn.errors import DeviceError, unknown_name

__all__ = ["DeviceMemory", "MemoryKind", "default_kind", "device_memory"]


class MemoryKind(enum.Enum):
    """Where a `MemoryManager` keeps its elements; `dnn.memory` has the table."""

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    CUDA_MANAGED = "cuda_managed"

    @classmethod
    def of(cls, name: str | MemoryKind) -> MemoryKind:
        """Return the kind of a name, in small letters."""
        if isinstance(name, MemoryKind):
            return name
        known = {kind.value: kind for kind in cls}
        if name not in known:
            raise unknown_name("kind of memory", name, known)
        return known[name]


def default_kind(device: Device) -> MemoryKind:
    """Return the kind of memory that a device computes on."""
    return MemoryKind.HOST if device.kind == "cpu" else MemoryKind.DEVICE


class DeviceMemory(Protocol):
    """What a manager asks of a device; `dnn.backend.cuda.memory` answers with CuPy.

    Arrays are flat. Copies are put in the device's queue behind the work that is there; `to_host`
    returns when the host array may be read. What ``start_...`` returns is given to ``finish_...``
    before an array of either side is used. They finish in the order in which they began.
    """

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return new memory of the device."""

    def empty_unified(self, size: int, dtype: np.dtype[Any]) -> tuple[Any, Array]:
        """Return new unified memory, as an array of the device and as one of the host."""

    def empty_pinned(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return host memory from which the device can copy while the host goes on."""

    def to_device(self, host: Array, out: Any) -> None:
        """Copy from the host; `host` may be changed when this returns."""

    def to_host(self, device: Any, out: Array) -> None:
        """Copy to the host."""

    def copy(self, device: Any, out: Any) -> None:
        """Copy on the device, or from another device."""

    def start_to_device(self, host: Array, out: Any) -> Any:
        """Begin to copy pinned memory to the device."""

    def start_to_host(self, device: Any, out: Array) -> Any:
        """Begin to copy to pinned memory."""

    def finish_on_device(self, ticket: Any) -> None:
        """Let the device's later work wait for a copy."""

    def finish_on_host(self, ticket: Any) -> None:
        """Wait for a copy."""

    def prefetch_unified(self, device: Any, to_device: bool) -> None:
        """Begin to move unified memory to one side."""

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""


def device_memory(
    kind: MemoryKind, device: str | Device | DeviceMemory | None
) -> DeviceMemory | None:
    """Return the device that memory of a kind lies on.

    Parameters
    ----------
    kind : MemoryKind
    device : str, Device or DeviceMemory, optional
        As for `MemoryManager`.

    Returns
    -------
    DeviceMemory or None
        None for memory of the host alone.

    Raises
    ------
    DeviceError
        If the kind needs a GPU and there is none; it says what is missing.
    """
    if kind is MemoryKind.HOST:
        return None
    if device is not None and not isinstance(device, str | Device):
        return device
    if device is None:
        device = "cuda" if kind is not MemoryKind.MANAGED or not devices.cuda_problem() else "cpu"
    where = Device.of(device)
    if where.kind == "cpu":
        if kind is MemoryKind.MANAGED:
            return None
        raise DeviceError(f"{kind.name} memory is a GPU's, and the device is {where}")
    if problem := devices.cuda_problem(where.index):
        raise DeviceError(f"{kind.name} memory needs a GPU: {problem}", str(where))
    from dnn.backend.cuda.memory import CudaMemory

    return CudaMemory(where.index)
