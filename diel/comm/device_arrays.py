"""Sending and receiving arrays in GPU memory: CuPy's, or any with ``__cuda_array_interface__``.

A GPU-aware MPI sends them from GPU memory; otherwise they are copied through memory of the host. It
is pinned where CuPy copies, so that the GPU writes and reads it directly; CuPy keeps such memory
for reuse. The trace shows which way an array took.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from diel.errors import PayloadError
from diel.frozen import Frozen

if TYPE_CHECKING:
    import numpy as np

    from diel.comm.meter import Meter

LARGEST_PINNED_BYTES: Final = 2**28
"""Larger arrays travel through ordinary memory: pinned memory is kept, and never swapped out."""
GPU_AWARE: Final = "GPU-aware MPI"
_NO_ARRAYS: Final = frozenset({bytes, int, float, str, tuple, list, dict, type(None)})
_PINNED: Final = "pinned memory"
_ORDINARY: Final = "ordinary memory"


def is_on_device(value: object) -> bool:
    """Whether a value is an array in the memory of a GPU."""
    if type(value) in _NO_ARRAYS:  # to ask an integer for an attribute takes as long as to pack it
        return False
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # PyTorch refuses it for a tensor that requires its gradient: that is pickled
        return False


def layout_of(array: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a GPU's array."""
    import numpy as np  # here, since ranks without such arrays need no NumPy

    about = array.__cuda_array_interface__
    return np.dtype(about["typestr"]), tuple(about["shape"])


def device_bytes(array: Any) -> int:
    """Return the size of a GPU's array in bytes."""
    dtype, shape = layout_of(array)
    return dtype.itemsize * math.prod(shape)


def is_contiguous(array: Any) -> bool:
    """Whether a GPU's array is C-contiguous."""
    dtype, shape = layout_of(array)
    strides = array.__cuda_array_interface__.get("strides")
    expected = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return strides is None or tuple(strides) == expected


# -- with GPU-aware MPI ---------------------------------------------------------------------------


def device_memory(array: Any) -> memoryview:
    """Return the memory of a C-contiguous GPU array, for MPI alone: the host cannot access it.

    The memoryview keeps the array alive. The GPU's work is finished before, since MPI does not
    regard streams.
    """
    _finish_work(array)
    address = array.__cuda_array_interface__["data"][0]
    memory = (ctypes.c_ubyte * device_bytes(array)).from_address(address)
    memory.array = array  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def memory_to_send(
    array: Any, meter: Meter, about: object = None, *, copy: bool = False
) -> memoryview:
    """Return the memory of a GPU's array, or of a C-contiguous copy there; the meter counts it."""
    since_s = meter.clock()
    if copy or not is_contiguous(array):
        array = array.copy() if hasattr(array, "copy") else _as_cupy(array).copy()
    memory = device_memory(array)
    meter.communicated(since_s, f"from the GPU, {GPU_AWARE}", about, len(memory))
    return memory


def memory_to_receive_into(out: Any) -> memoryview:
    """Return the memory of a GPU's array; raise PayloadError if it is not C-contiguous."""
    if not is_contiguous(out):
        raise PayloadError("out= takes a C-contiguous array")
    return device_memory(out)


def count_received(size_bytes: int, meter: Meter, about: object = None) -> None:
    """Count on the meter the bytes that MPI has written into the memory of a GPU."""
    meter.communicated(meter.clock(), f"to the GPU, {GPU_AWARE}", about, size_bytes)


# -- through the memory of the host ---------------------------------------------------------------


def to_host(array: Any, meter: Meter, about: object = None) -> np.ndarray[Any, Any]:
    """Return a copy of a GPU's array in memory of the host, C-contiguous; the meter counts it.

    `about` is the tag that it is sent under, for the trace. A PayloadError if the array is not
    CuPy's, and CuPy cannot be imported.
    """
    since_s = meter.clock()
    _finish_work(array)
    source = array if hasattr(array, "get") else _as_cupy(array)
    host, memory = _host_memory(source)
    if memory == _PINNED:
        (source if is_contiguous(source) else source.copy()).get(out=host)
    else:
        host[...] = source.get()
    meter.communicated(since_s, f"from the GPU, through {memory}", about, host.nbytes)
    return host


class HostStaging(Frozen):
    """Host memory that receives a message for a GPU's array, without GPU-aware MPI."""

    host: np.ndarray[Any, Any]
    memory: str  # the kind of host memory: pinned or ordinary
    out: Any

    @classmethod
    def of(cls, out: Any) -> HostStaging:
        """Allocate host memory for an array; raise PayloadError if that is not C-contiguous."""
        if not is_contiguous(out):
            raise PayloadError("out= takes a C-contiguous array")
        target = out if hasattr(out, "set") else _as_cupy(out)
        return cls(*_host_memory(target), target)

    def finish(self, meter: Meter, about: object = None) -> None:
        """Copy the received values to the GPU's array; the meter counts them."""
        since_s = meter.clock()
        self.out.set(self.host)
        _finish_work(self.out)  # from pinned memory CuPy returns before it has read it
        meter.communicated(since_s, f"to the GPU, through {self.memory}", about, self.host.nbytes)


def _host_memory(array: Any) -> tuple[np.ndarray[Any, Any], str]:
    """Return memory of the host for a GPU's array, and its kind: pinned or ordinary."""
    import numpy as np

    dtype, shape = layout_of(array)
    cupy = sys.modules.get("cupy")
    is_pinned = cupy is not None and isinstance(array, cupy.ndarray)
    if not is_pinned or not 0 < device_bytes(array) <= LARGEST_PINNED_BYTES:
        return np.empty(shape, dtype), _ORDINARY
    import cupyx

    host: np.ndarray[Any, Any] = cupyx.empty_pinned(shape, dtype)
    return host, _PINNED


def _finish_work(array: Any) -> None:
    """Wait until the GPU of an array, or the current one, has finished all work of this process."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        array.device.synchronize()
    elif cupy is not None:
        cupy.cuda.runtime.deviceSynchronize()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # else PyTorch may be built without CUDA
        torch.cuda.synchronize(array.device if isinstance(array, torch.Tensor) else None)


def _as_cupy(array: Any) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise PayloadError(
            f"a {type(array).__name__} is in the memory of a GPU, and CuPy, which would copy it "
            f"to and from there, cannot be imported: {error}"
        ) from error
    return cupy.asarray(array)
