"""Devices by name, the reasons why a GPU cannot be used, and the memory of GPUs.

A device is named ``"cpu"``, ``"cuda"`` (the first GPU) or ``"cuda:1"``. CuPy is imported here
and in `dnn.backend.cuda`, and only when a GPU is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn.backend.ops import Array
from dnn.errors import (
    ConfigurationError,
    DeviceError,
    OutOfDeviceMemory,
    is_number,
    unknown_name,
)

__all__ = [
    "CPU",
    "CudaMemory",
    "Device",
    "allocating",
    "cuda_problem",
    "current_device",
    "free_bytes",
    "free_memory",
    "import_cupy",
    "limit_memory",
    "version_text",
]

INSTALL = "pip install 'diel[gpu]'"

COMPUTE_MODE = 20
"""Number of the device attribute cudaDevAttrComputeMode."""

PROHIBITED, EXCLUSIVE_PROCESS = 2, 3
"""Values of cudaComputeMode."""


@dataclass(frozen=True)
class Device:
    """A processor with memory of its own.

    Attributes
    ----------
    kind : "cpu" or "cuda"
    index : int
        Which of the GPUs that this process sees.
    """

    kind: str
    index: int = 0

    @classmethod
    def of(cls, name: str | Device) -> Device:
        """Return the device of a name, whether it exists or not; a `Device` is returned as it is.

        Any other name is a `ConfigurationError`.
        """
        if isinstance(name, Device):
            return name
        kind, colon, index = str(name).partition(":")
        if kind == "cpu" and not colon:
            return CPU
        if kind == "cuda" and (not colon or index.isdecimal()):
            return cls("cuda", int(index or 0))
        if kind == "cuda":
            raise ConfigurationError(f"unknown device {name!r}: {_gpus_here()}")
        raise unknown_name("device", name, ["cpu", "cuda", "cuda:1"])

    def require(self) -> None:
        """Raise `DeviceError`, saying what is missing, unless the device can be used."""
        if self.kind == "cuda" and (problem := cuda_problem(self.index)):
            raise DeviceError(f"{self} cannot be used: {problem}", str(self))

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


def _gpus_here() -> str:
    """Say which GPUs this process sees, by the names that they have here."""
    problem = cuda_problem()
    if problem is not None:
        return f'a GPU is "cuda:0", "cuda:1" and so on, and none can be used here: {problem}'
    count = import_cupy().cuda.runtime.getDeviceCount()
    return f"this process sees {', '.join(f'cuda:{index}' for index in range(count))}"


def import_cupy() -> Any:
    """Return the module cupy; `DeviceError` if it is not installed or cannot be imported."""
    try:
        import cupy
    except ImportError as error:
        if getattr(error, "name", None) == "cupy":
            message = f"CuPy is not installed ({INSTALL})"
        else:
            message = f"CuPy cannot be imported: {error}"
        raise DeviceError(message) from error
    return cupy


@functools.cache
def cuda_problem(index: int = 0) -> str | None:
    """Say what is missing for a GPU to be used, and what to do about it.

    Parameters
    ----------
    index : int
        Which of the GPUs that this process sees.

    Returns
    -------
    str or None
        None if nothing is missing.
    """
    try:
        cupy = import_cupy()
    except DeviceError as error:
        return _two_packages() or str(error)
    if problem := _two_packages():
        return problem
    runtime = cupy.cuda.runtime
    try:
        driver = runtime.driverGetVersion()
    except Exception as error:  # any CUDA error here means the same
        return f"the CUDA driver does not answer: {error}"
    if not driver:
        return "there is no NVIDIA driver on this machine (CuPy is installed)"
    needed = runtime.runtimeGetVersion() // 1000
    if driver // 1000 < needed:
        instead = f"update the driver, or pip install cupy-cuda{driver // 1000}x"
        return f"the driver supports CUDA {version_text(driver)} and CuPy needs {needed}: {instead}"
    try:
        count = runtime.getDeviceCount()
    except Exception as error:
        supported = version_text(driver)
        return f"CUDA finds no usable GPU: {error} (the driver supports CUDA {supported})"
    if not count:
        return "the driver finds no GPU: is CUDA_VISIBLE_DEVICES empty?"
    if index >= count:
        return f"this process sees {count} GPU{'s' if count > 1 else ''}, numbered from 0"
    mode = runtime.deviceGetAttribute(COMPUTE_MODE, index)
    if mode == PROHIBITED:
        return "the GPU is set to run nothing (nvidia-smi -c DEFAULT)"
    if mode == EXCLUSIVE_PROCESS:
        try:
            with cupy.cuda.Device(index):
                runtime.deviceSynchronize()  # makes a context
        except Exception:
            return (
                "the GPU is in exclusive mode and another process has it: one copy a GPU, or "
                "nvidia-smi -c DEFAULT"
            )
    return None


def _two_packages() -> str:
    """Return a remedy if CuPy is installed twice, which breaks it; otherwise an empty text."""
    import importlib.metadata

    found = {}
    for each in importlib.metadata.distributions():
        name = each.name or ""
        if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm-")):
            found[name] = each.version
    if len(found) < 2:
        return ""
    names = " and ".join(f"{name} {version}" for name, version in sorted(found.items()))
    return f"two CuPy packages are installed, {names}: uninstall both and install one"


def version_text(number: int) -> str:
    """Return 12.8 for 12080, as CUDA numbers its versions."""
    return f"{number // 1000}.{number % 1000 // 10}"


OUT_OF_MEMORY = 2
"""Value of cudaErrorMemoryAllocation."""


def current_device(device: Device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which a GPU is CuPy's current one in this thread; none for the CPU.

    CuPy allocates and computes on the current GPU, wherever the operands are.
    """
    if device.kind == "cpu":
        return contextlib.nullcontext()
    gpu: contextlib.AbstractContextManager[object] = import_cupy().cuda.Device(device.index)
    return gpu


@contextlib.contextmanager
def allocating(cupy: Any, wanted_bytes: int, index: int = 0) -> Iterator[None]:
    """Raise `OutOfDeviceMemory` where CuPy fails to allocate memory of a GPU within the block."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or getattr(error, "status", None) == OUT_OF_MEMORY:
            free, total = _free_bytes(cupy, index)
            pool = cupy.get_default_memory_pool()
            if limit := pool.get_limit():  # what the process may have, where several share a GPU
                free, total = min(free, limit - pool.used_bytes()), min(total, limit)
            raise OutOfDeviceMemory(f"cuda:{index}", wanted_bytes, free, total) from error
        raise


def free_bytes(device: str | Device) -> tuple[int, int]:
    """Return how many bytes of a GPU's memory this process can still use, and how many there are.

    Parameters
    ----------
    device : str
        Such as ``"cuda"``.

    Returns
    -------
    int, bytes
        Memory that is free, or that CuPy holds for this process without using it.
    int, bytes
        All memory of the GPU.
    """
    return _free_bytes(import_cupy(), Device.of(device).index)


def _free_bytes(cupy: Any, index: int) -> tuple[int, int]:
    with cupy.cuda.Device(index):
        free, total = cupy.cuda.runtime.memGetInfo()
        # CuPy keeps the memory of deleted arrays for new ones.
        return int(free) + int(cupy.get_default_memory_pool().free_bytes()), int(total)


def free_memory(device: str | Device) -> None:
    """Give GPU memory that CuPy holds, and that no array uses any more, back to the driver.

    Parameters
    ----------
    device : str
        Such as ``"cuda"``.
    """
    cupy = import_cupy()
    with cupy.cuda.Device(Device.of(device).index):
        cupy.get_default_memory_pool().free_all_blocks()


def limit_memory(device: str | Device, share: float) -> None:
    """Limit this process to a share of a GPU's memory; the rest is for other processes.

    Parameters
    ----------
    device : str
        Such as ``"cuda"``.
    share : float
        Part of all memory of the GPU, above 0, at most 1.

    Raises
    ------
    ConfigurationError
        If the share is out of its range.
    """
    if not is_number(share) or not 0 < share <= 1:
        raise ConfigurationError(f"share must be above 0 and at most 1, not {share!r}")
    cupy = import_cupy()
    with cupy.cuda.Device(Device.of(device).index):
        cupy.get_default_memory_pool().set_limit(fraction=share)


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
    """Memory of one GPU, through CuPy: the functions of a device that `dnn.memory` uses.

    Copies run in CuPy's current stream; prefetches in one stream of their own, so that they overlap
    with the kernels of the current one.

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
        with self._here() as stream:
            if device.data.device_id == self.index:
                self.cupy.copyto(out, device)
                return
            # Neither GPU knows of the other one's stream: no work there may overtake the copy.
            with device.device:
                source = self.cupy.cuda.get_current_stream()
                written = source.record()
            stream.wait_event(written)
            self.cupy.copyto(out, device)
            copied = stream.record()
            with device.device:
                source.wait_event(copied)

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
