"""Which payloads of a store may go to files, and when they do."""

from __future__ import annotations

from collections import deque

from diel.tuples.memory import Memory
from diel.tuples.queues import Queues
from diel.tuples.spill import Spilled, SpillFolder

_FIRST_CHECK: int = 1000


class Spillable:
    """Large payloads in a store, oldest first.

    Parameters
    ----------
    folder : SpillFolder
    queues, memory
        Of the store.
    """

    def __init__(self, folder: SpillFolder, queues: Queues, memory: Memory) -> None:
        self._folder = folder
        self._queues = queues
        self._memory = memory
        self._places: deque[tuple[int, bytes]] = deque()  # numbers and tags
        self._checked_at = _FIRST_CHECK

    def add(self, number: int, key: bytes) -> None:
        """Remember a large payload; forget, now and then, those that are gone."""
        self._places.append((number, key))
        if len(self._places) > self._checked_at:
            self._places = deque(
                place
                for place in self._places
                if any(entry[0] == place[0] for entry in self._queues.of(place[1]))
            )
            self._checked_at = max(_FIRST_CHECK, 2 * len(self._places))

    def make_room(self, missing_bytes: int) -> None:
        """Write the oldest payloads that lie there to files, until there is room.

        Where the disk takes no more, `Memory.spill_error` says so to whoever waits for room.
        """
        while missing_bytes > 0 and self._places:
            number, key = self._places.popleft()
            for entry in self._queues.of(key):
                if entry[0] != number or entry[3] is None or isinstance(entry[3], Spilled):
                    continue
                try:
                    spilled = self._folder.write(entry[3])
                except OSError as error:
                    self._places.appendleft((number, key))
                    self._memory.spill_error = f"{self._folder}: {error.strerror or error}"
                    return
                self._memory.spill_error = ""
                self._queues.replace(key, entry, (*entry[:3], spilled))
                self._memory.hold(-len(spilled))
                missing_bytes -= len(spilled)
