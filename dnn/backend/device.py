"""Devices by name, the reasons why a GPU cannot be used, and the memory of GPUs.

A device is named ``"cpu"``, ``"cuda"`` (the first GPU) or ``"cuda:1"``. CuPy is imported here
and in `dnn.backend.cuda`, and only when a GPU is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dnn.errors import (
    ConfigurationError,
    DeviceError,
    OutOfDeviceMemory,
    is_number,
    unknown_name,
)

__all__ = [
    "CPU",
    "Device",
    "allocating",
    "cuda_problem",
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
