"""Arrays in the memory of a GPU: CuPy's, or any with ``__cuda_array_interface__``.

Where MPI takes their addresses they travel as they are; else through the memory of the host.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.arrays import is_array, np


def is_on_device(value: object) -> bool:
    """Whether a value is an array in the memory of a GPU."""
    return not is_array(value) and hasattr(value, "__cuda_array_interface__")


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a GPU's array in the memory of the host, C-contiguous."""
    host = array.get() if hasattr(array, "get") else _as_cupy(array).get()
    return np.ascontiguousarray(host)


def to_device(host: np.ndarray[Any, Any], out: Any) -> None:
    """Copy an array into a GPU's one of the same dtype and shape."""
    target = out if hasattr(out, "set") else _as_cupy(out)
    target.set(host)


def layout_of(array: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a GPU's array."""
    about = array.__cuda_array_interface__
    return np.dtype(about["typestr"]), tuple(about["shape"])


def size_bytes(array: Any) -> int:
    """Return the size of a GPU's array."""
    dtype, shape = layout_of(array)
    return dtype.itemsize * math.prod(shape)


def meta_of(array: Any) -> bytes:
    """Return what `codec.array_meta` does, for a GPU's array."""
    dtype, shape = layout_of(array)
    # Of an array with that dtype and shape, and without memory.
    return codec.array_meta(np.broadcast_to(np.empty((), dtype), shape))


def copy_of(array: Any) -> Any:
    """Return a C-contiguous copy in the memory of the GPU."""
    return array.copy() if hasattr(array, "copy") else _as_cupy(array).copy()


def is_contiguous(array: Any) -> bool:
    """Whether a GPU's array is C-contiguous."""
    dtype, shape = layout_of(array)
    strides = array.__cuda_array_interface__.get("strides")
    expected = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return strides is None or tuple(strides) == expected


def address_of(array: Any) -> tuple[int, int]:
    """Return the address of a C-contiguous array on a GPU, and its size in bytes.

    What is under way on the GPU is finished before: MPI knows nothing of its streams.
    """
    if "cupy" in sys.modules:
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.synchronize()
    return array.__cuda_array_interface__["data"][0], size_bytes(array)


def _as_cupy(array: Any) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise PayloadError(
            f"a {type(array).__name__} is in the memory of a GPU, and CuPy, which would copy it "
            f"to and from there, cannot be imported: {error}"
        ) from error
    return cupy.asarray(array)
