"""Credit and the cap: what a server holds, who waits for room, and that nothing drifts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import case_count
from unit.tuples.driving import Driver, cost_of

from diel import ANY
from diel.tuples import codec
from diel.tuples.protocol import Operation, Reply, Status

CAPACITY = 2**17
OK = Status.OK


def ask_credit(
    store: Driver, client: int, wanted: int, timeout_s: float = math.inf, request_id: int = 0
) -> list[tuple[int, Reply]]:
    return store.ask(
        Operation.ASK_CREDIT,
        client=client,
        argument=wanted,
        timeout_s=timeout_s,
        request_id=request_id,
    )


def granted(told: list[tuple[int, Reply]]) -> dict[int, int]:
    """Return what each client was granted; all others must have been answered otherwise."""
    return {client: reply.number for client, reply in told if reply.status == OK}


def fill(store: Driver, cost: int, tag: Any = "full", client: int = 0) -> None:
    """Put one tuple that costs so much."""
    overhead = cost_of(tag, bytes(20_000)) - 20_000
    store.put(tag, bytes(cost - overhead), client=client)
    assert cost - overhead > 16 * 1024


def test_credit_comes_with_plenty_where_there_is_room() -> None:
    store = Driver(2**30)
    (credit,) = granted(ask_credit(store, 1, 1000)).values()
    assert credit == 1000 + 2**20
    (credit,) = granted(ask_credit(store, 2, 2**19)).values()
    assert credit == 16 * 2**19  # large puts do not ask each time
    (credit,) = granted(ask_credit(store, 3, 2**24)).values()
    assert credit == 2**24 + 2**30 // 64
    small = Driver(CAPACITY)
    (credit,) = granted(ask_credit(small, 1, 1000)).values()
    assert credit == 1000 + CAPACITY // 64


def test_who_asks_for_what_can_never_be_is_told_so() -> None:
    store = Driver(CAPACITY)
    ((client, reply),) = ask_credit(store, 1, CAPACITY + 1)
    assert (client, reply.status, reply.number) == (1, Status.TOO_LARGE, CAPACITY)
    assert granted(ask_credit(store, 1, CAPACITY)) == {1: CAPACITY}


def test_grants_are_first_come_first_served() -> None:
    store = Driver(CAPACITY)
    fill(store, CAPACITY - 10_000, "one")
    assert ask_credit(store, 1, 60_000) == []
    assert ask_credit(store, 2, 100) == []  # would fit, but came later
    assert ask_credit(store, 3, 90_000) == []
    assert list(granted(store.ask(Operation.TAKE, "one", client=9))) == [9, 1, 2]
    fill(store, 60_000, "two", client=1)
    assert list(granted(store.ask(Operation.TAKE, "two", client=9))) == [9, 3]


def test_who_is_refused_is_told_what_is_held() -> None:
    store = Driver(CAPACITY, refuse_when_full=True)
    fill(store, CAPACITY)
    ((client, reply),) = ask_credit(store, 1, 20_000)
    assert (client, reply.status, reply.number) == (1, Status.FULL, CAPACITY)


def test_who_waits_for_room_gives_up_in_time_and_lets_the_next_have_it() -> None:
    store = Driver(CAPACITY)
    fill(store, CAPACITY - 10_000)
    assert ask_credit(store, 1, CAPACITY, timeout_s=2.0, request_id=4) == []
    assert ask_credit(store, 2, 10_000) == []
    assert store.store.next_deadline_s() == 2.0
    told = store.expire(2.0)
    assert [(client, reply.status) for client, reply in told] == [(1, Status.TIMEOUT), (2, OK)]
    assert told[0][1].request_id == 4
    ((_, reply),) = ask_credit(store, 1, CAPACITY, timeout_s=0)
    assert reply.status == Status.TIMEOUT


def test_credit_that_is_out_counts() -> None:
    """Clients that ask at the same time do not all get what only one of them can have."""
    store = Driver(CAPACITY)
    asked = [ask_credit(store, client, CAPACITY // 2) for client in range(10)]
    assert sum(len(told) for told in asked) <= 2
    for client, told in enumerate(asked):
        if told:
            fill(store, CAPACITY // 2, "a", client=client)
    assert store.held_bytes <= CAPACITY * 9 // 8


def test_credit_that_is_never_used_locks_nobody_out() -> None:
    store = Driver(CAPACITY)
    for client in range(100):
        told = ask_credit(store, client, cost_of("a"))
        assert list(granted(told)) == [client]
        store.put("a", client=client)
    store.ask(Operation.COLLECT, "a")
    assert store.held_bytes == 0
    assert granted(ask_credit(store, 200, CAPACITY))[200] >= CAPACITY


def test_what_is_put_and_taken_at_once_makes_room_for_who_waits() -> None:
    """The credit of such a put is used up, and nothing of it is held."""
    store = Driver(CAPACITY)
    ask_credit(store, 1, CAPACITY)
    assert ask_credit(store, 2, 20_000) == []
    store.ask(Operation.TAKE, "a", client=3)
    overhead = cost_of("a", bytes(20_000)) - 20_000
    told = store.put("a", bytes(CAPACITY - overhead), client=1)
    assert list(granted(told)) == [3, 2]


@pytest.mark.parametrize("present", [True, False])
def test_a_condition_that_fails_makes_room_for_who_waits(present: bool) -> None:
    store = Driver(CAPACITY)
    store.put("a", b"1")
    wanted = cost_of("a", bytes(100_000))
    assert list(granted(ask_credit(store, 1, wanted))) == [1]
    assert ask_credit(store, 2, 60_000) == []
    told = store.put(
        "a",
        bytes(100_000),
        client=1,
        operation=Operation.PUT_IF_ABSENT if present else Operation.REPLACE,
        argument=0,
    )
    assert [client for client, _ in told] == [1, 2]


def test_a_tuple_that_shrinks_makes_room_for_who_waits() -> None:
    store = Driver(CAPACITY)
    fill(store, 110_000, "a")
    version = store.only(Operation.READ, "a").number
    assert ask_credit(store, 2, 60_000) == []
    told = store.put("a", b"1", client=1, operation=Operation.REPLACE, argument=version)
    assert [client for client, _ in told] == [1, 2]
    assert store.held_bytes == cost_of("a", b"1")


def test_a_tuple_that_grows_leaves_no_room_for_who_waits() -> None:
    store = Driver(CAPACITY)
    store.put("a", b"1")
    version = store.only(Operation.READ, "a").number
    ask_credit(store, 1, cost_of("a", bytes(100_000)))
    assert ask_credit(store, 2, 60_000) == []
    told = store.put("a", bytes(100_000), client=1, operation=Operation.REPLACE, argument=version)
    assert [client for client, _ in told] == [1]


def test_the_credit_of_the_dead_and_what_they_wait_for_is_free() -> None:
    store = Driver(CAPACITY)
    assert list(granted(ask_credit(store, 1, CAPACITY))) == [1]
    assert ask_credit(store, 2, 100_000) == []
    assert ask_credit(store, 3, 100_000) == []
    assert ask_credit(store, 1, 100) == []
    assert list(granted(store.client_died(1))) == [2]
    assert list(granted(store.client_died(2))) == [3]


def test_the_backlog_of_the_dead_makes_room_and_who_waits_is_told() -> None:
    store = Driver(CAPACITY)
    store.ask(Operation.SUBSCRIBE, "a", client=1, request_id=1)
    fill(store, 100_000, "a")
    store.take("a")
    assert store.held_bytes == 100_000
    assert ask_credit(store, 2, 100_000) == []
    assert list(granted(store.client_died(1))) == [2]


def test_a_claim_that_waits_holds_memory_until_it_is_acknowledged() -> None:
    store = Driver(CAPACITY)
    store.ask(Operation.CLAIM, "a", client=1)
    overhead = cost_of("a", bytes(20_000)) - 20_000
    ((_, reply),) = store.put("a", bytes(100_000 - overhead))
    assert store.held_bytes == 100_000
    assert ask_credit(store, 2, 100_000) == []
    told = store.ask(Operation.ACKNOWLEDGE, client=1, argument=reply.number)
    assert list(granted(told)) == [1, 2]
    assert store.held_bytes == 0


class Accounting(RuleBasedStateMachine):
    """Clients that keep to their credit and do anything else at random, near the cap."""

    CLIENTS = 3
    TAGS = ("a", "b", ("a", 1))

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(CAPACITY)
        self.driver.credit = dict.fromkeys(range(self.CLIENTS), 0)
        self.waiting: dict[int, Any] = {}  # client -> the put for which it has no credit
        self.busy: set[int] = set()  # clients with a blocking request
        self.claims: list[tuple[int, int]] = []
        self.request_id = 0

    def hear(self, told: list[tuple[int, Reply]]) -> None:
        """Do what clients do with their replies: who has got credit puts."""
        pending = list(told)
        while pending:
            client, reply = pending.pop(0)
            self.busy.discard(client)
            put = self.waiting.pop(client, None)
            if put is None:
                continue
            if reply.status == OK:
                self.driver.credit[client] += reply.number
                pending += self.driver.put(**put)
                self.busy.discard(client)

    def start_put(self, client: int, **put: Any) -> None:
        put["client"] = client
        cost = cost_of(put["tag"], put["payload"], put.get("meta", b""))
        if cost <= self.driver.credit[client]:
            self.hear(self.driver.put(**put))
            return
        self.waiting[client] = put
        self.busy.add(client)
        timeout_s = 5.0 if client == 0 else math.inf
        self.hear(ask_credit(self.driver, client, cost, timeout_s))

    def idle(self, data: st.DataObject) -> int | None:
        free = [client for client in range(self.CLIENTS) if client not in self.busy]
        return data.draw(st.sampled_from(free)) if free else None

    @rule(
        data=st.data(),
        tag=st.sampled_from(TAGS),
        size=st.sampled_from([0, 8, 5_000, 30_000, 60_000, CAPACITY - 1000]),
        operation=st.sampled_from([Operation.PUT, Operation.PUT, Operation.PUT_IF_ABSENT]),
    )
    def put(self, data: st.DataObject, tag: Any, size: int, operation: Operation) -> None:
        client = self.idle(data)
        if client is not None:
            self.start_put(client, tag=tag, payload=bytes(size), operation=operation)

    @rule(data=st.data(), tag=st.sampled_from(TAGS), size=st.sampled_from([0, 5_000, 60_000]))
    def replace(self, data: st.DataObject, tag: Any, size: int) -> None:
        client = self.idle(data)
        if client is not None:
            reply = self.driver.only(Operation.READ, tag, client=client, timeout_s=0)
            version = reply.number if reply.status == OK else 0
            operation = Operation.REPLACE
            payload = bytes(size)
            self.start_put(client, tag=tag, payload=payload, operation=operation, argument=version)

    @rule(data=st.data(), tag=st.sampled_from(["n", ("n", 1)]))
    def increment(self, data: st.DataObject, tag: Any) -> None:
        client = self.idle(data)
        if client is not None and self.driver.credit[client] >= cost_of(tag, bytes(8)):
            one = (1).to_bytes(8, "little")
            told = self.driver.ask(
                Operation.INCREMENT, tag, client=client, kind=codec.INTEGER, meta=one
            )
            self.hear(told)

    @rule(
        data=st.data(),
        operation=st.sampled_from([Operation.TAKE, Operation.TAKE, Operation.CLAIM]),
        tag=st.sampled_from([*TAGS, ANY, ("a", ANY)]),
        timeout_s=st.sampled_from([0.0, 0.0, 3.0]),
    )
    def get(self, data: st.DataObject, operation: Any, tag: Any, timeout_s: float) -> None:
        client = self.idle(data)
        if client is None:
            return
        self.busy.add(client)
        self.hear_claims(
            self.driver.ask(operation, tag, client=client, timeout_s=timeout_s, argument=4000)
        )

    def hear_claims(self, told: list[tuple[int, Reply]]) -> None:
        self.hear(told)
        held = self.driver.store.claims.by_name
        self.claims = [(claim.client, name) for name, claim in held.items()]

    @rule(data=st.data(), gives_back=st.booleans())
    def end_a_claim(self, data: st.DataObject, gives_back: bool) -> None:
        self.hear_claims([])
        if self.claims:
            client, name = data.draw(st.sampled_from(self.claims))
            if client not in self.busy:
                operation = Operation.GIVE_BACK if gives_back else Operation.ACKNOWLEDGE
                self.hear(self.driver.ask(operation, client=client, argument=name))

    @rule(data=st.data(), tag=st.sampled_from([*TAGS, ANY]), limit=st.sampled_from([0, 1]))
    def collect(self, data: st.DataObject, tag: Any, limit: int) -> None:
        client = self.idle(data)
        if client is not None:
            self.hear(self.driver.ask(Operation.COLLECT, tag, client=client, argument=limit))

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.hear(self.driver.expire(seconds))

    @precondition(lambda self: self.driver.held_bytes > 0)
    @rule(client=st.integers(0, CLIENTS - 1))
    def a_client_dies(self, client: int) -> None:
        """Another one comes in its place."""
        self.waiting.pop(client, None)
        self.busy.discard(client)
        told = self.driver.client_died(client)
        self.driver.credit[client] = 0
        self.hear(told)

    @invariant()
    def nothing_drifts(self) -> None:
        store, memory = self.driver.store, self.driver.store.memory
        held = sum(self.cost(body, payload) for _, (_, _, body, payload) in store.entries())
        assert memory.held_bytes == held
        assert memory.held_bytes <= CAPACITY + CAPACITY // 8
        credit = {client: credit.credit_bytes for client, credit in memory.credits.items()}
        assert credit == {client: self.driver.credit.get(client, 0) for client in credit}
        assert memory.credit_out_bytes == sum(credit.values())
        assert memory.held_bytes + memory.credit_out_bytes <= CAPACITY + CAPACITY // 8

    @staticmethod
    def cost(body: bytes, payload: Any) -> int:
        return cost_of(None) - 16 + len(body) + (0 if payload is None else len(payload))

    @invariant()
    def nobody_waits_for_room_that_is_there(self) -> None:
        """Where nothing is held, whoever asks has been granted what it wanted."""
        if self.driver.held_bytes == 0:
            assert not self.waiting

    def teardown(self) -> None:
        """Everything comes out again, and the account is at 0 exactly."""
        for client in range(self.CLIENTS):
            self.a_client_dies(client)
        for pattern in (ANY, (ANY, ANY)):
            self.driver.ask(Operation.COLLECT, pattern, client=9)
        assert self.driver.store.tuples_held == 0
        assert self.driver.held_bytes == 0
        assert self.driver.store.memory.credit_out_bytes == 0


Accounting.TestCase.settings = settings(max_examples=case_count(150), stateful_step_count=50)
TestAccounting = Accounting.TestCase
