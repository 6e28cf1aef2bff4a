"""Two servers for each partition of the tuple space, so that one of them may die.

A partition is what one server would have alone. It has a head and a tail::

    client --request--> head --the same, in the head's order--> tail --reply--> client

Both apply all requests, in the same order and at the same times, to stores of their own: these are
state machines without a clock, so they are equal. What is answered is in both.

- If the head dies, the tail goes on alone. Clients send it what was not answered; what the tail has
  applied already it knows by the numbers of their messages.
- If the tail dies, the head goes on alone, and sends the replies for which it has no receipt: of
  those that come twice, a client drops the second.

No acknowledgement between servers is waited for, and nothing that a dead server has sent has to be
told from what it has not.

References
----------
.. [1] van Renesse and Schneider, Chain Replication for Supporting High Throughput and
   Availability, OSDI 2004.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from diel.tuples.protocol import (
    NOTHING,
    OPERATION,
    Operation,
    Outs,
    Payload,
    Record,
    pack_notice,
    pack_record,
    unpack_prefix,
    unpack_record,
    unseal,
)
from diel.tuples.store import TupleStore

_EXPIRE: Final = int(Operation.EXPIRE)
_FORGET_CLIENT: Final = int(Operation.FORGET_CLIENT)
_NOBODY: Final = 0  # in place of a client, where time has passed

Forward: TypeAlias = Callable[[int, bytes, Payload], None]
"""Sends a message, and perhaps a payload that travels apart, to the server of some rank."""


def choose_tails(hosts: Sequence[str]) -> tuple[int, ...]:
    """Choose a tail for the partition of each server: one on another host, if there is one.

    Parameters
    ----------
    hosts : sequence of str
        Where each server runs.

    Returns
    -------
    tuple of int
        Which server is the tail of each partition; as evenly as hosts allow.
    """
    load = [0] * len(hosts)
    tails = []
    for head, host in enumerate(hosts):
        others = [(head + step) % len(hosts) for step in range(1, len(hosts))]
        elsewhere = [server for server in others if hosts[server] != host]
        tail = min(elsewhere or others, key=load.__getitem__)
        load[tail] += 1
        tails.append(tail)
    return tuple(tails)


@dataclass
class _Partition:
    """The tuples of one partition at one of its servers."""

    store: TupleStore
    head: int
    tail: int | None  # None once there is one server alone
    leads: bool  # whether requests come from clients, not from the head
    offset_s: float = 0.0  # from the clock of this server to that of the store
    applied: dict[int, int] = field(default_factory=dict)  # number of each client's last message
    # Of the head: replies for which there is no receipt yet, by client and request.
    unconfirmed: dict[int, dict[int, tuple[int, bytes, Payload]]] = field(default_factory=dict)


class ReplicatedStores:
    """The stores of one server: of its own partition, and of those whose tail it is.

    To be used like a `TupleStore`; requests have a seal, and those of other servers are records.

    Parameters
    ----------
    rank : int
        Of this server.
    heads, tails : sequence of int
        The ranks of the servers of each partition.
    make_store : callable
        Makes the store of a partition, the same at both of its servers.
    forward : callable
        Sends records to other servers.
    """

    def __init__(
        self,
        rank: int,
        heads: Sequence[int],
        tails: Sequence[int],
        make_store: Callable[[int], TupleStore],
        forward: Forward,
    ) -> None:
        self._forward = forward
        self._servers = frozenset(heads)
        self._dead_clients: set[int] = set()
        self._partitions = {
            number: _Partition(make_store(number), head, tail, leads=head == rank)
            for number, (head, tail) in enumerate(zip(heads, tails, strict=True))
            if rank in (head, tail)
        }

    @property
    def led(self) -> list[TupleStore]:
        """The stores of the partitions for which clients ask this server."""
        return [partition.store for partition in self._partitions.values() if partition.leads]

    @property
    def tuples_held(self) -> int:
        """Tuples of these partitions, claimed ones included."""
        return sum(store.tuples_held for store in self.led)

    @property
    def held_bytes(self) -> int:
        """Bytes of these tuples."""
        return sum(store.held_bytes for store in self.led)

    @property
    def capacity_bytes(self) -> int:
        """What these partitions may hold."""
        return sum(store.capacity_bytes for store in self.led)

    def handle(self, source: int, message: bytes, now_s: float, payload: Payload = None) -> Outs:
        """Apply a client's request or a head's record; return the replies to be sent from here."""
        if source in self._servers:
            return self._follow(message, now_s, payload)
        message, (number_of_partition, number, receipts) = unseal(message)
        partition = self._partitions[number_of_partition]
        replies: Outs = NOTHING
        if not partition.leads:  # then its client knows before this server that the head has died
            replies = self._take_over(partition, now_s)
        unconfirmed = partition.unconfirmed.get(source)
        if unconfirmed:
            for request_id in receipts:
                unconfirmed.pop(request_id, None)
        if number <= partition.applied.get(source, 0):
            return replies  # a `CONFIRM`, or sent again though the reply was on its way
        about = Record(number_of_partition, number, source, now_s + partition.offset_s)
        applied = self._lead(partition, message, about, payload)
        return [*replies, *applied] if replies else applied

    def expire(self, now_s: float) -> Outs:
        """Do what follows from the passing of time in the partitions that are led from here."""
        replies: list[tuple[int, bytes, Payload]] = []
        for number, partition in self._partitions.items():
            store_s = now_s + partition.offset_s
            if partition.leads and partition.store.next_deadline_s() <= store_s:
                about = Record(number, 0, _NOBODY, store_s)
                replies += self._lead(partition, pack_notice(Operation.EXPIRE), about)
        return replies

    def next_deadline_s(self) -> float:
        """Return when `expire` has something to do next; infinity if it never has."""
        led = [partition for partition in self._partitions.values() if partition.leads]
        deadlines = [partition.store.next_deadline_s() - partition.offset_s for partition in led]
        return min(deadlines, default=math.inf)

    def client_died(self, rank: int, now_s: float) -> Outs:
        """Forget a client, or go on without another server, which has died."""
        replies: list[tuple[int, bytes, Payload]] = []
        if rank not in self._servers:
            self._dead_clients.add(rank)
        for number, partition in self._partitions.items():
            if rank not in self._servers:
                if partition.leads:
                    about = Record(number, 0, rank, now_s + partition.offset_s)
                    replies += self._lead(partition, pack_notice(Operation.FORGET_CLIENT), about)
            elif rank == partition.head and not partition.leads:
                replies += self._take_over(partition, now_s)
            elif rank == partition.tail and partition.leads:
                partition.tail = None
                for unconfirmed in partition.unconfirmed.values():
                    replies += unconfirmed.values()
                partition.unconfirmed.clear()
        return replies

    def _lead(
        self, partition: _Partition, message: bytes, about: Record, payload: Payload = None
    ) -> Outs:
        """Apply a request, at the tail too; return the replies if there is no tail to send them."""
        if partition.tail is None:
            return self._apply(partition, message, about, payload)
        self._forward(partition.tail, pack_record(message, about), payload)
        for reply in self._apply(partition, message, about, payload):
            request_id = unpack_prefix(reply[1])[0]
            partition.unconfirmed.setdefault(reply[0], {})[request_id] = reply
        return NOTHING

    def _follow(self, message: bytes, now_s: float, payload: Payload) -> Outs:
        """Apply what the head of a partition has applied."""
        message, about = unpack_record(message)
        partition = self._partitions[about.partition]
        if partition.leads:
            return NOTHING  # of a head that has died: whoever asked for it sends it again
        partition.offset_s = about.now_s - now_s
        return self._apply(partition, message, about, payload)

    def _apply(
        self, partition: _Partition, message: bytes, about: Record, payload: Payload
    ) -> Outs:
        if about.number:
            partition.applied[about.client] = about.number
        operation = message[OPERATION]
        if operation == _EXPIRE:
            return partition.store.expire(about.now_s)
        if operation == _FORGET_CLIENT:
            partition.unconfirmed.pop(about.client, None)
            return partition.store.client_died(about.client, about.now_s)
        return partition.store.handle(about.client, message, about.now_s, payload)

    def _take_over(self, partition: _Partition, now_s: float) -> Outs:
        """Go on without the head; return the replies that its clients' deaths lead to."""
        partition.leads, partition.tail = True, None
        replies: list[tuple[int, bytes, Payload]] = []
        for client in sorted(self._dead_clients):
            replies += partition.store.client_died(client, now_s + partition.offset_s)
        return replies
