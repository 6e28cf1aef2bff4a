"""Servers that replicate each other, over a network of lists: any of them may die at any moment."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count
from unit.tuples.driving import key_bytes

from diel.errors import TupleError
from diel.tuples import codec
from diel.tuples.mpi_transport import SentMessages
from diel.tuples.protocol import (
    INLINE_BYTES,
    Operation,
    Payload,
    Reply,
    Seal,
    Status,
    pack_put,
    pack_query,
    seal,
    unpack_prefix,
    unpack_reply,
    unseal,
)
from diel.tuples.replication import ReplicatedStores, choose_tails
from diel.tuples.store import TupleStore

SERVERS = (1, 2)
CLIENTS = (3, 4, 5)
KEYS = [key_bytes(name) for name in ("a", "b")]
COUNTER = key_bytes("counter")


class Network:
    """Messages on their way, in order between any two; what is dead neither sends nor receives."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[int, int], deque[tuple[bytes, Payload]]] = defaultdict(deque)
        self.dead: set[int] = set()

    def send(self, source: int, target: int, message: bytes, payload: Payload = None) -> None:
        if target not in self.dead:
            self.under_way[source, target].append((message, payload))

    def kill(self, rank: int, arrives: int) -> None:
        """Let so many of its last messages, at most, still arrive on each way."""
        self.dead.add(rank)
        for (source, target), way in self.under_way.items():
            if target == rank:
                way.clear()
            while source == rank and len(way) > arrives:
                way.pop()

    @property
    def ways(self) -> list[tuple[int, int]]:
        return [way for way, messages in self.under_way.items() if messages]


class Client:
    """Sends requests as the transport does; what it has learnt is in its lists."""

    def __init__(self, rank: int, network: Network) -> None:
        self.rank, self._network = rank, network
        self._sent = SentMessages(SERVERS, SERVERS[::-1])
        self._requests = 0
        self.waiting: dict[int, tuple[Operation, int]] = {}
        self.put: list[int] = []
        self.taken: list[int] = []
        self.held: dict[tuple[int, int], int] = {}  # what was claimed, by partition and name
        self.given_back: set[int] = set()
        self.totals: list[int] = []
        self.is_flushed = True

    def tput(self, partition: int, value: int, size_bytes: int) -> None:
        payload = value.to_bytes(4, "little") + bytes(size_bytes)
        message, apart = pack_put(Operation.PUT, 0, 0, codec.BYTES, KEYS[partition], b"", payload)
        self._send(partition, message, apart)
        self.put.append(value)

    def ask(self, partition: int, operation: Operation, **arguments: Any) -> None:
        self._requests += 1
        self.waiting[self._requests] = operation, partition
        self._send(partition, pack_query(operation, self._requests, **arguments))

    def end_claim(self, operation: Operation) -> None:
        (partition, name), value = self.held.popitem()
        if operation == Operation.ACKNOWLEDGE:
            self.taken.append(value)
        self.ask(partition, operation, argument=name)

    def stop_waiting(self) -> None:
        """Give up a wait, as a client does that starts over."""
        for request_id in list(self.waiting):
            if self.waiting[request_id][0] == Operation.WATCH:
                _, partition = self.waiting.pop(request_id)
                self._sent.forget(request_id)
                self._send(partition, pack_query(Operation.CANCEL, 0, argument=request_id))
                return

    def receive(self, message: bytes, payload: Payload) -> None:
        reply = unpack_reply(message, payload)
        partition = self._sent.received(reply.request_id)
        if partition is None:
            assert reply.request_id not in self.waiting
            return
        if payload is not None:
            confirmation = self._sent.confirmation(partition)
            self._network.send(self.rank, self._sent.ranks[partition], confirmation)
        operation, asked = self.waiting.pop(reply.request_id)
        assert asked == partition
        self._note(operation, partition, reply)

    def _note(self, operation: Operation, partition: int, reply: Reply) -> None:
        if operation in (Operation.ACKNOWLEDGE, Operation.GIVE_BACK):
            assert reply.status == Status.OK
        if reply.status == Status.TIMEOUT:
            return
        if operation == Operation.TAKE:
            self.taken.append(value_of(reply.payload))
        elif operation == Operation.CLAIM:
            self.held[partition, reply.number] = value_of(reply.payload)
        elif operation == Operation.INCREMENT:
            self.totals.append(int.from_bytes(reply.payload, "little"))

    def note_death(self, dead: set[int]) -> None:
        for partition, message, payload in self._sent.fail_over(dead):
            self._network.send(self.rank, self._sent.ranks[partition], message, payload)

    def _send(self, partition: int, message: bytes, payload: Payload = None) -> None:
        sealed = self._sent.add(partition, message, payload)
        self._network.send(self.rank, self._sent.ranks[partition], sealed, payload)

    @property
    def kept(self) -> int:
        """How many messages it would send again."""
        return sum(map(len, self._sent._puts)) + sum(map(len, self._sent._asked))


class World:
    """Two servers and three clients, of which each step does something."""

    def __init__(self) -> None:
        self.network = Network()
        self.clients = {rank: Client(rank, self.network) for rank in CLIENTS}
        self.servers = {rank: self._server(rank) for rank in SERVERS}
        self.now_s = 0.0
        self.values = 0
        self.knows: set[tuple[int, int]] = set()  # (who, of whom)

    def _server(self, rank: int) -> ReplicatedStores:
        def forward(target: int, message: bytes, payload: Payload) -> None:
            self.network.send(rank, target, message, payload)

        return ReplicatedStores(rank, SERVERS, SERVERS[::-1], lambda _: TupleStore(), forward)

    def step(self, kind: int, one: int, two: int) -> None:
        steps = [self.act, self.act, self.act, self.deliver, self.deliver, self.deliver]
        (*steps, self.learn, self.pass_time, self.kill)[kind](one, two)

    def deliver(self, one: int, two: int) -> None:
        if not (ways := self.network.ways):
            return
        source, target = ways[one % len(ways)]
        message, payload = self.network.under_way[source, target].popleft()
        if target in self.clients:
            self.clients[target].receive(message, payload)
        elif (target, source) not in self.knows:
            self._send(target, self.servers[target].handle(source, message, self.now_s, payload))

    def act(self, one: int, two: int) -> None:
        living = [client for client in CLIENTS if client not in self.network.dead]
        client = self.clients[living[one % len(living)]]
        partition, kind = two % 2, two // 2
        key = KEYS[partition]
        if kind == 0 or kind > 8:
            self.values += 1
            client.tput(partition, self.values, INLINE_BYTES if kind == 9 else 0)
        elif kind == 1:
            client.ask(partition, Operation.TAKE, key=key, timeout_s=0)
        elif kind == 2:
            client.ask(partition, Operation.TAKE, key=key)
        elif kind == 3:
            client.ask(partition, Operation.TAKE, key=key, timeout_s=5)
        elif kind == 4:
            client.ask(partition, Operation.CLAIM, key=key)
        elif kind == 5 and client.held:
            client.end_claim(Operation.ACKNOWLEDGE if partition else Operation.GIVE_BACK)
        elif kind == 6:
            one_more = codec.encode_number(1)
            client.ask(0, Operation.INCREMENT, key=COUNTER, kind=one_more[0], meta=one_more[1])
        elif kind == 7:
            client.ask(partition, Operation.WATCH, key=key)
        elif kind == 8:
            client.stop_waiting()

    def learn(self, one: int, two: int) -> None:
        """Let a server or a client hear of a death."""
        missing = [
            (who, dead)
            for who in (*SERVERS, *CLIENTS)
            for dead in sorted(self.network.dead)
            if who not in self.network.dead and (who, dead) not in self.knows
        ]
        if not missing:
            return
        who, dead = missing[one % len(missing)]
        self.knows.add((who, dead))
        if who in self.servers:
            self._send(who, self.servers[who].client_died(dead, self.now_s))
        elif dead in SERVERS:
            self.clients[who].note_death({dead})

    def pass_time(self, one: int, two: int) -> None:
        self.now_s += one % 4
        for rank, server in self.servers.items():
            if rank not in self.network.dead and server.next_deadline_s() <= self.now_s:
                self._send(rank, server.expire(self.now_s))

    def kill(self, one: int, two: int) -> None:
        victims = (*SERVERS, CLIENTS[-1])
        victim = victims[one % 3]
        living_servers = [rank for rank in SERVERS if rank not in self.network.dead]
        if victim not in self.network.dead and (victim in CLIENTS or len(living_servers) == 2):
            self.network.kill(victim, two % 4)

    def settle(self) -> None:
        """Let everybody hear of everything, and all messages arrive."""
        for _ in range(20):
            self.learn(0, 0)
        while self.network.ways:
            self.deliver(0, 0)

    def _send(self, source: int, replies: Any) -> None:
        for target, message, payload in replies:
            self.network.send(source, target, message, payload)


def value_of(payload: Any) -> int:
    return int.from_bytes(bytes(payload[:4]), "little")


def values_in(store: TupleStore) -> list[int]:
    found = []
    for key, (_, _, body, payload) in store.entries():
        if key != COUNTER:
            reply = unpack_reply(bytes(16) + body, payload)
            found.append(value_of(reply.payload))
    return found


def state_of(store: TupleStore) -> object:
    queues = {key: store.queues.of(key) for key in store.queues}
    claims = {name: (claim.client, claim.key) for name, claim in store.claims.by_name.items()}
    waiting = sorted((waiter.query.client, waiter.query.request_id) for waiter in store._waiters)
    return queues, claims, waiting, store.held_bytes


STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 60), st.integers(0, 25)), min_size=20, max_size=120
)


@settings(max_examples=case_count(100))
@given(STEPS)
def test_whatever_dies_nothing_is_lost_and_nothing_is_taken_twice(
    steps: list[tuple[int, int, int]],
) -> None:
    world = World()
    for step in steps:
        world.step(*step)
    world.settle()
    living = [client for rank, client in world.clients.items() if rank not in world.network.dead]
    dead = [client for rank, client in world.clients.items() if rank in world.network.dead]
    waits = {Operation.TAKE, Operation.CLAIM, Operation.WATCH}
    for client in living:
        assert {operation for operation, _ in client.waiting.values()} <= waits
    left = []
    waiting = set()
    for rank, server in world.servers.items():
        if rank not in world.network.dead:
            for store in server.led:
                left += values_in(store)
                waiting |= {(w.query.client, w.query.request_id) for w in store._waiters}
    assert waiting == {(client.rank, number) for client in living for number in client.waiting}
    taken = [value for client in world.clients.values() for value in client.taken]
    assert max(Counter(taken + left).values(), default=0) <= 1
    put_by_living = {value for client in living for value in client.put}
    # What a dead client took, or was sent, is gone with it.
    missing = put_by_living.difference(taken, left)
    assert not missing or dead
    assert len(missing) <= sum(len(client.waiting) for client in dead)
    totals = [total for client in living for total in client.totals]
    assert len(set(totals)) == len(totals)
    if not dead:
        assert sorted(totals) == list(range(1, len(totals) + 1))


@settings(max_examples=case_count(30))
@given(STEPS)
def test_the_two_stores_of_a_partition_are_equal_and_what_is_kept_goes(
    steps: list[tuple[int, int, int]],
) -> None:
    world = World()
    for step in steps:
        if step[0] != 8:
            world.step(*step)
    world.settle()
    for partition in (0, 1):
        states = [
            state_of(server._partitions[partition].store) for server in world.servers.values()
        ]
        assert states[0] == states[1]
    for client in world.clients.values():
        for partition in (0, 1):
            client.ask(partition, Operation.FLUSH)
    world.settle()
    for client in world.clients.values():
        assert client.kept == len(client.waiting)
        for partition in (0, 1):
            client.ask(partition, Operation.FLUSH)
    while any(target in SERVERS for _, target in world.network.ways):
        index = next(i for i, way in enumerate(world.network.ways) if way[1] in SERVERS)
        world.deliver(index, 0)
    # All receipts have come: but for the last answers nothing is kept for clients.
    for server in world.servers.values():
        for partition in server._partitions.values():
            if partition.leads:
                assert {len(kept) for kept in partition.unconfirmed.values()} <= {1}


def test_seals_and_receipts() -> None:
    sealed = seal(b"message", Seal(3, 2**40, [7, 2**32 - 1]))
    assert unseal(sealed) == (b"message", Seal(3, 2**40, (7, 2**32 - 1)))
    sent = SentMessages([1, 2], [2, 1])
    for request_id in range(1, 301):
        sent.add(0, pack_query(Operation.TAKE, request_id, b"k"))
    assert [sent.received(request_id) for request_id in range(1, 301)] == [0] * 300
    assert sent.received(300) is None
    first, second = (unseal(sent.confirmation(0))[1] for _ in range(2))
    assert (len(first.receipts), len(second.receipts)) == (255, 45)
    assert unseal(sent.confirmation(1))[1] == Seal(1, 0, ())


def test_both_servers_of_a_partition_die() -> None:
    sent = SentMessages([1, 2, 3], [2, 3, 1])
    sent.add(0, pack_query(Operation.TAKE, 1, b"k"))
    assert [partition for partition, _, _ in sent.fail_over({1})] == [0]
    assert sent.ranks == [2, 2, 3]
    with pytest.raises(TupleError, match="rank 2 has died, as its twin had before"):
        sent.fail_over({1, 2})
    with pytest.raises(TupleError, match="ranks 1 and 2 have died"):
        SentMessages([1, 2], [2, 1]).fail_over({1, 2})


def test_requests_go_to_the_tail_in_the_order_of_their_numbers() -> None:
    sent = SentMessages([1, 2], [2, 1])
    for request_id in (0, 1, 0, 2, 0):
        sent.add(0, pack_query(Operation.TAKE, request_id, b"k"))
    sent.received(1)
    again = [unpack_prefix(message)[0] for _, message, _ in sent.fail_over({1})]
    assert again == [0, 2, 0]  # the first put was in both stores before the answer


def chain() -> tuple[ReplicatedStores, ReplicatedStores, list[tuple[bytes, Payload]]]:
    """Return the head and the tail of partition 0, and what they send each other."""
    sent: list[tuple[bytes, Payload]] = []
    head, tail = (
        ReplicatedStores(
            rank, SERVERS, SERVERS[::-1], lambda _: TupleStore(), lambda *out: sent.append(out[1:])
        )
        for rank in SERVERS
    )
    return head, tail, sent


def test_a_store_goes_by_the_clock_of_its_head() -> None:
    head, tail, sent = chain()
    client = SentMessages(SERVERS, SERVERS[::-1])
    message = client.add(0, pack_query(Operation.TAKE, 1, KEYS[0], timeout_s=10))
    assert head.handle(3, message, 1000.0) == ()
    assert tail.handle(1, sent[0][0], 5.0) == ()
    assert head.next_deadline_s() == 1010.0
    assert tail.next_deadline_s() == math.inf  # its head says when time is over
    tail.client_died(1, 7.0)
    assert tail.next_deadline_s() == 15.0
    assert tail.expire(14.9) == []
    ((rank, reply, _),) = tail.expire(15.0)
    assert (rank, unpack_reply(reply).status) == (3, Status.TIMEOUT)


def put_message(client: SentMessages) -> bytes:
    return client.add(0, pack_put(Operation.PUT, 0, 0, codec.BYTES, KEYS[0], b"", b"value")[0])


def test_what_a_dead_head_has_sent_comes_after_what_its_client_sends_again() -> None:
    head, tail, sent = chain()
    client = SentMessages(SERVERS, SERVERS[::-1])
    put_message(client)
    (again,) = client.fail_over({1})
    head.handle(3, again[1], 0.0)
    tail.handle(3, again[1], 0.0)
    tail.handle(1, sent[0][0], 0.0)
    assert tail.tuples_held == 1


@pytest.mark.parametrize("hears_first", ["the server", "a client"])
def test_the_claims_of_a_client_that_died_before_the_head_go_back(hears_first: str) -> None:
    head, tail, sent = chain()
    dead, living = (SentMessages(SERVERS, SERVERS[::-1]) for _ in range(2))
    head.handle(3, put_message(dead), 0.0)
    head.handle(3, dead.add(0, pack_query(Operation.CLAIM, 1, KEYS[0])), 0.0)
    for message, payload in sent:
        tail.handle(1, message, 0.0, payload)
    tail.client_died(3, 1.0)
    wait = living.add(0, pack_query(Operation.TAKE, 1, KEYS[0]))
    head.handle(4, wait, 1.0)
    tail.handle(1, sent[-1][0], 1.0)  # nobody has told the head yet
    if hears_first == "the server":
        replies = tail.client_died(1, 2.0)
    else:
        replies = tail.handle(4, living.add(0, pack_query(Operation.COUNT, 2, KEYS[0])), 2.0)
    taken = unpack_reply(replies[0][1])
    assert (replies[0][0], taken.request_id, taken.payload) == (4, 1, b"value")


def test_a_head_sends_all_that_the_tail_may_not_have_sent() -> None:
    head, _, _ = chain()
    clients = [SentMessages(SERVERS, SERVERS[::-1]) for _ in range(3)]
    for number, operation in enumerate((Operation.WATCH, Operation.READ)):
        question = pack_query(operation, 1, KEYS[0])
        assert not head.handle(3 + number, clients[number].add(0, question), 0.0)
    assert not head.handle(5, put_message(clients[2]), 0.0)
    assert [reply[0] for reply in head.client_died(2, 1.0)] == [3, 4]
    assert not head.client_died(2, 1.0)
    count = clients[2].add(0, pack_query(Operation.COUNT, 1, KEYS[0]))
    ((_, answer, _),) = head.handle(5, count, 1.0)  # from now on by itself
    assert unpack_reply(answer).number == 1


def test_tails_are_on_other_hosts_where_there_are_some() -> None:
    assert choose_tails(["a", "b"]) == (1, 0)
    assert choose_tails(["a", "a", "a"]) == (1, 2, 0)
    assert choose_tails(["a", "a", "b", "b"]) == (2, 3, 0, 1)
    assert choose_tails(["a", "b", "a"]) == (1, 2, 1)
