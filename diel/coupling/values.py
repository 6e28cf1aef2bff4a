"""Values as memory to send, and arrays as memory to receive into, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from diel.coupling import devices
from diel.coupling.heads import INLINE_BYTES
from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.arrays import is_array, np
from diel.tuples.protocol import LONGEST_META_BYTES

if TYPE_CHECKING:
    from diel.comm.direct import Memory, Port


class Target(NamedTuple):
    """Where a message shall land.

    Attributes
    ----------
    meta : bytes
        Of the array's dtype and shape.
    memory : Memory
    finish : callable
        To be called when the payload is in the memory.
    """

    meta: bytes
    memory: Memory
    finish: Callable[[], None]


class Outgoing(NamedTuple):
    """A value to send.

    Attributes
    ----------
    encoded : Encoded
        Its kind, meta and memory.
    owner : object
        What has to live as long as the memory is read; an address on a GPU keeps nothing alive.
    """

    encoded: codec.Encoded
    owner: object = None


def encode(value: Any, port: Port, *, copy: bool) -> Outgoing:
    """Return a value as something to send.

    Parameters
    ----------
    value : object
    port : Port
        Whether it takes the memory of a GPU decides how that travels.
    copy : bool
        Whether the memory has to be another one than that of the value. What fits into a head is
        copied there anyway.

    Raises
    ------
    PayloadError
        If the value is no array and cannot be pickled.
    """
    if devices.is_on_device(value):
        if port.gpu_aware and devices.size_bytes(value) > INLINE_BYTES:
            return _encode_on_device(value, port, copy=copy)
        value, copy = devices.to_host(value), False
    kind, meta, memory = codec.encode(value)
    if len(meta) > LONGEST_META_BYTES:  # a dtype of a thousand fields
        kind, meta, memory = codec.encode_as_pickle(value)
    if copy and len(memory) > INLINE_BYTES and _is_memory_of(value):
        memory = bytes(memory)
    return Outgoing(codec.Encoded(kind, meta, memory))


def _is_memory_of(value: object) -> bool:
    """Whether the encoded memory is the value's own, which may be changed."""
    return isinstance(value, bytearray) or (is_array(value) and value.flags.c_contiguous)


def _encode_on_device(value: Any, port: Port, *, copy: bool) -> Outgoing:
    if copy or not devices.is_contiguous(value):
        value = devices.copy_of(value)
    meta = devices.meta_of(value)
    memory = port.device_memory(*devices.address_of(value))
    return Outgoing(codec.Encoded(codec.ARRAY, meta, memory), value)


def target(out: Any, port: Port) -> Target:
    """Return where a message lands that is received into an array.

    Raises
    ------
    PayloadError
        If it is not a writable, C-contiguous array without Python objects in it.
    """
    if not devices.is_on_device(out):
        _, meta, memory = codec.receive_into(out)
        return Target(meta, memory, lambda: None)
    if not devices.is_contiguous(out):
        raise PayloadError("out= takes a C-contiguous array")
    meta = devices.meta_of(out)
    if port.gpu_aware and devices.size_bytes(out) > INLINE_BYTES:
        return Target(meta, port.device_memory(*devices.address_of(out)), lambda: None)
    dtype, shape = devices.layout_of(out)
    host = np.empty(shape, dtype)
    memory = codec.receive_into(host).buffer
    return Target(meta, memory, lambda: devices.to_device(host, out))
