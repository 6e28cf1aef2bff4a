"""Values of Python as ``diel_array``, and back; memory that diel owns until it is released."""

from __future__ import annotations

import ctypes
import json
import math
from typing import Any, Final

import numpy as np

from diel.compiled.layout import (
    BOOL,
    BYTES,
    DTYPES,
    FLOAT64,
    INT64,
    JSON,
    MOST_AXES,
    NAMES,
    TEXT,
    ArrayStruct,
)
from diel.errors import PayloadError
from diel.tuples.codec import is_plain_array

Array = np.ndarray[Any, Any]

_TYPES: Final = {code: np.dtype(name) for code, name in DTYPES.items()}
CODES: Final = {dtype: code for code, dtype in _TYPES.items()}
_TEXTS: Final = (BYTES, TEXT, JSON)


def describe(struct: ArrayStruct) -> str:
    """Return in words what a ``diel_array`` says that it is."""
    name = NAMES.get(struct.dtype, f"the unknown type {struct.dtype}")
    if struct.dtype in _TEXTS:
        return f"{name} of at most {struct.bytes:,} bytes"
    return f"{name} of shape {tuple(struct.shape[: max(0, min(struct.ndim, MOST_AXES))])}"


def array_at(struct: ArrayStruct, *, name: str = "the value") -> Array:
    """Return the caller's memory as an array, without a copy.

    Raises
    ------
    PayloadError
        If the struct describes no array of numbers.
    """
    dtype = _TYPES.get(struct.dtype)
    if dtype is None:
        raise PayloadError(f"{name} is {describe(struct)}, and an array of numbers is needed")
    if not 0 <= struct.ndim <= MOST_AXES:
        raise PayloadError(f"{name} has {struct.ndim} axes: from 0 to {MOST_AXES} are possible")
    shape = tuple(struct.shape[: struct.ndim])
    size_bytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size_bytes != struct.bytes:
        raise PayloadError(
            f"{name} is {describe(struct)}, which is not {struct.bytes:,} bytes: set bytes and "
            "shape with diel_array_of"
        )
    if not size_bytes:
        return np.empty(shape, dtype)
    if not struct.data:
        raise PayloadError(f"{name} has no memory: its data is NULL")
    memory = (ctypes.c_char * size_bytes).from_address(struct.data)
    return np.frombuffer(memory, dtype).reshape(shape)


def value_at(struct: ArrayStruct) -> Any:
    """Return the value that a caller's struct holds, arrays without a copy.

    A number (ndim 0) of int64 or float64 is one of Python, to which other ranks can add.
    """
    code = struct.dtype
    if code in _TEXTS:
        size_bytes, address = struct.bytes, struct.data
        if size_bytes < 0 or (size_bytes and not address):
            raise PayloadError(f"the value is {describe(struct)}, and its data is NULL")
        data = ctypes.string_at(address, size_bytes) if size_bytes else b""
        if code == BYTES:
            return data
        try:
            return data.decode() if code == TEXT else json.loads(data)
        except ValueError as error:
            what = "UTF-8 text" if code == TEXT else "JSON"
            raise PayloadError(f"the value is not {what}: {error}") from None
    array = array_at(struct)
    return array.item() if not array.ndim and struct.dtype in (INT64, FLOAT64, BOOL) else array


def copied(struct: ArrayStruct) -> Any:
    """Return a copy of the value that a caller's struct holds; a number as one of Python."""
    value = value_at(struct)
    if not isinstance(value, np.ndarray):
        return value
    return value.copy() if value.ndim else value.item()


def as_memory(value: Any) -> tuple[int, Array]:
    """Return the code of a value's type, and its memory as an array.

    Raises
    ------
    PayloadError
        If it is neither array, number, text nor bytes, and has no form in JSON.
    """
    if isinstance(value, np.ndarray):
        if not is_plain_array(value) or value.dtype.newbyteorder("=") not in CODES:
            raise PayloadError(
                f"an array of dtype {value.dtype} and type {type(value).__name__} has no form in "
                "C: put it as an array of plain numbers"
            )
        if value.ndim > MOST_AXES:
            raise PayloadError(f"an array of {value.ndim} axes: in C {MOST_AXES} are the most")
        plain = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        return CODES[plain.dtype], plain
    if isinstance(value, (bool, np.bool_)):
        return BOOL, np.array(value)
    if isinstance(value, np.number) and value.dtype in CODES:
        return CODES[value.dtype], np.array(value)
    if isinstance(value, float):
        return FLOAT64, np.array(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return INT64, np.array(value, np.int64)
    if isinstance(value, (bytes, bytearray)):
        return BYTES, np.frombuffer(value, np.uint8)
    code, text = TEXT, value
    if not isinstance(value, str):
        code = JSON
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise PayloadError(
                f"a value of type {kind} has no form in C: put an array, a number, text, bytes, or "
                "lists and tables of numbers and text"
            ) from None
    return code, np.frombuffer(text.encode(errors="surrogatepass") + b"\0", np.uint8)[:-1]


def fill(struct: ArrayStruct, code: int, memory: Array) -> None:
    """Copy a value to the caller's memory, which its struct describes; else a PayloadError."""
    if code in _TEXTS:
        if struct.dtype != code or memory.nbytes > struct.bytes:
            raise PayloadError(
                f"the value is {NAMES[code]} of {memory.nbytes:,} bytes, and the memory for it is "
                f"{describe(struct)}"
            )
        ctypes.memmove(struct.data, memory.tobytes(), memory.nbytes)
        struct.shape[0], struct.ndim, struct.bytes = memory.nbytes, 1, memory.nbytes
        return
    if struct.dtype in _TEXTS or (struct.dtype, tuple(struct.shape[: struct.ndim])) != (
        code,
        memory.shape,
    ):
        raise PayloadError(
            f"the value is {NAMES[code]} of shape {memory.shape}, and the memory for it is "
            f"{describe(struct)}"
        )
    array_at(struct)[...] = memory


class OwnedMemory:
    """The memory of values that were handed to a copy, until it releases them or ends."""

    def __init__(self) -> None:
        self._arrays: dict[int, Array] = {}
        self._last = 0

    def hand_out(self, struct: ArrayStruct, code: int, memory: Array) -> None:
        """Let a struct describe a value, whose memory stays until it is released."""
        if code not in _TEXTS and not memory.flags.writeable:
            memory = memory.copy()
        self._last += 1
        self._arrays[self._last] = memory
        struct.data = memory.ctypes.data
        struct.bytes, struct.dtype, struct.ndim = memory.nbytes, code, memory.ndim
        struct.shape[: memory.ndim] = memory.shape
        struct.owner = self._last

    def release(self, struct: ArrayStruct) -> None:
        """Give the memory of a value back; its struct then describes none."""
        if self._arrays.pop(struct.owner, None) is None:
            raise PayloadError("this memory was given back before, or is none of diel's")
        ctypes.memset(ctypes.addressof(struct), 0, ctypes.sizeof(struct))

    def clear(self) -> None:
        """Give all back."""
        self._arrays.clear()
