"""Memory of a GPU, through CuPy: the functions of a device that `dnn.memory` uses.

Copies run in CuPy's current stream; prefetches in one stream of their own, so that they overlap
with the kernels of the current one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnn.backend.device import Device, allocating, import_cupy
from dnn.backend.ops import Array

__all__ = ["CudaMemory"]


@functools.cache
def _copy_stream(index: int) -> Any:
    cupy = import_cupy()
    with cupy.cuda.Device(index):
        return cupy.cuda.Stream(non_blocking=True)


def _host_view(device: Any, size: int, dtype: np.dtype[Any]) -> Array:
    """Return unified memory as an array of NumPy, which keeps the memory alive."""
    raw = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(device.data.ptr)
    raw._keeps = device  # type: ignore[attr-defined]
    host: Array = np.ctypeslib.as_array(raw).view(dtype)
    return host


class CudaMemory:
    """Memory of one GPU.

    Parameters
    ----------
    index : int
        Which of the GPUs that this process sees.

    Raises
    ------
    DeviceError
        If there is no such GPU.
    """

    def __init__(self, index: int = 0) -> None:
        self.name = Device("cuda", index)
        self.name.require()
        self.index = index
        self.cupy = import_cupy()

    @contextlib.contextmanager
    def _here(self) -> Iterator[Any]:
        with self.cupy.cuda.Device(self.index):
            yield self.cupy.cuda.get_current_stream()

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a new array in the device's memory, not initialised."""
        with self._here(), allocating(self.cupy, size * dtype.itemsize, self.index):
            return self.cupy.empty(size, dtype)

    def empty_unified(self, size: int, dtype: np.dtype[Any]) -> tuple[Any, Array]:
        """Return new unified memory, as an array of the device and as one of the host."""
        with self._here(), allocating(self.cupy, size * dtype.itemsize, self.index):
            pointer = self.cupy.cuda.malloc_managed(max(1, size * dtype.itemsize))
            device = self.cupy.ndarray((size,), dtype, memptr=pointer)
        return device, _host_view(device, size, dtype)

    def empty_pinned(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return pinned host memory, which the device can copy while the host continues."""
        import cupyx

        with self._here():
            pinned: Array = cupyx.empty_pinned(size, dtype)
        return pinned

    def to_device(self, host: Array, out: Any) -> None:
        """Copy from the host; `host` may be changed when this returns."""
        with self._here() as stream:
            out.set(np.ascontiguousarray(host), stream)
            stream.synchronize()  # with pinned memory CuPy returns before it has read it

    def to_host(self, device: Any, out: Array) -> None:
        """Copy an array of the device to the host, and wait for it."""
        with self._here() as stream:
            device.get(stream, out=out, blocking=True)

    def copy(self, device: Any, out: Any) -> None:
        """Copy an array on the device, or from another device."""
        with self._here():
            self.cupy.copyto(out, device)

    def start_to_device(self, host: Array, out: Any) -> Any:
        """Begin to copy pinned memory to the device; return an event to wait for."""
        with self._here() as stream:
            copies = _copy_stream(self.index)
            copies.wait_event(stream.record())  # earlier kernels may still read `out`
            out.set(host, copies)
            return copies.record()

    def start_to_host(self, device: Any, out: Array) -> Any:
        """Begin to copy an array of the device to pinned memory; return an event to wait for."""
        with self._here() as stream:
            copies = _copy_stream(self.index)
            copies.wait_event(stream.record())  # earlier kernels may still write `device`
            device.get(copies, out=out, blocking=False)
            return copies.record()

    def finish_on_device(self, ticket: Any) -> None:
        """Make later work of the current stream wait for a copy that was begun."""
        with self._here() as stream:
            stream.wait_event(ticket)

    def finish_on_host(self, ticket: Any) -> None:
        """Wait until a copy that was begun is complete."""
        ticket.synchronize()

    def prefetch_unified(self, device: Any, to_device: bool) -> None:
        """Begin to move unified memory to the device, or to the host.

        Since CUDA 13 it goes to the host when it is read there: a prefetch takes a kind of location
        and a number, of which CuPy passes on the number alone, for a device.
        """
        runtime = self.cupy.cuda.runtime
        host = -1  # cudaCpuDeviceId
        if not to_device and runtime.runtimeGetVersion() >= 13000:
            return
        with self._here() as stream:
            target = self.index if to_device else host
            runtime.memPrefetchAsync(device.data.ptr, device.nbytes, target, stream.ptr)

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        self.cupy.cuda.Device(self.index).synchronize()
