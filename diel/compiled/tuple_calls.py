"""The calls of ``diel.h`` for the tuple space."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.calls import RunCalls, write_text
from diel.compiled.layout import (
    ABSENT,
    ACKNOWLEDGE,
    BYTES,
    DONE,
    DTYPES,
    GIVE_BACK,
    IF_ABSENT,
    STRIPED,
    TAKE,
    VISIBLE,
    ArrayStruct,
)
from diel.compiled.values import array_at, value_at
from diel.errors import PayloadError
from diel.tag_text import parse_tag, spell_tag
from diel.tuples.tags import ANY

if TYPE_CHECKING:
    from diel.compiled.layout import CopyStruct
    from diel.loading.context import Context
    from diel.tuples.handles import Claim

_TAGS_REMEMBERED: Final = 10_000


class TupleCalls(RunCalls):
    """Those of one copy."""

    def __init__(self, context: Context, struct: CopyStruct) -> None:
        super().__init__(context, struct)
        self._tuples = context.tuples
        self.tput, self.tget = self._tuples.tput, self._tuples.tget
        self._claims: dict[int, Claim] = {}
        self.matched_tag: Any = None

    def put(self, tag: bytes, value: int, flags: int, timeout_s: float) -> int | None:
        """Put a value."""
        found, name = value_at(ArrayStruct.from_address(value)), pattern_at(tag)
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
        struct, pattern = self.destination(value), pattern_at(tag)
        timeout = None if timeout_s < 0 else timeout_s
        take = self._tuples.tget if how == TAKE else self._tuples.tread
        out = array_at(struct) if struct.data and struct.ndim and struct.dtype in DTYPES else None
        found = take(pattern, timeout=timeout, out=out, with_tag=_is_wild(pattern))
        self.matched_tag = pattern
        if _is_wild(pattern):
            self.matched_tag, found = found
        if out is not None:
            return
        if how == TAKE:
            self.give_taken(struct, tag, found)
            return
        try:
            self.give(struct, found)
        except PayloadError as error:
            raise PayloadError(f'"{tag.decode()}": {error}; it is left there') from None

    def get_bytes(self, tag: bytes, data: int, room: int, size: int) -> None:
        """Take bytes, as `get` does."""
        struct = ArrayStruct(data=data, bytes=room, dtype=BYTES, ndim=1)
        self.get(TAKE, tag, ctypes.addressof(struct), -1.0)
        ctypes.c_int64.from_address(size).value = struct.bytes

    def put_bytes(self, tag: bytes, data: int, size: int) -> None:
        """Put bytes, as `put` does."""
        struct = ArrayStruct(data=data, bytes=size, dtype=BYTES, ndim=1)
        self.put(tag, ctypes.addressof(struct), 0, -1.0)

    def give_taken(self, struct: ArrayStruct, tag: bytes, value: Any) -> None:
        """Give a value that was taken, or put it again."""
        try:
            self.give(struct, value)
        except PayloadError as error:
            self._tuples.tput(self.matched_tag, value)
            raise PayloadError(f'"{tag.decode()}": {error}; it was put again') from None

    def matched(self, tag: int, room: int) -> None:
        """Write the tag of the last tuple that was found."""
        fields = self.matched_tag if isinstance(self.matched_tag, tuple) else (self.matched_tag,)
        if self.matched_tag is None:
            raise PayloadError("no tuple was taken or read so far")
        write_text(tag, room, spell_tag(list(fields)).encode(), "the tag")

    def claim(self, tag: bytes, value: int, number: int, timeout_s: float, lease_s: float) -> None:
        """Take a value under a claim."""
        struct = self.destination(value)
        claim = self._tuples.claim(
            pattern_at(tag),
            timeout=None if timeout_s < 0 else timeout_s,
            lease=lease_s if lease_s > 0 else None,
        )
        try:
            self.give(struct, claim.value)
        except PayloadError as error:
            claim.give_back()
            raise PayloadError(f'"{tag.decode()}": {error}; it was given back') from None
        self.matched_tag = claim.tag
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
        ctypes.c_int64.from_address(count).value = self._tuples.count(pattern_at(tag))

    def increment(self, tag: bytes, by: float, total: int | None) -> None:
        """Add to the number in a tuple."""
        step = int(by) if by.is_integer() and abs(by) < 2**53 else by
        found = self._tuples.increment(pattern_at(tag), step)
        if total:
            ctypes.c_double.from_address(total).value = found

    def flush(self) -> None:
        """Wait until all puts are in the space."""
        self._tuples.flush()


@functools.lru_cache(maxsize=_TAGS_REMEMBERED)
def pattern_at(tag: bytes) -> Any:
    """Return the tag or pattern that a text names."""
    fields = tuple(ANY if field is None else field for field in parse_tag(tag.decode()))
    return fields[0] if len(fields) == 1 and isinstance(fields[0], str) else fields


def _is_wild(pattern: Any) -> bool:
    return pattern is ANY or (type(pattern) is tuple and ANY in pattern)
