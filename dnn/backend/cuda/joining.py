"""Recorded calls put in an order in which kernels that can run at once are one launch.

A launch of a small kernel takes as long as the kernel. Two kernels of which neither writes what the
other reads or writes may share a launch, each with all the blocks that it would have alone. The
kernel with the fewest blocks comes first, as they may have the most to do, and a GPU gives the next
block to whichever processor has room for one. Kernels that depend on each other may share a launch,
too, if one block of threads is enough for each: it runs them one after another, and waits for all
its threads between them. So may kernels that go through the same elements, if what one of them uses
of an element is what the same thread has written before.

What a call reads and writes follows from its arrays; a kernel writes what its parameters do not
declare to be ``const``. Calls keep their order where one writes memory that the other uses.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cuda.source import Kernel, function

__all__ = ["Call", "Launch", "Region", "Uses", "dependencies", "joint_kernel", "joint_launches"]

SMALL = 6
"""Most blocks of a kernel that one block may run in a loop, rather than a launch of its own."""

MOST_LANES = 16
MOST_PARAMETER_BYTES = 4000
"""CUDA passes 4 KiB to a kernel on every GPU."""


class Region(NamedTuple):
    """Memory of an array: addresses from `begin` to `end`.

    If `pitch` is not 0, only the first `width` bytes of each `pitch` bytes belong to it, as those
    of a segment in a buffer with a row for each network.
    """

    begin: int
    end: int
    pitch: int
    width: int

    @classmethod
    def of(cls, x: Any) -> Region:
        """Return the memory of an array."""
        axes = sorted((abs(step), n) for n, step in zip(x.shape, x.strides, strict=True) if n > 1)
        lowest = sum(min(0, (n - 1) * s) for n, s in zip(x.shape, x.strides, strict=True))
        begin = x.data.ptr + (lowest if x.size else 0)
        size = x.dtype.itemsize if x.size else 0
        within = size
        pitch = 0
        for step, n in axes:
            within, size, pitch = size, size + step * (n - 1), step
        return cls(begin, begin + size, *((pitch, within) if within < pitch else (0, 0)))

    def overlaps(self, other: Region) -> bool:
        """Say whether two regions may have memory in common."""
        if self.end <= other.begin or other.end <= self.begin:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        apart = (other.begin - self.begin) % self.pitch
        return apart < self.width or self.pitch - apart < other.width

    def covers(self, other: Region) -> bool:
        """Say whether another region lies within this one."""
        inside = self.begin <= other.begin and other.end <= self.end
        return inside and (not self.pitch or (self[2:], self.begin) == (other[2:], other.begin))


class Uses(NamedTuple):
    """The memory that a call reads and writes."""

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]

    @classmethod
    def of(cls, reads: Iterable[Any], writes: Iterable[Any]) -> Uses:
        """Return the memory of arrays that are read, and of those that are written."""
        return cls(tuple(map(Region.of, reads)), tuple(map(Region.of, writes)))


class Call(NamedTuple):
    """A function and its arguments, as a replay calls it.

    Calls of one `key` that do not depend on each other may become one: `together` returns it,
    given their arguments.
    """

    function: Any
    arguments: tuple[Any, ...]
    key: Any = None
    together: Callable[[Sequence[tuple[Any, ...]]], Call] | None = None

    def run(self) -> None:
        """Call the function."""
        self.function(*self.arguments)


class Launch(NamedTuple):
    """A kernel to be launched.

    Attributes
    ----------
    kernel : Kernel
    blocks : int
    arguments : tuple
    joins : bool
        Whether others may share its launch.
    turns : tuple of int
        Number of elements over which the kernel loops, and how many neighbours a turn has: equal
        where a thread has the same elements, with as many blocks. Empty if that is not known.
    by_element : tuple of int
        Places among the arguments of contiguous arrays of which a turn uses its own elements alone.
    lanes : int
        How many arguments, the first ones, are numbers of blocks: they sum up to `blocks`, and the
        kernel needs all of them.
    """

    kernel: Kernel
    blocks: int
    arguments: tuple[Any, ...]
    joins: bool
    turns: tuple[int, ...] = ()
    by_element: tuple[int, ...] = ()
    lanes: int = 0

    def each_use(self) -> list[tuple[Region, bool, bool]]:
        """Return the memory of each array, whether it is written, and whether it is by element.

        A kernel writes what its parameters do not declare to be ``const``.
        """
        declared = self.kernel.parameters.split(",")
        return [
            (Region.of(x), "const" not in text, at in self.by_element)
            for at, (x, text) in enumerate(zip(self.arguments, declared, strict=True))
            if "*" in text
        ]

    def uses(self) -> Uses:
        """Return what the kernel reads and writes."""
        each = self.each_use()
        reads = tuple(region for region, writes, _ in each if not writes)
        return Uses(reads, tuple(region for region, writes, _ in each if writes))


def dependencies(uses: Sequence[Uses | None]) -> list[set[int]]:
    """Return for each call the earlier ones that have to be done before it.

    Parameters
    ----------
    uses : sequence of Uses or None
        None for a call that may use any memory.
    """
    before: list[set[int]] = []
    size = sum(len(each.reads) + len(each.writes) for each in uses if each is not None)
    begins, ends = np.zeros((2, size), np.int64)  # an end of 0: a later call has the memory
    known: list[tuple[int, Region, bool]] = []  # a call, memory that it uses, whether it writes
    last: int | None = None
    for i, each in enumerate(uses):
        if each is None:
            before.append(set(range(i)))
            ends[:] = 0
            last = i
            continue
        needed = set() if last is None else {last}
        mine = [*((x, False) for x in each.reads), *((x, True) for x in each.writes)]
        for region, writes in mine:
            for at in np.flatnonzero((begins < region.end) & (ends > region.begin)):
                j, other, wrote = known[at]
                if (writes or wrote) and region.overlaps(other):
                    needed.add(j)
                    if writes and region.covers(other):
                        ends[at] = 0
        for region, writes in mine:
            begins[len(known)], ends[len(known)] = region[:2]
            known.append((i, region, writes))
        before.append(needed)
    return before


def joint_launches(
    calls: Sequence[Call | Launch], before: Sequence[set[int]]
) -> list[Call | Launch]:
    """Return calls in an order in which as many kernels as possible share a launch.

    Other calls are done as soon as they can, those of one key at once where that is possible.
    Kernels are launched only where no other call is ready, all that are ready in one launch.

    Parameters
    ----------
    calls : sequence of Call or Launch
    before : sequence of set of int
        For each call those that have to be done before it.
    """
    missing = [set(each) for each in before]
    after: list[list[int]] = [[] for _ in calls]
    for i, each in enumerate(before):
        for j in each:
            after[j].append(i)
    partners = _partners(calls, before)
    ready = {i for i, each in enumerate(missing) if not each}
    left = set(range(len(calls)))
    ordered: list[Call | Launch] = []

    def done(i: int) -> None:
        ready.discard(i)
        left.discard(i)
        for j in after[i]:
            missing[j].discard(i)
            if not missing[j]:
                ready.add(j)

    while ready:
        kernels = [i for i in ready if _joins(calls[i])]
        # A call waits for others that it may be one with, as long as there is something else to do.
        others = [i for i in ready if i not in kernels]
        prompt = [i for i in others if partners[i] & left <= ready]
        if prompt or not kernels:
            first = min(prompt or others)
            chosen = sorted({first, *(partners[first] & ready)})
            ordered.append(_together([calls[i] for i in chosen]))  # type: ignore[misc]
            for i in chosen:
                done(i)
            continue
        lanes = [_Lane([i], calls[i].blocks) for i in sorted(kernels)[:MOST_LANES]]  # type: ignore[union-attr]
        for lane in lanes:
            done(lane.members[0])
        _extend(lanes, calls, before, ready, done)
        ordered += _launches(lanes, calls)
    return ordered


class _Lane(NamedTuple):
    """Kernels that run one after another, by their places in a list of calls, and their blocks."""

    members: list[int]
    blocks: int


def _partners(calls: Sequence[Call | Launch], before: Sequence[set[int]]) -> list[set[int]]:
    """Return for each call the calls of its key of which neither needs the other's result."""
    of_key: dict[Any, list[int]] = {}
    for i, call in enumerate(calls):
        if isinstance(call, Call) and call.key is not None:
            of_key.setdefault(call.key, []).append(i)
    needed: list[int] = []  # all calls that have to be done before, directly or not, as bits
    for each in before:
        bits = 0
        for j in each:
            bits |= needed[j] | 1 << j
        needed.append(bits)
    partners: list[set[int]] = [set() for _ in calls]
    for alike in of_key.values():
        for i, j in itertools.combinations(alike, 2):
            if not needed[j] >> i & 1:
                partners[i].add(j)
                partners[j].add(i)
    return partners


def _together(calls: Sequence[Call]) -> Call:
    """Return one call in the place of calls of one key."""
    if len(calls) == 1 or calls[0].together is None:
        return calls[0]
    return calls[0].together([call.arguments for call in calls])


def _extend(
    lanes: list[_Lane],
    calls: Sequence[Call | Launch],
    before: Sequence[set[int]],
    ready: set[int],
    done: Callable[[int], None],
) -> None:
    """Add kernels to lanes that they depend on, where they need not wait for other blocks."""
    while True:
        for i in sorted(ready):
            needed = [lane for lane in lanes if before[i].intersection(lane.members)]
            if not needed or not _joins(calls[i]):
                continue
            members = sorted([*(j for lane in needed for j in lane.members), i])
            launches: list[Launch] = [calls[j] for j in members]  # type: ignore[misc]
            if _bytes(launches) > MOST_PARAMETER_BYTES:
                continue
            if len(needed) == 1 and _goes_by_element(calls, i, needed[0]):
                blocks = needed[0].blocks
            elif all(launch.blocks <= SMALL for launch in launches):
                blocks = 1
            else:
                continue
            lanes[:] = [*(lane for lane in lanes if lane not in needed), _Lane(members, blocks)]
            done(i)
            break
        else:
            return


def _goes_by_element(calls: Sequence[Call | Launch], i: int, lane: _Lane) -> bool:
    """Say whether each thread of a kernel needs only what it did itself in those of a lane."""
    mine: Launch = calls[i]  # type: ignore[assignment]
    for j in lane.members:
        other: Launch = calls[j]  # type: ignore[assignment]
        if not mine.turns or mine.turns != other.turns:
            return False
        if not mine.blocks == other.blocks == lane.blocks:
            return False
        pairs = itertools.product(mine.each_use(), other.each_use())
        for (region, writes, by_element), (before, wrote, went_by_element) in pairs:
            shared = (writes or wrote) and region.overlaps(before)
            if shared and not (region == before and by_element and went_by_element):
                return False
    return True


def _joins(call: Call | Launch) -> bool:
    return isinstance(call, Launch) and call.joins


def _launches(lanes: Sequence[_Lane], calls: Sequence[Call | Launch]) -> list[Launch]:
    """Return launches of lanes, those of few blocks first: one, unless of too many parameters."""
    launches: list[Launch] = []
    together: list[tuple[int, list[Launch]]] = []  # blocks and kernels of each lane
    size = 0
    for lane in sorted(lanes, key=lambda lane: lane.blocks):
        members: list[Launch] = [calls[i] for i in lane.members]  # type: ignore[misc]
        needed = _bytes(members)
        if together and size + needed > MOST_PARAMETER_BYTES:
            launches.append(_joint(together))
            together, size = [], 0
        together.append((lane.blocks, members))
        size += needed
    return [*launches, _joint(together)]


def _bytes(lane: Iterable[Launch]) -> int:
    """Return the bytes of the parameters of a lane: the number of its blocks, and those of each."""
    return 8 * (1 + sum(len(launch.arguments) for launch in lane))


def _joint(lanes: Sequence[tuple[int, Sequence[Launch]]]) -> Launch:
    """Return one launch of lanes, each of kernels that run one after another in some blocks."""
    (_, first), *others = lanes
    if not others and len(first) == 1:
        return first[0]
    kernel = joint_kernel(tuple(tuple(each.kernel for each in lane) for _, lane in lanes))
    arguments = [x for _, lane in lanes for launch in lane for x in launch.arguments]
    numbers = [np.int64(blocks) for blocks, _ in lanes]
    blocks = sum(map(int, numbers))
    return Launch(kernel, blocks, (*numbers, *arguments), False, lanes=len(lanes))


@functools.cache
def joint_kernel(lanes: tuple[tuple[Kernel, ...], ...]) -> Kernel:
    """Return the kernel that runs others.

    Parameters
    ----------
    lanes : tuple of tuple of Kernel
        Lanes run at once, each by blocks of its own; kernels of a lane one after another.

    Returns
    -------
    Kernel
        Its parameters: the number of blocks of each lane, and then those of each kernel.
    """
    parts = list(dict.fromkeys(kernel for lane in lanes for kernel in lane))
    functions = "".join(_part(i, kernel) for i, kernel in enumerate(parts))
    parameters = [f"const long long blocks{i}" for i in range(len(lanes))]
    lines = ["long long block = blockIdx.x;"]
    count = 0
    for i, lane in enumerate(lanes):
        calls = []
        for kernel in lane:
            given = []
            for declared in kernel.parameters.split(","):
                kind, name = re.fullmatch(r"\s*(.+?)\s*(\w+)\s*", declared).groups()  # type: ignore[union-attr]
                given.append(f"{name}_{count}")
                parameters.append(f"{kind} {name}_{count}")
            calls.append(f"part{parts.index(kernel)}(block, blocks{i}, {', '.join(given)});")
            count += 1
        inside = "\n        __syncthreads();\n        ".join(calls)
        lines.append(f"if (block < blocks{i}) {{\n        {inside}\n        return;\n    }}")
        lines.append(f"block -= blocks{i};")
    body = "\n    ".join(lines[:-1])
    names = "_and_".join(dict.fromkeys(kernel.name.partition("__")[0] for kernel in parts))
    declared = ", ".join(parameters)
    digest = hashlib.sha256(f"{functions}{declared}{body}".encode()).hexdigest()[:12]
    return function(f"joint_{digest}_{names[:80]}", declared, body, functions)


def _part(number: int, kernel: Kernel) -> str:
    """Return a kernel as a function of the number of its block and the number of its blocks."""
    body = re.sub(r"\bblockIdx\.x\b", "block_of_", kernel.body)
    body = re.sub(r"\bgridDim\.x\b", "blocks_of_", body)
    declared = f"const long long block_of_, const long long blocks_of_, {kernel.parameters}"
    # Inlined: a call would have the parameters in registers, of which a thread would need up to
    # half as many again, so that a processor would have room for fewer blocks.
    head = f"static __device__ __forceinline__ void part{number}(\n    {declared})"
    return f"{head}\n{{\n    {body}\n}}\n"
