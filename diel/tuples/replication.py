"""Replication of the tuple space: two servers for each partition, so that either may die.

A partition is the tuples that one server has without replication. It has a head and a tail::

    client --request--> head --the same, in the head's order--> tail --reply--> client

Both apply all requests, in the same order and with the same times, to stores of their own. A store
is a state machine without a clock, so both are equal. A reply means that both have the request.

- If the head dies, the tail goes on alone. Clients send all unanswered requests to it again; by the
  numbers of their messages it skips requests that it has applied already.
- If the tail dies, the head goes on alone, and sends the replies for which it has no receipt; if a
  reply comes twice, the client drops the second one.

No server waits for another's acknowledgement, and it does not matter which of its last messages a
dead server has still sent.

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
_NOBODY: Final = 0  # stands for the client in a record of EXPIRE

Forward: TypeAlias = Callable[[int, bytes, Payload], None]
"""A function that sends a message, and its separate payload if any, to the server on a rank."""


def choose_tails(hosts: Sequence[str]) -> tuple[int, ...]:
    """Choose a tail for the partition of each server, on another host if there is one.

    Returns the index of the server that is the tail of each partition; balanced as far as hosts
    allow.
    """
    load = [0] * len(hosts)
    tails = []
    for head, host in enumerate(hosts):
        other_servers = [(head + step) % len(hosts) for step in range(1, len(hosts))]
        on_other_hosts = [server for server in other_servers if hosts[server] != host]
        tail = min(on_other_hosts or other_servers, key=load.__getitem__)
        load[tail] += 1
        tails.append(tail)
    return tuple(tails)


@dataclass
class _Partition:
    """The copy of a partition on one of its two servers."""

    store: TupleStore
    head: int
    tail: int | None  # None once a single server is left
    leads: bool  # whether requests come from clients, rather than from the head
    offset_s: float = 0.0  # to add to this server's clock for the times of the store
    applied: dict[int, int] = field(default_factory=dict)  # number of each client's last message
    # On the head: replies without a receipt, by client and request id.
    unconfirmed: dict[int, dict[int, tuple[int, bytes, Payload]]] = field(default_factory=dict)


class ReplicatedStores:
    """The stores of one server: of the partition that it heads, and of those whose tail it is.

    Has the interface of a `TupleStore`, except that requests of clients have a seal, and requests
    of other servers a record.

    Parameters
    ----------
    rank : int
        The rank of this server.
    heads, tails : sequence of int
        The ranks of the head and the tail of each partition.
    make_store : callable
        Returns the store for a partition's number, equal at both of its servers.
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
        """The stores of the partitions whose requests come to this server from clients."""
        return [partition.store for partition in self._partitions.values() if partition.leads]

    @property
    def tuples_held(self) -> int:
        """The number of tuples in the partitions led here, claimed tuples included."""
        return sum(store.tuples_held for store in self.led)

    @property
    def held_bytes(self) -> int:
        """The memory of the tuples in the partitions led here."""
        return sum(store.held_bytes for store in self.led)

    @property
    def capacity_bytes(self) -> int:
        """The memory that tuples in the partitions led here may take."""
        return sum(store.capacity_bytes for store in self.led)

    def handle(self, source: int, message: bytes, now_s: float, payload: Payload = None) -> Outs:
        """Apply a request of a client or of a head; return the replies that this server sends."""
        if source in self._servers:
            return self._follow(message, now_s, payload)
        message, (number_of_partition, number, receipts) = unseal(message)
        partition = self._partitions[number_of_partition]
        replies: Outs = NOTHING
        if not partition.leads:  # the client has noticed the head's death before this server
            replies = self._take_over(partition, now_s)
        unconfirmed = partition.unconfirmed.get(source)
        if unconfirmed:
            for request_id in receipts:
                unconfirmed.pop(request_id, None)
        if number <= partition.applied.get(source, 0):
            return replies  # a `CONFIRM`, or a request that was applied before the head died
        record = Record(number_of_partition, number, source, now_s + partition.offset_s)
        applied = self._lead(partition, message, record, payload)
        return [*replies, *applied] if replies else applied

    def expire(self, now_s: float) -> Outs:
        """Expire timeouts and leases in the partitions led here, and at their tails."""
        replies: list[tuple[int, bytes, Payload]] = []
        for number, partition in self._partitions.items():
            store_s = now_s + partition.offset_s
            if partition.leads and partition.store.next_deadline_s() <= store_s:
                record = Record(number, 0, _NOBODY, store_s)
                replies += self._lead(partition, pack_notice(Operation.EXPIRE), record)
        return replies

    def next_deadline_s(self) -> float:
        """Return the time at which `expire` is due next; infinity if it is not."""
        led = [partition for partition in self._partitions.values() if partition.leads]
        deadlines = [partition.store.next_deadline_s() - partition.offset_s for partition in led]
        return min(deadlines, default=math.inf)

    def client_died(self, rank: int, now_s: float) -> Outs:
        """Handle the death of a rank: forget a client, or go on without a head or tail."""
        replies: list[tuple[int, bytes, Payload]] = []
        if rank not in self._servers:
            self._dead_clients.add(rank)
        for number, partition in self._partitions.items():
            if rank not in self._servers:
                if partition.leads:
                    record = Record(number, 0, rank, now_s + partition.offset_s)
                    replies += self._lead(partition, pack_notice(Operation.FORGET_CLIENT), record)
            elif rank == partition.head and not partition.leads:
                replies += self._take_over(partition, now_s)
            elif rank == partition.tail and partition.leads:
                partition.tail = None
                for unconfirmed in partition.unconfirmed.values():
                    replies += unconfirmed.values()
                partition.unconfirmed.clear()
        return replies

    def _lead(
        self, partition: _Partition, message: bytes, record: Record, payload: Payload = None
    ) -> Outs:
        """Apply a request here and at the tail; return replies only if there is no tail."""
        if partition.tail is None:
            return self._apply(partition, message, record, payload)
        self._forward(partition.tail, pack_record(message, record), payload)
        for reply in self._apply(partition, message, record, payload):
            request_id = unpack_prefix(reply[1])[0]
            partition.unconfirmed.setdefault(reply[0], {})[request_id] = reply
        return NOTHING

    def _follow(self, message: bytes, now_s: float, payload: Payload) -> Outs:
        """Apply a request that the head of a partition has applied and forwarded."""
        message, record = unpack_record(message)
        partition = self._partitions[record.partition]
        if partition.leads:
            return NOTHING  # from a head that has died: the client sends the request again
        partition.offset_s = record.now_s - now_s
        return self._apply(partition, message, record, payload)

    def _apply(
        self, partition: _Partition, message: bytes, record: Record, payload: Payload
    ) -> Outs:
        if record.number:
            partition.applied[record.client] = record.number
        operation = message[OPERATION]
        if operation == _EXPIRE:
            return partition.store.expire(record.now_s)
        if operation == _FORGET_CLIENT:
            partition.unconfirmed.pop(record.client, None)
            return partition.store.client_died(record.client, record.now_s)
        return partition.store.handle(record.client, message, record.now_s, payload)

    def _take_over(self, partition: _Partition, now_s: float) -> Outs:
        """Lead a partition alone; return the replies that follow from deaths of clients so far."""
        partition.leads, partition.tail = True, None
        replies: list[tuple[int, bytes, Payload]] = []
        for client in sorted(self._dead_clients):
            replies += partition.store.client_died(client, now_s + partition.offset_s)
        return replies
