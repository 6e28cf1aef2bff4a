"""The memory of a store: what its tuples take, credit to send more, payloads moved to files.

A client sends a put without asking as long as it has credit, in bytes. The server grants credit
while there is room; where there is none it lets the client wait, or refuses. So a server never
holds more than its capacity and the credit that is out, an eighth of the capacity at most.

Where the workflow file gives it a disk, a server makes room by writing its oldest large payloads to
files.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections import OrderedDict, deque
from pathlib import Path
from typing import Final, NamedTuple

from diel.errors import TupleError
from diel.tuples.protocol import FIXED_BYTES, Credit, Out, Payload, Status, answer, pack_put
from diel.tuples.store.queues import Entry, Queues

_CREDIT_BYTES: Final = 2**20
_PUTS_AHEAD: Final = 15
"""Beside what was asked for, so much or so many times it is granted where there is plenty of room:
a question for each large put would cost a fifth of the time that the put takes."""
_FIRST_CHECK: Final = 1000
"""Places of large payloads that are remembered before those that are gone are forgotten."""


class _Asker(NamedTuple):
    client: int
    request_id: int
    wanted_bytes: int
    deadline_s: float


class StoreMemory:
    """Counts the bytes of one store, and those that its clients may send.

    `granted_bytes`, `arrived_bytes` and `released_bytes` are since the start: the credit that was
    given to clients, what has come within it, and what of that is gone again. What lies here and
    what credit is out are differences of these, so that a tuple's coming and going change one
    number each.
    """

    def __init__(self, capacity_bytes: int, refuse_when_full: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.granted_bytes = self.arrived_bytes = self.released_bytes = 0
        self._refuse_when_full = refuse_when_full
        self.credits: dict[int, Credit] = {}  # of each client that has ever put anything
        self.askers: OrderedDict[tuple[int, int], _Asker] = OrderedDict()  # in order of arrival
        self.spill_error = ""  # why tuples could not be moved to the disk the last time

    @property
    def held_bytes(self) -> int:
        """Bytes of the tuples that are here."""
        return self.arrived_bytes - self.released_bytes

    @property
    def credit_out_bytes(self) -> int:
        """Bytes that clients may still send without asking."""
        return self.granted_bytes - self.arrived_bytes

    def hold(self, cost_bytes: int) -> None:
        """Count more that lies here and has not come with a client's message."""
        self.released_bytes -= cost_bytes

    def release(self, cost_bytes: int) -> list[Out]:
        """Count a tuple as gone; return grants to clients that waited for room."""
        self.released_bytes += cost_bytes
        return self._serve_askers() if self.askers else []

    def credit_of(self, client: int) -> Credit:
        """Return a client's credit, a new one if it has none."""
        return self.credits.setdefault(client, Credit())

    def arrived(self, client: int, cost_bytes: int) -> Credit:
        """Count a message as held here, and reduce its client's credit by as much."""
        credit = self.credits.get(client)
        if credit is None:
            credit = self.credit_of(client)
        credit.credit_bytes -= cost_bytes
        self.arrived_bytes += cost_bytes
        if credit.credit_bytes < 0:  # more than it was granted
            self.granted_bytes -= credit.credit_bytes
            credit.credit_bytes = 0
        return credit

    def ask(
        self, client: int, request_id: int, wanted_bytes: int, deadline_s: float, timeout_s: float
    ) -> list[Out]:
        """Grant credit for at least `wanted_bytes`, refuse, or let the client wait."""
        asker = _Asker(client, request_id, wanted_bytes, deadline_s)
        if wanted_bytes > self.capacity_bytes:
            return [answer(client, request_id, Status.TOO_LARGE, self.capacity_bytes)]
        if not self.askers and self._fits(asker):
            return [self._grant(asker)]
        if self._refuse_when_full:
            return [self._no_room(asker, Status.FULL)]
        if timeout_s <= 0:
            return [self._no_room(asker, Status.TIMEOUT)]
        self.askers[client, request_id] = asker
        return []

    def expire(self, now_s: float) -> list[Out]:
        """Answer the clients that waited for room as long as they wanted to."""
        late = [asker for asker in self.askers.values() if asker.deadline_s <= now_s]
        for asker in late:
            del self.askers[asker.client, asker.request_id]
        replies = [self._no_room(asker, Status.TIMEOUT) for asker in late]
        return replies + (self._serve_askers() if late else [])

    def next_deadline_s(self) -> float:
        """Return when `expire` has something to do next."""
        return min((asker.deadline_s for asker in self.askers.values()), default=math.inf)

    def client_died(self, client: int) -> list[Out]:
        """Take back a client's credit and forget its questions."""
        credit = self.credit_of(client)
        self.granted_bytes -= credit.credit_bytes
        credit.credit_bytes = 0  # its puts still count, if it only starts over
        for place in [place for place in self.askers if place[0] == client]:
            del self.askers[place]
        return self._serve_askers()

    def missing_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes less would have to be held for a request to fit.

        What may come with the credit that is out counts too. Credit that its clients may never
        use is an eighth at most (see `_grant`), so it locks nobody out.
        """
        held_then = self.held_bytes + wanted_bytes
        spare = self.capacity_bytes + self.capacity_bytes // 8 - self.credit_out_bytes
        return max(0, held_then - min(self.capacity_bytes, spare))

    def _no_room(self, asker: _Asker, status: Status) -> Out:
        """Return the answer that there is no room: the bytes held, and what a full disk said."""
        reason = self.spill_error.encode()
        message, _ = pack_put(status, asker.request_id, self.held_bytes, 0, b"", b"", reason)
        return Out(asker.client, message)

    def _fits(self, asker: _Asker) -> bool:
        return self.missing_bytes(asker.wanted_bytes) == 0

    def _serve_askers(self) -> list[Out]:
        replies = []
        while self.askers:
            place, asker = next(iter(self.askers.items()))
            if not self._fits(asker):
                break  # first come, first served
            del self.askers[place]
            replies.append(self._grant(asker))
        return replies

    def _grant(self, asker: _Asker) -> Out:
        credit = asker.wanted_bytes
        plenty = max(_CREDIT_BYTES, _PUTS_AHEAD * asker.wanted_bytes)
        plenty = min(plenty, self.capacity_bytes // 64)
        room = self.capacity_bytes - self.held_bytes - self.credit_out_bytes - credit
        if self.credit_out_bytes + credit + plenty <= self.capacity_bytes // 8 and plenty <= room:
            credit += plenty
        self.credit_of(asker.client).credit_bytes += credit
        self.granted_bytes += credit
        return answer(asker.client, asker.request_id, Status.OK, credit)


# -- payloads in files ----------------------------------------------------------------------------


class Spilled:
    """A payload in a file, which goes when nothing refers to the payload any more.

    Its length is that of the payload; what it takes of a server's memory is nothing.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        weakref.finalize(self, _remove, path)

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytearray:
        """Return the payload; a TupleError if the file is gone or shorter than it was."""
        payload = bytearray(self._size_bytes)
        try:
            with self._path.open("rb", buffering=0) as file:
                view, read = memoryview(payload), 0
                while read < len(view) and (got := file.readinto(view[read:])):
                    read += got
        except OSError as error:
            raise TupleError(f"a payload on disk is lost: {error}") from error
        if read < len(payload):
            raise TupleError(f"a payload on disk is lost: {self._path} is too short")
        return payload


class SpillFolder:
    """Writes payloads to numbered files in a folder of its own, made with the first of them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._files = 0

    def __str__(self) -> str:
        return str(self._folder)

    def write(self, payload: Payload) -> Spilled:
        """Return the payload in a file; none is left if it cannot be written."""
        self._files += 1
        path = self._folder / f"{self._files}.payload"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(payload)
        except OSError:
            _remove(path)
            raise
        return Spilled(path, len(payload))


def loaded(payload: Payload) -> Payload:
    """Return a payload in memory, from its file if that is where it is."""
    return payload.read() if isinstance(payload, Spilled) else payload


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


class Spillable:
    """Large payloads in a store, oldest first."""

    def __init__(self, folder: SpillFolder, queues: Queues, memory: StoreMemory) -> None:
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

        Where the disk takes no more, `StoreMemory.spill_error` says so to whoever waits for room.
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


def cost_of(entry: Entry) -> int:
    """Return the bytes that a tuple counts for; a client counts the same for its message."""
    payload = entry[3]
    in_memory = payload is not None and not isinstance(payload, Spilled)
    return FIXED_BYTES + len(entry[2]) + (len(payload) if in_memory else 0)
