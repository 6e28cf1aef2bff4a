from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diel import ANY
from diel.tuples.protocol import Operation, Reply, Request, Status
from diel.tuples.store import TupleStore
from diel.tuples.tags import encode_pattern

PUT, TAKE, READ, FLUSH = Operation.PUT, Operation.TAKE, Operation.READ, Operation.FLUSH


def request(
    operation: Operation,
    tag: Any = "a",
    payload: bytes = b"",
    *,
    client: int = 0,
    serial: int = 0,
    timeout_s: float = math.inf,
    kind: int = -1,
    meta: bytes = b"",
) -> Request:
    key = encode_pattern(tag)[0] if tag is not None else b""
    if operation is PUT and kind < 0:
        kind = 2
    return Request(client, serial, operation, key, timeout_s, kind, meta, payload)


class Store:
    """A store with a few words to drive it."""

    def __init__(self) -> None:
        self.store = TupleStore()
        self.now_s = 0.0

    def put(self, tag: Any, payload: bytes, **fields: Any) -> list[Reply]:
        return self.store.handle(request(PUT, tag, payload, **fields), self.now_s)

    def get(self, operation: Operation, tag: Any, **fields: Any) -> list[Reply]:
        return self.store.handle(request(operation, tag, **fields), self.now_s)

    def take(self, tag: Any) -> bytes | None:
        """Take without waiting."""
        (reply,) = self.get(TAKE, tag, timeout_s=0)
        return bytes(reply.payload) if reply.status == Status.OK else None


@pytest.fixture
def store() -> Store:
    return Store()


def answers(replies: list[Reply]) -> list[tuple[int, int, bytes]]:
    return [(reply.client, reply.status, bytes(reply.payload)) for reply in replies]


def test_tuples_of_a_tag_leave_in_the_order_in_which_they_came(store: Store) -> None:
    for payload in (b"1", b"2", b"3"):
        assert store.put("a", payload) == []
    assert [store.take("a") for _ in range(4)] == [b"1", b"2", b"3", None]


def test_a_pattern_takes_the_oldest_across_tags(store: Store) -> None:
    for tag, payload in [(("a", 2), b"1"), (("b", 1), b"2"), (("a", 1), b"3"), (("a", 2), b"4")]:
        store.put(tag, payload)
    assert [store.take(("a", ANY)) for _ in range(4)] == [b"1", b"3", b"4", None]
    assert store.take((ANY, 1)) == b"2"


@pytest.mark.parametrize("asked_before", [True, False])
def test_exact_tags_and_patterns_agree_whichever_came_first(
    store: Store, asked_before: bool
) -> None:
    if asked_before:  # the index of a pattern exists before the tuples
        assert store.take((ANY, ANY)) is None
    store.put(("a", 1), b"1")
    store.put(("a", 2), b"2")
    store.put(("a", 1), b"3")
    assert store.take(("a", 2)) == b"2"
    assert store.take((ANY, ANY)) == b"1"
    assert store.take(("a", 1)) == b"3"
    assert store.take((ANY, ANY)) is None


def test_a_pattern_matches_only_tags_of_its_length(store: Store) -> None:
    store.put("a", b"1")
    store.put(("a", "b", "c"), b"2")
    assert store.take(("a", ANY)) is None
    assert store.take(ANY) == b"1"


def test_a_reader_leaves_the_tuple(store: Store) -> None:
    store.put("a", b"1")
    for _ in range(2):
        assert answers(store.get(READ, "a", client=1)) == [(1, Status.OK, b"1")]
    assert store.take("a") == b"1"


def test_waiters_are_served_in_order_of_arrival_up_to_the_first_taker(store: Store) -> None:
    waiting = [(READ, "a"), (READ, ANY), (TAKE, "a"), (READ, "a"), (TAKE, ANY), (READ, "b")]
    for client, (operation, tag) in enumerate(waiting):
        assert store.get(operation, tag, client=client) == []
    assert answers(store.put("a", b"1")) == [(client, Status.OK, b"1") for client in (0, 1, 2)]
    assert answers(store.put("a", b"2")) == [(client, Status.OK, b"2") for client in (3, 4)]
    assert answers(store.put("b", b"3")) == [(5, Status.OK, b"3")]
    assert store.take("a") is None
    assert store.take("b") == b"3"


def test_a_waiter_is_served_once(store: Store) -> None:
    store.get(TAKE, "a", client=1)
    assert len(store.put("a", b"1")) == 1
    assert store.put("a", b"2") == []
    assert store.take("a") == b"2"


def test_the_reply_names_the_tag_that_matched(store: Store) -> None:
    store.put(("a", 7), b"1", meta=b"about it")
    (reply,) = store.get(TAKE, ("a", ANY), client=3, serial=9)
    assert reply == Reply(3, 9, Status.OK, encode_pattern(("a", 7))[0], 2, b"about it", b"1")


def test_a_timeout_ends_a_wait_and_only_that(store: Store) -> None:
    store.now_s = 100.0
    store.get(TAKE, "a", client=1, serial=5, timeout_s=2.0)
    store.get(TAKE, "a", client=2, timeout_s=1.0)
    store.get(TAKE, "a", client=3)
    assert store.store.next_deadline_s() == 101.0
    assert store.store.expire(100.9) == []
    assert store.store.expire(101.0) == [Reply(2, 0, Status.TIMEOUT)]
    assert store.store.next_deadline_s() == 102.0
    assert store.store.expire(500.0) == [Reply(1, 5, Status.TIMEOUT)]
    assert store.store.next_deadline_s() == math.inf
    assert answers(store.put("a", b"1")) == [(3, Status.OK, b"1")]


def test_who_was_served_does_not_time_out(store: Store) -> None:
    store.get(TAKE, "a", client=1, timeout_s=1.0)
    assert len(store.put("a", b"1")) == 1
    assert store.store.expire(10.0) == []


def test_a_timeout_of_zero_looks_once(store: Store) -> None:
    assert answers(store.get(TAKE, "a", client=1, timeout_s=0)) == [(1, Status.TIMEOUT, b"")]
    assert store.put("a", b"1") == []


@pytest.mark.parametrize("operation", [TAKE, READ])
def test_a_tuple_that_does_not_fit_stays(store: Store, operation: Operation) -> None:
    store.put("a", b"1234", kind=1, meta=b"four")
    (reply,) = store.get(operation, "a", kind=1, meta=b"eight")
    assert (reply.status, reply.meta, bytes(reply.payload)) == (Status.MISMATCH, b"four", b"")
    assert store.take("a") == b"1234"


def test_a_waiter_whom_the_tuple_does_not_fit_leaves_it_to_the_next(store: Store) -> None:
    store.get(TAKE, "a", client=1, kind=1, meta=b"eight")
    store.get(TAKE, "a", client=2, kind=1, meta=b"four")
    replies = store.put("a", b"1234", kind=1, meta=b"four")
    assert answers(replies) == [(1, Status.MISMATCH, b""), (2, Status.OK, b"1234")]


def test_a_flush_is_answered_at_once(store: Store) -> None:
    assert store.get(FLUSH, None, client=4, serial=2) == [Reply(4, 2, Status.OK)]


def test_what_is_held_is_counted(store: Store) -> None:
    store.put("a", b"12345")
    store.put(("b", 1), b"678")
    assert (store.store.tuples_held, store.store.bytes_held) == (2, 8)
    store.take((ANY, ANY))
    assert (store.store.tuples_held, store.store.bytes_held) == (1, 5)
    store.take("a")
    assert (store.store.tuples_held, store.store.bytes_held) == (0, 0)


# -- against a naive model ----------------------------------------------------------------------


@dataclass
class Waiting:
    client: int
    take: bool
    pattern: tuple[Any, ...]
    deadline_s: float


def matches(pattern: tuple[Any, ...], tag: tuple[Any, ...]) -> bool:
    return len(pattern) == len(tag) and all(
        wanted is ANY or wanted == field for wanted, field in zip(pattern, tag, strict=True)
    )


class NaiveStore:
    """A list of tuples and a list of waiters, each looked through from its start."""

    def __init__(self) -> None:
        self.tuples: list[tuple[tuple[Any, ...], bytes]] = []
        self.waiters: list[Waiting] = []

    def put(self, tag: tuple[Any, ...], payload: bytes) -> list[tuple[int, int, bytes]]:
        replies = []
        for waiter in list(self.waiters):
            if matches(waiter.pattern, tag):
                self.waiters.remove(waiter)
                replies.append((waiter.client, Status.OK, payload))
                if waiter.take:
                    return replies
        self.tuples.append((tag, payload))
        return replies

    def get(self, waiter: Waiting, now_s: float) -> list[tuple[int, int, bytes]]:
        for index, (tag, payload) in enumerate(self.tuples):
            if matches(waiter.pattern, tag):
                if waiter.take:
                    del self.tuples[index]
                return [(waiter.client, Status.OK, payload)]
        if waiter.deadline_s <= now_s:
            return [(waiter.client, Status.TIMEOUT, b"")]
        self.waiters.append(waiter)
        return []

    def expire(self, now_s: float) -> list[tuple[int, int, bytes]]:
        late = [waiter for waiter in self.waiters if waiter.deadline_s <= now_s]
        for waiter in late:
            self.waiters.remove(waiter)
        return [(waiter.client, Status.TIMEOUT, b"") for waiter in late]


FIELD = st.sampled_from(["a", "b", 1])
TAG = st.lists(FIELD, min_size=1, max_size=3).map(tuple)
PATTERN = st.lists(FIELD | st.just(ANY), min_size=1, max_size=3).map(tuple)


class StoreAgainstModel(RuleBasedStateMachine):
    """Puts, takes and reads by tags and patterns, waits and expiry, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.store = TupleStore()
        self.model = NaiveStore()
        self.now_s = 0.0
        self.number = 0

    @rule(tag=TAG, many=st.integers(1, 3))
    def put(self, tag: tuple[Any, ...], many: int) -> None:
        for _ in range(many):
            self.number += 1
            payload = b"%d" % self.number
            replies = self.store.handle(request(PUT, tag, payload), self.now_s)
            assert answers(replies) == self.model.put(tag, payload)

    @rule(
        take=st.booleans(),
        pattern=PATTERN,
        timeout_s=st.sampled_from([0.0, 0.0, 1.0, 3.0, math.inf]),
    )
    def get(self, take: bool, pattern: tuple[Any, ...], timeout_s: float) -> None:
        self.number += 1
        operation = TAKE if take else READ
        asked = request(operation, pattern, client=self.number, timeout_s=timeout_s)
        expected = self.model.get(
            Waiting(self.number, take, pattern, self.now_s + timeout_s), self.now_s
        )
        assert answers(self.store.handle(asked, self.now_s)) == expected

    @precondition(lambda self: self.model.waiters)
    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now_s += seconds
        replies = answers(self.store.expire(self.now_s))
        # Deadlines at one moment may end in any order.
        assert sorted(replies) == sorted(self.model.expire(self.now_s))

    @invariant()
    def counts_agree(self) -> None:
        assert self.store.tuples_held == len(self.model.tuples)
        assert self.store.bytes_held == sum(len(payload) for _, payload in self.model.tuples)
        earliest_s = min((one.deadline_s for one in self.model.waiters), default=math.inf)
        assert self.store.next_deadline_s() <= earliest_s

    def teardown(self) -> None:
        """Take everything that is left."""
        for arity in (1, 2, 3):
            while True:
                asked = request(TAKE, (ANY,) * arity, client=-1, timeout_s=0)
                (found,) = answers(self.store.handle(asked, self.now_s))
                waiter = Waiting(-1, True, (ANY,) * arity, self.now_s)
                assert [found] == self.model.get(waiter, self.now_s)
                if found[1] == Status.TIMEOUT:
                    break
        assert self.store.tuples_held == 0


StoreAgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestStoreAgainstModel = StoreAgainstModel.TestCase
