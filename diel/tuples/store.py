"""The matching of requests with tuples: a pure state machine.

``handle(request, now_s)`` returns the replies that follow from a request, ``expire(now_s)`` those
that follow from the passing of time. No I/O, no clock: tests, the in-process transport and the
server run the same code.

Several tuples may share a tag: first in, first out, also across the tags that a pattern matches.
Requests that wait are served in the order in which they came.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from typing import NamedTuple

from diel.tuples.protocol import Buffer, Operation, Reply, Request, Status
from diel.tuples.tags import fields_match, is_wildcard, split_fields


class _Entry(NamedTuple):
    number: int
    kind: int
    meta: bytes
    payload: Buffer


class _Waiter(NamedTuple):
    number: int
    request: Request
    pattern: tuple[bytes, ...] | None  # None: an exact tag


class TupleStore:
    """All tuples of one server, and the requests that wait for more."""

    def __init__(self) -> None:
        self._numbers = 0
        self._entries: dict[bytes, deque[_Entry]] = {}
        # For patterns: live entries in order of arrival, by (arity, first field). A bucket is
        # kept only once a pattern asked for it, so exact tags pay nothing. OrderedDict, since
        # the first key of a plain dict is slow to find after many deletions at the front.
        self._buckets: dict[tuple[int, bytes | None], OrderedDict[int, bytes]] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._waiting_for_tag: dict[bytes, dict[int, None]] = {}
        self._waiting_for_pattern: dict[int, None] = {}
        self._deadlines: list[tuple[float, int]] = []
        self.tuples_held = 0
        self.bytes_held = 0

    # -- requests ---------------------------------------------------------------------------

    def handle(self, request: Request, now_s: float) -> list[Reply]:
        """Apply one request.

        Parameters
        ----------
        request : Request
        now_s : float, seconds
            The time on any clock that does not go back.

        Returns
        -------
        list of Reply
            To this client and to others that waited; none for a plain put.
        """
        if request.operation == Operation.PUT:
            return self._put(request)
        if request.operation == Operation.FLUSH:
            return [Reply(request.client, request.serial, Status.OK)]
        return self._get(request, now_s)

    def expire(self, now_s: float) -> list[Reply]:
        """Give up on the requests whose timeout has passed."""
        replies = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            waiter = self._waiters.get(number)
            if waiter is not None:
                self._forget_waiter(waiter)
                replies.append(_timed_out(waiter.request))
        return replies

    def next_deadline_s(self) -> float:
        """When `expire` has something to do next; infinity if nothing waits with a timeout."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    # -- putting ----------------------------------------------------------------------------

    def _put(self, request: Request) -> list[Reply]:
        entry = _Entry(self._next_number(), request.kind, request.meta, request.payload)
        replies: list[Reply] = []
        if self._waiters:
            for waiter in self._waiters_for(request.key):
                self._forget_waiter(waiter)
                reply, taken = _offer(waiter.request, request.key, entry)
                replies.append(reply)
                if taken:
                    return replies
        self._add(request.key, entry)
        return replies

    def _waiters_for(self, key: bytes) -> list[_Waiter]:
        """Return who waits for this tag, in order of arrival."""
        numbers = list(self._waiting_for_tag.get(key, ()))
        if self._waiting_for_pattern:
            fields = split_fields(key)
            for number in self._waiting_for_pattern:
                pattern = self._waiters[number].pattern
                if pattern is not None and fields_match(pattern, fields):
                    numbers.append(number)
            numbers.sort()
        return [self._waiters[number] for number in numbers]

    def _add(self, key: bytes, entry: _Entry) -> None:
        queue = self._entries.get(key)
        if queue is None:
            queue = self._entries[key] = deque()
        queue.append(entry)
        for bucket in self._buckets_of(key):
            bucket[entry.number] = key
        self.tuples_held += 1
        self.bytes_held += len(entry.payload)

    # -- getting ----------------------------------------------------------------------------

    def _get(self, request: Request, now_s: float) -> list[Reply]:
        fields = split_fields(request.key)
        pattern = fields if any(map(is_wildcard, fields)) else None
        key = request.key if pattern is None else self._oldest_match(pattern)
        queue = self._entries.get(key) if key is not None else None
        if key is not None and queue:
            reply, taken = _offer(request, key, queue[0])
            if taken:
                self._remove_first(key, queue)
            return [reply]
        if request.timeout_s <= 0:
            return [_timed_out(request)]
        self._wait(request, pattern, now_s)
        return []

    def _oldest_match(self, pattern: tuple[bytes, ...]) -> bytes | None:
        for key in self._bucket_for(pattern).values():
            if fields_match(pattern, split_fields(key)):
                return key
        return None

    def _remove_first(self, key: bytes, queue: deque[_Entry]) -> None:
        entry = queue.popleft()
        if not queue:
            del self._entries[key]
        for bucket in self._buckets_of(key):
            del bucket[entry.number]
        self.tuples_held -= 1
        self.bytes_held -= len(entry.payload)

    def _wait(self, request: Request, pattern: tuple[bytes, ...] | None, now_s: float) -> None:
        waiter = _Waiter(self._next_number(), request, pattern)
        self._waiters[waiter.number] = waiter
        if pattern is None:
            self._waiting_for_tag.setdefault(request.key, {})[waiter.number] = None
        else:
            self._waiting_for_pattern[waiter.number] = None
        if request.timeout_s < math.inf:
            heapq.heappush(self._deadlines, (now_s + request.timeout_s, waiter.number))

    def _forget_waiter(self, waiter: _Waiter) -> None:
        del self._waiters[waiter.number]
        if waiter.pattern is not None:
            del self._waiting_for_pattern[waiter.number]
            return
        numbers = self._waiting_for_tag[waiter.request.key]
        del numbers[waiter.number]
        if not numbers:
            del self._waiting_for_tag[waiter.request.key]

    # -- the index for patterns ---------------------------------------------------------------

    def _bucket_for(self, pattern: tuple[bytes, ...]) -> OrderedDict[int, bytes]:
        """Return the bucket in which a pattern's matches lie; filled when first asked for."""
        head = None if is_wildcard(pattern[0]) else pattern[0]
        bucket = self._buckets.get((len(pattern), head))
        if bucket is None:
            found = []
            for key, queue in self._entries.items():
                fields = split_fields(key)
                if len(fields) == len(pattern) and head in (None, fields[0]):
                    found += [(entry.number, key) for entry in queue]
            bucket = self._buckets[len(pattern), head] = OrderedDict(sorted(found))
        return bucket

    def _buckets_of(self, key: bytes) -> list[OrderedDict[int, bytes]]:
        """Return the buckets, at most two, to which a tag belongs."""
        if not self._buckets:
            return []
        fields = split_fields(key)
        places = ((len(fields), fields[0]), (len(fields), None))
        return [self._buckets[place] for place in places if place in self._buckets]

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


def _offer(request: Request, key: bytes, entry: _Entry) -> tuple[Reply, bool]:
    """Answer a TAKE or READ with a tuple; say whether that takes it away.

    A request that names the only payload it can receive (``out=``) and meets another one is
    told so, and the tuple stays.
    """
    if request.kind >= 0 and (request.kind, request.meta) != (entry.kind, entry.meta):
        status, payload, taken = Status.MISMATCH, b"", False
        reply = Reply(request.client, request.serial, status, key, entry.kind, entry.meta, payload)
        return reply, taken
    reply = Reply(
        request.client, request.serial, Status.OK, key, entry.kind, entry.meta, entry.payload
    )
    return reply, request.operation == Operation.TAKE


def _timed_out(request: Request) -> Reply:
    return Reply(request.client, request.serial, Status.TIMEOUT)
