"""Values of ``diel tuple``: conversion between Python values and bytes that a shell can handle."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from diel.errors import PayloadError
from diel.programs.tuple_protocol import BEST_FORM
from diel.run.json_values import as_integer
from diel.tuples.codec import is_plain_array


class Shown(NamedTuple):
    """A value as bytes for a command to print, whether it is a line of text, and its form."""

    body: bytes
    is_line: bool
    form: str


def value_of(form: str, body: bytes) -> Any:
    """Decode a value that a command sent in one of `diel.programs.tuple_protocol.FORMS`."""
    if form not in _DECODERS:
        return body
    name, decode = _DECODERS[form]
    try:
        return decode(body)
    except Exception as error:  # a forged header may raise nearly anything in NumPy
        raise PayloadError(f"the value is not {name}: {error or type(error).__name__}") from None


def _array_in(body: bytes) -> np.ndarray[Any, Any]:
    """Return the array in a .npy file, after checking that its header promises what is there."""
    stream, form = io.BytesIO(body), np.lib.format
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 has written
        # Version 3.0 differs from 2.0 in the encoding of names of fields alone.
        is_first = form.read_magic(stream) == (1, 0)
        read_header = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are never loaded")
        left_bytes = len(body) - stream.tell()
        if math.prod(as_integer(length, 0) for length in shape) * dtype.itemsize != left_bytes:
            raise ValueError(
                f"its header is of another size than that of the {left_bytes:,} bytes below it"
            )
        array: np.ndarray[Any, Any] = form.read_array(io.BytesIO(body), allow_pickle=False)
    return array


_DECODERS: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "text": ("UTF-8 text", bytes.decode),
    "json": ("JSON", json.loads),
    "npy": ("a .npy file of plain numbers", _array_in),
}


def shown(value: Any, form: str | None) -> Shown:
    """Encode a value for a command to print, in the form that it asked for.

    None is the form that fits the value best: text for strings and numbers, bytes as they are, JSON
    for other values. `BEST_FORM` is for a program that wants the value itself: arrays as .npy,
    bytes as they are, JSON for other values.
    """
    if form == BEST_FORM:
        form = (
            "npy"
            if isinstance(value, np.ndarray)
            else "bytes"
            if isinstance(value, bytes)
            else "json"
        )
    if form == "npy":
        return Shown(_npy(value), False, "npy")
    if form == "bytes":
        if isinstance(value, str):
            return Shown(value.encode(), False, "bytes")
        if not isinstance(value, bytes):
            raise PayloadError(f"{_kind(value)} has no bytes to print: leave out --bytes")
        return Shown(value, False, "bytes")
    if form is None:
        if isinstance(value, bytes):
            return Shown(value, False, "bytes")
        if isinstance(value, str):
            return Shown(value.encode(), True, "text")
        if isinstance(value, np.ndarray):
            raise PayloadError(
                f"{_kind(value)} is not printed: say --npy for a .npy file, --json for lists"
            )
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
            return Shown(repr(_plain(value)).encode(), True, "text")
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False)
        return Shown(text.encode(), True, "json")
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{_kind(value)} cannot be printed as JSON: {error}") from None


def given(value: Any) -> tuple[str, bytes]:
    """Encode a value that a program puts: return its form and its bytes.

    Raises
    ------
    PayloadError
        If it is no text, number, bytes, array, nor a list or table of such.
    """
    if isinstance(value, np.ndarray):
        return "npy", _npy(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    if isinstance(value, str):
        return "text", value.encode()
    try:
        return "json", json.dumps(value, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"{_kind(value)} cannot be put from outside of a run ({error}): put text, numbers, "
            "bytes, arrays, or lists and tables of such"
        ) from None


def _npy(value: Any) -> bytes:
    if not isinstance(value, (np.ndarray, np.number, int, float)):
        raise PayloadError(f"{_kind(value)} is no array: leave out --npy")
    if isinstance(value, np.ndarray) and not (value.dtype.hasobject or is_plain_array(value)):
        raise PayloadError(
            f"a {type(value).__name__} of dtype {value.dtype} does not fit a .npy file, "
            "which holds plain numbers alone"
        )
    file = io.BytesIO()
    try:
        np.save(file, np.asarray(value), allow_pickle=False)
    except ValueError as error:
        raise PayloadError(f"{_kind(value)} does not fit a .npy file: {error}") from None
    return file.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"it holds {_kind(value)}")


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return f"a value of type {type(value).__name__}"
