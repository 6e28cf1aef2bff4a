"""Exchange of GPU arrays between ranks: by GPU-aware MPI, or through pinned memory of the host.

The GPU writes and reads pinned memory directly. The MPI library says whether it is GPU-aware by an
extension that Open MPI and MPICH share; ``DNN_GPU_AWARE_MPI``, 0 or 1, overrules what it says.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import numpy as np

from dnn.backend import Array

__all__ = ["GPU_AWARE", "PINNED", "from_device", "is_gpu_aware", "on_device", "to_device"]

GPU_AWARE: Final = "GPU-aware MPI"
PINNED: Final = "pinned memory of the host"
_VARIABLE: Final = "DNN_GPU_AWARE_MPI"


def is_gpu_aware() -> bool:
    """Whether the MPI library that is loaded takes addresses in the memory of a GPU."""
    said = os.environ.get(_VARIABLE)
    if said in ("0", "1"):
        return said == "1"
    for library in (None, "libmpi.so.40", "libmpi.so.12"):
        try:
            # RTLD_NOLOAD: no other library than that of mpi4py is to be loaded by this.
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return bool(loaded.MPIX_Query_cuda_support())
        except (OSError, AttributeError):
            continue
    return False


def on_device(array: Any) -> bool:
    """Whether an array lies in the memory of a GPU."""
    return not isinstance(array, np.ndarray)


def finish_work(array: Any) -> None:
    """Wait until the GPU of an array has done all its work, since MPI knows no streams."""
    array.device.synchronize()


def memory_for(array: Any) -> Array:
    """Return an array in pinned memory, of the shape and type of a GPU's array."""
    import cupyx

    host: Array = cupyx.empty_pinned(array.shape, array.dtype)
    return host


def from_device(array: Any) -> Array:
    """Return a copy of a GPU's array in pinned memory."""
    host = memory_for(array)
    finish_work(array)
    array.get(out=host)
    return host


def to_device(host: Array, array: Any) -> None:
    """Copy an array of the host to a GPU's array, and wait until that is done."""
    array.set(host)
    finish_work(array)
