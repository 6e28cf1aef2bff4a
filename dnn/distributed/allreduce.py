"""Routines that sum an array over all ranks by messages between two ranks, and the choice of one.

========== ======== =============== ===================================================
routine    messages bytes of each   how
========== ======== =============== ===================================================
doubling   log N    n log N         pairs of ranks exchange all that they have summed
tree       2 log N  2 n             up to rank 0 and down again
halving    2 log N  2 n             pairs exchange halves, quarters, ... and back
ring       2 N      2 n             parts go round, each rank sends to the next
torus      4 sqrt N 2 n             rings of rows, then of columns, then of rows
direct     2 N      2 n             each rank sums one part and sends it to all others
two_level  2 R + N  2 n / R outside direct in a host of R ranks, rings between hosts
========== ======== =============== ===================================================

Each is a generator: it starts messages, yields their requests, and continues when all of them are
done. So a sum advances whenever it is tested, while the rank computes something else in between.
Whatever the number of ranks, each element is summed by one rank, or by several in the same order,
so that all ranks get the same bits.

Which of them sums arrays of a size is measured once, decided by rank 0, and kept. Sizes are grouped
by powers of 4; those above 16 MiB are in the group of 16 MiB. At the first sum of a group rank 0
decides by the first of these that applies::

    DNN_ALLREDUCE names a routine            this routine, for all sizes
    DNN_ROUTINES is "fixed"                  `fixed_choice`: the same on all machines
    the machine's folder of choices has it   the fastest, measured with as many ranks and hosts
    else                                     all ranks measure, and rank 0 keeps the result

Routines add in different orders, so with more than two ranks sums have the same bits only where the
choices are the same.

References
----------
.. [1] Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
       MPICH, 2005: doubling, halving, and how other numbers of ranks than powers of two begin.
.. [2] Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
       2009: the ring.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from dnn.backend import ALIGNMENT_BYTES, Array
from dnn.backend.rounding import narrow, widen
from dnn.backend.routines import ROUTINES_VARIABLE, ConvolutionChoices, machine_choices
from dnn.errors import unknown_name

if TYPE_CHECKING:
    from dnn.distributed.messages import MessageCommunicator

__all__ = [
    "ALLREDUCE_VARIABLE",
    "ROUTINES",
    "Steps",
    "SumChoices",
    "direct",
    "direct_gather",
    "direct_scatter",
    "fixed_choice",
    "named_routine",
    "note_not_finite",
    "parts_of",
    "ring",
    "size_class",
    "two_level",
]


class Pending(Protocol):
    """Protocol of the requests that a routine waits for."""

    def test(self) -> bool:
        """Return whether the request is done."""


class Messages(Protocol):
    """Protocol of the part of a communicator that a routine uses."""

    rank: int
    size: int

    def send(self, array: Array, rank: int, tag: int = 0) -> Pending:
        """Begin to send an array."""

    def receive(self, array: Array, rank: int, tag: int = 0) -> Pending:
        """Begin to receive into an array."""


Steps = Iterator[Sequence[Pending]]


class Members:
    """Some ranks of a communicator, numbered from 0, for messages between them.

    Parameters
    ----------
    messages : Messages
    ranks : sequence of int
        The caller's rank is among them.
    """

    def __init__(self, messages: Messages, ranks: Sequence[int]) -> None:
        self.rank = ranks.index(messages.rank)
        self.size = len(ranks)
        self._messages = messages
        self._ranks = ranks

    def send(self, array: Array, rank: int, tag: int = 0) -> Pending:
        """Begin to send an array."""
        return self._messages.send(array, self._ranks[rank], tag)

    def receive(self, array: Array, rank: int, tag: int = 0) -> Pending:
        """Begin to receive into an array."""
        return self._messages.receive(array, self._ranks[rank], tag)


def parts_of(array: Array, count: int) -> list[slice]:
    """Cut an array of one axis into parts of about the same size, at cache lines."""
    line = max(1, ALIGNMENT_BYTES // array.itemsize)
    lines = -(-array.size // line)
    bounds = [min(array.size, line * (lines * part // count)) for part in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def doubling(messages: Messages, array: Array, tag: int) -> Steps:
    """Sum by pairs of ranks that exchange whole arrays: fewest messages, good for small arrays."""
    received = np.empty_like(array)

    def exchange(pairs: Messages) -> Steps:
        step = 1
        while step < pairs.size:
            other = pairs.rank ^ step
            yield [pairs.receive(received, other, tag), pairs.send(array, other, tag)]
            np.add(array, received, out=array)
            step *= 2

    yield from _among_a_power_of_two(messages, array, tag, exchange)


def halving(messages: Messages, array: Array, tag: int) -> Steps:
    """Sum by pairs of ranks that exchange halves, then quarters, and so on; then gather them."""

    def exchange(pairs: Messages) -> Steps:
        if pairs.size == 1:
            return
        parts = parts_of(array, pairs.size)
        first, last = 0, pairs.size  # parts that this rank still sums
        received = np.empty(array.size, array.dtype)
        step = pairs.size // 2
        while step:
            other, middle = pairs.rank ^ step, (first + last) // 2
            lower, upper = (first, middle), (middle, last)
            kept, given = (upper, lower) if pairs.rank & step else (lower, upper)
            out, into = (
                slice(parts[begin].start, parts[end - 1].stop) for begin, end in (given, kept)
            )
            arrived = received[: into.stop - into.start]
            yield [pairs.receive(arrived, other, tag), pairs.send(array[out], other, tag)]
            array[into] += arrived
            first, last = kept
            step //= 2
        step = 1
        while step < pairs.size:
            other, count = pairs.rank ^ step, last - first
            theirs = first + count if not pairs.rank & step else first - count
            out = slice(parts[first].start, parts[last - 1].stop)
            into = slice(parts[theirs].start, parts[theirs + count - 1].stop)
            yield [pairs.receive(array[into], other, tag), pairs.send(array[out], other, tag)]
            first, last = min(first, theirs), max(last, theirs + count)
            step *= 2

    yield from _among_a_power_of_two(messages, array, tag, exchange)


def _among_a_power_of_two(
    messages: Messages, array: Array, tag: int, exchange: Callable[[Messages], Steps]
) -> Steps:
    """Run a routine on a power of two of ranks, to which the other ranks send their arrays."""
    rank, size = messages.rank, messages.size
    extra = size - (1 << (size.bit_length() - 1))
    if rank < 2 * extra and rank % 2:
        yield [messages.send(array, rank - 1, tag)]
        yield [messages.receive(array, rank - 1, tag)]
        return
    if rank < 2 * extra:
        received = np.empty_like(array)
        yield [messages.receive(received, rank + 1, tag)]
        np.add(array, received, out=array)
    yield from exchange(Members(messages, [*range(0, 2 * extra, 2), *range(2 * extra, size)]))
    if rank < 2 * extra:
        yield [messages.send(array, rank + 1, tag)]


def tree(messages: Messages, array: Array, tag: int) -> Steps:
    """Sum up to rank 0 in a binomial tree, and send the sum down."""
    above, below = tree_of(messages.rank, messages.size)
    received = np.empty_like(array)
    for other in reversed(below):
        yield [messages.receive(received, other, tag)]
        np.add(array, received, out=array)
    if above is not None:
        yield [messages.send(array, above, tag)]
        yield [messages.receive(array, above, tag)]
    yield [messages.send(array, other, tag) for other in below]


def tree_of(rank: int, size: int, root: int = 0) -> tuple[int | None, list[int]]:
    """Return the parent of a rank, None for the root, and its children, in a binomial tree.

    Children with the largest subtrees come first: they have most to pass on.
    """
    place = (rank - root) % size
    lowest_bit = place & -place if place else 1 << max(size - 1, 1).bit_length()
    above = None if not place else (place - lowest_bit + root) % size
    steps = [1 << bit for bit in reversed(range(lowest_bit.bit_length() - 1))]
    return above, [(place + step + root) % size for step in steps if place + step < size]


def ring(messages: Messages, array: Array, tag: int) -> Steps:
    """Sum on a ring: each rank sends to the next one, and every part goes round twice."""
    parts = parts_of(array, messages.size)
    yield from _ring_scatter(messages, array, parts, tag)
    yield from _ring_gather(messages, array, parts, tag)


def _ring_scatter(messages: Messages, array: Array, parts: Sequence[slice], tag: int) -> Steps:
    """Sum on a ring so that each rank has the sum of one part."""
    rank, size = messages.rank, messages.size
    received = np.empty(max(part.stop - part.start for part in parts), array.dtype)
    for step in range(1, size):
        out, into = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        arrived = received[: into.stop - into.start]
        yield [
            messages.receive(arrived, (rank - 1) % size, tag),
            messages.send(array[out], (rank + 1) % size, tag),
        ]
        array[into] += arrived


def _ring_gather(messages: Messages, array: Array, parts: Sequence[slice], tag: int) -> Steps:
    """Send summed parts round a ring until each rank has all parts."""
    rank, size = messages.rank, messages.size
    for step in range(size - 1):
        out, into = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        yield [
            messages.receive(array[into], (rank - 1) % size, tag),
            messages.send(array[out], (rank + 1) % size, tag),
        ]


def torus(messages: Messages, array: Array, tag: int) -> Steps:
    """Sum on rings of the rows of a grid of ranks, of its columns, and of its rows again.

    The grid is as square as the number of ranks allows; of a prime number it is one ring.
    """
    rank, size = messages.rank, messages.size
    columns = next(each for each in range(math.isqrt(size - 1) + 1, size + 1) if size % each == 0)
    row, column = divmod(rank, columns)
    across = Members(messages, range(row * columns, (row + 1) * columns))
    down = Members(messages, range(column, size, columns))
    parts = parts_of(array, columns)
    yield from _ring_scatter(across, array, parts, tag)
    yield from ring(down, array[parts[column]], tag)
    yield from _ring_gather(across, array, parts, tag)


def direct(
    messages: Messages, array: Array, tag: int, wire: np.dtype[np.generic] | None = None
) -> Steps:
    """Sum one part on each rank, in order of rank, and send it to all others.

    With `wire`, float16 or bfloat16 as `dnn.backend.rounding` has them, elements of float32 are
    rounded to that type before they are sent, added as float32, and the sum is rounded once more,
    on all ranks.
    """
    parts = parts_of(array, messages.size)
    yield from direct_scatter(messages, array, parts, tag, wire)
    yield from direct_gather(messages, array, parts, tag, wire)


def direct_scatter(
    messages: Messages,
    array: Array,
    parts: Sequence[slice],
    tag: int,
    wire: np.dtype[np.generic] | None = None,
    not_finite: list[tuple[int, int]] | None = None,
) -> Steps:
    """Sum in order of rank so that each of the first ranks has the sum of one part.

    `note_not_finite` appends to `not_finite`.
    """
    rank, size = messages.rank, messages.size
    other_ranks = [other for other in range(size) if other != rank]
    mine = array[parts[rank]] if rank < len(parts) else array[:0]
    arrived = {other: np.empty(mine.size, wire or array.dtype) for other in other_ranks}
    started: list[Pending] = []
    if mine.size:
        started += [messages.receive(arrived[other], other, tag) for other in other_ranks]
    for other in other_ranks[rank:] + other_ranks[:rank]:
        if other < len(parts) and array[parts[other]].size:
            started.append(messages.send(_as_sent(array[parts[other]], wire), other, tag))
    yield started
    if not mine.size:
        return
    own = mine.copy()
    wide = np.empty_like(mine)
    for other in range(size):
        term = own
        if other != rank:
            term = arrived[other]
            if wire is not None:
                widen(term, wide)
                term = wide
        if other:
            np.add(mine, term, out=mine)
        else:
            np.copyto(mine, term)
    if not_finite is not None:
        terms = [arrived.get(other, own) for other in range(size)]
        note_not_finite(mine, terms, parts[rank].start, not_finite)


def note_not_finite(
    total: Array,
    terms: Sequence[Array],
    start: int,
    found: list[tuple[int, int]],
    replaced: int | None = None,
) -> None:
    """Append (term, element) for each term that is not finite, if the sum is not finite.

    `terms` were added up to `total`, whose first element has the number `start`. The term that the
    sum has overwritten, `replaced`, is named only if all other terms are finite.
    """
    # One pass; a sum of squares may be too large where no element is.
    if np.isfinite(np.dot(total, total)) or np.isfinite(total).all():
        return
    known = len(found)
    intact = [index for index in range(len(terms)) if index != replaced]
    for index in [*intact, *([] if replaced is None else [replaced])]:
        where = np.flatnonzero(~np.isfinite(terms[index]))
        if where.size and (index != replaced or len(found) == known):
            found.append((index, start + int(where[0])))


def direct_gather(
    messages: Messages,
    array: Array,
    parts: Sequence[slice],
    tag: int,
    wire: np.dtype[np.generic] | None = None,
) -> Steps:
    """Send the parts of the first ranks to all others."""
    rank, size = messages.rank, messages.size
    started: list[Pending] = []
    arriving: list[tuple[Array, Array]] = []
    for other, part in enumerate(parts):
        into = array[part]
        if other != rank and into.size:
            arrived = into if wire is None else np.empty(into.size, wire)
            arriving.append((arrived, into))
            started.append(messages.receive(arrived, other, tag))
    if rank < len(parts) and array[parts[rank]].size:
        mine = array[parts[rank]]
        sent = _as_sent(mine, wire)
        other_ranks = [(rank + step) % size for step in range(1, size)]
        started += [messages.send(sent, other, tag) for other in other_ranks]
        arriving.append((sent, mine))
    yield started
    if wire is not None:
        for arrived, into in arriving:
            widen(arrived, into)


def _as_sent(array: Array, wire: np.dtype[np.generic] | None) -> Array:
    if wire is None:
        return array
    sent = np.empty(array.size, wire)
    narrow(array, sent)
    return sent


def two_level(
    messages: Messages,
    array: Array,
    tag: int,
    hosts: Sequence[Sequence[int]],
) -> Steps:
    """Sum within each host, then between hosts, and send the sum to all ranks of the host.

    `hosts` are the ranks of each host. On each, as many ranks as the smallest host has sum a part
    each, and exchange it with other hosts.
    """
    within = next(ranks for ranks in hosts if messages.rank in ranks)
    lanes = min(map(len, hosts))
    parts = parts_of(array, lanes)
    host, lane = Members(messages, within), within.index(messages.rank)
    yield from direct_scatter(host, array, parts, tag)
    if lane < lanes:
        between = Members(messages, [ranks[lane] for ranks in hosts])
        yield from ring(between, array[parts[lane]], tag)
    yield from direct_gather(host, array, parts, tag)


ROUTINES: dict[str, Callable[[Messages, Array, int], Steps]] = {
    "doubling": doubling,
    "tree": tree,
    "halving": halving,
    "ring": ring,
    "torus": torus,
    "direct": direct,
}
"""Routines that work without the hosts of ranks, by name."""


ALLREDUCE_VARIABLE = "DNN_ALLREDUCE"
"""Environment variable that names the routine of all sums."""

_TIMED: Final = "timed in turn"  # in the file's name: results of other methods are not read
_TIMES: Final = 4
# Short sums are repeated more often: something else may run on the machine now and then.
_MOST_TIMES: Final = 40
_ENOUGH_S: Final = 20e-3
# A routine that is slower than the fastest by this factor, after so many times, is timed no more.
_TOO_SLOW: Final = 3.0
_TOO_SLOW_AFTER: Final = 2
_FEW_BYTES: Final = 1 << 14

Routine = Callable[[Array, int], Steps]


def named_routine() -> str:
    """Return the value of `ALLREDUCE_VARIABLE`, "" if it is not set."""
    return os.environ.get(ALLREDUCE_VARIABLE, "")


def size_class(size_bytes: int) -> int:
    """Return the smallest power of 4 that is at least a size, within 1 KiB to 16 MiB."""
    bits = (max(size_bytes, 1) - 1).bit_length()
    return 1 << min(max(10, bits + bits % 2), 24)


@cache
def measured_choices() -> ConvolutionChoices:
    """Return the choices measured on this machine, kept in a folder beside compiled kernels."""
    about = f"{platform.node()}, {os.cpu_count()} cores, NumPy {np.__version__}, {_TIMED}"
    name = f"sums-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    return machine_choices(name, about, of="sum")


def fixed_choice(size_bytes: int, ranks: int, offered: Sequence[str]) -> str:
    """Return the name of a routine by size and number of ranks alone, without measurements."""
    if size_bytes > _FEW_BYTES:
        wanted = ["shared", "two_level", "ring"]
    elif ranks > 8:
        wanted = ["two_level", "doubling"]
    else:
        wanted = ["doubling"]
    return next(name for name in wanted if name in offered)


class SumChoices:
    """Routines of a communicator for each class of sizes, decided together at the first sum.

    Attributes
    ----------
    names : dict of int to str
        From a class of sizes, in bytes, to the name of the routine last decided on.
    """

    def __init__(self, communicator: MessageCommunicator) -> None:
        self._communicator = communicator
        self.names: dict[int, str] = {}
        self._decided: dict[tuple[int, tuple[str, ...]], str] = {}

    def name_for(self, size_bytes: int, offered: Mapping[str, Routine]) -> str:
        """Return the routine of a sum; all ranks decide together at the first sum of a size class.

        Raises
        ------
        ConfigurationError
            If ``DNN_ALLREDUCE`` on rank 0 names no routine.
        """
        sizes = size_class(size_bytes)
        case = sizes, tuple(offered)  # offered routines depend on the type of elements
        name = self._decided.get(case)
        if name is None:
            name = self._decided[case] = self.names[sizes] = self._decide(sizes, offered)
        return name

    def _decide(self, sizes: int, offered: Mapping[str, Routine]) -> str:
        communicator = self._communicator
        kind = type(communicator).__name__.removesuffix("Communicator").lower()
        key = f"sum-{kind}-{communicator.size}ranks-{_layout(communicator.nodes)}-{sizes}bytes"
        missing = sorted(set(communicator.routine_names) - set(offered))
        key += "".join(f"-without_{each}" for each in missing)
        known = ""
        if communicator.rank == 0:
            said = named_routine()
            if said or os.environ.get(ROUTINES_VARIABLE) == "fixed":
                known = said or fixed_choice(sizes, communicator.size, list(offered))
            else:
                known = measured_choices().find(key, offered) or ""
        name: str = communicator.gather_values(known)[0]
        if not name:
            seconds = self._measured(sizes, offered)
            name = min(seconds, key=lambda each: seconds[each])
            if communicator.rank == 0:
                ms = {each: round(1e3 * taken, 4) for each, taken in seconds.items()}
                name = measured_choices().keep(key, {"routine": name, "ms": ms}, offered)
            name = communicator.gather_values(name)[0]
        if name not in offered:
            raise unknown_name(f"routine of {ALLREDUCE_VARIABLE}", name, offered)
        message = "sums of at most %s bytes over %s ranks: %s"
        logging.getLogger("dnn").info(message, f"{sizes:,}", communicator.size, name)
        return name

    def _measured(self, sizes: int, offered: Mapping[str, Routine]) -> dict[str, float]:
        """Time routines in turn on all ranks; return for each the least time of the slowest rank.

        In turn, so that something else that runs on the machine for a while disturbs all alike.
        """
        communicator = self._communicator
        array = np.zeros(sizes // 4, np.float32)
        slowest: dict[str, list[float]] = {name: [] for name in offered}
        least = dict.fromkeys(offered, math.inf)
        for round_ in range(_MOST_TIMES):
            for name, times in slowest.items():
                if len(times) >= _TOO_SLOW_AFTER and least[name] > _TOO_SLOW * min(least.values()):
                    continue
                communicator.gather_values(None)  # all begin together
                began_s = time.perf_counter()
                communicator.sum(array, routine=name)
                taken_s = time.perf_counter() - began_s
                times.append(max(communicator.gather_values(taken_s)))
                least[name] = min(times)
            if round_ + 1 >= _TIMES and (round_ + 1) * sum(least.values()) > _ENOUGH_S:
                break
        return least


def _layout(nodes: Sequence[int]) -> str:
    """Return how many ranks each host has: ``"2hosts4.4"``, from the largest."""
    counts = sorted((nodes.count(host) for host in set(nodes)), reverse=True)
    return f"{len(counts)}hosts" + ".".join(map(str, counts[:8]))
