"""Requests that wait for a tuple, in order of arrival, and when they give up."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from diel.tuples.distributed import is_piece
from diel.tuples.tags import Fields, fields_match, split_fields

_SERVED_DEADLINES: Final = 64
"""Deadlines of requests that were served may lie about, so many beyond those that wait."""


@dataclass(slots=True)
class Waiter:
    """A request that waits for a tuple.

    Attributes
    ----------
    number : int
        Its place in order of arrival.
    client, serial : int
        Whose request it is.
    operation : int
    key : bytes
        The tag or pattern.
    pattern : Fields or None
        Its fields if it has wildcards.
    kind, meta : int, bytes
        The only payload that is welcome, if kind is not -1.
    argument : int
        Of the request.
    """

    number: int
    client: int
    serial: int
    operation: int
    key: bytes
    pattern: Fields | None
    kind: int
    meta: bytes
    argument: int


class Waiters:
    """All requests of a store that wait."""

    def __init__(self) -> None:
        self.by_number: dict[int, Waiter] = {}
        self._on_key: dict[bytes, dict[int, None]] = {}
        self._on_pattern: dict[int, None] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self.by_number.values())

    def add(self, waiter: Waiter, deadline_s: float) -> None:
        """Let a request wait, until a moment or for ever (infinity)."""
        self.by_number[waiter.number] = waiter
        if waiter.pattern is None:
            self._on_key.setdefault(waiter.key, {})[waiter.number] = None
        else:
            self._on_pattern[waiter.number] = None
        if deadline_s < math.inf:
            heapq.heappush(self._deadlines, (deadline_s, waiter.number))
            if len(self._deadlines) > 2 * len(self.by_number) + _SERVED_DEADLINES:
                live = [item for item in self._deadlines if item[1] in self.by_number]
                heapq.heapify(live)
                self._deadlines = live

    def remove(self, waiter: Waiter) -> None:
        """Forget a request."""
        del self.by_number[waiter.number]
        if waiter.pattern is not None:
            del self._on_pattern[waiter.number]
            return
        numbers = self._on_key[waiter.key]
        del numbers[waiter.number]
        if not numbers:
            del self._on_key[waiter.key]

    def first_on(self, key: bytes) -> Waiter | None:
        """Return who has waited longest for these very bytes, patterns left aside."""
        numbers = self._on_key.get(key)
        return self.by_number[next(iter(numbers))] if numbers else None

    def matching(self, key: bytes) -> list[Waiter]:
        """Return who waits for a tag, in order of arrival."""
        numbers = list(self._on_key.get(key, ()))
        if self._on_pattern and not is_piece(key):
            fields = split_fields(key)
            for number in self._on_pattern:
                pattern = self.by_number[number].pattern
                if pattern is not None and fields_match(pattern, fields):
                    numbers.append(number)
            numbers.sort()
        return [self.by_number[number] for number in numbers]

    def find(self, client: int, serial: int) -> Waiter | None:
        """Return the request of a client, if it waits."""
        for waiter in self.by_number.values():
            if (waiter.client, waiter.serial) == (client, serial):
                return waiter
        return None

    def overdue(self, now_s: float) -> list[Waiter]:
        """Return the requests whose deadline has passed, each once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            if number in self.by_number:
                found.append(self.by_number[number])
        return found

    def next_deadline_s(self) -> float:
        """Return the next moment at which `overdue` may have something."""
        while self._deadlines and self._deadlines[0][1] not in self.by_number:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf
