"""Messages of one rank to and from the other ranks of its group."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from diel.comm.tags import DIRECT_PAYLOADS
from diel.comm.waiting import wait_for
from diel.coupling import values
from diel.coupling.account import Account
from diel.coupling.address import Address, Roster, To
from diel.coupling.heads import INLINE_BYTES, NO_TICKET, Head
from diel.errors import AddressError, CouplingTimeout, PayloadError
from diel.tuples import codec
from diel.tuples.tags import Tag, decode_tag, encode_tag, format_tag

if TYPE_CHECKING:
    from diel.comm.direct import Lane, Memory, Port, Transfer

_RECENT_COPIES: Final = 8
"""Copies that ran on this rank and whose names a late message may still be told by."""

Found = TypeVar("Found")


class Arrival(NamedTuple):
    """A message whose head is here."""

    source: Address
    world_rank: int
    head: Head


class _Offered(NamedTuple):
    """A payload that has not been received yet."""

    transfer: Transfer
    ticket: int
    kept: object
    serial: int
    receiver: Address


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


class ChannelLane:
    """Sends the same memory to the same receiver, from `Channel.lane`."""

    def __init__(
        self, lane: Lane, sent: Counter[tuple[int, int]], receiver: tuple[int, int]
    ) -> None:
        self._start = lane.start
        self._sent = sent
        self._receiver = receiver
        self.is_idle: Transfer = lane.test

    def send(self) -> None:
        """Send the memory as it is; the message before has been received: `is_idle`."""
        self._sent[self._receiver] += 1
        self._start()


class Channel:
    """One rank's messages.

    It lasts as long as the rank and is opened for one copy of a module after the other. A message
    names the copies that it is from and for, so one that was left over never reaches a later copy.

    Parameters
    ----------
    port : Port
    safe_point : callable, optional
        Asked during waits; what it raises ends them.
    warn : callable, optional
        Told (module, copy, text) of messages that nobody received.

    Attributes
    ----------
    waiting_for : (str, object, float) or None
        The call that waits, what for, and its timeout in seconds.
    was_used : bool
        Whether the copy has sent or received anything.
    """

    def __init__(
        self,
        port: Port,
        safe_point: Callable[[], None] = lambda: None,
        warn: Callable[[str, int, str], None] = lambda module, copy, text: None,
    ) -> None:
        self._port = port
        self._safe_point = safe_point
        self._warn = warn
        self.waiting_for: tuple[str, object, float] | None = None
        self._waits_for: Literal["message", "receipt", ""] = ""
        self._receivers: tuple[int, ...] = ()
        self._serial = 0
        self._is_open = False
        self._me = Address("")
        self._roster = Roster("", {})
        self._people: dict[int, tuple[int, Address]] = {}
        self._recent: dict[int, tuple[Address, dict[int, tuple[int, Address]]]] = {}
        self._arrived: dict[bytes, deque[Arrival]] = {}
        self._early: list[tuple[int, Head]] = []
        self._offered: deque[_Offered] = deque()
        self._receiving: object = None
        self._out: object = None
        self._lanes: list[tuple[Lane, Address, int]] = []
        self._tickets: set[int] = set()
        self._next_ticket = 0
        self._dropping: deque[tuple[Transfer, Memory]] = deque()
        self._dropped: Counter[tuple[int, int, str]] = Counter()
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received = 0

    # -- the copy that it is open for ---------------------------------------------------------

    def open(self, me: Address, roster: Roster) -> None:
        """Begin with a copy: from now on its messages are received, and no others."""
        self._me, self._roster = me, roster
        self._serial = roster.place(me)[0]
        self._people = {
            world_rank: (serial, address) for world_rank, serial, address in roster.addresses()
        }
        self._recent[self._serial] = (me, self._people)
        while len(self._recent) > _RECENT_COPIES:
            del self._recent[next(iter(self._recent))]
        self._sent = Counter()
        self._received = 0
        self._is_open = True
        early, self._early = self._early, []
        for world_rank, head in early:
            self._sort(world_rank, head)
        self.poll()

    def close(self) -> None:
        """End with the copy: wait until its messages have left, drop those that it did not take.

        Raises
        ------
        RunStopped
            If the run is stopping.
        """
        self._stop_receiving()
        self.await_receipt(self._all_has_left, self._awaited(), None)
        self._close_lanes()
        self._tell_of_dropped()

    def _close_lanes(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane, receiver, ticket in lanes:
            if lane.test():
                lane.close()
                self._tickets.discard(ticket)
            else:  # of a copy that failed: its receiver may still take it
                offered = _Offered(lane.test, ticket, lane, self._serial, receiver)
                self._offered.append(offered)

    def _all_has_left(self) -> Literal[True] | None:
        self.poll()
        return None if self._dropping or self._awaited() else True

    def _awaited(self) -> list[Address]:
        """Return who has yet to receive a message of this copy."""
        offered = {one.receiver for one in self._offered if one.serial == self._serial}
        return sorted(offered | {receiver for lane, receiver, _ in self._lanes if not lane.test()})

    def abandon(self) -> None:
        """End with a copy that failed, without waiting."""
        if self._is_open:
            self._stop_receiving()
            self._close_lanes()
            self._tell_of_dropped()

    def _stop_receiving(self) -> None:
        self.poll()
        self._is_open = False
        arrived, self._arrived = self._arrived, {}
        for queue in arrived.values():
            for arrival in queue:
                self._drop(arrival.world_rank, arrival.head)

    @property
    def address(self) -> Address:
        """The address of this rank."""
        return self._me

    @property
    def roster(self) -> Roster:
        """Everybody in the group."""
        return self._roster

    @property
    def was_used(self) -> bool:
        """Whether the copy has sent or received anything."""
        return bool(self._sent) or self._received > 0

    def account(self) -> Account:
        """Return what the copy has sent and received, and what it waits for."""
        return Account(dict(self._sent), self._received, self._waits_for, self._receivers)

    # -- what modules call --------------------------------------------------------------------

    def send(self, value: object, to: To, *, tag: Tag | None = None, copy: bool = True) -> Sending:
        """Send a value without waiting; see `Context.send`."""
        receiver = self._roster.resolve(to)
        transfer = self.post(receiver, _key(tag), *values.encode(value, self._port, copy=copy))
        return Sending(self, [] if transfer is None else [transfer], [receiver])

    def move(
        self, value: object, to: To, *, tag: Tag | None = None, timeout: float | None = None
    ) -> None:
        """Send a value and wait until it has been received; see `Context.move`."""
        receiver = self._roster.resolve(to)
        if receiver == self._me:
            raise AddressError(f"{receiver} cannot move anything to itself: it would wait for ever")
        outgoing = values.encode(value, self._port, copy=False)
        transfer = self.post(receiver, _key(tag), *outgoing, apart=True)
        assert transfer is not None
        Sending(self, [transfer], [receiver]).wait(timeout)

    def recv(
        self,
        source: To | None = None,
        *,
        tag: Tag | None = None,
        out: Any = None,
        timeout: float | None = None,
        with_source: bool = False,
    ) -> Any:
        """Receive a value, wait until there is one; see `Context.recv`."""
        sender = None if source is None else self._roster.resolve(source)
        target = None if out is None else values.target(out, self._port)
        key = _key(tag)
        arrival = self.await_arrival(key, sender, _From(sender, tag), timeout)
        if target is not None and (arrival.head.kind, arrival.head.meta) != (
            codec.ARRAY,
            target.meta,
        ):
            raise PayloadError(
                f"recv({_From(sender, tag)!r}): the message is "
                f"{codec.describe(arrival.head.kind, arrival.head.meta)}, and out= is "
                f"{codec.describe(codec.ARRAY, target.meta)}; it has not been taken"
            )
        if target is not None:
            self._out = out  # kept if a stop ends this: MPI goes on writing there
            self.take([(arrival, target.memory)])
            self._out = None
            target.finish()
            value = out
        else:
            value = self._take_value(arrival)
        return (arrival.source, value) if with_source else value

    def _take_value(self, arrival: Arrival) -> Any:
        head = arrival.head
        memory = np.empty(head.size_bytes, np.uint8).data  # not zeroed
        self.take([(arrival, memory)])
        return codec.decode(head.kind, head.meta, memory)

    # -- for whoever knows what is in the memory: boundaries too ------------------------------

    def post(
        self,
        receiver: Address,
        key: bytes,
        encoded: codec.Encoded,
        owner: object = None,
        *,
        apart: bool = False,
    ) -> Transfer | None:
        """Send encoded memory.

        Parameters
        ----------
        receiver : Address
            In the roster.
        key : bytes
        encoded : Encoded
            What is larger than a head holds stays as it is until it has been received.
        owner : object, optional
            Of its memory, kept as long.
        apart : bool, optional
            Send even a small payload apart, so that its receipt is known.

        Returns
        -------
        callable or None
            Whether it has been received; None if all of it was in the head, and has left.
        """
        self.poll()
        serial, world_rank = self._roster.place(receiver)
        kind, meta, memory = encoded
        size = len(memory)
        self._sent[serial, world_rank] += 1
        if size <= INLINE_BYTES and not apart:
            head = Head(serial, self._serial, size, NO_TICKET, kind, key, meta, bytes(memory))
            self._port.send(world_rank, head.pack())
            return None
        ticket = self._take_ticket()
        transfer = self._port.offer(world_rank, ticket, memory)
        kept = (memory, owner)
        self._offered.append(_Offered(transfer, ticket, kept, self._serial, receiver))
        head = Head(serial, self._serial, size, ticket, kind, key, meta, b"")
        self._port.send(world_rank, head.pack())
        return transfer

    def lane(self, receiver: Address, key: bytes, encoded: codec.Encoded) -> ChannelLane:
        """Return what sends the same memory again and again, as it is at that time.

        It lasts until the copy ends, and so does its ticket: its messages are received in order.
        """
        serial, world_rank = self._roster.place(receiver)
        kind, meta, memory = encoded
        ticket = self._take_ticket()
        head = Head(serial, self._serial, len(memory), ticket, kind, key, meta, b"")
        lane = self._port.lane(world_rank, head.pack(), ticket, memory)
        self._lanes.append((lane, receiver, ticket))
        return ChannelLane(lane, self._sent, (serial, world_rank))

    def find(self, key: bytes, source: Address | None) -> Arrival | None:
        """Return the oldest message with this key, from this sender or from anybody."""
        queue = self._arrived.get(key)
        if not queue:
            return None
        if source is None or queue[0].source == source:
            return queue[0]
        return next((arrival for arrival in queue if arrival.source == source), None)

    def await_arrival(
        self,
        key: bytes,
        source: Address | None,
        subject: object,
        timeout: float | None,
        operation: str = "recv",
    ) -> Arrival:
        """Wait for a message and return it; it stays until it is taken.

        Raises
        ------
        CouplingTimeout
            If there is none in time.
        """
        self.poll()
        arrival = self.find(key, source)
        if arrival is not None:
            return arrival
        with self._waiting(operation, subject, timeout, "message"):
            arrival = self._wait(lambda: self._look_for(key, source), timeout)
        if arrival is None:
            raise CouplingTimeout(f"{operation}({subject!r})", timeout or 0.0)
        return arrival

    def _look_for(self, key: bytes, source: Address | None) -> Arrival | None:
        self.poll()
        return self.find(key, source)

    def await_receipt(
        self,
        poll: Callable[[], Literal[True] | None],
        receivers: Sequence[Address],
        timeout: float | None,
    ) -> None:
        """Wait until `poll` says that messages have been received.

        Raises
        ------
        CouplingTimeout
            If they have not in time.
        """
        if poll():
            return
        subject = _By(receivers)
        world_ranks = tuple(self._roster.place(address)[1] for address in receivers)
        with self._waiting("receipt", subject, timeout, "receipt", world_ranks):
            received = self._wait(poll, timeout)
        if received is None:
            raise CouplingTimeout(f"receipt({subject!r})", timeout or 0.0)

    def take(self, arrivals: Sequence[tuple[Arrival, Memory]]) -> None:
        """Take messages off the queue, each payload into memory of its size; wait for them."""
        transfers = []
        for arrival, memory in arrivals:
            head = arrival.head
            self._arrived[head.key].remove(arrival)
            if head.has_payload:
                transfers.append(self._port.receive(arrival.world_rank, head.ticket, memory))
            else:
                memoryview(memory)[:] = head.inline
        transfers = [transfer for transfer in transfers if not transfer()]
        if transfers:
            # Kept if a stop ends the wait: MPI goes on writing there.
            self._receiving = (transfers, arrivals)
            wait_for(_all_of(transfers), None, self._safe_point, brisk=True)
            self._receiving = None

    # -- inside -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what has come, and forget what has left; never waits."""
        found = self._port.poll()
        while found is not None:
            self._sort(found[0], Head.unpack(found[1]))
            found = self._port.poll()
        if self._offered:
            self._forget_received()
        while self._dropping and self._dropping[0][0]():
            self._dropping.popleft()
        if self._dropped and not self._is_open:
            self._tell_of_dropped()

    def _sort(self, world_rank: int, head: Head) -> None:
        if head.to_serial > self._serial:  # the order to start that copy is still on its way
            self._early.append((world_rank, head))
            return
        serial, sender = self._people.get(world_rank, (-1, self._me))
        if head.to_serial < self._serial or not self._is_open or head.from_serial != serial:
            self._drop(world_rank, head)
            return
        self._received += 1
        arrival = Arrival(sender, world_rank, head)
        self._arrived.setdefault(head.key, deque()).append(arrival)
        if self.waiting_for is not None:
            # Another wait to whoever compares: what it was told is not true any more.
            operation, subject, timeout_s = self.waiting_for
            self.waiting_for = (operation, subject, timeout_s)

    def _drop(self, world_rank: int, head: Head) -> None:
        """Receive a message that nobody wants, since its sender waits for that."""
        self._dropped[head.to_serial, world_rank, _describe_key(head.key)] += 1
        if head.has_payload:
            memory = bytearray(head.size_bytes)
            transfer = self._port.receive(world_rank, head.ticket, memory)
            self._dropping.append((transfer, memory))

    def _tell_of_dropped(self) -> None:
        dropped, self._dropped = self._dropped, Counter()
        for (serial, world_rank, what), count in dropped.items():
            me, people = self._recent.get(serial, (self._me, {}))
            _, sender = people.get(world_rank, (0, f"rank {world_rank} of the run"))
            messages, were = ("a message", "was") if count == 1 else (f"{count} messages", "were")
            text = f"{messages} from {sender} to rank {me.rank} ({what}) {were} never received"
            self._warn(me.module, me.copy, text)

    def _forget_received(self) -> None:
        offered = self._offered
        while offered and offered[0].transfer():
            self._tickets.discard(offered.popleft().ticket)
        if offered:  # look at another one first, next time
            offered.rotate(-1)

    def _take_ticket(self) -> int:
        """Return a number that no payload under way has."""
        if len(self._tickets) == DIRECT_PAYLOADS:
            self.await_receipt(self._has_ticket, self._awaited(), None)
        while self._next_ticket in self._tickets:
            self._next_ticket = (self._next_ticket + 1) % DIRECT_PAYLOADS
        ticket = self._next_ticket
        self._next_ticket = (ticket + 1) % DIRECT_PAYLOADS
        self._tickets.add(ticket)
        return ticket

    def _has_ticket(self) -> Literal[True] | None:
        self.poll()
        return True if len(self._tickets) < DIRECT_PAYLOADS else None

    def _wait(self, poll: Callable[[], Found | None], timeout: float | None) -> Found | None:
        under_way = bool(self._offered) or not all(lane.test() for lane, _, _ in self._lanes)
        return wait_for(poll, timeout, self._safe_point, brisk=under_way)

    @contextmanager
    def _waiting(
        self,
        operation: str,
        subject: object,
        timeout: float | None,
        waits_for: Literal["message", "receipt"],
        receivers: tuple[int, ...] = (),
    ) -> Iterator[None]:
        self.waiting_for = (operation, subject, math.inf if timeout is None else timeout)
        self._waits_for, self._receivers = waits_for, receivers
        try:
            yield
        finally:
            self.waiting_for, self._waits_for, self._receivers = None, "", ()


def _all_of(transfers: list[Transfer]) -> Callable[[], Literal[True] | None]:
    def poll() -> Literal[True] | None:
        while transfers and transfers[-1]():
            transfers.pop()
        return None if transfers else True

    return poll


class _From:
    """Whose message is waited for; put into words only where somebody asks."""

    def __init__(self, source: Address | None, tag: object) -> None:
        self._source = source
        self._tag = tag

    def __repr__(self) -> str:
        source = "anybody" if self._source is None else str(self._source)
        return f"from {source}" + ("" if self._tag is None else f", tag={format_tag(self._tag)}")


class _By:
    """Whose receipt is waited for."""

    def __init__(self, receivers: Sequence[Address]) -> None:
        self._receivers = receivers

    def __repr__(self) -> str:
        return "by " + ", ".join(map(str, self._receivers))


# No tag begins so.
NO_TAG: Final = b"-"
BOUNDARY: Final = b"b"
SEPARATOR: Final = b"\0"


def _key(tag: Tag | None) -> bytes:
    return NO_TAG if tag is None else encode_tag(tag)


def _describe_key(key: bytes) -> str:
    if key == NO_TAG:
        return "no tag"
    if key.startswith(BOUNDARY):
        return f'boundary "{key[1:].partition(SEPARATOR)[0].decode()}"'
    return f"tag {format_tag(decode_tag(key))}"
