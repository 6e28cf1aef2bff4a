"""Values as memory to send, and arrays as memory to receive into, on the host or on a GPU.

An array in the memory of a GPU is CuPy's, or any with ``__cuda_array_interface__``. Where MPI takes
its address it travels as it is; else through the memory of the host.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from diel.coupling.messages import INLINE_BYTES
from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.codec import is_array, np
from diel.tuples.protocol import LONGEST_META_BYTES

if TYPE_CHECKING:
    from diel.comm.direct import Memory, Port


class Target(NamedTuple):
    """Where a message shall land."""

    meta: bytes  # of the array's dtype and shape
    memory: Memory
    finish: Callable[[], None]  # to be called when the payload is in the memory


class OutgoingValue(NamedTuple):
    """A value to send."""

    encoded: codec.Encoded
    owner: object = None
    """What has to live as long as the memory is read; an address on a GPU keeps nothing alive."""


def encode(value: Any, port: Port, *, copy: bool) -> OutgoingValue:
    """Return a value as something to send.

    With `copy` in memory of its own; what fits into a head is copied there anyway. Whether the port
    takes the memory of a GPU decides how that travels.
    """
    if is_on_device(value):
        if port.gpu_aware and device_bytes(value) > INLINE_BYTES:
            return _encode_on_device(value, port, copy=copy)
        value, copy = _to_host(value), False
    kind, meta, memory = codec.encode(value)
    if len(meta) > LONGEST_META_BYTES:  # a dtype of a thousand fields
        kind, meta, memory = codec.encode_as_pickle(value)
    if copy and len(memory) > INLINE_BYTES and _is_memory_of(value):
        memory = bytes(memory)
    return OutgoingValue(codec.Encoded(kind, meta, memory))


def _is_memory_of(value: object) -> bool:
    """Whether the encoded memory is the value's own, which may be changed."""
    return isinstance(value, bytearray) or (is_array(value) and value.flags.c_contiguous)


def _encode_on_device(value: Any, port: Port, *, copy: bool) -> OutgoingValue:
    if copy or not is_contiguous(value):
        value = _device_copy(value)
    meta = _device_meta(value)
    memory = port.device_memory(*address_of(value))
    return OutgoingValue(codec.Encoded(codec.ARRAY, meta, memory), value)


def target(out: Any, port: Port) -> Target:
    """Return where a message lands that is received into an array.

    A PayloadError if that is not writable and C-contiguous, or has Python objects in it.
    """
    if not is_on_device(out):
        _, meta, memory = codec.receive_into(out)
        return Target(meta, memory, lambda: None)
    if not is_contiguous(out):
        raise PayloadError("out= takes a C-contiguous array")
    meta = _device_meta(out)
    if port.gpu_aware and device_bytes(out) > INLINE_BYTES:
        return Target(meta, port.device_memory(*address_of(out)), lambda: None)
    dtype, shape = _layout_of(out)
    host = np.empty(shape, dtype)
    memory = codec.receive_into(host).buffer
    return Target(meta, memory, lambda: _to_device(host, out))


# -- arrays in the memory of a GPU ----------------------------------------------------------------


def is_on_device(value: object) -> bool:
    """Whether a value is an array in the memory of a GPU."""
    return not is_array(value) and hasattr(value, "__cuda_array_interface__")


def _to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a GPU's array in the memory of the host, C-contiguous."""
    host = array.get() if hasattr(array, "get") else _as_cupy(array).get()
    return np.ascontiguousarray(host)


def _to_device(host: np.ndarray[Any, Any], out: Any) -> None:
    """Copy an array into a GPU's one of the same dtype and shape."""
    target = out if hasattr(out, "set") else _as_cupy(out)
    target.set(host)


def _layout_of(array: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a GPU's array."""
    about = array.__cuda_array_interface__
    return np.dtype(about["typestr"]), tuple(about["shape"])


def device_bytes(array: Any) -> int:
    """Return the size of a GPU's array."""
    dtype, shape = _layout_of(array)
    return dtype.itemsize * math.prod(shape)


def _device_meta(array: Any) -> bytes:
    """Return what `codec.array_meta` does, for a GPU's array."""
    dtype, shape = _layout_of(array)
    # Of an array with that dtype and shape, and without memory.
    return codec.array_meta(np.broadcast_to(np.empty((), dtype), shape))


def _device_copy(array: Any) -> Any:
    """Return a C-contiguous copy in the memory of the GPU."""
    return array.copy() if hasattr(array, "copy") else _as_cupy(array).copy()


def is_contiguous(array: Any) -> bool:
    """Whether a GPU's array is C-contiguous."""
    dtype, shape = _layout_of(array)
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
    return array.__cuda_array_interface__["data"][0], device_bytes(array)


def _as_cupy(array: Any) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise PayloadError(
            f"a {type(array).__name__} is in the memory of a GPU, and CuPy, which would copy it "
            f"to and from there, cannot be imported: {error}"
        ) from error
    return cupy.asarray(array)
