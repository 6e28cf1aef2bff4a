"""Subscriptions, as a store knows them."""

from __future__ import annotations

from unit.tuples.driving import Driver, answers, cost_of, integer

from diel import ANY
from diel.tuples import codec
from diel.tuples.protocol import Operation, Status

INCREMENT, TAKE, GIVE_BACK = Operation.INCREMENT, Operation.TAKE, Operation.GIVE_BACK
COLLECT, SUBSCRIBE, NEXT = Operation.COLLECT, Operation.SUBSCRIBE, Operation.NEXT
UNSUBSCRIBE = Operation.UNSUBSCRIBE
OK = Status.OK


def following(store: Driver, name: int, client: int = 1) -> bytes | None:
    reply = store.only(NEXT, argument=name, client=client, timeout_s=0)
    return bytes(reply.payload) if reply.status == OK else None


def test_a_subscription_gets_a_copy_of_all_that_is_put_from_then_on(store: Driver) -> None:
    store.put(("a", 0), b"before")
    store.ask(SUBSCRIBE, ("a", ANY), client=1, request_id=7)
    for number in range(3):
        store.put(("a", number), b"%d" % number)
        store.put(("b", number), b"other")
    assert store.take(("a", 0)) == b"before"
    assert store.take(("a", 0)) == b"0"
    assert [following(store, 7) for _ in range(4)] == [b"0", b"1", b"2", None]
    assert store.take(("a", 1)) == b"1"


def test_a_subscriber_that_waits_is_told_before_a_taker(store: Driver) -> None:
    store.ask(TAKE, "a", client=2)
    store.ask(SUBSCRIBE, "a", client=1, request_id=7)
    assert store.ask(NEXT, argument=7, client=1, request_id=8) == []
    told = store.put("a", b"1")
    assert answers(told) == [(1, OK, b"1"), (2, OK, b"1")]
    assert told[0][1].request_id == 8
    assert store.held_bytes == 0


def test_a_subscriber_does_not_stand_in_for_who_waits_for_anything(store: Driver) -> None:
    """Requests of subscriptions wait under names that no pattern matches."""
    store.ask(SUBSCRIBE, "a", client=1, request_id=7)
    store.ask(TAKE, ANY, client=2, request_id=3)
    assert answers(store.put("a", b"1")) == [(2, OK, b"1")]
    assert following(store, 7) == b"1"
    store.ask(TAKE, ANY, client=2, request_id=4)
    store.ask(UNSUBSCRIBE, argument=7, client=1)
    assert answers(store.put("a", b"2")) == [(2, OK, b"2")]


def test_increments_and_what_is_given_back_are_no_puts(store: Driver) -> None:
    store.put("n", integer(1)["meta"], kind=codec.INTEGER)
    store.ask(SUBSCRIBE, ANY, client=1, request_id=7)
    store.ask(INCREMENT, "n", **integer(1))
    store.ask(GIVE_BACK, argument=store.claim("n", client=2), client=2)
    assert following(store, 7) is None
    store.ask(INCREMENT, "new", **integer(1))
    assert following(store, 7) is not None


def test_a_backlog_counts_as_memory_until_it_is_given_out_or_dropped(store: Driver) -> None:
    cost = cost_of("a", b"1")
    store.ask(SUBSCRIBE, "a", client=1, request_id=7)
    store.ask(SUBSCRIBE, ANY, client=1, request_id=8)
    for _ in range(3):
        store.put("a", b"1")
    assert store.held_bytes == 9 * cost
    store.only(COLLECT, "a")
    assert store.held_bytes == 6 * cost
    following(store, 7)
    assert store.held_bytes == 5 * cost
    assert store.only(UNSUBSCRIBE, argument=8, client=1).status == OK
    assert store.held_bytes == 2 * cost
    store.client_died(1)
    assert store.held_bytes == 0
    assert store.only(NEXT, argument=7, client=1).status == Status.GONE


def test_a_wait_for_the_next_times_out_and_ends_with_the_subscription(store: Driver) -> None:
    store.ask(SUBSCRIBE, "a", client=1, request_id=7)
    store.ask(NEXT, argument=7, client=1, timeout_s=1.0)
    assert answers(store.expire(1.0)) == [(1, Status.TIMEOUT, b"")]
    store.ask(NEXT, argument=7, client=1)
    store.ask(UNSUBSCRIBE, argument=7, client=1)
    assert not store.store._waiters
    assert store.put("a", b"1") == []


def test_each_client_is_answered_and_waits_by_itself(store: Driver) -> None:
    for client in (1, 2):
        store.ask(SUBSCRIBE, "a", client=client, request_id=7)
    store.ask(NEXT, argument=7, client=1, request_id=8, timeout_s=5.0)
    assert (
        store.ask(NEXT, argument=9, client=2, request_id=9)[0][0] == 2
    )  # it has no such subscription
    assert store.ask(NEXT, argument=7, client=2, request_id=9, timeout_s=0)[0][0] == 2
    assert answers(store.expire(4.0)) == []
    assert answers(store.put("a", b"1")) == [(1, OK, b"1")]  # the other's waits in its backlog
    assert following(store, 7, client=2) == b"1"
    assert following(store, 7, client=1) is None
    assert answers(store.ask(NEXT, argument=7, client=2, request_id=10)) == []
    assert store.store.next_deadline_s() == float("inf")
    assert not store.client_died(1)
    assert answers(store.put("a", b"2")) == [(2, OK, b"2")]


def test_the_end_of_subscriptions_makes_room_for_all_that_wait_for_it() -> None:
    """Backlogs of several subscriptions, each with several tuples, are released as a whole."""
    store = Driver(capacity_bytes=64 * cost_of("a", bytes(1000)))
    cost = cost_of("a", bytes(1000))
    for request_id in (7, 8):
        store.ask(SUBSCRIBE, "a", client=1, request_id=request_id)
    for _ in range(20):
        store.put("a", bytes(1000))
    assert store.held_bytes == 60 * cost
    store.ask(COLLECT, "a")
    for client in (2, 3):
        assert store.ask(Operation.ASK_CREDIT, client=client, argument=30 * cost) == []
    assert [client for client, _ in store.client_died(1)] == [2, 3]
    assert store.held_bytes == 0


def test_a_subscription_ends_twice_without_harm(store: Driver) -> None:
    store.ask(SUBSCRIBE, "a", client=1, request_id=7)
    for _ in range(2):
        ((client, reply),) = store.ask(UNSUBSCRIBE, argument=7, client=1)
        assert (client, reply.status) == (1, OK)
