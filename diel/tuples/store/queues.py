"""The tuples of a store: a queue for each tag, first in, first out, and indexes for patterns."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TypeAlias

from diel.tuples.protocol import Payload, is_piece
from diel.tuples.tags import Fields, fields_match, is_wildcard, split_fields

Entry: TypeAlias = "tuple[int, int, bytes, Payload]"
"""A stored tuple: its number, which increases in order of arrival; its version; the part of its
message from BODY on; and its payload if that is separate, else None."""


class Queues:
    """All tuples of a store, by tag.

    A tag with a single tuple, by far the most common case, has the entry in place of a queue.
    """

    def __init__(self) -> None:
        self.by_key: dict[bytes, Entry | deque[Entry]] = {}
        # Indexes for patterns: numbers and keys of tuples in order of arrival, by (number of
        # fields, first field). A bucket is made when a pattern first needs it, so that exact tags
        # cost nothing. OrderedDict, since in a plain dict the first key is slow to find after many
        # deletions at the front.
        self.buckets: dict[tuple[int, bytes | None], OrderedDict[int, bytes]] = {}

    def __len__(self) -> int:
        """Return the number of tuples."""
        return sum(len(queue) if type(queue) is deque else 1 for queue in self.by_key.values())

    def append(self, key: bytes, entry: Entry) -> None:
        """Add the newest tuple."""
        by_key = self.by_key
        if key not in by_key:
            by_key[key] = entry
        else:
            queue = by_key[key]
            if type(queue) is deque:
                queue.append(entry)
            else:
                by_key[key] = deque((queue, entry))  # type: ignore[arg-type]
        if self.buckets:
            for bucket in self._buckets_of(key):
                bucket[entry[0]] = key

    def take_first(self, key: bytes) -> Entry | None:
        """Remove and return the oldest tuple of a tag; None if there is none."""
        queue = self.by_key.get(key)
        if queue is None:
            return None
        if type(queue) is tuple:
            del self.by_key[key]
            entry: Entry = queue
        else:
            entry = queue.popleft()  # type: ignore[union-attr]
            if len(queue) == 1:
                self.by_key[key] = queue[0]  # type: ignore[assignment]
        if self.buckets:
            for bucket in self._buckets_of(key):
                del bucket[entry[0]]
        return entry

    def first(self, key: bytes) -> Entry | None:
        """Return the oldest tuple of a tag; None if there is none."""
        queue = self.by_key.get(key)
        if type(queue) is deque:
            return queue[0]
        return queue  # type: ignore[return-value]

    def replace(self, key: bytes, entry: Entry, changed: Entry) -> None:
        """Replace a tuple by a changed tuple with the same number."""
        queue = self.by_key[key]
        if type(queue) is deque:
            queue[queue.index(entry)] = changed
        else:
            self.by_key[key] = changed

    def restore(self, key: bytes, entry: Entry) -> None:
        """Put a tuple back to its place in the order, by its number."""
        queue = self.by_key.get(key)
        if queue is None:
            self.by_key[key] = entry
        else:
            if type(queue) is not deque:
                self.by_key[key] = queue = deque((queue,))  # type: ignore[arg-type]
            numbers = [queued[0] for queued in queue]
            queue.insert(bisect_left(numbers, entry[0]), entry)
        if is_piece(key):
            return
        fields = split_fields(key)
        for place in ((len(fields), fields[0]), (len(fields), None)):
            if place in self.buckets:
                bucket = self.buckets[place]
                bucket[entry[0]] = key
                # Nearly always it is the oldest again; if not, sort the bucket.
                bucket.move_to_end(entry[0], last=False)
                if len(bucket) > 1 and _second(bucket) < entry[0]:
                    self.buckets[place] = OrderedDict(sorted(bucket.items()))

    def oldest_match(self, pattern: Fields) -> bytes | None:
        """Return the key of the oldest tuple that a pattern matches; None if there is none."""
        for key in self._bucket_for(pattern).values():
            if fields_match(pattern, split_fields(key)):
                return key
        return None

    def matching(self, pattern: Fields) -> list[tuple[bytes, Entry]]:
        """Return all tuples that a pattern matches, oldest first."""
        found = []
        for key in dict.fromkeys(self._bucket_for(pattern).values()):
            if fields_match(pattern, split_fields(key)):
                found += [(key, entry) for entry in self.of(key)]
        return sorted(found, key=lambda item: item[1][0])

    def of(self, key: bytes) -> list[Entry]:
        """Return all tuples of a tag, oldest first."""
        queue = self.by_key.get(key)
        if queue is None:
            return []
        return list(queue) if type(queue) is deque else [queue]  # type: ignore[list-item]

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys of tags that have tuples."""
        return iter(self.by_key)

    def _bucket_for(self, pattern: Fields) -> OrderedDict[int, bytes]:
        """Return the bucket that has all matches of a pattern; create it at the first use."""
        head = None if is_wildcard(pattern[0]) else pattern[0]
        bucket = self.buckets.get((len(pattern), head))
        if bucket is None:
            found = []
            for key in self.by_key:
                if is_piece(key):
                    continue
                fields = split_fields(key)
                if len(fields) == len(pattern) and head in (None, fields[0]):
                    found += [(entry[0], key) for entry in self.of(key)]
            self._drop_empty_buckets()
            bucket = self.buckets[len(pattern), head] = OrderedDict(sorted(found))
        return bucket

    def _buckets_of(self, key: bytes) -> list[OrderedDict[int, bytes]]:
        """Return the existing buckets that a tag belongs to, at most two."""
        if is_piece(key):
            return []
        fields = split_fields(key)
        places = ((len(fields), fields[0]), (len(fields), None))
        return [self.buckets[place] for place in places if place in self.buckets]

    def _drop_empty_buckets(self) -> None:
        # A program whose patterns have ever new first fields must not leave a bucket for each.
        if len(self.buckets) > 256:
            for place in [place for place, bucket in self.buckets.items() if not bucket]:
                del self.buckets[place]


def _second(bucket: OrderedDict[int, bytes]) -> int:
    numbers = iter(bucket)
    next(numbers)
    return next(numbers)
