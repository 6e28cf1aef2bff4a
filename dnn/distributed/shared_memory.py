"""Sums in memory that the ranks of one host share, without messages between them.

Each rank has a buffer that all ranks of its host see::

    counters | records of the last 32 pieces | two areas of 1 MiB

Arrays are summed in pieces, numbered 1, 2, ...; counters have the last piece for which the rank is
done with each of these steps::

    ENTERED   its elements can be read: they lie in shared memory, or are copied to an area
    SUMMED    its part of the piece is summed, from the elements of all ranks in order of rank
    LEFT      it has the whole sum

A rank waits for other ranks only by looking at their counters. Between hosts, ranks that sum the
same part exchange it by messages on a ring.

An array that lies in memory of `Communicator.shared_memory`, on all ranks at the same place, is
summed there: each rank reads its part of all arrays once and writes the sum to all of them. Any
other array is copied through the areas piece by piece.

A rank must see counters no earlier than what was written before them. Processors of the x86 line
guarantee that without further instructions, and others do not: there ranks share no memory.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from dnn.backend import Array
from dnn.distributed import allreduce
from dnn.errors import DisagreementError

if TYPE_CHECKING:
    from dnn.distributed.messages import MessageCommunicator

__all__ = ["HostMemory", "map_file", "memory_is_ordered"]

ENTERED, SUMMED, LEFT = 0, 8, 16  # a cache line each
_RECORDS: Final = 24
_RECORD_LENGTH: Final = 4
_RECORDS_KEPT: Final = 32
_HEADER_BYTES: Final = 8 * (_RECORDS + _RECORD_LENGTH * _RECORDS_KEPT + 8)
AREA_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 20  # of all arrays, so that what has been summed is still in the cache
_FOLDER: Final = Path("/dev/shm")


def memory_is_ordered() -> bool:
    """Whether other cores see the writes of this core in their order, as on x86."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686")


def map_file(name: str, size_bytes: int, create: bool) -> Array | None:
    """Map memory that several processes share by a name, which this one or another has made.

    None where the system has no such memory, or too little of it, or memory of that name is not
    visible to this process.
    """
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    try:
        file = os.open(_FOLDER / name, flags, 0o600)
    except OSError:
        return None
    try:
        if create:
            os.posix_fallocate(file, 0, size_bytes)  # else a write may end the process
        return np.frombuffer(mmap.mmap(file, size_bytes), np.uint8)
    except (OSError, ValueError):
        if create:
            remove_file(name)
        return None
    finally:
        os.close(file)


def remove_file(name: str) -> None:
    """Remove the name of memory, which stays for processes that have mapped it."""
    (_FOLDER / name).unlink(missing_ok=True)


def new_name() -> str:
    """Return a random name of memory, which no other process has."""
    return f"dnn-{secrets.token_hex(16)}"


@dataclass(frozen=True)
class _Region:
    """Memory that the ranks of a host share: a piece for each of them."""

    number: int
    start: int  # where this rank's piece begins in its address space
    size: int
    pieces: Sequence[Array]
    is_common: bool  # all ranks have the same piece: no sums in it
    holder: weakref.ref[_Holder]  # dead when this rank's piece is no longer used


class _Holder:
    """Owner of memory, which every view of an array in it keeps alive."""

    def __init__(self, memory: Array) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


class HostMemory:
    """Memory that the ranks of one host share, and sums in it.

    Parameters
    ----------
    communicator : MessageCommunicator
    hosts : sequence of sequences of int
        The ranks of each host.
    allocate : callable
        `MessageCommunicator._allocate`.
    own : sequence of array
        Buffer of counters and areas of each rank of this host.
    """

    def __init__(
        self,
        communicator: MessageCommunicator,
        hosts: Sequence[Sequence[int]],
        allocate: Callable[[int, bool], Sequence[Array] | None],
        own: Sequence[Array],
    ) -> None:
        self._communicator = communicator
        self._allocate = allocate
        self._members = next(ranks for ranks in hosts if communicator.rank in ranks)
        self._own_index = self._members.index(communicator.rank)
        self._lanes = min(map(len, hosts))
        between = (
            [ranks[self._own_index] for ranks in hosts] if self._own_index < self._lanes else []
        )
        self._between = allreduce.Members(communicator, between) if len(between) > 1 else None
        self._regions: list[_Region] = []
        self._region_count = 0  # number of regions ever made, the same on all ranks
        self._piece_count = 0  # numbered from 1
        # Element by element a memoryview is read several times as fast as an array.
        self._headers = [memoryview(piece.data[:_HEADER_BYTES]).cast("q") for piece in own]
        self._areas = [piece[_HEADER_BYTES:].reshape(2, AREA_BYTES) for piece in own]

    @classmethod
    def of(
        cls,
        communicator: MessageCommunicator,
        hosts: Sequence[Sequence[int]],
        allocate: Callable[[int, bool], Sequence[Array] | None],
    ) -> HostMemory | None:
        """Allocate memory of a host; return None if any rank has no such memory."""
        own = allocate(_HEADER_BYTES + 2 * AREA_BYTES, False)
        return None if own is None else cls(communicator, hosts, allocate, own)

    def holds(self, array: Array) -> bool:
        """Whether an array lies in memory of which each rank has a piece."""
        return self._region_of(array) is not None

    def is_common(self, array: Array) -> bool:
        """Whether an array lies in memory that is the same for all ranks of the host."""
        return self._region_of(array, common=True) is not None

    def memory(self, size_bytes: int, common: bool = False) -> Array | None:
        """Return zeros in which arrays are summed without a copy; None without shared memory.

        The memory is released when the array that is returned, and all its views, are gone. With
        `common`, ranks of the host get the same memory instead of a piece each.
        """
        pieces = self._allocate(size_bytes, common)
        if pieces is None:
            return None
        self._region_count += 1
        holder = _Holder(pieces[self._own_index])
        own = np.asarray(holder)
        start = _address(own)
        region = _Region(self._region_count, start, size_bytes, pieces, common, weakref.ref(holder))
        self._regions = [each for each in self._regions if each.holder() is not None] + [region]
        return own

    def sum(self, array: Array, tag: int) -> allreduce.Steps:
        """Sum an array of one axis over all ranks; messages between hosts have the tag `tag`."""
        region = self._region_of(array)
        if region is not None:
            views, start = self._views(region, array)
            self._piece_count += 1
            return self._sum_in_place(views, self._piece_count, tag, region.number, start)
        first = self._piece_count + 1
        self._piece_count += max(1, -(-array.nbytes // AREA_BYTES))
        return self._sum_by_copies(array, first, tag)

    def reduce_scatter(
        self, array: Array, parts: Sequence[slice], not_finite: list[tuple[int, int]]
    ) -> allreduce.Steps:
        """Sum this rank's part of an array in shared memory, where all ranks are on one host.

        Until `wait_for_all`, other ranks may still read this rank's array in their parts. To
        `not_finite` is appended each rank with its first element in this part that is not finite.
        """
        region = self._region_of(array)
        assert region is not None
        views, start = self._views(region, array)
        own = self._own_index
        mine = [view[parts[own]] for view in views]
        self._piece_count += 1

        def look(block: slice) -> None:
            total = mine[own][block]
            if math.isfinite(np.dot(total, total)):
                return
            terms = [term[block] for term in mine]
            at = parts[own].start + block.start
            allreduce.note_not_finite(total, terms, at, not_finite, own)

        def steps(piece: int) -> allreduce.Steps:
            yield from self._enter_together(piece, array, region.number, start)
            _add(mine, mine[own : own + 1], look)
            self._set_counter(SUMMED, piece)
            self._set_counter(LEFT, piece)

        return steps(self._piece_count)

    def wait_for_all(self, array: Array) -> allreduce.Steps:
        """Wait until all ranks of the host have written their parts of a common array."""
        region = self._region_of(array, common=True)
        assert region is not None
        self._piece_count += 1

        def steps(piece: int) -> allreduce.Steps:
            yield from self._enter_together(
                piece, array, region.number, _address(array) - region.start
            )
            self._set_counter(SUMMED, piece)
            self._set_counter(LEFT, piece)

        return steps(self._piece_count)

    def _enter_together(self, piece: int, array: Array, region: int, start: int) -> allreduce.Steps:
        """Wait until all ranks have entered a piece, and check that it is the same for all."""
        yield from self._enter(piece, array, region, start)
        yield from self._wait_until_all(ENTERED, piece, before=SUMMED)
        self._check(piece)

    def _views(self, region: _Region, array: Array) -> tuple[list[Array], int]:
        """Return the arrays of all ranks at the place of `array` in a region, and that place."""
        start = _address(array) - region.start
        stop = start + array.nbytes
        return [piece[start:stop].view(array.dtype) for piece in region.pieces], start

    def _region_of(self, array: Array, common: bool = False) -> _Region | None:
        start = _address(array)
        for region in self._regions:
            is_inside = region.start <= start and start + array.nbytes <= region.start + region.size
            if is_inside and region.is_common == common and region.holder() is not None:
                return region
        return None

    def _sum_in_place(
        self, views: Sequence[Array], piece: int, tag: int, region: int, start: int
    ) -> allreduce.Steps:
        yield from self._enter_together(piece, views[self._own_index], region, start)
        parts = allreduce.parts_of(views[0], self._lanes)
        if self._own_index < self._lanes:
            mine = [view[parts[self._own_index]] for view in views]
            if self._between is None:
                _add(mine, mine)
            else:
                _add(mine, mine[self._own_index : self._own_index + 1])
                yield from allreduce.ring(self._between, mine[self._own_index], tag)
                for index, view in enumerate(mine):
                    if index != self._own_index:
                        np.copyto(view, mine[self._own_index])
        self._set_counter(SUMMED, piece)
        yield from self._wait_until_all(SUMMED, piece, before=LEFT)
        self._set_counter(LEFT, piece)

    def _sum_by_copies(self, array: Array, first: int, tag: int) -> allreduce.Steps:
        length = AREA_BYTES // array.itemsize
        for piece, begin in enumerate(range(0, max(1, array.size), length), first):
            values = array[begin : begin + length]
            areas = [area[piece % 2][: values.nbytes].view(array.dtype) for area in self._areas]
            parts = allreduce.parts_of(values, self._lanes)
            # An area is free when all ranks have left the last piece but one.
            yield [_Condition(partial(self._all_reached, LEFT, piece - 2))]
            own = areas[self._own_index]
            for lane, part in enumerate(parts):
                if lane != self._own_index:
                    np.copyto(own[part], values[part])
            yield from self._enter(piece, values)
            yield from self._wait_until_all(ENTERED, piece, before=SUMMED)
            self._check(piece)
            if self._own_index < self._lanes:
                part = parts[self._own_index]
                terms = [area[part] for area in areas]
                terms[self._own_index] = values[part]
                _add(terms, [own[part]])
                if self._between is not None:
                    yield from allreduce.ring(self._between, own[part], tag)
            self._set_counter(SUMMED, piece)
            yield from self._wait_until_all(SUMMED, piece, before=LEFT)
            for lane, part in enumerate(parts):
                np.copyto(values[part], areas[lane][part])
            self._set_counter(LEFT, piece)

    # Counters. A rank handles pieces in their order, each of its three steps by itself.

    def _set_counter(self, counter: int, piece: int) -> None:
        self._headers[self._own_index][counter] = piece

    def _all_reached(self, counter: int, piece: int) -> bool:
        return all(header[counter] >= piece for header in self._headers)

    def _enter(self, piece: int, values: Array, region: int = 0, start: int = 0) -> allreduce.Steps:
        own = self._headers[self._own_index]
        while own[ENTERED] != piece - 1:
            yield [_Condition(lambda: own[ENTERED] == piece - 1)]
        yield [_Condition(partial(self._all_reached, LEFT, piece - _RECORDS_KEPT))]
        at = _RECORDS + _RECORD_LENGTH * (piece % _RECORDS_KEPT)
        for place, number in enumerate((values.nbytes, ord(values.dtype.char), region, start)):
            own[at + place] = number
        own[ENTERED] = piece

    def _wait_until_all(self, counter: int, piece: int, before: int) -> allreduce.Steps:
        """Wait until all ranks have reached a counter, and this one has done the piece before."""
        own = self._headers[self._own_index]

        def reached() -> bool:
            return own[before] == piece - 1 and self._all_reached(counter, piece)

        if not reached():
            yield [_Condition(reached)]

    def _check(self, piece: int) -> None:
        """Raise `DisagreementError` if ranks sum different arrays."""
        at = _RECORDS + _RECORD_LENGTH * (piece % _RECORDS_KEPT)
        records = [header[at : at + _RECORD_LENGTH].tolist() for header in self._headers]
        for index, record in enumerate(records):
            if record != records[0]:
                rank = self._members[index]
                raise DisagreementError(
                    f"rank {rank} sums {_described(record)}, and rank {self._members[0]} sums "
                    f"{_described(records[0])}: all ranks have to sum the same arrays in the same "
                    "order",
                    rank,
                )


class _Condition:
    """Request that is done when a condition on counters holds."""

    __slots__ = ("test",)

    def __init__(self, reached: Callable[[], bool]) -> None:
        self.test = reached


def _described(record: Sequence[int]) -> str:
    size_bytes, kind, region, start = record
    where = f" at byte {start:,} of shared memory {region}" if region else ""
    return f"{size_bytes:,} bytes of {np.dtype(chr(kind))}{where}"


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _add(
    terms: Sequence[Array], into: Sequence[Array], look: Callable[[slice], None] | None = None
) -> None:
    """Add arrays in their order, and write the sum to each array of `into`.

    Arrays are added block by block, so that every block is read from memory once. An array may be
    in both lists. `look` is called with each block that is summed.
    """
    size, step = terms[0].size, max(1, _BLOCK_BYTES // len(terms) // terms[0].itemsize)
    first, *copies = into
    if len(terms) == 1:
        for each in into:
            if each is not terms[0]:
                np.copyto(each, terms[0])
        return
    scratch = np.empty(min(step, size), terms[0].dtype)
    for begin in range(0, size, step):
        block = slice(begin, begin + step)
        total = scratch[: min(step, size - begin)] if len(terms) > 2 else first[block]
        np.add(terms[0][block], terms[1][block], out=total)
        for term in terms[2:]:
            np.add(total, term[block], out=total)
        if len(terms) > 2:
            np.copyto(first[block], total)
        for each in copies:
            np.copyto(each[block], total)
        if look is not None:
            look(block)


def pieces_of(memory: Array, size_bytes: int, count: int) -> list[Array]:
    """Cut memory into a piece for each rank; each piece begins at a page."""
    step = paged(size_bytes)
    return [memory[index * step : index * step + size_bytes] for index in range(count)]


def paged(size_bytes: int) -> int:
    """Return a size in bytes, rounded up to whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
