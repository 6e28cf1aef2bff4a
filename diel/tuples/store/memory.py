"""The memory of a store: bytes of its tuples, credit of its clients, payloads moved to files.

A client may send puts as long as it has credit, in bytes; then it has to ask for more. The server
grants credit while there is room; else it lets the client wait, or refuses. So a server never holds
more than its capacity plus the unused credit, which is at most an eighth of the capacity.

If the workflow file allows it (`spill`), a server makes room by writing its oldest large payloads
to files.
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
"""While there is plenty of room, a grant has additional credit: `_CREDIT_BYTES`, or so many times
the requested bytes if that is more. A request for each large put would take a fifth of its time."""
_FIRST_CHECK: Final = 1000
"""The list of large payloads is first cleaned of removed tuples when it is longer than this."""


class _CreditRequest(NamedTuple):
    client: int
    request_id: int
    wanted_bytes: int
    deadline_s: float


class StoreMemory:
    """Counts the bytes that a store holds, and the bytes that its clients may still send.

    `granted_bytes`, `arrived_bytes` and `released_bytes` are totals since the start: the credit
    granted to clients, the messages that used it, and the tuples that were removed. The bytes held
    and the unused credit are their differences, so that to add or remove a tuple changes a single
    number.
    """

    def __init__(self, capacity_bytes: int, refuse_when_full: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.granted_bytes = self.arrived_bytes = self.released_bytes = 0
        self._refuse_when_full = refuse_when_full
        self.credits: dict[int, Credit] = {}  # by client; clients that have put or asked
        # Requests that wait for room, in order of arrival.
        self.askers: OrderedDict[tuple[int, int], _CreditRequest] = OrderedDict()
        self.spill_error = ""  # why the last attempt to move a payload to the disk failed

    @property
    def held_bytes(self) -> int:
        """Bytes of the tuples in the store."""
        return self.arrived_bytes - self.released_bytes

    @property
    def credit_out_bytes(self) -> int:
        """Unused credit of all clients, in bytes."""
        return self.granted_bytes - self.arrived_bytes

    def hold(self, cost_bytes: int) -> None:
        """Count bytes that are held but did not arrive by a client's message, such as copies."""
        self.released_bytes -= cost_bytes

    def release(self, cost_bytes: int) -> list[Out]:
        """Count bytes of removed tuples; return grants to clients that waited for room."""
        self.released_bytes += cost_bytes
        return self._serve_askers() if self.askers else []

    def credit_of(self, client: int) -> Credit:
        """Return the credit record of a client, a new one without credit for a new client."""
        return self.credits.setdefault(client, Credit())

    def arrived(self, client: int, cost_bytes: int) -> Credit:
        """Count a client's message as held, and reduce the client's credit; return the credit."""
        credit = self.credits.get(client)
        if credit is None:
            credit = self.credit_of(client)
        credit.credit_bytes -= cost_bytes
        self.arrived_bytes += cost_bytes
        if credit.credit_bytes < 0:  # the client has sent more than it was granted
            self.granted_bytes -= credit.credit_bytes
            credit.credit_bytes = 0
        return credit

    def ask(
        self, client: int, request_id: int, wanted_bytes: int, deadline_s: float, timeout_s: float
    ) -> list[Out]:
        """Handle a request for credit: grant at least `wanted_bytes`, refuse, or let it wait."""
        asker = _CreditRequest(client, request_id, wanted_bytes, deadline_s)
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
        """Answer the clients whose wait for room has timed out; return all replies."""
        late = [asker for asker in self.askers.values() if asker.deadline_s <= now_s]
        for asker in late:
            del self.askers[asker.client, asker.request_id]
        replies = [self._no_room(asker, Status.TIMEOUT) for asker in late]
        return replies + (self._serve_askers() if late else [])

    def next_deadline_s(self) -> float:
        """Return the earliest deadline of a client that waits for room; infinity without one."""
        return min((asker.deadline_s for asker in self.askers.values()), default=math.inf)

    def client_died(self, client: int) -> list[Out]:
        """Withdraw a client's credit and requests for credit; return grants to other clients."""
        credit = self.credit_of(client)
        self.granted_bytes -= credit.credit_bytes
        credit.credit_bytes = 0  # but keep its number of puts, in case the client only starts over
        for place in [place for place in self.askers if place[0] == client]:
            del self.askers[place]
        return self._serve_askers()

    def missing_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes have to be removed for a request for credit to fit; 0 if it fits.

        Unused credit counts too, as far as it exceeds an eighth of the capacity: up to that,
        clients may never use it (see `_grant`), so that it must not block other clients.
        """
        held_then = self.held_bytes + wanted_bytes
        spare = self.capacity_bytes + self.capacity_bytes // 8 - self.credit_out_bytes
        return max(0, held_then - min(self.capacity_bytes, spare))

    def _no_room(self, asker: _CreditRequest, status: Status) -> Out:
        """Return the reply that there is no room, with the bytes held and the spill error."""
        reason = self.spill_error.encode()
        message, _ = pack_put(status, asker.request_id, self.held_bytes, 0, b"", b"", reason)
        return Out(asker.client, message)

    def _fits(self, asker: _CreditRequest) -> bool:
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

    def _grant(self, asker: _CreditRequest) -> Out:
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
    """A payload in a file, which is removed when this object is garbage collected.

    Its length is that of the payload, but it takes none of the server's memory.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        weakref.finalize(self, _remove, path)

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytearray:
        """Read the payload; raise TupleError if the file is gone or too short."""
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
    """Writes payloads to numbered files in a folder, which is created with the first file."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._files = 0

    def __str__(self) -> str:
        return str(self._folder)

    def write(self, payload: Payload) -> Spilled:
        """Write a payload to a new file; if that fails, leave no file and raise OSError."""
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
    """Return a payload in memory, read from its file if it has been moved there."""
    return payload.read() if isinstance(payload, Spilled) else payload


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


class Spillable:
    """The large payloads of a store that can be moved to files, oldest first."""

    def __init__(self, folder: SpillFolder, queues: Queues, memory: StoreMemory) -> None:
        self._folder = folder
        self._queues = queues
        self._memory = memory
        self._places: deque[tuple[int, bytes]] = deque()  # numbers and keys of tuples
        self._checked_at = _FIRST_CHECK

    def add(self, number: int, key: bytes) -> None:
        """Add a tuple with a large payload; now and then, drop tuples that have been removed."""
        self._places.append((number, key))
        if len(self._places) > self._checked_at:
            self._places = deque(
                place
                for place in self._places
                if any(entry[0] == place[0] for entry in self._queues.of(place[1]))
            )
            self._checked_at = max(_FIRST_CHECK, 2 * len(self._places))

    def make_room(self, missing_bytes: int) -> None:
        """Move the oldest large payloads to files, until enough bytes are free.

        If a file cannot be written, the reason goes to `StoreMemory.spill_error`.
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
    """Return the memory accounted for a tuple, in bytes: `message_cost`, less a spilled payload."""
    payload = entry[3]
    in_memory = payload is not None and not isinstance(payload, Spilled)
    return FIXED_BYTES + len(entry[2]) + (len(payload) if in_memory else 0)
