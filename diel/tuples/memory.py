"""How much a server holds, and the credit that clients have to send more.

A client sends a put without asking as long as it has credit, in bytes. The server grants credit
while there is room; where there is none it lets the client wait, or refuses, and a server so never
holds more than its capacity and the credit that is out, an eighth of the capacity at most.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from diel.tuples.protocol import Out, Status, answer

_CREDIT_BYTES: Final = 2**20
"""Granted at a time where there is plenty of room, beside what was asked for."""


class _Asker(NamedTuple):
    client: int
    serial: int
    wanted_bytes: int
    deadline_s: float


class Memory:
    """Accounts for the bytes of one store.

    Parameters
    ----------
    capacity_bytes : int
    refuse_when_full : bool
    """

    def __init__(self, capacity_bytes: int, refuse_when_full: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self._refuse_when_full = refuse_when_full
        self._credit: dict[int, int] = {}
        self._credit_out = 0
        self._askers: OrderedDict[tuple[int, int], _Asker] = OrderedDict()

    def hold(self, cost_bytes: int) -> None:
        """Account for a tuple that stays."""
        self.held_bytes += cost_bytes

    def release(self, cost_bytes: int) -> list[Out]:
        """Account for a tuple that is gone; return grants to clients that waited for room."""
        self.held_bytes -= cost_bytes
        return self._serve_askers() if self._askers else []

    def asking(self) -> list[tuple[int, int]]:
        """Return (client, serial) of each request that waits for room."""
        return list(self._askers)

    @property
    def has_askers(self) -> bool:
        """Whether clients wait for room."""
        return bool(self._askers)

    def arrived(self, client: int, cost_bytes: int) -> None:
        """Take what a message used off its client's credit."""
        left = self._credit.get(client, 0)
        used = cost_bytes if cost_bytes <= left else left
        self._credit[client] = left - used
        self._credit_out -= used

    def ask(
        self, client: int, serial: int, wanted_bytes: int, deadline_s: float, timeout_s: float
    ) -> list[Out]:
        """Grant credit for at least `wanted_bytes`, refuse, or let the client wait."""
        asker = _Asker(client, serial, wanted_bytes, deadline_s)
        if wanted_bytes > self.capacity_bytes:
            return [answer(client, serial, Status.TOO_LARGE, self.capacity_bytes)]
        if not self._askers and self._fits(asker):
            return [self._grant(asker)]
        if self._refuse_when_full:
            return [answer(client, serial, Status.FULL, self.held_bytes)]
        if timeout_s <= 0:
            return [answer(client, serial, Status.TIMEOUT)]
        self._askers[client, serial] = asker
        return []

    def expire(self, now_s: float) -> list[Out]:
        """Answer the clients that waited for room as long as they wanted to."""
        late = [asker for asker in self._askers.values() if asker.deadline_s <= now_s]
        for asker in late:
            del self._askers[asker.client, asker.serial]
        replies = [answer(asker.client, asker.serial, Status.TIMEOUT) for asker in late]
        return replies + (self._serve_askers() if late else [])

    def next_deadline_s(self) -> float:
        """Return when `expire` has something to do next."""
        return min((asker.deadline_s for asker in self._askers.values()), default=math.inf)

    def client_died(self, client: int) -> list[Out]:
        """Take back a client's credit and forget its questions."""
        self._credit_out -= self._credit.pop(client, 0)
        for place in [place for place in self._askers if place[0] == client]:
            del self._askers[place]
        return self._serve_askers()

    def missing_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes less would have to be held for a request to fit.

        What may come with the credit that is out counts too. Credit that its clients may never
        use is an eighth at most (see `_grant`), so it locks nobody out.
        """
        held_then = self.held_bytes + wanted_bytes
        spare = self.capacity_bytes + self.capacity_bytes // 8 - self._credit_out
        return max(0, held_then - min(self.capacity_bytes, spare))

    def _fits(self, asker: _Asker) -> bool:
        return self.missing_bytes(asker.wanted_bytes) == 0

    def _serve_askers(self) -> list[Out]:
        replies = []
        while self._askers:
            place, asker = next(iter(self._askers.items()))
            if not self._fits(asker):
                break  # first come, first served
            del self._askers[place]
            replies.append(self._grant(asker))
        return replies

    def _grant(self, asker: _Asker) -> Out:
        credit = asker.wanted_bytes
        plenty = min(_CREDIT_BYTES, self.capacity_bytes // 64)
        room = self.capacity_bytes - self.held_bytes - self._credit_out - credit
        if self._credit_out + credit + plenty <= self.capacity_bytes // 8 and plenty <= room:
            credit += plenty
        self._credit[asker.client] = self._credit.get(asker.client, 0) + credit
        self._credit_out += credit
        return answer(asker.client, asker.serial, Status.OK, credit)
