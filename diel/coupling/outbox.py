"""Messages that a rank has sent, and which of them have yet to be received."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from diel.comm.tags import DIRECT_PAYLOADS
from diel.coupling.messages import INLINE_BYTES, NO_TICKET, Head

if TYPE_CHECKING:
    from diel.comm.direct import Lane, Port, Transfer
    from diel.coupling.address import Address
    from diel.coupling.channel import Channel
    from diel.tuples.codec import Encoded


class Recipient(NamedTuple):
    """Whom a message is for: the address, the serial of the copy, and the world rank."""

    address: Address
    serial: int
    world_rank: int


class _Offered(NamedTuple):
    """A payload that has not been received yet."""

    transfer: Transfer
    ticket: int
    memory: object
    sender_serial: int
    recipient: Recipient


class OutboxLane:
    """Sends the same memory to the same recipient, from `Outbox.lane`."""

    def __init__(self, outbox: Outbox, lane: Lane, recipient: Recipient, ticket: int) -> None:
        self._count = outbox.count
        self._start = lane.start
        self._place = recipient[1:]
        self.lane = lane
        self.recipient = recipient
        self.ticket = ticket
        self.is_idle: Transfer = lane.test

    def send(self) -> None:
        """Send the memory as it is; the message before has been received: `is_idle`."""
        self._count(self._place, apart=True)
        self._start()


class Outbox:
    """Messages on their way from one rank.

    A payload that does not fit into a head has a ticket until it has been received. So nothing
    that is under way can be taken for anything else.

    Parameters
    ----------
    port : Port

    Attributes
    ----------
    sent, apart : Counter of (int, int)
        Messages of this copy, all and those with a payload apart, by serial and world rank of
        their recipients.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._serial = 0
        self._offered: deque[_Offered] = deque()
        self._lanes: list[OutboxLane] = []
        self._tickets: set[int] = set()
        self._next_ticket = 0
        self.sent: Counter[tuple[int, int]] = Counter()
        self.apart: Counter[tuple[int, int]] = Counter()

    def open(self, serial: int) -> None:
        """Begin with a copy."""
        self._serial = serial
        self.sent, self.apart = Counter(), Counter()

    def count(self, place: tuple[int, int], *, apart: bool) -> None:
        """Count a message."""
        self.sent[place] += 1
        if apart:
            self.apart[place] += 1

    @property
    def has_ticket(self) -> bool:
        """Whether one more payload can be sent."""
        return len(self._tickets) < DIRECT_PAYLOADS

    def send(
        self, recipient: Recipient, key: bytes, encoded: Encoded, owner: object, *, apart: bool
    ) -> Transfer | None:
        """Send a message; return whether it has been received, None if all of it has left."""
        kind, meta, memory = encoded
        size = len(memory)
        to, world_rank = recipient[1:]
        if size <= INLINE_BYTES and not apart:
            self.count((to, world_rank), apart=False)
            head = Head(to, self._serial, size, NO_TICKET, kind, key, meta, bytes(memory))
            self._port.send(world_rank, head.pack())
            return None
        self.count((to, world_rank), apart=True)
        ticket = self._take_ticket()
        transfer = self._port.offer(world_rank, ticket, memory)
        held = (memory, owner)  # until the payload has been received
        self._offered.append(_Offered(transfer, ticket, held, self._serial, recipient))
        head = Head(to, self._serial, size, ticket, kind, key, meta, b"")
        self._port.send(world_rank, head.pack())
        return transfer

    def lane(self, recipient: Recipient, key: bytes, encoded: Encoded) -> OutboxLane:
        """Return what sends the same memory again and again, until the copy ends."""
        kind, meta, memory = encoded
        ticket = self._take_ticket()
        head = Head(recipient.serial, self._serial, len(memory), ticket, kind, key, meta, b"")
        lane = self._port.lane(recipient.world_rank, head.pack(), ticket, memory)
        self._lanes.append(OutboxLane(self, lane, recipient, ticket))
        return self._lanes[-1]

    def _take_ticket(self) -> int:
        while self._next_ticket in self._tickets:
            self._next_ticket = (self._next_ticket + 1) % DIRECT_PAYLOADS
        ticket = self._next_ticket
        self._next_ticket = (ticket + 1) % DIRECT_PAYLOADS
        self._tickets.add(ticket)
        return ticket

    def forget_received(self) -> bool:
        """Forget payloads that have been received; return whether there were any."""
        offered, before = self._offered, len(self._offered)
        while offered and offered[0].transfer():
            self._tickets.discard(offered.popleft().ticket)
        if offered:  # look at another one first, next time
            offered.rotate(-1)
        return len(offered) < before

    @property
    def is_under_way(self) -> bool:
        """Whether a payload has yet to be received."""
        return bool(self._offered) or not all(lane.is_idle() for lane in self._lanes)

    def pending(self) -> list[Recipient]:
        """Return who has yet to receive payloads of this copy, once for each of them."""
        return [
            *(
                offered.recipient
                for offered in self._offered
                if offered.sender_serial == self._serial and not offered.transfer()
            ),
            *(lane.recipient for lane in self._lanes if not lane.is_idle()),
        ]

    def delivered(self) -> dict[tuple[int, int], int]:
        """Return how many payloads have been received, by serial and world rank."""
        pending = Counter(recipient[1:] for recipient in self.pending())
        return {place: count - pending[place] for place, count in self.apart.items()}

    def close(self) -> None:
        """End with the copy."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            if lane.is_idle():
                lane.lane.close()
                self._tickets.discard(lane.ticket)
            else:  # of a copy that failed: its recipient may still take it
                offered = _Offered(lane.is_idle, lane.ticket, lane, self._serial, lane.recipient)
                self._offered.append(offered)


class Sending:
    """A message on its way, from `Channel.send`."""

    def __init__(
        self,
        channel: Channel,
        transfers: Sequence[Transfer],
        receivers: Sequence[Address],
    ) -> None:
        self._channel = channel
        self._transfers = list(transfers)
        self._receivers = tuple(receivers)

    @property
    def done(self) -> bool:
        """Whether it has left: from then on nothing of the value is needed."""
        self._channel.poll()
        while self._transfers and self._transfers[-1]():
            self._transfers.pop()
        return not self._transfers

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has left.

        Parameters
        ----------
        timeout : float, seconds, optional

        Raises
        ------
        CouplingTimeout
            If it has not been received in time; it still can be.
        RunStopped
            If the run is stopping.
        """
        self._channel.await_receipt(lambda: self.done or None, self._receivers, timeout)
