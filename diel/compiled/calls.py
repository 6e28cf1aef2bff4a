"""What each call of ``diel.h`` does, for one copy: options, log, communicators, states, reports."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.layout import (
    ABSENT,
    BOOL,
    DONE,
    ENDS_SOON,
    FAILED,
    FLOAT64,
    INT32,
    INT64,
    JSON,
    LATE,
    OF_COPY,
    STOP_NOW,
    STOPPED,
    TEXT,
    ArrayStruct,
    CopyStruct,
)
from diel.compiled.values import OwnedMemory, as_memory, copied, fill
from diel.errors import DielError, PayloadError, RunStopped
from diel.text import describe_error

if TYPE_CHECKING:
    from diel.loading.context import Context

_LONGEST_ERROR: Final = 1000
_OPTION_TYPES: Final[dict[int, tuple[Any, tuple[type, ...], str]]] = {
    BOOL: (ctypes.c_uint8, (bool,), "true or false"),
    INT32: (ctypes.c_int32, (int,), "a whole number"),
    INT64: (ctypes.c_int64, (int,), "a whole number"),
    FLOAT64: (ctypes.c_double, (int, float), "a number"),
}


class RunCalls:
    """The calls of one copy that ask nothing of other ranks, and what all calls share.

    Parameters
    ----------
    context : Context
    struct : CopyStruct
        What the function is called with.

    Attributes
    ----------
    error : BaseException or None
        The first error of a call that the module has not cleared.
    results : dict
        What the copy returns, by name.
    """

    def __init__(self, context: Context, struct: CopyStruct) -> None:
        self.context = context
        self.struct = struct
        self.memory = OwnedMemory()
        self.error: BaseException | None = None
        self.results: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._restored: Any = None

    def keep(self, error: BaseException) -> int:
        """Keep the error of a call, and return its code."""
        words = str(error) if isinstance(error, DielError) else describe_error(error)
        self.struct.error = words.encode(errors="replace")[:_LONGEST_ERROR]
        if isinstance(error, TimeoutError) and isinstance(error, DielError):
            return LATE
        if self.error is None:
            self.error = error
        return STOPPED if isinstance(error, RunStopped) else FAILED

    def clear_error(self) -> None:
        """Forget the errors so far, other than that the run is stopping."""
        if not isinstance(self.error, RunStopped):
            self.error = None
        self.struct.error = b""

    # -- values for the module ----------------------------------------------------------------

    def destination(self, address: int) -> ArrayStruct:
        """Return the struct for a value; memory that diel owns there is given back first."""
        struct = ArrayStruct.from_address(address)
        if struct.owner:
            self.memory.release(struct)
        return struct

    def give(self, struct: ArrayStruct, value: Any) -> None:
        """Copy a value to the memory that a struct has, or hand memory out; else PayloadError."""
        code, memory = as_memory(value)
        if struct.data:
            fill(struct, code, memory)
        else:
            self.memory.hand_out(struct, code, memory)

    def release(self, value: int) -> None:
        """Give back memory that was handed out."""
        self.memory.release(ArrayStruct.from_address(value))

    # -- options, and the log -----------------------------------------------------------------

    def option(self, path: bytes, dtype: int, out: int | None, room: int, count: int) -> int:
        """Find an option, and convert it to a type; a type of 0 asks whether it is there."""
        name = path.decode()
        try:
            value = _option_at(self.context.options, name)
        except LookupError:
            return ABSENT
        if not dtype:
            return DONE
        number = ctypes.c_int64.from_address(count)
        if dtype in (TEXT, JSON):
            text = _as_text(name, value, dtype)
            number.value = len(text)
            write_text(out, room, text, f"option {name}")
            return DONE
        items = _as_numbers(name, value, dtype, is_list=room >= 0)
        number.value = len(items)
        if room >= 0 and len(items) > room:
            raise PayloadError(
                f"option {name} has {len(items)} numbers, and there is room for {room}"
            )
        if items:
            kind = _OPTION_TYPES[dtype][0]
            (kind * len(items)).from_address(out)[:] = items
        return DONE

    def log(self, level: int, text: bytes) -> None:
        """Write a line to the log."""
        self.context.log.log(level, "%s", text.decode(errors="replace"))

    # -- the run ------------------------------------------------------------------------------

    def comm(self, whose: int, handle: int) -> None:
        """Give the Fortran handle of a communicator."""
        comm = self.context.comm if whose == OF_COPY else self.context.module_comm
        ctypes.c_int32.from_address(handle).value = comm.py2f()

    def must_stop(self, what: int) -> None:
        """Say whether the run is stopping, or the end of the time is near."""
        number = ctypes.c_int32.from_address(what)
        try:
            self.context.raise_if_stopped()
        except RunStopped:
            number.value = STOP_NOW
            raise
        if self.context.ends_soon:
            number.value = ENDS_SOON

    def time_left(self, seconds: int) -> None:
        """Give the seconds that are left; below 0 where nothing ends the copy."""
        left_s = self.context.time_left_s
        ctypes.c_double.from_address(seconds).value = -1.0 if left_s is None else left_s

    def allow_loss(self) -> None:
        """Declare that the group can go on without this copy."""
        self.context.allow_loss()

    # -- states, and what a copy reports ------------------------------------------------------

    def save(self, name: bytes, value: int) -> None:
        """Add a value to the state."""
        self._state[name.decode()] = copied(ArrayStruct.from_address(value))

    def checkpoint(self) -> None:
        """Save the state; the next one begins empty."""
        self.context.checkpoint(self._state)
        self._state = {}

    def restore(self, name: bytes, value: int) -> int | None:
        """Find a value of the state that was saved before."""
        if self._restored is None:
            found = self.context.restored
            self._restored = {} if found is None else found
        if not isinstance(self._restored, dict):
            kind = type(self._restored).__name__
            raise PayloadError(f"the saved state is of type {kind}, and no table of names")
        if name.decode() not in self._restored:
            return ABSENT
        self.give(self.destination(value), self._restored[name.decode()])
        return None

    def result(self, name: bytes, value: int) -> None:
        """Add a value to what the copy returns."""
        self.results[name.decode()] = copied(ArrayStruct.from_address(value))

    def progress(self, done: float, total: float, text: bytes | None) -> None:
        """Report the progress."""
        words = "" if text is None else text.decode(errors="replace")
        self.context.progress(done, None if total < 0 else total, words)


def _option_at(options: Any, path: str) -> Any:
    found = options
    for step in path.split("."):
        if isinstance(found, Mapping):
            found = found[step]
        elif isinstance(found, Sequence) and not isinstance(found, str) and step.isdecimal():
            found = found[int(step)]
        else:
            raise LookupError(path)
    return found


def _as_text(name: str, value: Any, dtype: int) -> bytes:
    if dtype == JSON:
        return json.dumps(value, default=str).encode()
    if not isinstance(value, str):
        raise PayloadError(f"option {name} is {value!r}, and text is asked for")
    return value.encode()


def _as_numbers(name: str, value: Any, dtype: int, *, is_list: bool) -> list[Any]:
    if dtype not in _OPTION_TYPES:
        raise PayloadError(f"option {name}: options are asked for as bool, int64, float64 or text")
    _, wanted, words = _OPTION_TYPES[dtype]
    items = value if is_list else [value]
    if not isinstance(items, (list, tuple)):
        raise PayloadError(f"option {name} is {value!r}, and a list is asked for")
    is_fit = [
        isinstance(item, wanted) and isinstance(item, bool) == (dtype == BOOL) for item in items
    ]
    if not all(is_fit):
        raise PayloadError(f"option {name} is {value!r}, and {words} is asked for")
    bits = {INT32: 32, INT64: 64}.get(dtype)
    if bits and not all(-(2 ** (bits - 1)) <= item < 2 ** (bits - 1) for item in items):
        raise PayloadError(f"option {name} is {value!r}, which needs more than {bits} bits")
    return [*map(float, items)] if dtype == FLOAT64 else list(items)


def write_text(out: int | None, room: int, text: bytes, what: str) -> None:
    """Copy a text and a null character to memory of the module; a PayloadError without room."""
    if not out or len(text) >= room:
        raise PayloadError(f"{what} has {len(text):,} bytes, and there is room for {room - 1:,}")
    ctypes.memmove(out, text + b"\0", len(text) + 1)
