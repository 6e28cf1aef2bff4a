"""Memory on the host, on a device, or on both with a copy made only when it is read.

========== ============================= ==========================================
HOST       NumPy memory                  reading it on a device is an error
DEVICE     memory of a GPU               reading it on the host is an error
MANAGED    a host and a device copy      the stale side is brought up to date when
                                         it is read, and not before
CUDA_      one piece that CUDA moves     the host waits for the device before it
MANAGED    page by page                  reads
========== ============================= ==========================================

Without a GPU, MANAGED memory is host memory, and DEVICE and CUDA_MANAGED raise `DeviceError`.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
import weakref
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import device as devices
from dnn.backend.device import CudaMemory, Device
from dnn.backend.ops import Array, Ops
from dnn.errors import (
    ConfigurationError,
    DeviceError,
    DtypeError,
    ShapeError,
    explains_arguments,
    unknown_name,
)

__all__ = ["MemoryKind", "MemoryManager", "allocation_statistics", "default_kind"]


class MemoryKind(enum.Enum):
    """Where a `MemoryManager` keeps its elements."""

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    CUDA_MANAGED = "cuda_managed"

    @classmethod
    def _missing_(cls, value: object) -> MemoryKind:
        if isinstance(value, str) and value.lower() in (kind.value for kind in cls):
            return cls(value.lower())  # "MANAGED", as papers write it
        raise unknown_name("kind of memory", value, [kind.value for kind in cls])


def default_kind(device: Device) -> MemoryKind:
    """Return the kind of memory that a device computes on: HOST or DEVICE."""
    return MemoryKind.HOST if device.kind == "cpu" else MemoryKind.DEVICE


def _device_of(kind: MemoryKind, device: str | Device | CudaMemory | None) -> CudaMemory | None:
    """Return the device that memory of a kind lies on; None for memory of the host alone."""
    if kind is MemoryKind.HOST:
        return None
    if device is not None and not isinstance(device, str | Device):
        return device
    if device is None:
        has_gpu = kind is not MemoryKind.MANAGED or (_may_have_gpu() and not devices.cuda_problem())
        device = "cuda" if has_gpu else "cpu"
    where = Device.of(device)
    if where.kind == "cpu":
        if kind is MemoryKind.MANAGED:
            return None
        raise DeviceError(f"{kind.name} memory is a GPU's, and the device is {where}")
    if problem := devices.cuda_problem(where.index):
        raise DeviceError(f"{kind.name} memory needs a GPU: {problem}", str(where))
    return CudaMemory(where.index)


def _may_have_gpu() -> bool:
    """Say whether there may be a GPU, without the second that it takes to import CuPy."""
    drivers = ("/proc/driver/nvidia", "/dev/dxg")  # on Linux, and on Linux in Windows
    return "cupy" in sys.modules or any(map(os.path.exists, drivers))


class MemoryManager:
    """A number of elements of one type, on the host, on a device, or on both.

    Parameters
    ----------
    size : int
        Elements.
    dtype : type of elements
        float16, float32 or float64; integers and bool for labels and masks.
    kind : str or MemoryKind
        ``"host"``, ``"device"``, ``"managed"`` or ``"cuda_managed"``, or one of these in capitals.
    device : str, Device or CudaMemory, optional
        ``"cpu"`` or ``"cuda:0"``. Left out, DEVICE and CUDA_MANAGED take the first GPU, and
        MANAGED does if there is one.

    Attributes
    ----------
    size, dtype, kind
    device : CudaMemory or None
        None where everything is on the host.

    Raises
    ------
    DeviceError
        If the kind needs a GPU and there is none; it says what is missing.
    DtypeError
        If elements are no real numbers.
    ConfigurationError
        If the size is negative, or the kind unknown.

    Notes
    -----
    The elements are not initialised. A side is allocated when it is first used.
    """

    @explains_arguments
    def __init__(
        self,
        size: int,
        dtype: npt.DTypeLike = np.float32,
        kind: str | MemoryKind = MemoryKind.MANAGED,
        device: str | Device | CudaMemory | None = None,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise ConfigurationError(f"size must be an integer of at least 0, not {size!r}")
        self.size = int(size)
        self.dtype = dtype_of("memory", dtype)
        self.kind = MemoryKind(kind)
        self.device = _device_of(self.kind, device)
        self._host: Array | None = None
        self._device: Any = None
        self._host_stale = self._device_stale = False
        self._ticket: Any = None  # of the last prefetch, while the host has not waited for it

    @classmethod
    def on(cls, device: str | Device, size: int, dtype: npt.DTypeLike) -> MemoryManager:
        """Return memory of the kind that a device computes on: HOST or DEVICE.

        Parameters
        ----------
        device : str or Device
        size : int
            Elements.
        dtype : type of elements

        Returns
        -------
        MemoryManager
        """
        return cls(size, dtype, default_kind(Device.of(device)), device)

    @classmethod
    def wrap(
        cls, array: Any, device: str | Device | None = None, *, managed: bool = False
    ) -> MemoryManager:
        """Return a manager of an array's own memory.

        Parameters
        ----------
        array : array of NumPy or of a device, contiguous
        device : str or Device, optional
            Where it lies; on the host if left out.
        managed : bool
            Whether the other side may be read too; it is copied there when it is.

        Returns
        -------
        MemoryManager
            Of HOST or DEVICE memory, or of MANAGED memory.

        Raises
        ------
        ShapeError
            If the array is not contiguous.
        DtypeError
            If its elements are no real numbers of at most 64 bits.
        """
        if not array.flags.c_contiguous:
            raise ShapeError("memory", f"an array {array.shape} is not contiguous", array.shape)
        if device is None:
            kind = MemoryKind.MANAGED if managed else MemoryKind.HOST
            self = cls(array.size, array.dtype, kind, "cpu")
            self._host = array.reshape(-1)
        else:
            kind = MemoryKind.MANAGED if managed else MemoryKind.DEVICE
            self = cls(array.size, array.dtype, kind, device)
            self._device = array.reshape(-1)
            self._host_stale = self._two_sided()
        return self

    @property
    def size_bytes(self) -> int:
        """Size in bytes of the elements, on one side."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        sides = [
            f"{name} {'stale' if stale else 'current'}"
            for name, array, stale in (
                ("host", self._host, self._host_stale),
                ("device", self._device, self._device_stale),
            )
            if array is not None
        ]
        where = ", ".join(sides) or "not allocated"
        return f"<MemoryManager {self.size} {self.dtype} {self.kind.value}: {where}>"

    # The two sides.

    def read_host(self) -> Array:
        """Return the elements on the host, up to date and not to be written.

        Returns
        -------
        array, shape (size,)
            A view that cannot be written.

        Raises
        ------
        DeviceError
            If it is DEVICE memory.
        """
        view: Array = self._on_host().view()
        view.flags.writeable = False
        return view

    def write_host(self, *, whole: bool = False) -> Array:
        """Return the elements on the host for writing; a device copy is stale from now on.

        Parameters
        ----------
        whole : bool
            Every element is going to be written, so what the device holds need not be fetched.

        Returns
        -------
        array, shape (size,)

        Raises
        ------
        DeviceError
            If it is DEVICE memory.
        """
        host = self._on_host(update=not whole)
        self._host_stale = False
        self._device_stale = self._two_sided()
        return host

    def read_device(self) -> Any:
        """Return the elements on the device, up to date and not to be written.

        Returns
        -------
        array of the device, shape (size,)

        Raises
        ------
        DeviceError
            If it is memory of the host alone.
        """
        return self._on_device()

    def write_device(self, *, whole: bool = False) -> Any:
        """Return the elements on the device for writing; a host copy is stale from now on.

        Parameters
        ----------
        whole : bool
            Every element is going to be written, so what the host holds need not be sent.

        Returns
        -------
        array of the device, shape (size,)

        Raises
        ------
        DeviceError
            If it is memory of the host alone.
        """
        array = self._on_device(update=not whole)
        self._device_stale = False
        self._host_stale = self._two_sided()
        return array

    def write(self) -> Any:
        """Return the elements for writing, on the GPU if they have a side there, else on the host.

        Returns
        -------
        array of the device or of NumPy, shape (size,)
        """
        return self.write_host() if self.device is None else self.write_device()

    def _two_sided(self) -> bool:
        return self.kind is MemoryKind.MANAGED and self.device is not None

    def _on_host(self, update: bool = True) -> Array:
        if self.kind is MemoryKind.DEVICE:
            raise DeviceError("DEVICE memory cannot be read on the host: copy it to HOST memory")
        if self._ticket is not None:
            assert self.device is not None
            self.device.finish_on_host(self._ticket)
            self._ticket = None
        host = self._host_side()
        if self.kind is MemoryKind.CUDA_MANAGED:
            assert self.device is not None
            self.device.synchronize()  # the host must not touch pages that a kernel writes
        elif self._host_stale and update:
            assert self.device is not None
            self.device.to_host(self._device, host)
            _count_copy("to_host", self.size_bytes)
            self._host_stale = False
        return host

    def _on_device(self, update: bool = True) -> Any:
        if self.device is None:
            raise DeviceError(f"{self.kind.name} memory of the host cannot be read on a device")
        if self._ticket is not None:
            # The ticket stays: before the host writes, it has to wait for a copy that reads there.
            self.device.finish_on_device(self._ticket)
        array = self._device_side()
        if self._device_stale and update:
            self.device.to_device(self._host_side(), array)
            _count_copy("to_device", self.size_bytes)
            self._device_stale = False
        return array

    def _host_side(self) -> Array:
        if self._host is None:
            if self.kind is MemoryKind.CUDA_MANAGED:
                self._allocate_unified()
            elif self.device is not None:
                self._host = self.device.empty_pinned(self.size, self.dtype)
                self._count("host")
            else:
                self._host = Ops.memory(self.size_bytes).view(self.dtype)
                self._count("host")
        assert self._host is not None
        return self._host

    def _device_side(self) -> Any:
        if self._device is None:
            assert self.device is not None
            if self.kind is MemoryKind.CUDA_MANAGED:
                self._allocate_unified()
            else:
                self._device = self.device.empty(self.size, self.dtype)
                self._count("device")
        return self._device

    def _allocate_unified(self) -> None:
        assert self.device is not None
        self._device, self._host = self.device.empty_unified(self.size, self.dtype)
        self._count("unified")

    def _count(self, kind: str) -> None:
        _count_memory(kind, self.size_bytes)
        weakref.finalize(self, _count_memory, kind, -self.size_bytes).atexit = False

    # Prefetching.

    def prefetch(self, side: str) -> None:
        """Start to bring one side up to date, and return without waiting.

        Parameters
        ----------
        side : str
            ``"host"`` or ``"device"``.

        Raises
        ------
        ConfigurationError
            If `side` is neither.

        Notes
        -----
        The next read of that side waits for the copy. Where there is only one side there is
        nothing to do, so that a program works on a machine without a GPU.
        """
        if side not in ("host", "device"):
            raise unknown_name("side", side, ["host", "device"])
        if self.device is None or self.kind is MemoryKind.DEVICE:
            return
        if self.kind is MemoryKind.CUDA_MANAGED:
            self.device.prefetch_unified(self._device_side(), side == "device")
        elif side == "device" and self._device_stale:
            self._ticket = self.device.start_to_device(self._host_side(), self._device_side())
            self._device_stale = False
            _count_copy("to_device", self.size_bytes)
        elif side == "host" and self._host_stale:
            self._ticket = self.device.start_to_host(self._device_side(), self._host_side())
            self._host_stale = False
            _count_copy("to_host", self.size_bytes)

    # Copies.

    def copy_from(self, source: MemoryManager, begin: int = 0, size: int | None = None) -> None:
        """Copy elements of another manager, of any kind, to the beginning of this one.

        Parameters
        ----------
        source : MemoryManager
        begin : int
            The first element of `source` to copy.
        size : int, optional
            Number of elements; all from `begin` to the end of `source` if left out.

        Raises
        ------
        DtypeError
            If the types of elements differ.
        ShapeError
            If `source` has fewer elements, or they do not fit in here.

        Notes
        -----
        Reads the side of `source` that is up to date and writes the same side here where there
        is one: between two managers on a GPU nothing passes through the host.
        """
        count = source.size - begin if size is None else size
        if source.dtype != self.dtype:
            raise DtypeError(f"copy_from: {source.dtype} elements into {self.dtype} memory")
        if begin < 0 or count < 0 or begin + count > source.size or count > self.size:
            message = f"elements {begin} to {begin + count} of {source.size} into {self.size}"
            raise ShapeError("copy_from", message, (source.size,), (self.size,))
        whole = count == self.size
        part = slice(begin, begin + count)
        if source._current_on_device():
            if self._takes_device():
                assert self.device is not None
                target = self.write_device(whole=whole)
                self.device.copy(source.read_device()[part], target[:count])
            else:
                host = self.write_host(whole=whole)
                assert source.device is not None
                source.device.to_host(source.read_device()[part], host[:count])
                _count_copy("to_host", count * self.dtype.itemsize)
        elif self.kind is MemoryKind.DEVICE:
            assert self.device is not None
            target = self.write_device(whole=whole)
            self.device.to_device(source.read_host()[part], target[:count])
            _count_copy("to_device", count * self.dtype.itemsize)
        else:
            host = self.write_host(whole=whole)
            host[:count] = source.read_host()[part]

    def _current_on_device(self) -> bool:
        """Say whether reading on the device needs no copy, where reading on the host may."""
        if self.kind is MemoryKind.MANAGED:
            return self._host_stale
        return self.kind in (MemoryKind.DEVICE, MemoryKind.CUDA_MANAGED)

    def _takes_device(self) -> bool:
        return self.device is not None and self.kind is not MemoryKind.HOST


@dataclass
class Usage:
    """Bytes of one kind of memory: allocated now, and the largest number so far."""

    size_bytes: int = 0
    peak_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Record an allocation of `size_bytes`; a negative number records a release."""
        self.size_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.size_bytes)


@dataclass
class Allocations:
    """Memory that managers hold, on each side and unified, and copies between the sides.

    Unified memory is CUDA's own managed memory.
    """

    host: Usage = field(default_factory=Usage)
    device: Usage = field(default_factory=Usage)
    unified: Usage = field(default_factory=Usage)
    to_device: int = 0
    to_host: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0


_allocations = Allocations()
# Reentrant: a garbage collection inside the lock may free a manager.
_lock = threading.RLock()


def _count_memory(kind: str, size_bytes: int) -> None:
    """Count memory of kind ``"host"``, ``"device"`` or ``"unified"``; negative if released."""
    with _lock:
        getattr(_allocations, kind).add(size_bytes)


def _count_copy(direction: str, size_bytes: int) -> None:
    """Count a copy between the sides; `direction` is ``"to_device"`` or ``"to_host"``."""
    with _lock:
        for name, more in ((direction, 1), (f"{direction}_bytes", size_bytes)):
            setattr(_allocations, name, getattr(_allocations, name) + more)


def allocation_statistics() -> Allocations:
    """Return the memory that managers of this process hold now, and their copies so far."""
    with _lock:
        return deepcopy(_allocations)
