"""Values as (kind, meta, buffer): what clients make of a value, and servers never look into.

Arrays and bytes travel as their own memory. Only other Python objects are pickled, by the
client that puts them and the client that gets them. NumPy is imported when the first array comes: a
rank that sees none starts sooner without it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, cast

from diel.comm.device_arrays import (
    Landing,
    count_received,
    device_bytes,
    is_on_device,
    layout_of,
    memory_to_receive_into,
)
from diel.errors import PayloadError
from diel.frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from diel.comm.direct import Port
    from diel.comm.meter import Meter
    from diel.tuples.transport import Transport


class _Numpy:
    """Stands for NumPy; each of its names is looked up there once."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()

__all__ = ["np"]  # taken from here by others: a checker of types wants that said

BYTES: Final = 0
ARRAY: Final = 1
PICKLE: Final = 2
INTEGER: Final = 3
FLOAT: Final = 4

_FLOAT: Final = struct.Struct("<d")


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a value is an array of NumPy; NumPy has been imported then."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


class Encoded(NamedTuple):
    """A value on its way: its kind, a few bytes about it, and its memory."""

    kind: int
    meta: bytes
    buffer: memoryview


def encode(value: object) -> tuple[int, bytes, Any]:
    """Return kind, meta and memory of a value; arrays and bytes are not copied.

    Raises
    ------
    PayloadError
        If the value is neither bytes nor an array and cannot be pickled.
    """
    if type(value) is bytes:
        return BYTES, b"", value
    if is_array(value) and _is_its_memory(value):
        array = np.ascontiguousarray(value).reshape(value.shape)
        return ARRAY, array_meta(array), memory_of(array)
    if isinstance(value, (bytes, bytearray)):
        return BYTES, b"", memoryview(value)
    if type(value) in (int, float):
        with contextlib.suppress(OverflowError):  # a longer integer is pickled
            kind, data = encode_number(cast("float", value))
            return kind, b"", data
    return encode_as_pickle(value)


def encode_as_pickle(value: object) -> tuple[int, bytes, bytes]:
    """Return kind, meta and memory of any Python object that can be pickled."""
    try:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever a __reduce__ raises
        raise PayloadError(
            f"a {type(value).__name__} cannot travel to another rank: {error}"
        ) from error
    return PICKLE, b"", data


def decode(kind: int, meta: bytes, buffer: bytes | bytearray | memoryview) -> Any:
    """Return the value of an encoded form; an array is a writable view of `buffer`.

    Raises
    ------
    PayloadError
        If a pickled object cannot be rebuilt here, or the form is not one that `encode` makes: a
        checkpoint may have been tampered with.
    """
    if kind == BYTES:
        return bytes(buffer)
    if kind == PICKLE:
        try:
            return pickle.loads(buffer)
        except Exception as error:  # whatever a __setstate__ raises
            raise PayloadError(f"a value cannot be rebuilt on this rank: {error}") from error
    check(kind, meta, len(buffer))
    if kind == ARRAY:
        dtype, shape = _parse_array_meta(meta)
        writable = bytearray(buffer) if isinstance(buffer, bytes) else buffer
        return np.frombuffer(writable, dtype).reshape(shape)
    return decode_number(kind, buffer)


def check(kind: int, meta: bytes, size_bytes: int) -> None:
    """Check that an encoded form is one that `encode` makes, without looking into a pickle.

    Raises
    ------
    PayloadError
        If the kind is unknown, or what is said of a number or an array does not fit its size.
    """
    if kind in (BYTES, PICKLE):
        return
    if kind in (INTEGER, FLOAT):
        expected_bytes = _FLOAT.size
    elif kind == ARRAY:
        try:
            dtype, shape = _parse_array_meta(meta)
            expected_bytes = dtype.itemsize * math.prod(shape)
        except Exception as error:  # a forged description may raise nearly anything in NumPy
            raise PayloadError(f"a damaged tuple: {meta[:80]!r} describes no array") from error
        if dtype.hasobject or any(length < 0 for length in shape):
            raise PayloadError(f"a damaged tuple: {meta[:80]!r} describes no array")
    else:
        raise PayloadError(f"a damaged tuple: no value is of kind {kind}")
    if size_bytes != expected_bytes:
        raise PayloadError(
            f"a damaged tuple: {describe(kind, meta)} of {size_bytes:,} bytes "
            f"in place of {expected_bytes:,}"
        )


def encode_number(value: float) -> tuple[int, bytes]:
    """Return kind and bytes of an int or float, in which a server can count.

    An integer that needs more than 64 bits is an OverflowError.
    """
    if hasattr(value, "__index__"):  # int, and what is one, such as an IntEnum
        return INTEGER, int(value).to_bytes(8, "little", signed=True)
    return FLOAT, _FLOAT.pack(value)


def decode_number(kind: int, buffer: bytes | bytearray | memoryview) -> int | float:
    """Return the number of its kind and bytes."""
    if kind == INTEGER:
        return int.from_bytes(buffer, "little", signed=True)
    number: float = _FLOAT.unpack(buffer)[0]
    return number


def array_meta(array: np.ndarray[Any, Any]) -> bytes:
    """Return dtype and shape of an array as bytes: equal where two arrays fit each other."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    return repr((descr, array.shape)).encode()


def device_array_meta(array: Any) -> bytes:
    """Return what `array_meta` does, for an array on a GPU."""
    dtype, shape = layout_of(array)
    # Of an array with that dtype and shape, and without memory.
    return array_meta(np.broadcast_to(np.empty((), dtype), shape))


def memory_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a C-contiguous array without Python objects, as bytes."""
    # Through uint8, since a memoryview of datetime64 or a structured dtype is not to be had.
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def describe(kind: int, meta: bytes) -> str:
    """Return in words what an encoded value is."""
    if kind == ARRAY:
        dtype, shape = _parse_array_meta(meta)
        return f"an array of dtype {dtype} and shape {shape}"
    words = {BYTES: "bytes", PICKLE: "a pickled Python object"}
    return words.get(kind, "a number")


def receive_into(out: object) -> Encoded:
    """Return kind, meta and writable memory of an array given as ``out=``."""
    if not is_array(out):
        raise PayloadError(f"out= takes a NumPy array, not a {type(out).__name__}")
    if not (_is_its_memory(out) and out.flags.c_contiguous and out.flags.writeable):
        raise PayloadError(
            "out= takes a writable, C-contiguous array without Python objects, a mask, or fields "
            "that overlap"
        )
    return Encoded(ARRAY, array_meta(out), memory_of(out))


class Destination(Frozen):
    """An array given as ``out=``, on the host or on a GPU, and the memory where a payload lands."""

    out: Any
    encoded: Encoded
    """Kind and meta of the only payload that fits, and the memory."""
    landing: Landing | None = None
    """On the host, of an array on a GPU."""
    on_device: bool = False
    """Whether the memory is that of the GPU, which MPI alone can write."""

    @classmethod
    def of(cls, out: Any, carrier: Port | Transport, inline_bytes: int) -> Destination:
        """Return where a payload lands; what is not larger than `inline_bytes`, on the host.

        Raises
        ------
        PayloadError
            If the array is not writable and C-contiguous, or has Python objects in it.
        """
        if not is_on_device(out):
            return cls(out, receive_into(out))
        if device_bytes(out) > inline_bytes and carrier.gpu_aware:
            encoded = Encoded(ARRAY, device_array_meta(out), memory_to_receive_into(out))
            return cls(out, encoded, None, on_device=True)
        landing = Landing.of(out)
        return cls(out, receive_into(landing.host), landing)

    def finish(self, payload: Any, meter: Meter, about: Callable[[], object] | None = None) -> None:
        """Let the array hold a payload, which has landed or has come to other memory of the host.

        The meter counts what goes to a GPU, with what `about` returns.
        """
        memory, landing = self.encoded.buffer, self.landing
        if self.on_device and payload is memory:
            count_received(len(memory), meter, about and about())
            return
        if self.on_device:
            landing = Landing.of(self.out)
            memory = memory_of(landing.host)
        if payload is not memory:
            memory[:] = payload
        if landing is not None:
            landing.finish(meter, about and about())


def _is_its_memory(array: np.ndarray[Any, Any]) -> bool:
    """Whether dtype, shape and memory say all about an array; others are pickled."""
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize or isinstance(array, np.ma.MaskedArray):
        return False
    if dtype.names is not None:
        try:
            _ = dtype.descr
        except ValueError:  # NumPy describes no fields that overlap or are out of order
            return False
    return True


@functools.lru_cache(maxsize=256)
def _parse_array_meta(meta: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    descr, shape = ast.literal_eval(meta.decode())
    return np.lib.format.descr_to_dtype(descr), shape
