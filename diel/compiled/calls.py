"""What each call of ``diel.h`` does, for one copy of a module: its context, asked from C."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.layout import (
    ABSENT,
    ACKNOWLEDGE,
    CALLS,
    DONE,
    DTYPES,
    ENDS_SOON,
    FAILED,
    GIVE_BACK,
    IF_ABSENT,
    JSON,
    LATE,
    OF_COPY,
    STOP_NOW,
    STOPPED,
    STRIPED,
    TAKE,
    TEXT,
    VISIBLE,
    ArrayStruct,
    CopyStruct,
    table_type,
)
from diel.compiled.values import OwnedMemory, array_at, as_memory, fill, value_at
from diel.errors import DielError, PayloadError, RunStopped
from diel.text import describe_error
from diel.tuples.tag_text import pattern_of, spell_tag
from diel.tuples.tags import ANY

if TYPE_CHECKING:
    from diel.loading.context import Context
    from diel.tuples.handles import Claim

_NO_ERROR: Final = b""
_TAGS_REMEMBERED: Final = 10_000


class CopyCalls:
    """The calls of one copy of a module on one rank, and what it has of diel's.

    Parameters
    ----------
    context : Context
    rank, ranks : int
        Of the copy.
    """

    def __init__(self, context: Context, rank: int = 0, ranks: int = 1) -> None:
        self._context = context
        self._tuples = context.tuples
        self._memory = OwnedMemory()
        self._claims: dict[int, Claim] = {}
        self._matched: Any = None
        self.error: BaseException | None = None
        """The first error of a call that the module has not cleared."""
        self.struct = _struct_of(context, rank, ranks)

    def __enter__(self) -> CopyCalls:
        _open[ctypes.addressof(self.struct)] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _open[ctypes.addressof(self.struct)]
        self._memory.clear()

    def keep(self, error: BaseException) -> int:
        """Keep the error of a call, and return its code."""
        self.struct.error = _in_words(error).encode(errors="replace")[:1000]
        if isinstance(error, TimeoutError) and isinstance(error, DielError):
            return LATE
        if self.error is None:
            self.error = error
        return STOPPED if isinstance(error, RunStopped) else FAILED

    # -- options, and the log -----------------------------------------------------------------

    def option(self, path: bytes, dtype: int, out: int | None, room: int, count: int) -> int:
        """Find an option, and convert it to a type; a type of 0 asks whether it is there."""
        name = path.decode()
        try:
            value = _option_at(self._context.options, name)
        except LookupError:
            return ABSENT
        if not dtype:
            return DONE
        number = ctypes.c_int64.from_address(count)
        if dtype in (TEXT, JSON):
            text = _as_text(name, value, dtype)
            number.value = len(text)
            _write_text(out, room, text, f"option {name}")
            return DONE
        items = _as_numbers(name, value, dtype, is_list=room >= 0)
        number.value = len(items)
        if room >= 0 and len(items) > room:
            raise PayloadError(
                f"option {name} has {len(items)} numbers, and there is room for {room}"
            )
        if items:
            kind = {1: ctypes.c_uint8, 5: ctypes.c_int64, 11: ctypes.c_double}[dtype]
            (kind * len(items)).from_address(out or 0)[:] = items
        return DONE

    def log(self, level: int, text: bytes) -> None:
        """Write a line to the log."""
        self._context.log.log(level, "%s", text.decode(errors="replace"))

    # -- the tuple space ----------------------------------------------------------------------

    def put(self, tag: bytes, value: int, flags: int, timeout_s: float) -> int | None:
        """Put a value."""
        found, name = value_at(ArrayStruct.from_address(value)), _pattern(tag)
        timeout = None if timeout_s < 0 else timeout_s
        if flags & IF_ABSENT:
            return DONE if self._tuples.put_if_absent(name, found) else ABSENT
        if flags & STRIPED:
            self._tuples.dist_tput(name, found, timeout=timeout)
            if flags & VISIBLE:
                self._tuples.flush()
        else:
            self._tuples.tput(name, found, wait=bool(flags & VISIBLE), timeout=timeout)
        return None

    def get(self, how: int, tag: bytes, value: int, timeout_s: float) -> None:
        """Take or read a value: into the caller's memory, or memory that is handed out."""
        struct, pattern = self._destination(value), _pattern(tag)
        timeout = None if timeout_s < 0 else timeout_s
        take = self._tuples.tget if how == TAKE else self._tuples.tread
        out = array_at(struct) if struct.data and struct.ndim and struct.dtype in DTYPES else None
        found = take(pattern, timeout=timeout, out=out, with_tag=_is_wild(pattern))
        self._matched = pattern
        if _is_wild(pattern):
            self._matched, found = found
        if out is not None:
            return
        try:
            self._give(struct, found)
        except PayloadError as error:
            if how != TAKE:
                raise PayloadError(f'"{tag.decode()}": {error}; it is left there') from None
            self._tuples.tput(self._matched, found)
            raise PayloadError(f'"{tag.decode()}": {error}; it was put again') from None

    def _destination(self, address: int) -> ArrayStruct:
        """Return the struct for a value; memory that diel owns there is given back first."""
        struct = ArrayStruct.from_address(address)
        if struct.owner:
            self._memory.release(struct)
        return struct

    def _give(self, struct: ArrayStruct, value: Any) -> None:
        code, memory = as_memory(value)
        if struct.data:
            fill(struct, code, memory)
        else:
            self._memory.hand_out(struct, code, memory)

    def matched(self, tag: int, room: int) -> None:
        """Write the tag of the last tuple that was found."""
        fields = self._matched if isinstance(self._matched, tuple) else (self._matched,)
        if self._matched is None:
            raise PayloadError("no tuple was taken or read so far")
        _write_text(tag, room, spell_tag(list(fields)).encode(), "the tag")

    def release(self, value: int) -> None:
        """Give back memory that was handed out."""
        self._memory.release(ArrayStruct.from_address(value))

    def claim(self, tag: bytes, value: int, number: int, timeout_s: float, lease_s: float) -> None:
        """Take a value under a claim."""
        struct = self._destination(value)
        claim = self._tuples.claim(
            _pattern(tag),
            timeout=None if timeout_s < 0 else timeout_s,
            lease=lease_s if lease_s > 0 else None,
        )
        try:
            self._give(struct, claim.value)
        except PayloadError as error:
            claim.give_back()
            raise PayloadError(f'"{tag.decode()}": {error}; it was given back') from None
        self._matched = claim.tag
        key = 1 + max(self._claims, default=0)
        self._claims[key] = claim
        ctypes.c_int64.from_address(number).value = key

    def claim_end(self, how: int, number: int, lease_s: float) -> None:
        """Acknowledge a claim, give it back, or renew it."""
        claim = self._claims.get(number)
        if claim is None:
            raise PayloadError(f"this copy has no claim {number}: it has ended, or is none")
        if how not in (ACKNOWLEDGE, GIVE_BACK):
            claim.renew(lease_s)
            return
        del self._claims[number]
        claim.acknowledge() if how == ACKNOWLEDGE else claim.give_back()

    def count_tuples(self, tag: bytes, count: int) -> None:
        """Count the tuples that match."""
        ctypes.c_int64.from_address(count).value = self._tuples.count(_pattern(tag))

    def increment(self, tag: bytes, by: float, total: int | None) -> None:
        """Add to the number in a tuple."""
        step = int(by) if by.is_integer() and abs(by) < 2**53 else by
        found = self._tuples.increment(_pattern(tag), step)
        if total:
            ctypes.c_double.from_address(total).value = found

    def flush(self) -> None:
        """Wait until all puts are in the space."""
        self._tuples.flush()

    # -- the run ------------------------------------------------------------------------------

    def comm(self, whose: int, handle: int) -> None:
        """Give the Fortran handle of a communicator."""
        comm = self._context.comm if whose == OF_COPY else self._context.module_comm
        ctypes.c_int32.from_address(handle).value = comm.py2f()

    def clear_error(self) -> None:
        """Forget the errors so far, other than that the run is stopping."""
        if not isinstance(self.error, RunStopped):
            self.error = None
        self.struct.error = _NO_ERROR

    def must_stop(self, what: int) -> None:
        """Say whether the run is stopping, or the end of the time is near."""
        number = ctypes.c_int32.from_address(what)
        try:
            self._context.raise_if_stopped()
        except RunStopped:
            number.value = STOP_NOW
            raise
        if self._context.ends_soon:
            number.value = ENDS_SOON

    def time_left(self, seconds: int) -> None:
        """Give the seconds that are left; below 0 where nothing ends the copy."""
        left_s = self._context.time_left_s
        ctypes.c_double.from_address(seconds).value = -1.0 if left_s is None else left_s


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


@functools.cache
def call_table() -> ctypes.Structure:
    """Return the table of calls, which is made once in a process."""
    kind = table_type()
    table = kind(count=len(CALLS))
    for (name, callback), method in zip(kind._fields_[1:], CALLS, strict=True):
        setattr(table, name, callback(_served(getattr(CopyCalls, method))))
    return table


def _struct_of(context: Context, rank: int, ranks: int) -> CopyStruct:
    element = "" if context.element is None else context.element.name
    struct = CopyStruct(
        bytes=ctypes.sizeof(CopyStruct),
        calls=ctypes.addressof(call_table()),
        copy=context.copy_index,
        copies=context.copies,
        rank=rank,
        ranks=ranks,
        threads=context.threads,
        depth=len(context.iteration),
        module=context.module.encode(),
        group=context.group.encode(),
        run_dir=str(context.run_dir).encode(),
        folder=str(context.folder).encode(),
        element=element.encode(),
        session=context.session.encode(),
    )
    from diel.workflow.libraries import ABI

    struct.abi = ABI
    inner = context.iteration[-len(struct.iteration) :]
    struct.iteration[: len(inner)] = inner
    return struct


@functools.lru_cache(maxsize=_TAGS_REMEMBERED)
def _pattern(tag: bytes) -> Any:
    return pattern_of(tag.decode())


def _is_wild(pattern: Any) -> bool:
    return pattern is ANY or (type(pattern) is tuple and ANY in pattern)


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, DielError) else describe_error(error)


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
    kinds = {
        1: ((bool,), "true or false"),
        5: ((int,), "a whole number"),
        11: ((int, float), "a number"),
    }
    if dtype not in kinds:
        raise PayloadError(f"option {name}: options are asked for as bool, int64, float64 or text")
    wanted, words = kinds[dtype]
    items = value if is_list else [value]
    if not isinstance(items, (list, tuple)):
        raise PayloadError(f"option {name} is {value!r}, and a list is asked for")
    for item in items:
        if not isinstance(item, wanted) or (dtype != 1 and isinstance(item, bool)):
            raise PayloadError(f"option {name} is {value!r}, and {words} is asked for")
        if dtype == 5 and not -(2**63) <= item < 2**63:
            raise PayloadError(f"option {name} is {item}, which needs more than 64 bits")
    return [*map(float, items)] if dtype == 11 else list(items)


def _write_text(out: int | None, room: int, text: bytes, what: str) -> None:
    if not out or len(text) >= room:
        raise PayloadError(f"{what} has {len(text):,} bytes, and there is room for {room - 1:,}")
    ctypes.memmove(out, text + b"\0", len(text) + 1)
