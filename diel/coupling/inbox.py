"""Messages that have reached a rank: kept for the copy that they are for, or dropped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from diel.coupling.address import Address, Peers
from diel.coupling.messages import Head, describe_key

if TYPE_CHECKING:
    from diel.comm.direct import Memory, Port, Transfer

_RECENT_COPIES: Final = 8
"""Copies that ran on this rank and whose names a late message may still be told by."""


class Arrival(NamedTuple):
    """A message whose head is here."""

    source: Address
    world_rank: int
    head: Head


class _Copy(NamedTuple):
    """A copy that runs, or ran, on this rank, and everybody around it."""

    me: Address
    peers: Peers


class Inbox:
    """Messages that have reached one rank.

    Parameters
    ----------
    port : Port
    warn : callable
        Told (module, copy, text) of messages that nobody received.

    Attributes
    ----------
    arrived : int
        Messages that have reached this copy, received by it or not.
    received : Counter of (int, int)
        Payloads that it has received, by serial and world rank of their senders.
    """

    def __init__(self, port: Port, warn: Callable[[str, int, str], None]) -> None:
        self._port = port
        self._warn = warn
        self._serial = 0
        self._is_open = False
        self._peers = Peers("", {})
        self._recent: dict[int, _Copy] = {}
        self._arrivals: dict[bytes, deque[Arrival]] = {}
        self._early: list[tuple[int, Head]] = []
        self._dropping: deque[tuple[Transfer, Memory]] = deque()
        self._dropped: Counter[tuple[int, int, str]] = Counter()
        self.arrived = 0
        self.received: Counter[tuple[int, int]] = Counter()

    def open(self, me: Address, peers: Peers) -> None:
        """Begin with a copy: from now on its messages are kept, and no others."""
        self._serial = peers.place(me)[0]
        self._peers = peers
        self._recent[self._serial] = _Copy(me, peers)
        while len(self._recent) > _RECENT_COPIES:
            del self._recent[next(iter(self._recent))]
        self.arrived, self.received = 0, Counter()
        self._is_open = True
        early, self._early = self._early, []
        for world_rank, head in early:
            self._sort(world_rank, head)

    def close(self) -> None:
        """End with the copy: what it has not received is dropped, and what comes from now on."""
        self._is_open = False
        arrived, self._arrivals = self._arrivals, {}
        for queue in arrived.values():
            for arrival in queue:
                self._drop(arrival.world_rank, arrival.head)

    @property
    def is_open(self) -> bool:
        """Whether messages are kept."""
        return self._is_open

    @property
    def is_dropping(self) -> bool:
        """Whether payloads that nobody wants are under way."""
        return bool(self._dropping)

    def poll(self, wanted: tuple[bytes, Address | None] | None = None) -> bool:
        """Look for messages that have come; return whether there are some for this copy.

        Parameters
        ----------
        wanted : (bytes, Address or None), optional
            As for `find`: what comes after such a message is left for the next time.
        """
        before = self.arrived
        found = self._port.poll()
        while found is not None:
            self._sort(found[0], Head.unpack(found[1]))
            if wanted is not None and self.find(*wanted) is not None:
                break
            found = self._port.poll()
        while self._dropping and self._dropping[0][0]():
            self._dropping.popleft()
        if self._dropped and not self._is_open:
            self.tell_of_dropped()
        return self.arrived > before

    def find(self, key: bytes, source: Address | None) -> Arrival | None:
        """Return the oldest message with this key, from this sender or from anybody."""
        queue = self._arrivals.get(key)
        if not queue:
            return None
        if source is None or queue[0].source == source:
            return queue[0]
        return next((arrival for arrival in queue if arrival.source == source), None)

    def receive(self, arrival: Arrival, memory: Memory) -> Transfer | None:
        """Receive a message into memory of its size; return whether it is there, None if it is."""
        head = arrival.head
        queue = self._arrivals[head.key]
        queue.remove(arrival)
        if not queue:
            del self._arrivals[head.key]
        if not head.has_payload:
            memoryview(memory)[:] = head.inline
            return None
        self.received[head.from_serial, arrival.world_rank] += 1
        transfer = self._port.receive(arrival.world_rank, head.ticket, memory)
        return None if transfer() else transfer

    def _sort(self, world_rank: int, head: Head) -> None:
        if head.to_serial > self._serial:  # the order to start that copy is still on its way
            self._early.append((world_rank, head))
            return
        serial, sender = self._peers.by_world_rank.get(world_rank, (-1, None))
        is_wanted = self._is_open and (head.to_serial, head.from_serial) == (self._serial, serial)
        if sender is None or not is_wanted:
            self._drop(world_rank, head)
            return
        self.arrived += 1
        arrival = Arrival(sender, world_rank, head)
        self._arrivals.setdefault(head.key, deque()).append(arrival)

    def _drop(self, world_rank: int, head: Head) -> None:
        """Receive a message that nobody wants, since its sender waits for that."""
        self._dropped[head.to_serial, world_rank, describe_key(head.key)] += 1
        if head.has_payload:
            memory = bytearray(head.size_bytes)
            transfer = self._port.receive(world_rank, head.ticket, memory)
            self._dropping.append((transfer, memory))

    def tell_of_dropped(self) -> None:
        """Warn of what has been dropped."""
        dropped, self._dropped = self._dropped, Counter()
        for (serial, world_rank, what), count in dropped.items():
            long_ago = _Copy(Address("a copy of long ago"), Peers("", {}))
            me, peers = self._recent.get(serial, long_ago)
            _, sender = peers.by_world_rank.get(world_rank, (0, f"rank {world_rank} of the run"))
            messages, were = ("a message", "was") if count == 1 else (f"{count} messages", "were")
            text = f"{messages} from {sender} to rank {me.rank} ({what}) {were} never received"
            self._warn(me.module, me.copy, text)
