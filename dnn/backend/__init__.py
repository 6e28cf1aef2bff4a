"""Devices, and the array functions of each: NumPy, compiled loops on the CPU, or CUDA kernels.

The plan compiler gets functions from an `Ops` once; replaying a plan does not use this package.
"""

from __future__ import annotations

import importlib.util
import platform

import numpy as np

import dnn
from dnn.backend.convolution import Convolution, Routine
from dnn.backend.device import Device, import_cupy, version_text
from dnn.backend.formula import Formula
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Chain, Ops, Step, empty
from dnn.backend.pooling import Pooling
from dnn.backend.routines import RoutineTable
from dnn.errors import unknown_name

__all__ = [
    "ALIGNMENT_BYTES",
    "Array",
    "Chain",
    "Convolution",
    "Formula",
    "Ops",
    "Pooling",
    "Routine",
    "RoutineTable",
    "Step",
    "device_facts",
    "empty",
    "ops_for",
]


def ops_for(device: str, routines: RoutineTable | None = None) -> Ops:
    """Return the array functions of a device.

    Parameters
    ----------
    device : str
        ``"cpu"``: compiled loops where Numba is installed, else NumPy; ``"numpy"``: NumPy always;
        ``"cuda"`` or ``"cuda:1"``: a GPU, through CuPy.
    routines : RoutineTable, optional
        Which routine computes each operation, by size or shape, in compiled loops and on GPUs.

    Returns
    -------
    Ops

    Raises
    ------
    ConfigurationError
        If there is no such device.
    DeviceError
        If the GPU cannot be used; the message says what is missing.
    """
    if device == "numpy":
        return Ops()
    if device == "cuda" or str(device).startswith("cuda:"):
        gpu = Device.of(device)
        from dnn.backend.cuda.ops import CudaOps

        return CudaOps(gpu, routines=routines)
    if device != "cpu":
        raise unknown_name("device", device, ["cpu", "numpy", "cuda"])
    if not has_numba():
        return Ops()
    from dnn.backend.cpu.ops import CpuOps

    return CpuOps(routines)


def has_numba() -> bool:
    """Return whether Numba is installed, which compiles loops on the CPU; else NumPy computes."""
    return importlib.util.find_spec("numba") is not None


def device_facts(device: str | Device) -> dict[str, str]:
    """Return the name of a device and the versions of the libraries that compute on it.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Returns
    -------
    dict of str to str
        ``device`` (``"cpu"`` or ``"cuda"``), ``device_name``, ``dnn``, ``numpy``; of the CPU
        ``kernels``; of a GPU ``cupy``, ``cuda``, ``cublas`` and ``driver`` (the newest CUDA that
        the driver supports).

    Raises
    ------
    DeviceError
        If the device cannot be used.
    """
    found_device = Device.of(device)
    found_device.require()
    versions = {"dnn": dnn.__version__, "numpy": np.__version__}
    if found_device.kind == "cpu":
        kernels = ops_for("cpu").description
        return {"device": "cpu", "device_name": _name_of_cpu(), **versions, "kernels": kernels}
    from dnn.backend.cuda.cublas import cublas_version

    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    return {
        "device": "cuda",
        "device_name": runtime.getDeviceProperties(found_device.index)["name"].decode(),
        **versions,
        "cupy": str(cupy.__version__),
        "cuda": version_text(runtime.runtimeGetVersion()),
        "cublas": cublas_version(),
        "driver": version_text(runtime.driverGetVersion()),
    }


def _name_of_cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = file.readlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
