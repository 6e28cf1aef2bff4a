"""Encoding of values as (kind, meta, buffer), by clients; servers decode numbers alone, to add.

Arrays and bytes are sent from their own memory. Only other Python objects are pickled, by the
client that puts them, and unpickled by the client that gets them: subclasses of arrays and bytes
too, which may hold more than their memory, such as a unit or a mask. An array in a file
(numpy.memmap) arrives as an array in memory. NumPy is imported with the first array, so that ranks
without arrays start sooner.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import functools
import io
import math
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, cast

from diel.comm.device_arrays import (
    HostStaging,
    count_received,
    device_bytes,
    is_on_device,
    layout_of,
    memory_to_receive_into,
)
from diel.errors import PayloadError
from diel.frozen import Frozen
from diel.text import describe_error
from diel.tuples.protocol import LONGEST_META_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from diel.comm.direct import Port
    from diel.comm.meter import Meter
    from diel.tuples.transport import Transport


class _Numpy:
    """A proxy of NumPy that imports it at the first use; each name is looked up there once."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()

__all__ = ["np"]  # imported from here by other modules, which mypy allows only for exported names

BYTES: Final = 0
ARRAY: Final = 1
PICKLE: Final = 2
INTEGER: Final = 3
FLOAT: Final = 4

_FLOAT: Final = struct.Struct("<d")
_BUILTINS: Final = frozenset({bool, int, float, str, list, tuple, dict, type(None)})
_SHORT_PICKLE_BYTES: Final = 2048
_BY_NUMPY: Final = b"_reconstruct"
"""In a pickle of an array that is no plain one in one piece."""
_PICKLING: Final = ("__reduce__", "__reduce_ex__", "__setstate__")


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a value is a NumPy array, without importing NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


def is_plain_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a value is an array of which dtype, shape and memory are all that there is.

    That holds for arrays of NumPy's own type, or in a file (numpy.memmap), of its own dtypes.
    """
    numpy, kind = sys.modules.get("numpy"), type(value)
    if kind is not getattr(numpy, "ndarray", ()) and kind is not getattr(numpy, "memmap", ()):
        return False
    return _is_complete(cast("np.ndarray[Any, Any]", value).dtype)


def _is_complete(dtype: np.dtype[Any]) -> bool:
    """Whether the description of a dtype as text says all of it."""
    if dtype.hasobject or not dtype.itemsize or dtype.metadata is not None:
        return False
    if dtype.names is None:
        # 2: of another library, such as bfloat16, whose description is that of bare bytes.
        return dtype.isbuiltin != 2 and (dtype.subdtype is None or _is_complete(dtype.base))
    if dtype.type is not np.void:  # the elements of a numpy.recarray
        return False
    try:
        _ = dtype.descr
    except ValueError:  # NumPy cannot describe fields that overlap or are out of order
        return False
    return all(_is_complete(dtype[name]) for name in dtype.names)


class Encoded(NamedTuple):
    """An encoded value: its kind, dtype and shape if it is an array, and its memory."""

    kind: int
    meta: bytes
    buffer: memoryview


def encode(value: object) -> tuple[int, bytes, Any]:
    """Return kind, meta and memory of a value; bytes and C-contiguous arrays are not copied.

    A PayloadError if the value is neither bytes nor an array and cannot be pickled.
    """
    kind = type(value)
    if kind is bytes:
        return BYTES, b"", value
    if kind not in _BUILTINS and is_plain_array(value):
        array = np.ascontiguousarray(value).reshape(value.shape)
        meta = array_meta(array)
        if len(meta) <= LONGEST_META_BYTES:  # else it is a dtype of a thousand fields
            return ARRAY, meta, memory_of(array)
    if kind is bytearray:
        return BYTES, b"", memoryview(cast("bytearray", value))
    if kind is int or kind is float:
        with contextlib.suppress(OverflowError):  # an integer of more than 64 bits is pickled
            number, data = encode_number(cast("float", value))
            return number, b"", data
    return encode_as_pickle(value)


def encode_as_pickle(value: object) -> tuple[int, bytes, bytes]:
    """Return kind, meta and memory of any Python object that can be pickled."""
    try:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if (len(data) > _SHORT_PICKLE_BYTES or _BY_NUMPY in data) and _may_lose_attributes(data):
            file = io.BytesIO()
            _AttributePickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
            data = file.getvalue()
    except Exception as error:  # a __reduce__ may raise anything
        raise PayloadError(
            f"a {type(value).__name__} cannot travel to another rank: {error}"
        ) from error
    return PICKLE, b"", data


def _may_lose_attributes(data: bytes) -> bool:
    """Whether a pickle may hold an array as NumPy pickles subclasses: without their attributes."""
    if "numpy" not in sys.modules:
        return False
    kinds = np.ndarray.__subclasses__()
    if not _has_subclasses(len(kinds) + sum(map(len, map(type.__subclasses__, kinds)))):
        return False  # without a search of all of it
    return _BY_NUMPY in data


@functools.lru_cache(maxsize=1)
def _has_subclasses(_count: int) -> bool:
    """Whether there are array classes that are not NumPy's, where there are so many in all."""
    kinds = np.ndarray.__subclasses__()
    kinds += [below for kind in kinds for below in kind.__subclasses__()]
    return not all(kind.__module__.partition(".")[0] == "numpy" for kind in kinds)


class _AttributePickler(pickle.Pickler):
    """A pickler that keeps the attributes of arrays whose classes leave pickling to NumPy."""

    def reducer_override(self, value: Any) -> Any:
        kind, base = type(value), np.ndarray
        if not is_array(value) or kind is base:
            return NotImplemented
        if any(getattr(kind, name) is not getattr(base, name) for name in _PICKLING):
            return NotImplemented
        attributes = dict(getattr(value, "__dict__", {}))
        for name in copyreg._slotnames(kind):  # type: ignore[attr-defined]
            with contextlib.suppress(AttributeError):
                attributes[name] = getattr(value, name)
        return _array_of, (kind, value.view(base)), attributes, None, None, _set_attributes


def _array_of(kind: type, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(kind)


def _set_attributes(array: object, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        object.__setattr__(array, name, value)


def decode(kind: int, meta: bytes, buffer: bytes | bytearray | memoryview) -> Any:
    """Return the encoded value; an array is a writable view of `buffer`, or of a copy of bytes.

    A PayloadError if a pickled object cannot be rebuilt here, or the encoding is invalid, as in a
    checkpoint that was tampered with.
    """
    if kind == BYTES:
        return bytes(buffer)
    if kind == PICKLE:
        try:
            return pickle.loads(buffer)
        except (Exception, SystemExit) as error:  # code of the user, also at import
            raise PayloadError(
                f"the value, {_described(buffer)}, cannot be rebuilt on this rank: "
                f"{describe_error(error)}"
            ) from error
    check(kind, meta, len(buffer))
    if kind == ARRAY:
        dtype, shape = _parse_array_meta(meta)
        writable = bytearray(buffer) if isinstance(buffer, bytes) else buffer
        return np.frombuffer(writable, dtype).reshape(shape)
    return decode_number(kind, buffer)


def _described(data: bytes | bytearray | memoryview) -> str:
    """Return in words of which class a pickled object is, as far as its pickle says so."""
    import pickletools

    words: list[Any] = []
    with contextlib.suppress(Exception):  # it may be damaged
        for operation, argument, _ in pickletools.genops(bytes(data)):
            if operation.name == "STACK_GLOBAL":
                return f"a {'.'.join(words[-2:])}"
            if operation.name == "GLOBAL":
                return f"a {str(argument).replace(' ', '.')}"
            if "UNICODE" in operation.name:
                words.append(argument)
    return "a pickled object"


def check(kind: int, meta: bytes, size_bytes: int) -> None:
    """Check that an encoding is valid, without unpickling.

    A PayloadError if the kind is unknown, or the size does not fit a number, or an array of the
    meta.
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
    """Return kind and bytes of an int or float, in a form to which a server can add.

    Raises OverflowError for an integer of more than 64 bits.
    """
    if hasattr(value, "__index__"):  # int, its subclasses such as IntEnum, NumPy's integers
        return INTEGER, int(value).to_bytes(8, "little", signed=True)
    return FLOAT, _FLOAT.pack(value)


def decode_number(kind: int, buffer: bytes | bytearray | memoryview) -> int | float:
    """Return the number that `encode_number` has encoded."""
    if kind == INTEGER:
        return int.from_bytes(buffer, "little", signed=True)
    number: float = _FLOAT.unpack(buffer)[0]
    return number


def array_meta(array: np.ndarray[Any, Any]) -> bytes:
    """Return dtype and shape of an array as bytes, which are equal exactly if both are."""
    dtype = array.dtype
    descr = dtype.str if dtype.isbuiltin == 1 else np.lib.format.dtype_to_descr(dtype)
    return repr((descr, array.shape)).encode()


def device_array_meta(array: Any) -> bytes:
    """Return what `array_meta` does, for an array on a GPU."""
    dtype, shape = layout_of(array)
    # From an array with that dtype and shape that takes no memory.
    return array_meta(np.broadcast_to(np.empty((), dtype), shape))


def memory_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a C-contiguous array without Python objects, as bytes."""
    # As uint8, since memoryview supports neither datetime64 nor structured dtypes.
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def describe(kind: int, meta: bytes) -> str:
    """Return a description of an encoded value in words."""
    if kind == ARRAY:
        dtype, shape = _parse_array_meta(meta)
        return f"an array of dtype {dtype} and shape {shape}"
    words = {BYTES: "bytes", PICKLE: "a pickled Python object"}
    return words.get(kind, "a number")


def receive_into(out: object) -> Encoded:
    """Return kind, meta and writable memory of an array given as ``out=``."""
    if not is_array(out):
        raise PayloadError(f"out= takes a NumPy array, not a {type(out).__name__}")
    if not (_is_memory(out) and out.flags.c_contiguous and out.flags.writeable):
        raise PayloadError(
            "out= takes a writable, C-contiguous array without Python objects, a mask, or fields "
            "that overlap"
        )
    return Encoded(ARRAY, array_meta(out), memory_of(out))


class Destination(Frozen):
    """An array given as ``out=``, on the host or on a GPU, and the memory to receive a payload."""

    out: Any
    encoded: Encoded
    """Kind and meta of the only payload that fits, and the memory to receive it."""
    landing: HostStaging | None = None
    """The staging memory on the host for an array on a GPU, if it is needed."""
    on_device: bool = False
    """Whether the memory to receive into is on the GPU, so that only MPI can write it."""

    @classmethod
    def of(cls, out: Any, carrier: Port | Transport, inline_bytes: int) -> Destination:
        """Return the destination for an array; a payload up to `inline_bytes` goes to the host.

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
        landing = HostStaging.of(out)
        return cls(out, receive_into(landing.host), landing)

    def finish(self, payload: Any, meter: Meter, about: Callable[[], object] | None = None) -> None:
        """Copy a received payload into the array, unless it was received there.

        The meter counts transfers to a GPU, labelled by what `about` returns.
        """
        memory, landing = self.encoded.buffer, self.landing
        if self.on_device and payload is memory:
            count_received(len(memory), meter, about and about())
            return
        if self.on_device:
            landing = HostStaging.of(self.out)
            memory = memory_of(landing.host)
        if payload is not memory:
            memory[:] = payload
        if landing is not None:
            landing.finish(meter, about and about())


def _is_memory(array: np.ndarray[Any, Any]) -> bool:
    """Whether the elements of an array are its memory, so that others can be received there."""
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize or isinstance(array, np.ma.MaskedArray):
        return False
    if dtype.names is not None:
        try:
            _ = dtype.descr
        except ValueError:  # NumPy cannot describe fields that overlap or are out of order
            return False
    return True


@functools.lru_cache(maxsize=256)
def _parse_array_meta(meta: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    descr, shape = ast.literal_eval(meta.decode())
    return np.lib.format.descr_to_dtype(descr), shape
