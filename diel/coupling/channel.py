"""`Channel`: `send`, `recv` and `move` of `ctx`, between the ranks of a group."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args

from diel.comm.device_arrays import device_bytes, is_on_device, memory_to_send, to_host
from diel.comm.meter import Meter
from diel.comm.waiting import wait_for
from diel.coupling.address import Address, Peers, To
from diel.coupling.messages import (
    ANNOUNCEMENT,
    INLINE_BYTES,
    ArrivedMessage,
    Inbox,
    MessageCounts,
    Outbox,
    OutboxLane,
    Recipient,
    Sending,
    describe_key,
    key_of,
)
from diel.errors import AddressError, CouplingError, CouplingTimeout, PayloadError, TooFarAhead
from diel.text import format_bytes
from diel.tuples import codec
from diel.tuples.codec import np
from diel.tuples.tags import Tag, format_tag

if TYPE_CHECKING:
    from diel.comm.direct import Memory, Port, Transfer
    from diel.workflow.boundary import AheadPolicy

Found = TypeVar("Found")

_LONG_S: Final = 1e9
_QUICK_POLLS: Final = range(50)
WARNED_SHARE: Final = 0.1
"""A rank whose unreceived messages take this share of the memory is warned of."""


class Bound(NamedTuple):
    """How many messages a sender may be ahead of a receiver, and what it does then."""

    ahead: int
    policy: AheadPolicy = "wait"

    @classmethod
    def of(cls, ahead: object, policy: object) -> Bound:
        """Return the bound that a module has asked for."""
        from diel.workflow.boundary import AheadPolicy  # its file imports pydantic

        if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 1:
            raise CouplingError(f"ahead is a number of messages, at least 1, not {ahead!r}")
        if policy not in get_args(AheadPolicy):
            known = ", ".join(f'"{name}"' for name in get_args(AheadPolicy))
            raise CouplingError(f"there is no policy {policy!r}: use {known}")
        return cls(ahead, policy)  # type: ignore[arg-type]


class Channel:
    """Messages of one rank to and from its peers: sends, receives, and the waits for them.

    It lasts as long as the rank and is opened for one copy of a module after the other. A message
    names the copies that it is from and for, so a message that was left over never reaches a later
    copy.

    Parameters
    ----------
    port : Port
    safe_point : callable, optional
        Called during waits, which end with what it raises.
    warn : callable, optional
        Called with (module, copy, text) about messages that were never received.
    meter : Meter, optional
        Measures waits that outlast a few quick polls, and transfers of received payloads.
    """

    def __init__(
        self,
        port: Port,
        safe_point: Callable[[], None] = lambda: None,
        warn: Callable[[str, int, str], None] = lambda module, copy, text: None,
        meter: Meter | None = None,
    ) -> None:
        self._port = port
        self.meter = meter if meter is not None else Meter()
        self._safe_point = safe_point
        self._warn = warn
        # The call that waits, what for, and its timeout in seconds.
        self.waiting_for: tuple[str, object, float] | None = None
        self._waits_for: Literal["message", "receipt", ""] = ""
        self._receivers: tuple[tuple[int, int], ...] = ()
        self.address = Address("")  # of this rank
        self.peers = Peers("", {})  # the ranks of the group
        self._outbox = Outbox(port)
        self._inbox = Inbox(port, warn, self._outbox.answer)
        self._ahead: dict[tuple[Address, bytes], deque[Transfer]] = {}
        self._has_warned = False  # of the memory that unreceived messages take
        self.changes = 0
        """Grows when messages have come or were received: earlier `counts` are old then."""
        if port.wakeup is not None:
            port.wakeup.sending.append(self._is_under_way)
        self._receiving: object = None

    @property
    def port(self) -> Port:
        """Its port."""
        return self._port

    # -- the copy that it is open for ---------------------------------------------------------

    def open(self, me: Address, peers: Peers) -> None:
        """Open the channel for a copy: from now on its messages are received, and no others."""
        self.address, self.peers = me, peers
        self._has_warned = False
        self._outbox.open(peers.place(me)[0])
        self._inbox.open(me, peers)

    def close(self) -> None:
        """End with the copy: wait until its messages have left, drop those not yet received."""
        if not self.peers.has_one_rank:
            self.poll()
        if not self.was_used:  # nearly always; more polls would take as long as all the rest
            self._inbox.close()
            self._outbox.close()
            return
        self._inbox.close()
        self._outbox.keep_all()
        self.await_receipt(self._all_has_left, self._awaited_receivers(), None)
        self._outbox.close()
        self._ahead.clear()
        self._inbox.warn_of_dropped()

    def _is_under_way(self) -> bool:
        return self._inbox.is_dropping or self._outbox.is_under_way

    def _all_has_left(self) -> Literal[True] | None:
        self.poll()
        return None if self._inbox.is_dropping or self._outbox.is_awaited else True

    def _awaited_receivers(self) -> list[Address]:
        """Return the ranks that have yet to receive a message of this copy."""
        return sorted({recipient.address for recipient in self._outbox.awaited()})

    def abandon(self) -> None:
        """End with a copy that failed, without waiting."""
        if self._inbox.is_open:
            self.poll()
            self._inbox.close()
            self._outbox.close()
            self._ahead.clear()
            self._inbox.warn_of_dropped()

    @property
    def was_used(self) -> bool:
        """Whether the copy has sent or received anything."""
        return bool(self._outbox.sent) or self._inbox.arrived > 0

    def counts(self) -> MessageCounts:
        """Return how many messages the copy has sent and received, and what it waits for."""
        outbox, inbox = self._outbox, self._inbox
        return MessageCounts(
            sent=dict(outbox.sent),
            arrived=inbox.arrived,
            delivered=outbox.delivered(),
            received=dict(inbox.received),
            waits_for=self._waits_for,
            receivers=self._receivers,
        )

    # -- what modules call --------------------------------------------------------------------

    def send(
        self,
        value: object,
        to: To,
        *,
        tag: Tag | None = None,
        copy: bool = True,
        ahead: int | None = None,
        policy: AheadPolicy = "wait",
        timeout: float | None = None,
    ) -> Sending:
        """Send a value; see `Context.send`."""
        receiver, key = self.peers.resolve(to), key_of(tag)
        bound = None if ahead is None else Bound.of(ahead, policy)
        encoded = _encode(value, self._port, self.meter, copy=copy)
        if bound is not None:
            self.await_room([(receiver, key)], bound, timeout)
        transfer = self.post(receiver, key, encoded, bound=bound)
        return Sending(self, [] if transfer is None else [transfer], [receiver])

    def move(
        self, value: object, to: To, *, tag: Tag | None = None, timeout: float | None = None
    ) -> None:
        """Send a value and wait until it has been received; see `Context.move`."""
        receiver = self.peers.resolve(to)
        if receiver == self.address:
            raise AddressError(f"{receiver} cannot move anything to itself: it would wait for ever")
        encoded = _encode(value, self._port, self.meter, copy=False)
        transfer = self.post(receiver, key_of(tag), encoded, apart=True)
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
        sender = None if source is None else self.peers.resolve(source)
        destination = None
        if out is not None:
            destination = codec.Destination.of(out, self._port, INLINE_BYTES)
        key = key_of(tag)
        subject = Subject(lambda: _from(sender, tag))
        arrival = self.await_arrival(key, sender, subject, timeout)
        if destination is not None:
            kind, meta, memory = destination.encoded
            if (arrival.head.kind, arrival.head.meta) != (kind, meta):
                raise PayloadError(
                    f"recv({_from(sender, tag)}): the message is "
                    f"{codec.describe(arrival.head.kind, arrival.head.meta)}, and out= is "
                    f"{codec.describe(kind, meta)}; it has not been received"
                )
            self.receive([(arrival, memory)])
            destination.finish(memory, self.meter)
            value = out
        else:
            value = self._take_value(arrival)
        return (arrival.source, value) if with_source else value

    def _take_value(self, arrival: ArrivedMessage) -> Any:
        head = arrival.head
        memory = np.empty(head.size_bytes, np.uint8).data  # not zeroed
        self.receive([(arrival, memory)])
        try:
            return codec.decode(head.kind, head.meta, memory)
        except PayloadError as error:
            raise PayloadError(
                f"a message from {arrival.source} ({describe_key(head.key)}): {error}; it is "
                "dropped"
            ) from error.__cause__

    # -- encoded memory: for boundaries too ---------------------------------------------------

    def post(
        self,
        receiver: Address,
        key: bytes,
        encoded: codec.Encoded,
        *,
        apart: bool = False,
        bound: Bound | None = None,
    ) -> Transfer | None:
        """Send encoded memory to another rank of the group.

        Memory that does not fit into a head must stay as it is until it has been received. `apart`
        sends even a small payload apart from the head, so that its receipt is known. A `bound` that
        drops nothing does so too: `await_room` comes first. Returns the transfer of the payload;
        None if the head holds it, which has left.
        """
        if self._outbox.is_under_way or self._outbox.is_holding_any:
            self.poll()
        self._await_ticket()
        recipient, send = self._recipient(receiver), self._outbox.send
        if bound is not None and bound.policy == "drop oldest":
            transfer = send(recipient, key, encoded, apart=apart, at_most=bound.ahead)
        else:
            transfer = send(recipient, key, encoded, apart=apart or bound is not None)
        if bound is not None and bound.policy != "drop oldest":
            assert transfer is not None
            self._ahead.setdefault((receiver, key), deque()).append(transfer)
        if not self._has_warned and self._outbox.held_bytes > WARNED_SHARE * self._memory_bytes:
            self._warn_of_memory()
        return transfer

    @cached_property
    def _memory_bytes(self) -> int:
        from diel.processes import memory_bytes  # its file imports subprocess

        return memory_bytes()

    def _warn_of_memory(self) -> None:
        self._has_warned = True
        receivers = ", ".join(map(str, self._awaited_receivers()))
        self._warn(
            self.address.module,
            self.address.copy,
            f"rank {self.address.rank} has sent {format_bytes(self._outbox.held_bytes)} that is "
            f"yet to be received by {receivers}: more than a tenth of the memory of "
            f"{format_bytes(self._memory_bytes)}, and it grows as long as the receiver is slower; "
            "ahead = N in the [[boundary]], or send(..., ahead=N), sets a bound",
        )

    def await_room(
        self, places: Sequence[tuple[Address, bytes]], bound: Bound, timeout: float | None
    ) -> None:
        """Wait until one more message to each of the receivers and keys is within a bound.

        Raises
        ------
        TooFarAhead
            If there is no room, and the policy is "error".
        CouplingTimeout
            If there is none in time.
        """
        if bound.policy == "drop oldest":
            return

        def full() -> list[Address]:
            for place in places:
                under_way = self._ahead.get(place)
                while under_way and under_way[0]():
                    under_way.popleft()
            return [place[0] for place in places if len(self._ahead.get(place, ())) >= bound.ahead]

        def has_room() -> Literal[True] | None:
            self.poll()
            return None if full() else True

        late = full()
        if late and not has_room():
            names = ", ".join(map(str, dict.fromkeys(late)))
            if bound.policy == "error":
                raise TooFarAhead(
                    f"{names} has not received {bound.ahead} earlier messages from {self.address} "
                    f"({describe_key(places[0][1])}), and ahead = {bound.ahead}: send less often, "
                    'or use policy "wait" or "drop oldest"'
                )
            details = f" of {describe_key(places[0][1])}, ahead = {bound.ahead}"
            self.await_receipt(has_room, list(dict.fromkeys(late)), timeout, details)

    def is_holding(self, receiver: Address, key: bytes) -> bool:
        """Whether earlier messages to a receiver have not been given to MPI."""
        outbox = self._outbox
        return outbox.is_holding_any and outbox.is_holding(self._recipient(receiver), key)

    def lane(self, receiver: Address, key: bytes, encoded: codec.Encoded) -> OutboxLane:
        """Return a lane, which sends the current content of the same memory again and again.

        It lasts until the copy ends, and so does its ticket: its messages are received in order.
        """
        self._await_ticket()
        return self._outbox.lane(self._recipient(receiver), key, encoded)

    def _recipient(self, receiver: Address) -> Recipient:
        return Recipient(receiver, *self.peers.place(receiver))

    def _await_ticket(self) -> None:
        if not self._outbox.has_ticket:
            self.await_receipt(self._has_ticket, self._awaited_receivers(), None)

    def _has_ticket(self) -> Literal[True] | None:
        self.poll()
        return True if self._outbox.has_ticket else None

    def await_arrival(
        self,
        key: bytes,
        source: Address | None,
        subject: object,
        timeout: float | None,
        operation: str = "recv",
        least: int = 0,
    ) -> ArrivedMessage:
        """Wait for a message and return it; it stays in the inbox until `receive`.

        Of messages that may be dropped, one with at least this number is asked for.
        """
        arrival = self._look_for(key, source, least)
        if arrival is not None:
            return arrival
        with self._waiting(operation, subject, timeout, "message"):
            arrival = self._wait(lambda: self._look_for(key, source, least), timeout)
        if arrival is None:
            raise CouplingTimeout(f"{operation}({subject!r})", timeout or 0.0)
        return arrival

    def _look_for(
        self, key: bytes, source: Address | None, least: int = 0
    ) -> ArrivedMessage | None:
        arrival = self._inbox.find(key, source)
        if arrival is None:
            self.poll((key, source))
            arrival = self._inbox.find(key, source)
        while arrival is not None and arrival.head.ticket == ANNOUNCEMENT:
            self._inbox.remove(arrival)
            self._outbox.ask(self._recipient(arrival.source), key, least)
            arrival = self._inbox.find(key, source)
        return arrival

    def await_receipt(
        self,
        poll: Callable[[], Literal[True] | None],
        receivers: Sequence[Address],
        timeout: float | None,
        details: str = "",
    ) -> None:
        """Wait until `poll` says that messages have been received."""
        if poll():
            return
        subject = Subject(lambda: f"by {', '.join(map(str, receivers))}{details}")
        places = tuple(self.peers.place(address) for address in receivers)
        with self._waiting("receipt", subject, timeout, "receipt", places):
            received = self._wait(poll, timeout)
        if received is None:
            raise CouplingTimeout(f"receipt({subject!r})", timeout or 0.0)

    def receive(self, arrivals: Sequence[tuple[ArrivedMessage, Memory]]) -> None:
        """Receive messages that have arrived, each payload into memory of its size; wait for it."""
        begun = [self._inbox.receive(arrival, memory) for arrival, memory in arrivals]
        transfers = [transfer for transfer in begun if transfer is not None]
        if transfers:
            # Kept if a stop ends the wait: MPI goes on writing there.
            self._receiving = (transfers, arrivals)
            since_s = self.meter.clock()
            wait_for(_all_of(transfers), None, self._safe_point, brisk=True)
            self._receiving = None
            size_bytes = sum(arrival.head.size_bytes for arrival, _ in arrivals)
            self.meter.communicated(
                since_s, f"receive from {arrivals[0][0].source}", None, size_bytes
            )

    def raise_if_stopped(self) -> None:
        """Raise what ends a wait, if the run or this copy is ending; never waits."""
        self._safe_point()

    # -- waits that go on outside of this -----------------------------------------------------

    def begin_wait(self, operation: str, subject: object) -> float:
        """Note that this rank waits in MPI calls that are not ours; return the meter's time.

        The wait counts as one with an end, since nobody knows whether messages are under way.
        """
        self.waiting_for = (operation, subject, _LONG_S)
        return self.meter.clock()

    def end_wait(self, since_s: float) -> None:
        """Note the end of such a wait."""
        self.waiting_for = None
        self.meter.waited(since_s)

    # -- inside -------------------------------------------------------------------------------

    def poll(self, wanted: tuple[bytes, Address | None] | None = None) -> None:
        """Poll for messages that have come or were received; never waits; see `Inbox.poll`."""
        news = self._inbox.poll(wanted)
        news |= self._outbox.forget_received()
        self.changes += news
        if news and self.waiting_for is not None:
            # A new object: code that compares it by identity finds that earlier counts are old.
            operation, subject, timeout_s = self.waiting_for
            self.waiting_for = (operation, subject, timeout_s)

    def _wait(self, poll: Callable[[], Found | None], timeout: float | None) -> Found | None:
        wakeup = self._port.wakeup
        # A rank that can be woken does not poll in vain: where ranks share cores, that yields the
        # core.
        if timeout != 0 and (wakeup is None or not wakeup.wakes_all):
            for _ in _QUICK_POLLS:
                found = poll()
                if found is not None:
                    return found
        since_s = self.meter.clock()
        try:
            return wait_for(
                poll,
                timeout,
                self._safe_point,
                brisk=self._outbox.is_under_way,
                wakeup=wakeup,
            )
        finally:
            self.meter.waited(since_s)

    @contextmanager
    def _waiting(
        self,
        operation: str,
        subject: object,
        timeout: float | None,
        waits_for: Literal["message", "receipt"],
        receivers: tuple[tuple[int, int], ...] = (),
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


class Subject:
    """Description of what a rank waits for, whose text is made only where the wait is reported."""

    def __init__(self, words: Callable[[], str]) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words()


def _from(source: Address | None, tag: object) -> str:
    sender = "anybody" if source is None else str(source)
    return f"from {sender}" + ("" if tag is None else f", tag={format_tag(tag)}")


# -- values as memory to send ----------------------------------------------------------------------


def _encode(value: Any, port: Port, meter: Meter, *, copy: bool) -> codec.Encoded:
    """Encode a value as memory to send, on the host or, with a GPU-aware MPI, on its GPU.

    With `copy` the memory is not that of the value; a small payload is copied into the head anyway.
    """
    if is_on_device(value):
        if port.gpu_aware and device_bytes(value) > INLINE_BYTES:
            meta = codec.device_array_meta(value)
            return codec.Encoded(codec.ARRAY, meta, memory_to_send(value, meter, copy=copy))
        value, copy = to_host(value, meter), False
    kind, meta, memory = codec.encode(value)
    if copy and len(memory) > INLINE_BYTES and _is_memory_of(value):
        memory = bytes(memory)
    return codec.Encoded(kind, meta, memory)


def _is_memory_of(value: object) -> bool:
    """Whether the encoded memory is the value's own, which may be changed."""
    return type(value) is bytearray or (codec.is_plain_array(value) and value.flags.c_contiguous)
