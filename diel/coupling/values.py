"""Values as memory to send, on the host or on a GPU.

An array in the memory of a GPU is sent from there by a GPU-aware MPI; else through memory of the
host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diel.comm.device_arrays import (
    device_bytes,
    is_on_device,
    memory_to_send,
    to_host,
)
from diel.coupling.messages import INLINE_BYTES
from diel.tuples import codec
from diel.tuples.codec import is_plain_array
from diel.tuples.protocol import LONGEST_META_BYTES

if TYPE_CHECKING:
    from diel.comm.direct import Port
    from diel.comm.meter import Meter


def encode(value: Any, port: Port, meter: Meter, *, copy: bool) -> codec.Encoded:
    """Encode a value as memory to send.

    With `copy` the memory is not that of the value; a small payload is copied into the head anyway.
    Whether the port is GPU-aware decides whether an array of a GPU is copied to the host.
    """
    if is_on_device(value):
        if port.gpu_aware and device_bytes(value) > INLINE_BYTES:
            meta = codec.device_array_meta(value)
            return codec.Encoded(codec.ARRAY, meta, memory_to_send(value, meter, copy=copy))
        value, copy = to_host(value, meter), False
    kind, meta, memory = codec.encode(value)
    if len(meta) > LONGEST_META_BYTES:  # a dtype of a thousand fields
        kind, meta, memory = codec.encode_as_pickle(value)
    if copy and len(memory) > INLINE_BYTES and _is_memory_of(value):
        memory = bytes(memory)
    return codec.Encoded(kind, meta, memory)


def _is_memory_of(value: object) -> bool:
    """Whether the encoded memory is the value's own, which may be changed."""
    return type(value) is bytearray or (is_plain_array(value) and value.flags.c_contiguous)
