"""Values as memory to send, and arrays as memory to receive into, on the host or on a GPU.

An array in the memory of a GPU is sent from where it is if MPI takes its address; else through the
memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from diel.comm.device_arrays import (
    GPU_AWARE,
    Landing,
    address_of,
    device_bytes,
    device_copy,
    is_contiguous,
    is_on_device,
    layout_of,
    to_host,
)
from diel.coupling.messages import INLINE_BYTES
from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.codec import is_array, np
from diel.tuples.protocol import LONGEST_META_BYTES

if TYPE_CHECKING:
    from diel.comm.direct import Memory, Port
    from diel.comm.meter import Meter


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


def encode(value: Any, port: Port, meter: Meter, *, copy: bool) -> OutgoingValue:
    """Return a value as something to send.

    With `copy` in memory of its own; what fits into a head is copied there anyway. Whether the port
    takes the memory of a GPU decides how that travels.
    """
    if is_on_device(value):
        if port.gpu_aware and device_bytes(value) > INLINE_BYTES:
            meter.communicated(
                meter.clock(), f"from the GPU, {GPU_AWARE}", None, device_bytes(value)
            )
            return _encode_on_device(value, port, copy=copy)
        value, copy = to_host(value, meter), False
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
        value = device_copy(value)
    meta = _device_meta(value)
    memory = port.device_memory(*address_of(value))
    return OutgoingValue(codec.Encoded(codec.ARRAY, meta, memory), value)


def target(out: Any, port: Port, meter: Meter) -> Target:
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
        size_bytes = device_bytes(out)
        return Target(
            meta,
            port.device_memory(*address_of(out)),
            lambda: meter.communicated(meter.clock(), f"to the GPU, {GPU_AWARE}", None, size_bytes),
        )
    landing = Landing.of(out)
    memory = codec.receive_into(landing.host).buffer
    return Target(meta, memory, lambda: landing.finish(meter))


def _device_meta(array: Any) -> bytes:
    """Return what `codec.array_meta` does, for a GPU's array."""
    dtype, shape = layout_of(array)
    # Of an array with that dtype and shape, and without memory.
    return codec.array_meta(np.broadcast_to(np.empty((), dtype), shape))
