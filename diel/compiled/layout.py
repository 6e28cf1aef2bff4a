"""The struct, the table of calls and the codes of ``diel.h``, as ctypes."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_char, c_char_p, c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

HEADER_FOLDER: Final = Path(__file__).parent
"""The folder of ``diel.h``."""

DONE, LATE, FAILED, STOPPED, ABSENT = range(5)
TAKE, READ = 0, 1
STRIPED, VISIBLE, IF_ABSENT = 1, 2, 4
ACKNOWLEDGE, GIVE_BACK, RENEW = range(3)
GO_ON, STOP_NOW, ENDS_SOON = range(3)
OF_COPY, OF_MODULE = 0, 1
SEND, MOVE = 0, 1
EXCHANGE, PUSH, PULL = range(3)
OWNED, READS = 0, 1
MOST_AXES: Final = 8
BOOL, INT32, INT64, FLOAT64 = 1, 4, 5, 11
BYTES, TEXT, JSON = 20, 21, 22

DTYPES: Final = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float32",
    11: "float64",
    12: "complex64",
    13: "complex128",
}
"""The names of NumPy for the codes of element types."""
NAMES: Final = {
    **DTYPES,
    BYTES: "bytes",
    TEXT: "text",
    JSON: "JSON",
    -1: "a part of a Fortran array that is not in one piece",
    -2: "of a Fortran type that diel.f90 does not know",
}


class ArrayStruct(ctypes.Structure):
    """``diel_array``."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("shape", c_int64 * MOST_AXES),
        ("dtype", c_int32),
        ("ndim", c_int32),
        ("owner", c_int64),
    ]


class AddressStruct(ctypes.Structure):
    """``diel_address``."""

    _fields_ = [
        ("module", c_char * 256),
        ("copy", c_int32),
        ("rank", c_int32),
    ]


class LaneStruct(ctypes.Structure):
    """``diel_lane``."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("shape", c_int64 * MOST_AXES),
        ("strides", c_int64 * MOST_AXES),
        ("ndim", c_int32),
        ("item_bytes", c_int32),
        ("peer", c_int32),
        ("tag", c_int32),
        ("is_send", c_int32),
        ("unused", c_int32),
    ]


class CopyStruct(ctypes.Structure):
    """``diel``: what a function is called with."""

    _fields_ = [
        ("abi", c_int32),
        ("bytes", c_int32),
        ("calls", c_void_p),
        ("context", c_void_p),
        ("copy", c_int32),
        ("copies", c_int32),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("threads", c_int32),
        ("depth", c_int32),
        ("iteration", c_int32 * MOST_AXES),
        ("module", c_char_p),
        ("group", c_char_p),
        ("run_dir", c_char_p),
        ("folder", c_char_p),
        ("element", c_char_p),
        ("session", c_char_p),
        ("error", c_char * 1024),
    ]


_OUT: Final = c_void_p  # an address: a Python integer, or None
CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "option": (c_char_p, c_int32, _OUT, c_int64, _OUT),
    "log": (c_int32, c_char_p),
    "put": (c_char_p, _OUT, c_int32, c_double),
    "get": (c_int32, c_char_p, _OUT, c_double),
    "matched": (_OUT, c_int64),
    "release": (_OUT,),
    "claim_end": (c_int32, c_int64, c_double),
    "claim": (c_char_p, _OUT, _OUT, c_double, c_double),
    "count_tuples": (c_char_p, _OUT),
    "increment": (c_char_p, c_double, _OUT),
    "flush": (),
    "comm": (c_int32, _OUT),
    "clear_error": (),
    "must_stop": (_OUT,),
    "time_left": (_OUT,),
    "send": (c_int32, c_char_p, c_int32, c_int32, c_char_p, _OUT, c_double),
    "recv": (c_char_p, c_int32, c_int32, c_char_p, _OUT, _OUT, c_double),
    "peers": (c_char_p, _OUT, _OUT),
    "boundary": (c_char_p, _OUT, _OUT, _OUT),
    "section": (c_int32, c_int32, c_int32, _OUT, _OUT),
    "bind": (c_int32, c_int32, c_int32, _OUT, _OUT),
    "whole": (c_int32, _OUT),
    "exchange": (c_int32, c_int32, c_double, _OUT),
    "save": (c_char_p, _OUT),
    "checkpoint": (),
    "restore": (c_char_p, _OUT),
    "result": (c_char_p, _OUT),
    "progress": (c_double, c_double, c_char_p),
    "allow_loss": (),
    "lanes": (c_int32, c_int32, _OUT, _OUT, _OUT, _OUT),
    "lane_wait": (c_int32, c_double),
    "lane_done": (c_int32,),
    "put_bytes": (c_char_p, _OUT, c_int64),
    "get_bytes": (c_char_p, _OUT, c_int64, _OUT),
}
"""The calls in the order of ``diel_calls``, each with its arguments behind the ``diel *``."""


@functools.cache
def callback_types() -> dict[str, Any]:
    """Return the type of each function of the table, in order."""
    return {
        name: ctypes.CFUNCTYPE(c_int32, c_void_p, *arguments) for name, arguments in CALLS.items()
    }
