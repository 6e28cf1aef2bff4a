"""The table of calls that a rank hands to C, and the struct that a function is called with."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.layout import (
    BYTES,
    CALLS,
    DONE,
    FAILED,
    ArrayStruct,
    CopyStruct,
    callback_types,
)
from diel.compiled.peer_calls import PeerCalls
from diel.compiled.tuple_calls import pattern_at
from diel.workflow.libraries import ABI

if TYPE_CHECKING:
    from diel.loading.context import Context


class CopyCalls(PeerCalls):
    """All calls of one copy of a module on one rank, served within a block.

    Parameters
    ----------
    context : Context
    rank, ranks : int
        Of the copy.
    end_lanes : callable, optional
        The library's function that frees the requests of its exchanges.
    """

    def __init__(
        self, context: Context, rank: int = 0, ranks: int = 1, end_lanes: Any = None
    ) -> None:
        super().__init__(context, _struct_of(context, rank, ranks))
        self._end_lanes = end_lanes

    @property
    def address(self) -> int:
        """The address of the struct."""
        return ctypes.addressof(self.struct)

    def __enter__(self) -> CopyCalls:
        _open[self.address] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _open[self.address]
        if self._end_lanes is not None:
            self.end_lanes(self._end_lanes)
        self.memory.clear()


_open: dict[int, CopyCalls] = {}
"""The calls of copies that run in this process, by the address of their struct."""


def _served(method: Callable[..., int | None]) -> Callable[..., int]:
    """Return a callback for a call: no exception leaves it, since there are C frames below."""

    def call(address: int, *arguments: Any) -> int:
        try:
            copy = _open[address]
        except KeyError:
            return FAILED  # after the end of the copy, or with another struct
        try:
            return method(copy, *arguments) or DONE
        except BaseException as error:
            return copy.keep(error)

    return call


_MEMORY: Final = (ctypes.c_char * 2**56).from_address(0)
"""All memory of this process: a slice of it is bytes, without a call through ctypes."""
_WRITABLE: Final = memoryview(_MEMORY).cast("B")
_INTEGERS: Final = _WRITABLE.cast("q")


def _put_bytes(address: int, tag: bytes, data: int, size: int) -> int:
    """Put bytes: the short path of `TupleCalls.put_bytes`."""
    try:
        copy = _open[address]
        if size > 0 and data:
            copy.tput(pattern_at(tag), _MEMORY[data : data + size])
            return DONE
    except BaseException as error:
        return _open[address].keep(error) if address in _open else FAILED
    return _served(CopyCalls.put_bytes)(address, tag, data, size)


def _get_bytes(address: int, tag: bytes, data: int, room: int, size: int) -> int:
    """Take bytes: the short path of `TupleCalls.get_bytes`."""
    try:
        copy, pattern = _open[address], pattern_at(tag)
        if type(pattern) is str:
            found = copy.tget(pattern)
            copy.matched_tag = pattern
            if type(found) is not bytes or len(found) > room:
                struct = ArrayStruct(data=data, bytes=room, dtype=BYTES, ndim=1)
                copy.give_taken(struct, tag, found)
            else:
                _WRITABLE[data : data + len(found)] = found
                _INTEGERS[size >> 3] = len(found)
            return DONE
    except BaseException as error:
        return _open[address].keep(error) if address in _open else FAILED
    return _served(CopyCalls.get_bytes)(address, tag, data, room, size)


_QUICK: Final = {"put_bytes": _put_bytes, "get_bytes": _get_bytes}


@functools.cache
def call_table() -> ctypes.Structure:
    """Return the table of calls, which is made once in a process."""
    fields = [("count", ctypes.c_int64), *callback_types().items()]
    kind = type("CallsStruct", (ctypes.Structure,), {"_fields_": fields})
    table: ctypes.Structure = kind(count=len(CALLS))
    for name, callback in callback_types().items():
        function = _QUICK.get(name) or _served(getattr(CopyCalls, name))
        setattr(table, name, callback(function))
    return table


def _struct_of(context: Context, rank: int, ranks: int) -> CopyStruct:
    struct = CopyStruct(
        abi=ABI,
        bytes=ctypes.sizeof(CopyStruct),
        calls=ctypes.addressof(call_table()),
        copy=context.copy_index,
        copies=context.copies,
        rank=rank,
        ranks=ranks,
        threads=context.threads,
        module=context.module.encode(),
        group=context.group.encode(),
        run_dir=str(context.run_dir).encode(),
        folder=str(context.folder).encode(),
        element=b"" if context.element is None else context.element.name.encode(),
        session=context.session.encode(),
    )
    inner = context.iteration[-len(struct.iteration) :]
    struct.iteration[: len(inner)] = inner
    struct.depth = len(inner)
    return struct
