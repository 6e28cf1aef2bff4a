"""How much a server holds, and the credit that clients have to send more.

A client sends a put without asking as long as it has credit, in bytes. The server grants credit
while there is room; where there is none it lets the client wait, or refuses, and a server so never
holds more than its capacity and the credit that is out, an eighth of the capacity at most.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from diel.tuples.protocol import Out, Status, answer, pack_put

_CREDIT_BYTES: Final = 2**20
_PUTS_AHEAD: Final = 15
"""Beside what was asked for, so much or so many times it is granted where there is plenty of room:
a question for each large put would cost a fifth of the time that the put takes."""


class _Asker(NamedTuple):
    client: int
    serial: int
    wanted_bytes: int
    deadline_s: float


class Account:
    """What a client may send without asking, in bytes, and how many puts have come from it."""

    __slots__ = ("credit_bytes", "puts")

    def __init__(self) -> None:
        self.credit_bytes = 0
        self.puts = 0


class Memory:
    """Accounts for the bytes of one store.

    Parameters
    ----------
    capacity_bytes : int
    refuse_when_full : bool

    Attributes
    ----------
    granted_bytes, arrived_bytes, released_bytes : int
        Since the start: the credit that was given to clients, what has come within it, and what
        of that is gone again. What lies here and what credit is out are differences of these, so
        that a tuple's coming and going change one number each.
    accounts : dict from client to Account
        Of each client that has ever put anything.
    askers : OrderedDict
        Who waits for room, in order of arrival.
    spill_error : str
        Why tuples could not be moved to the disk when that was tried last; empty if they could.
    """

    def __init__(self, capacity_bytes: int, refuse_when_full: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.granted_bytes = self.arrived_bytes = self.released_bytes = 0
        self._refuse_when_full = refuse_when_full
        self.accounts: dict[int, Account] = {}
        self.askers: OrderedDict[tuple[int, int], _Asker] = OrderedDict()
        self.spill_error = ""

    @property
    def held_bytes(self) -> int:
        """What lies here."""
        return self.arrived_bytes - self.released_bytes

    @property
    def credit_out_bytes(self) -> int:
        """What clients may still send without asking."""
        return self.granted_bytes - self.arrived_bytes

    def hold(self, cost_bytes: int) -> None:
        """Account for more that lies here and has not come with a client's message."""
        self.released_bytes -= cost_bytes

    def release(self, cost_bytes: int) -> list[Out]:
        """Account for a tuple that is gone; return grants to clients that waited for room."""
        self.released_bytes += cost_bytes
        return self._serve_askers() if self.askers else []

    def asking(self) -> list[tuple[int, int]]:
        """Return (client, serial) of each request that waits for room."""
        return list(self.askers)

    def account_of(self, client: int) -> Account:
        """Return a client's account, a new one if it has none."""
        return self.accounts.setdefault(client, Account())

    def arrived(self, client: int, cost_bytes: int) -> Account:
        """Take what a message used off its client's credit; it lies here from now on."""
        account = self.accounts.get(client)
        if account is None:
            account = self.account_of(client)
        account.credit_bytes -= cost_bytes
        self.arrived_bytes += cost_bytes
        if account.credit_bytes < 0:  # more than it was granted
            self.granted_bytes -= account.credit_bytes
            account.credit_bytes = 0
        return account

    def ask(
        self, client: int, serial: int, wanted_bytes: int, deadline_s: float, timeout_s: float
    ) -> list[Out]:
        """Grant credit for at least `wanted_bytes`, refuse, or let the client wait."""
        asker = _Asker(client, serial, wanted_bytes, deadline_s)
        if wanted_bytes > self.capacity_bytes:
            return [answer(client, serial, Status.TOO_LARGE, self.capacity_bytes)]
        if not self.askers and self._fits(asker):
            return [self._grant(asker)]
        if self._refuse_when_full:
            return [self._no_room(asker, Status.FULL)]
        if timeout_s <= 0:
            return [self._no_room(asker, Status.TIMEOUT)]
        self.askers[client, serial] = asker
        return []

    def expire(self, now_s: float) -> list[Out]:
        """Answer the clients that waited for room as long as they wanted to."""
        late = [asker for asker in self.askers.values() if asker.deadline_s <= now_s]
        for asker in late:
            del self.askers[asker.client, asker.serial]
        replies = [self._no_room(asker, Status.TIMEOUT) for asker in late]
        return replies + (self._serve_askers() if late else [])

    def next_deadline_s(self) -> float:
        """Return when `expire` has something to do next."""
        return min((asker.deadline_s for asker in self.askers.values()), default=math.inf)

    def client_died(self, client: int) -> list[Out]:
        """Take back a client's credit and forget its questions."""
        account = self.account_of(client)
        self.granted_bytes -= account.credit_bytes
        account.credit_bytes = 0  # its puts still count, if it only starts over
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
        message, _ = pack_put(status, asker.serial, self.held_bytes, 0, b"", b"", reason)
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
        self.account_of(asker.client).credit_bytes += credit
        self.granted_bytes += credit
        return answer(asker.client, asker.serial, Status.OK, credit)
