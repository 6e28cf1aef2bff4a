"""Sums of a network's gradients over ranks: at the end of a step, or while it is computed.

The buffer of gradients is cut into buckets, between parameters, which are summed from the last one
to the first, the order in which a backward pass has them ready::

    compute     backward 5 | backward 4 | backward 3 | backward 2 | backward 1 |
    exchange               start 5, 4   | poll       | start 3, 2 | poll       | start 1, wait
    steps       program    Python         program      Python       program      Python

Neither MPI nor sums in shared memory advance while a rank computes, so that the program of a step
is cut where a layer is done, and sums in flight are polled there. Buckets are the same whether they
are summed early or late, and so are the bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.distributed.communicator import Communicator, Request
from dnn.graph.operation import Step
from dnn.parameters import FlatBuffer
from dnn.training.network import Network

__all__ = ["GradientExchange", "StepTimes", "TimedChoice"]

LEAST_BUCKET_BYTES: Final = 1 << 20
MOST_BUCKETS: Final = 8

# How often each way of a step is timed; the first time of each is a warm-up.
_TRIES: Final = 5


def buckets_of(buffer: FlatBuffer) -> list[slice]:
    """Cut a buffer of one network between its segments.

    Returns
    -------
    list of slice
        Buckets from the end of the buffer to its start: each has `LEAST_BUCKET_BYTES` or more, but
        for the last in the list.
    """
    flat = buffer.flat
    if flat.ndim != 1:
        return [slice(0, len(flat))]
    least = max(LEAST_BUCKET_BYTES, flat.nbytes // MOST_BUCKETS) // flat.itemsize
    buckets: list[slice] = []
    stop = flat.size
    for segment in reversed(buffer.segments):
        if stop - segment.start >= least or segment.start == 0:
            buckets.append(slice(segment.start, stop))
            stop = segment.start
    return buckets or [slice(0, flat.size)]


class GradientExchange:
    """Sums a network's gradients over ranks, and finds ranks whose gradients are not finite.

    Parameters
    ----------
    communicator : Communicator
    network : Network
    wire : str, optional
        Type in which gradients are sent; their own if left out.
    parts : sequence of slice, optional
        Slice of the sum that each rank needs; all of it if left out.

    Attributes
    ----------
    buckets : list of slice
        Slices of the buffer, in the order in which they are summed.
    bytes_sent, skipped : int
        Bytes that this rank has sent, and steps that were left out, since `begin`.
    found : dict, optional
        Rank, layer and step of the first gradients since `begin` that were not finite.
    """

    def __init__(
        self,
        communicator: Communicator,
        network: Network,
        wire: str | None,
        parts: Sequence[slice] | None,
    ) -> None:
        self._communicator = communicator
        self._network = network
        self._flat = network.gradients.flat
        self._wire = wire
        self._parts = parts
        # Some of K networks may diverge, which their histories show.
        self._checks_finite = isinstance(self._flat, np.ndarray) and network.models is None
        self.buckets = buckets_of(network.gradients)
        self._in_flight: list[Request] = []
        self._not_finite: list[tuple[int, int]] = []  # in this step: rank and element
        self.begin()

    def begin(self) -> None:
        """Reset the counts at the beginning of an epoch."""
        self.bytes_sent = self.skipped = self._step = 0
        self.found: dict[str, Any] | None = None

    def start(self) -> None:
        """Begin to sum the next bucket, whose gradients are ready."""
        communicator, bucket = self._communicator, self.buckets[len(self._in_flight)]
        if self._parts is None:
            gradients = self._flat[bucket]
            self._check_finite(bucket)
            size_bytes = gradients.nbytes // 2 if self._wire else gradients.nbytes
            self.bytes_sent += size_bytes * (communicator.size > 1)
            request = communicator.start_sum(gradients, wire=self._wire)
        else:
            self.bytes_sent += self._flat[bucket].nbytes  # half of it as parameters
            parts = [_common(part, bucket) for part in self._parts]
            request = communicator.start_reduce_scatter(self._flat, parts, self._not_finite)
        self._in_flight.append(request)

    def poll(self) -> None:
        """Advance the sums in flight."""
        if self._in_flight:
            self._in_flight[-1].test()

    def sum(self) -> bool:
        """Replace the gradients, or this rank's slice of them, by the sum over all ranks.

        Returns whether gradients of this rank, or those in its slice of any rank, were not finite,
        or the sum was too large for the wire.
        """
        self._step += 1
        while len(self._in_flight) < len(self.buckets):
            self.start()
        for request in self._in_flight:
            request.wait()
        self._in_flight.clear()
        segments = self._network.gradients.segments
        found = sorted(self._not_finite)
        self._not_finite.clear()
        for rank, element in found[:1]:
            name = next(each.name for each in reversed(segments) if each.start <= element)
            self._note_first(name, rank=rank)
        too_large = None
        if self._wire is not None and self._checks_finite:
            too_large = self._first_not_finite(slice(0, self._flat.size))
        if too_large is not None:
            self._note_first(segments[too_large].name, wire=self._wire)
        return bool(found) or too_large is not None

    def share(self) -> None:
        """Exchange slices of the parameters, each of which one rank has moved."""
        if self._parts is not None:
            self._communicator.allgather(self._network.parameters.flat, self._parts)

    def sum_and_step(self, calls: Sequence[Step]) -> None:
        """Sum and move the parameters, unless the gradients of a rank are not finite."""
        bad = np.zeros(1)
        bad[0] = self.sum()
        self._communicator.sum(bad)
        if bad[0]:
            self.skipped += 1
            return
        for function, arguments in calls:
            function(*arguments)
        self.share()

    def interleaved(self, steps: Sequence[Step]) -> list[Step]:
        """Return steps that compute gradients and begin sums of buckets where these are ready."""
        buffer = self._network.gradients
        last = last_uses(steps, buffer)
        starts = [0] * len(steps)  # how many buckets are begun after each step
        after = 0
        for bucket in self.buckets:
            inside = (s.name for s in buffer.segments if bucket.start <= s.start < bucket.stop)
            after = max([after, *(last[name] for name in inside)])
            starts[after] += 1
        layers_done = {last[segment.name] for segment in buffer.segments}
        spread: list[Step] = []
        begun = 0
        for at, step in enumerate(steps):
            spread.append(step)
            if at == len(steps) - 1:
                break  # `sum` begins the remaining buckets
            spread += [(self.start, ())] * starts[at]
            if begun and not starts[at] and at in layers_done:
                spread.append((self.poll, ()))
            begun += starts[at]
        return spread

    def _note_first(self, parameter: str, **origin: Any) -> None:
        """Note the first gradients of an epoch that are not finite: their origin, layer, step."""
        if self.found is None:
            layer = parameter.rpartition(".")[0]
            self.found = {**origin, "layer": layer, "step": self._step}

    def _check_finite(self, bucket: slice) -> None:
        """Note the first gradients of this rank in a bucket that are not finite, if any."""
        at = self._first_not_finite(bucket) if self._checks_finite else None
        if at is not None:
            segment = self._network.gradients.segments[at]
            self._not_finite.append((self._communicator.rank, segment.start))

    def _first_not_finite(self, bucket: slice) -> int | None:
        """Return the first segment of a bucket that has an element that is not finite."""
        values = self._flat[bucket]
        if np.isfinite(np.dot(values, values)):
            return None
        # Squares may overflow where the gradients themselves are finite.
        gradients = self._network.gradients
        for at, segment in enumerate(gradients.segments):
            is_inside = bucket.start <= segment.start < bucket.stop
            if is_inside and not np.isfinite(gradients[segment.name]).all():
                return at
        return None


def _common(part: slice, bucket: slice) -> slice:
    """Return the intersection of two slices; an empty one may lie outside of both."""
    start = max(part.start, bucket.start)
    return slice(start, max(start, min(part.stop, bucket.stop)))


def last_uses(steps: Sequence[Step], buffer: FlatBuffer) -> dict[str, int]:
    """Return, by name, the last step that reads or writes each segment of a buffer on the host.

    0 for a segment that no step uses.
    """
    base, item = buffer.flat.ctypes.data, buffer.flat.itemsize
    last = dict.fromkeys((segment.name for segment in buffer.segments), 0)
    for at, (_, arguments) in enumerate(steps):
        for array in _arrays_in(arguments):
            start, stop = np.lib.array_utils.byte_bounds(array)
            for segment in buffer.segments:
                if start < base + segment.stop * item and base + segment.start * item < stop:
                    last[segment.name] = at
    return last


def _arrays_in(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _arrays_in(each)


@dataclass
class StepTimes:
    """Times of the ways of a step on this rank, by name, and the way that all ranks have chosen."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    chosen: str = ""


class TimedChoice:
    """A step that can be computed in two ways: both are timed, and all ranks take the faster one.

    Parameters
    ----------
    communicator : Communicator
    ways : mapping of str to sequence of (function, arguments)
        They have the same results, and are the same on all ranks.
    times : StepTimes
        Earlier times of such steps, which are added to. All ranks have timed them equally often.
    """

    def __init__(
        self, communicator: Communicator, ways: Mapping[str, Sequence[Step]], times: StepTimes
    ) -> None:
        self._communicator = communicator
        self._ways = ways
        self._times = times
        for name in ways:
            times.seconds.setdefault(name, [])

    def __call__(self) -> None:
        """Compute a step, in the chosen way or in the next one to be timed."""
        if not self._times.chosen:
            self._try()
            return
        for function, arguments in self._ways[self._times.chosen]:
            function(*arguments)

    def _try(self) -> None:
        """Compute a step in the way that was timed least often, and time it."""
        seconds = self._times.seconds
        name = min(seconds, key=lambda each: len(seconds[each]))
        began_s = time.perf_counter()
        for function, arguments in self._ways[name]:
            function(*arguments)
        seconds[name].append(time.perf_counter() - began_s)
        if min(map(len, seconds.values())) == _TRIES:
            self._choose()

    def _choose(self) -> None:
        own = [min(times[1:]) for times in self._times.seconds.values()]  # the least disturbed
        slowest = np.max(self._communicator.gather_values(own), axis=0).tolist()
        _, name = min(zip(slowest, self._ways, strict=True))
        self._times.chosen = name
        took = ", ".join(
            f"{each} {1e3 * s:.3f} ms" for each, s in zip(self._ways, slowest, strict=True)
        )
        logging.getLogger("dnn").info("gradients are summed %s: a step took %s", name, took)
