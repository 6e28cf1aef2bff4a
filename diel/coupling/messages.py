"""`Inbox` and `Outbox` of direct messages, below `Channel`: heads, counts, order, what is dropped.

The head of a message comes before its payload:

::

    8  serial of the receiver's copy     8  serial of the sender's copy     8  size of the payload
    8  number of the message             2  ticket of the payload           1  kind
    2  length of the key                 2  length of the meta
    key, meta, and the payload itself where it is small

All integers are little-endian. A head whose serials are not those of copies that run belongs to an
earlier copy, and is dropped.

A message that its sender may still drop, or that would be one of too many under way, stays with its
sender in a queue for its receiver and key. The receiver asks for the oldest of a queue:

::

    sender                                        receiver
    message into the queue
    announcement (a head with a ticket of its own) ---->
                                                  <---- request, with the least number wanted
    the message, as any other                      ---->
    announcement, if there are more                ---->
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from diel.comm.tags import DIRECT_PAYLOADS
from diel.coupling.address import Address, Peers
from diel.frozen import Frozen
from diel.tuples.tags import Tag, decode_tag, encode_tag, format_tag

if TYPE_CHECKING:
    from diel.comm.direct import Lane, Memory, Port, Transfer
    from diel.coupling.channel import Channel
    from diel.tuples.codec import Encoded

INLINE_BYTES: Final = 2048
"""Payloads up to this size are sent in the head: by default Open MPI and MPICH let it leave at
once."""
NO_TICKET: Final = -1
ANNOUNCEMENT: Final = -2
"""In place of a ticket: the sender has a queue of messages with this key."""
REQUEST: Final = -3
"""In place of a ticket: the receiver asks for the oldest message of a queue."""
PAYLOADS_UNDER_WAY: Final = 200
"""How many payloads of a rank MPI is given before the first of them has been received. Open MPI
keeps 512 messages for a receiver on the same host. It tries all others again in each of its calls,
which takes time and memory that it never gives back."""

STAMPED: Final = 254
"""In place of a kind: a piece of a boundary, with a time stamp as its meta."""
END: Final = 255
"""In place of a kind: the sender's copy has returned, and sends no more with this key. It stays in
the inbox, behind all others."""

_FIXED: Final = struct.Struct("<QQQQhBHH")
_RECENT_COPIES: Final = 8
"""How many copies of this rank are remembered, since a warning of a late message names them."""


class Head(NamedTuple):
    """The head of a message, with the payload where that is small."""

    to_serial: int
    from_serial: int
    size_bytes: int
    ticket: int
    kind: int
    key: bytes
    meta: bytes
    inline: bytes
    number: int = 0
    """Of a message that could have been dropped: counted by its sender for its receiver and key,
    from 0. Of a request: the least number wanted."""

    @property
    def has_payload(self) -> bool:
        """Whether the payload comes apart from the head."""
        return self.ticket >= 0

    def pack(self) -> bytes:
        """Return the bytes of the head."""
        to, of, size, ticket, kind, key, meta, inline, number = self
        fixed = _FIXED.pack(to, of, size, number, ticket, kind, len(key), len(meta))
        return fixed + key + meta + inline

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        """Return the head that was packed into bytes."""
        to, of, size, number, ticket, kind, key_length, meta_length = _FIXED.unpack_from(data)
        meta_at = _FIXED.size + key_length
        inline_at = meta_at + meta_length
        key, meta = data[_FIXED.size : meta_at], data[meta_at:inline_at]
        return cls(to, of, size, ticket, kind, key, meta, data[inline_at:], number)


# Keys of messages: a tag, no tag, or a piece of a boundary. No tag begins like the other two.
_NO_TAG: Final = b"-"
_BOUNDARY: Final = b"b"
_SEPARATOR: Final = b"\0"


def key_of(tag: Tag | None) -> bytes:
    """Return the key of messages with a tag, or without one."""
    return _NO_TAG if tag is None else encode_tag(tag)


def boundary_key(name: str, owner: int, reader: int) -> bytes:
    """Return the key of messages from an owner to a reader of a boundary, by their numbers."""
    return _BOUNDARY + name.encode() + _SEPARATOR + b"%d-%d" % (owner, reader)


def describe_key(key: bytes) -> str:
    """Describe the tag or the boundary that a message was sent under."""
    if key == _NO_TAG:
        return "no tag"
    if key.startswith(_BOUNDARY):
        return f'boundary "{key[1:].partition(_SEPARATOR)[0].decode()}"'
    return f"tag {format_tag(decode_tag(key))}"


_NO_COUNTS: Final[Mapping[tuple[int, int], int]] = {}


class MessageCounts(Frozen):
    """Numbers of messages that a copy on a rank has sent and received, to recognise deadlocks.

    Other ranks are named by serial and world rank.
    """

    sent: Mapping[tuple[int, int], int] = _NO_COUNTS
    arrived: int = 0  # messages that have reached it, received or not
    delivered: Mapping[tuple[int, int], int] = _NO_COUNTS
    """Messages with a payload apart that are known to have been received, by their recipients."""
    received: Mapping[tuple[int, int], int] = _NO_COUNTS
    """Messages with a payload apart that it has received, by their senders."""
    waits_for: Literal["message", "receipt", ""] = ""
    receivers: tuple[tuple[int, int], ...] = ()
    """The ranks whose receipt it waits for."""


NO_MESSAGES: Final = MessageCounts()


# -- messages that have reached this rank ----------------------------------------------------------


class ArrivedMessage(NamedTuple):
    """A message whose head has reached this rank."""

    source: Address
    world_rank: int
    head: Head


class _Copy(NamedTuple):
    """A copy that runs, or ran, on this rank: its address and its peers."""

    me: Address
    peers: Peers


class Inbox:
    """Messages that have reached one rank; `arrived` and `received` as in `MessageCounts`.

    `answer` is called with the world rank and the head of each request for this rank's copy, which
    may have returned already.
    """

    def __init__(
        self,
        port: Port,
        warn: Callable[[str, int, str], None],
        answer: Callable[[int, Head], None] = lambda world_rank, head: None,
    ) -> None:
        self._answer = answer
        self._port = port
        self._warn = warn
        self._serial = 0
        self.is_open = False  # whether messages are kept
        self._peers = Peers("", {})
        self._recent: dict[int, _Copy] = {}
        self._arrivals: dict[bytes, deque[ArrivedMessage]] = {}
        self._early: list[tuple[int, Head]] = []
        self._dropping: deque[tuple[Transfer, Memory]] = deque()
        self._dropped: Counter[tuple[int, int, str]] = Counter()
        self.arrived = 0
        self.received: Counter[tuple[int, int]] = Counter()

    def open(self, me: Address, peers: Peers) -> None:
        """Open the inbox for a copy: from now on its messages are kept, and no others."""
        self._serial = peers.place(me)[0]
        self._peers = peers
        self._recent[self._serial] = _Copy(me, peers)
        while len(self._recent) > _RECENT_COPIES:
            del self._recent[next(iter(self._recent))]
        self.arrived, self.received = 0, Counter()
        self.is_open = True
        early, self._early = self._early, []
        for world_rank, head in early:
            self._sort(world_rank, head)

    def close(self) -> None:
        """End with the copy: drop messages that it has not received, and all that come later."""
        self.is_open = False
        arrived, self._arrivals = self._arrivals, {}
        for queue in arrived.values():
            for arrival in queue:
                self._drop(arrival.world_rank, arrival.head)

    @property
    def is_dropping(self) -> bool:
        """Whether payloads of dropped messages are under way."""
        return bool(self._dropping)

    def poll(self, wanted: tuple[bytes, Address | None] | None = None) -> bool:
        """Poll for messages that have come; return whether there are some for this copy.

        Messages behind the `wanted` one, as for `find`, are left for the next call.
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
        if self._dropped and not self.is_open:
            self.warn_of_dropped()
        return self.arrived > before

    def find(self, key: bytes, source: Address | None) -> ArrivedMessage | None:
        """Return the oldest message with a key, from a sender, or from any if that is None."""
        queue = self._arrivals.get(key)
        if not queue:
            return None
        if source is None or queue[0].source == source:
            return queue[0]
        return next((arrival for arrival in queue if arrival.source == source), None)

    def count(self, key: bytes) -> int:
        """Return how many messages with a key have come, without what stands for others."""
        arrivals = self._arrivals.get(key, ())
        heads = (arrival.head for arrival in arrivals)
        return sum(head.ticket != ANNOUNCEMENT and head.kind != END for head in heads)

    def remove(self, arrival: ArrivedMessage) -> None:
        """Remove a message without receiving it: an announcement."""
        queue = self._arrivals[arrival.head.key]
        queue.remove(arrival)
        if not queue:
            del self._arrivals[arrival.head.key]

    def receive(self, arrival: ArrivedMessage, memory: Memory) -> Transfer | None:
        """Receive a message into memory of its size; return its transfer, None if that is done."""
        head = arrival.head
        self.remove(arrival)
        if not head.has_payload:
            memoryview(memory)[:] = head.inline
            return None
        self.received[head.from_serial, arrival.world_rank] += 1
        transfer = self._port.receive(arrival.world_rank, head.ticket, memory)
        return None if transfer() else transfer

    def _sort(self, world_rank: int, head: Head) -> None:
        if head.to_serial > self._serial:  # this rank has yet to be told to start that copy
            self._early.append((world_rank, head))
            return
        serial, sender = self._peers.by_world_rank.get(world_rank, (-1, None))
        is_wanted = (head.to_serial, head.from_serial) == (self._serial, serial)
        is_wanted &= self.is_open or head.ticket == REQUEST
        if sender is None or not is_wanted:
            self._drop(world_rank, head)
            return
        self.arrived += 1
        if head.ticket == REQUEST:
            self._answer(world_rank, head)
            return
        arrival = ArrivedMessage(sender, world_rank, head)
        self._arrivals.setdefault(head.key, deque()).append(arrival)

    def _drop(self, world_rank: int, head: Head) -> None:
        """Receive a message and discard it, since its sender waits for the receipt."""
        if head.ticket in (ANNOUNCEMENT, REQUEST) or head.kind == END:
            return
        self._dropped[head.to_serial, world_rank, describe_key(head.key)] += 1
        if head.has_payload:
            memory = bytearray(head.size_bytes)
            transfer = self._port.receive(world_rank, head.ticket, memory)
            self._dropping.append((transfer, memory))

    def warn_of_dropped(self) -> None:
        """Warn of the messages that have been dropped since the last warning."""
        dropped, self._dropped = self._dropped, Counter()
        for (serial, world_rank, key), count in dropped.items():
            long_ago = _Copy(Address("a copy of long ago"), Peers("", {}))
            me, peers = self._recent.get(serial, long_ago)
            _, sender = peers.by_world_rank.get(world_rank, (0, f"rank {world_rank} of the run"))
            messages, were = ("a message", "was") if count == 1 else (f"{count} messages", "were")
            text = f"{messages} from {sender} to rank {me.rank} ({key}) {were} never received"
            self._warn(me.module, me.copy, text)


# -- messages that this rank has sent --------------------------------------------------------------


class Recipient(NamedTuple):
    """The recipient of a message: its address, the serial of its copy, and its world rank."""

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
    size_bytes: int = 0


class OutboxLane:
    """Sends the same memory to the same recipient again and again; made by `Outbox.lane`."""

    def __init__(self, outbox: Outbox, lane: Lane, recipient: Recipient, ticket: int) -> None:
        self._count = outbox.count
        self._start = lane.start
        self._place = recipient[1:]
        self.lane = lane
        self.recipient = recipient
        self.ticket = ticket
        self.is_idle: Transfer = lane.test

    def send(self) -> None:
        """Send the memory as it is now; the previous message must be received: see `is_idle`."""
        self._count(self._place, apart=True)
        self._start()


class _Held:
    """A message that has not been given to MPI."""

    __slots__ = ("apart", "encoded", "is_dropped", "may_be_dropped", "number", "posted")

    def __init__(self, encoded: Encoded, number: int, apart: bool, may_be_dropped: bool) -> None:
        self.encoded = encoded
        self.number = number
        self.apart = apart
        self.may_be_dropped = may_be_dropped
        self.is_dropped = False
        self.posted: Transfer | None = None

    def is_done(self) -> bool:
        """Whether the message has been received or dropped: a `Transfer`."""
        return self.is_dropped if self.posted is None else self.posted()


class _Queue:
    """Messages for one receiver and key that this rank holds, the oldest first."""

    __slots__ = (
        "asked", "is_announced", "is_bounded", "key", "messages", "next_number", "recipient"
    )  # fmt: skip

    def __init__(self, recipient: Recipient, key: bytes) -> None:
        self.recipient = recipient
        self.key = key
        self.messages: deque[_Held] = deque()
        self.next_number = 0
        self.is_bounded = False
        self.is_announced = False
        self.asked: int | None = None  # the least number that the receiver waits for


class Outbox:
    """Messages that one rank sends, and their payloads until these have been received.

    A payload that does not fit into a head has a ticket until it has been received. So no payload
    under way can be taken for another. Messages of this copy, all and those with a payload apart,
    are counted by serial and world rank of their recipients. `held_bytes` is the size of all
    payloads that have not been received, as far as that is known.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._serial = 0
        self._offered: deque[_Offered] = deque()
        self._queues: dict[tuple[tuple[int, int], bytes], _Queue] = {}
        self._lanes: list[OutboxLane] = []
        self._tickets: set[int] = set()
        self._next_ticket = 0
        self.held_bytes = 0
        self.sent: Counter[tuple[int, int]] = Counter()
        self.apart: Counter[tuple[int, int]] = Counter()

    def open(self, serial: int) -> None:
        """Open the outbox for a copy, and count its messages from 0."""
        self._serial = serial
        self.sent, self.apart = Counter(), Counter()

    def count(self, place: tuple[int, int], *, apart: bool) -> None:
        """Count a message to a recipient, given by serial and world rank."""
        self.sent[place] += 1
        if apart:
            self.apart[place] += 1

    @property
    def has_ticket(self) -> bool:
        """Whether one more payload can be sent."""
        return len(self._tickets) < DIRECT_PAYLOADS

    def send(
        self,
        recipient: Recipient,
        key: bytes,
        encoded: Encoded,
        *,
        apart: bool,
        at_most: int | None = None,
    ) -> Transfer | None:
        """Send a message; return the transfer of its payload, None if that was in the head.

        With `at_most` the message stays here until its receiver asks for it. If more than so many
        of its queue do, the oldest are dropped.
        """
        place = (recipient[1:], key)
        queue = self._queues.get(place)
        if queue is None:
            is_large = apart or len(encoded.buffer) > INLINE_BYTES
            is_one_too_many = is_large and len(self._offered) >= PAYLOADS_UNDER_WAY
            if at_most is None and not is_one_too_many:
                return self._post(recipient, key, encoded, 0, apart=apart)
            queue = self._queues[place] = _Queue(recipient, key)
        return self._hold(queue, encoded, apart=apart, at_most=at_most)

    def _post(
        self, recipient: Recipient, key: bytes, encoded: Encoded, number: int, *, apart: bool
    ) -> Transfer | None:
        kind, meta, memory = encoded
        size = len(memory)
        to, world_rank = recipient[1:]
        if size <= INLINE_BYTES and not apart:
            self.count((to, world_rank), apart=False)
            inline = bytes(memory)
            head = Head(to, self._serial, size, NO_TICKET, kind, key, meta, inline, number)
            self._port.send(world_rank, head.pack())
            return None
        self.count((to, world_rank), apart=True)
        ticket = self._take_ticket()
        transfer = self._port.offer(world_rank, ticket, memory)
        self._offered.append(_Offered(transfer, ticket, memory, self._serial, recipient, size))
        self.held_bytes += size
        head = Head(to, self._serial, size, ticket, kind, key, meta, b"", number)
        self._port.send(world_rank, head.pack())
        return transfer

    # -- queues ------------------------------------------------------------------------------

    def _hold(
        self, queue: _Queue, encoded: Encoded, *, apart: bool, at_most: int | None
    ) -> Transfer:
        if len(encoded.buffer) <= INLINE_BYTES and not apart:  # it may be changed at once
            encoded = encoded._replace(buffer=memoryview(bytes(encoded.buffer)))
        held = _Held(encoded, queue.next_number, apart, at_most is not None)
        queue.next_number += 1
        queue.is_bounded |= at_most is not None
        queue.messages.append(held)
        self.held_bytes += len(encoded.buffer)
        if at_most is not None:
            droppable = [message for message in queue.messages if message.may_be_dropped]
            for message in droppable[: max(0, len(droppable) - at_most)]:
                self._drop(queue, message)
        self._serve(queue)
        return held.is_done

    def _drop(self, queue: _Queue, message: _Held) -> None:
        queue.messages.remove(message)
        message.is_dropped = True
        self.held_bytes -= len(message.encoded.buffer)

    def _serve(self, queue: _Queue) -> None:
        """Send what the receiver of a queue has asked for, or announce that there is something."""
        messages = queue.messages
        if queue.asked is not None:
            while messages and messages[0].may_be_dropped and messages[0].number < queue.asked:
                self._drop(queue, messages[0])
            if messages and self.has_ticket:
                queue.asked = None
                self._release(queue)
        if messages and queue.asked is None and not queue.is_announced:
            self._signal(queue.recipient, queue.key, ANNOUNCEMENT)
            queue.is_announced = True

    def _release(self, queue: _Queue) -> None:
        """Give the oldest message of a queue to MPI."""
        held = queue.messages.popleft()
        self.held_bytes -= len(held.encoded.buffer)
        transfer = self._post(
            queue.recipient, queue.key, held.encoded, held.number, apart=held.apart
        )
        held.posted = transfer if transfer is not None else lambda: True

    def _signal(self, recipient: Recipient, key: bytes, ticket: int, number: int = 0) -> None:
        to, world_rank = recipient[1:]
        self.count((to, world_rank), apart=False)
        head = Head(to, self._serial, 0, ticket, 0, key, b"", b"", number)
        self._port.send(world_rank, head.pack())

    def ask(self, sender: Recipient, key: bytes, least: int) -> None:
        """Ask the sender of an announcement for its oldest message that has at least a number."""
        self._signal(sender, key, REQUEST, least)

    def answer(self, world_rank: int, head: Head) -> None:
        """Answer a request of a receiver; one for a queue that is empty is for its next message."""
        queue = self._queues.get(((head.from_serial, world_rank), head.key))
        if queue is not None:
            queue.is_announced = False
            queue.asked = head.number
            self._serve(queue)

    def keep_all(self) -> None:
        """Drop nothing any more: the copy has returned, and its last messages are for receivers."""
        for queue in self._queues.values():
            for message in queue.messages:
                message.may_be_dropped = False
        self._release_waiting()

    def is_holding(self, recipient: Recipient, key: bytes) -> bool:
        """Whether messages for a receiver and key wait here, before any later one."""
        queue = self._queues.get((recipient[1:], key))
        return queue is not None and bool(queue.messages)

    @property
    def is_holding_any(self) -> bool:
        """Whether messages wait here until MPI has room for them or their receiver asks."""
        return bool(self._queues)

    def _release_waiting(self) -> bool:
        """Give messages that must not be dropped to MPI, as far as it has room for them."""
        was_released = False
        for place, queue in list(self._queues.items()):
            messages = queue.messages
            while messages and not messages[0].may_be_dropped:
                if len(self._offered) >= PAYLOADS_UNDER_WAY:
                    return was_released
                self._release(queue)
                was_released = True
            if not messages and not queue.is_bounded:
                del self._queues[place]
        return was_released

    # -- payloads under way -------------------------------------------------------------------

    def lane(self, recipient: Recipient, key: bytes, encoded: Encoded) -> OutboxLane:
        """Return a lane, which sends the same memory again and again, until the copy ends."""
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
            received = offered.popleft()
            self._tickets.discard(received.ticket)
            self.held_bytes -= received.size_bytes
        if offered:  # next time, test another payload first
            offered.rotate(-1)
        has_news = len(offered) < before
        return (bool(self._queues) and self._release_waiting()) or has_news

    @property
    def is_under_way(self) -> bool:
        """Whether a payload has yet to be received."""
        return bool(self._offered) or not all(lane.is_idle() for lane in self._lanes)

    @property
    def is_awaited(self) -> bool:
        """Whether a message of this copy has yet to be received."""
        return any(queue.messages for queue in self._queues.values()) or bool(self._pending())

    def awaited(self) -> list[Recipient]:
        """Return the recipient of each message of this copy that has yet to be received."""
        held = [queue.recipient for queue in self._queues.values() for _ in queue.messages]
        return held + self._pending()

    def _pending(self) -> list[Recipient]:
        """Return the recipient of each payload of this copy that MPI has yet to deliver."""
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
        pending = Counter(recipient[1:] for recipient in self._pending())
        return {place: count - pending[place] for place, count in self.apart.items()}

    def close(self) -> None:
        """End with the copy: free its lanes, or keep them until their recipients are done.

        Messages that a copy that failed still holds are lost.
        """
        for queue in self._queues.values():
            self.held_bytes -= sum(len(held.encoded.buffer) for held in queue.messages)
        self._queues.clear()
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            if lane.is_idle():
                lane.lane.close()
                self._tickets.discard(lane.ticket)
            else:  # of a copy that failed: its recipient may still take it
                offered = _Offered(lane.is_idle, lane.ticket, lane, self._serial, lane.recipient)
                self._offered.append(offered)


class Sending:
    """A message that was sent, as `Channel.send` returns it."""

    def __init__(
        self, channel: Channel, transfers: Sequence[Transfer], receivers: Sequence[Address]
    ) -> None:
        self._channel = channel
        self._transfers = list(transfers)
        self._receivers = tuple(receivers)

    @property
    def done(self) -> bool:
        """Whether the message has left: from then on its value may be changed."""
        self._channel.poll()
        while self._transfers and self._transfers[-1]():
            self._transfers.pop()
        return not self._transfers

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the message has left.

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
