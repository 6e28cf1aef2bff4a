"""Claims and their leases, as a store knows them."""

from __future__ import annotations

import math

import pytest
from unit.tuples.driving import Driver, answers, cost_of

from diel import ANY
from diel.tuples.protocol import HELD_BY_DEAD, Operation, Status

TAKE, READ, CLAIM = Operation.TAKE, Operation.READ, Operation.CLAIM
ACKNOWLEDGE, GIVE_BACK, RENEW = Operation.ACKNOWLEDGE, Operation.GIVE_BACK, Operation.RENEW
COUNT = Operation.COUNT
OK = Status.OK


def test_a_claim_that_is_acknowledged_is_gone(store: Driver) -> None:
    store.put("a", b"1")
    name = store.claim("a")
    assert store.take("a") is None
    assert (store.store.tuples_held, store.held_bytes) == (1, cost_of("a", b"1"))
    assert store.only(ACKNOWLEDGE, argument=name, client=1).status == OK
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)
    for operation in (ACKNOWLEDGE, GIVE_BACK, RENEW):
        assert store.only(operation, argument=name, client=1).status == Status.GONE


@pytest.mark.parametrize("indexed", [True, False])
def test_what_is_given_back_keeps_its_place(store: Driver, indexed: bool) -> None:
    if indexed:
        store.take((ANY, ANY))
        store.take(("a", ANY))
    for number, tag in enumerate([("a", 1), ("b", 1), ("a", 2), ("a", 1)]):
        store.put(tag, b"%d" % number)
    names = [store.claim(("a", ANY)) for _ in range(3)]
    assert store.only(COUNT, (ANY, ANY)).number == 1
    for name in (names[1], names[2], names[0]):
        assert store.only(GIVE_BACK, argument=name, client=1).status == OK
    assert store.take(("a", 1)) == b"0"
    assert [store.take((ANY, ANY)) for _ in range(4)] == [b"1", b"2", b"3", None]


def test_only_its_holder_ends_a_claim(store: Driver) -> None:
    store.put("a", b"1")
    name = store.claim("a", client=1)
    for operation in (ACKNOWLEDGE, GIVE_BACK, RENEW):
        assert store.only(operation, argument=name, client=2).status == Status.GONE
    assert store.only(GIVE_BACK, argument=name, client=1).status == OK


def test_a_waiting_claim_gets_what_is_put_and_its_memory_is_counted(store: Driver) -> None:
    store.ask(CLAIM, "a", client=1)
    ((client, reply),) = store.put("a", b"1")
    assert (client, bytes(reply.payload)) == (1, b"1")
    assert store.held_bytes == cost_of("a", b"1")
    store.ask(ACKNOWLEDGE, argument=reply.number, client=1)
    assert store.held_bytes == 0


@pytest.mark.parametrize("taker", [TAKE, CLAIM])
def test_what_is_given_back_goes_to_who_waits(store: Driver, taker: Operation) -> None:
    store.put("a", b"1")
    name = store.claim("a")
    store.ask(READ, ANY, client=2)
    store.ask(taker, "a", client=3)
    told = store.ask(GIVE_BACK, argument=name, client=1)
    assert answers(told) == [(1, OK, b""), (2, OK, b"1"), (3, OK, b"1")]
    assert store.held_bytes == (cost_of("a", b"1") if taker == CLAIM else 0)
    if taker == CLAIM:
        store.ask(ACKNOWLEDGE, argument=told[-1][1].number, client=3)
        assert store.held_bytes == 0
    assert store.store.tuples_held == 0


def test_a_lease_ends_unless_it_is_renewed(store: Driver) -> None:
    store.put("a", b"1")
    name = store.claim("a", lease_ms=1500)
    assert store.store.next_deadline_s() == 1.5
    assert store.expire(1.0) == []
    assert store.only(RENEW, argument=name, client=1, timeout_s=1.0).status == OK
    assert store.store.next_deadline_s() == 2.0
    assert store.expire(0.75) == []
    assert store.take("a") is None
    store.expire(0.25)
    assert store.store.next_deadline_s() == math.inf
    assert store.only(ACKNOWLEDGE, argument=name, client=1).status == Status.GONE
    assert store.take("a") == b"1"


def test_a_claim_that_was_lost_does_not_end_a_later_one_of_the_same_tuple(store: Driver) -> None:
    store.put("a", b"1")
    lost = store.claim("a", lease_ms=1000)
    store.expire(1.0)
    again = store.claim("a")
    for operation in (ACKNOWLEDGE, GIVE_BACK, RENEW):
        assert store.only(operation, argument=lost, client=1).status == Status.GONE
    assert store.only(ACKNOWLEDGE, argument=again, client=1).status == OK


def test_leases_that_end_together_go_oldest_first_to_who_waits(store: Driver) -> None:
    for payload in (b"1", b"2"):
        store.put("a", payload)
    first = store.claim("a", lease_ms=1000)
    store.claim("a", lease_ms=1000)
    store.ask(GIVE_BACK, argument=first, client=1)
    store.claim("a", lease_ms=1000)  # the oldest tuple has the newest claim
    store.ask(TAKE, "a", client=2)
    store.ask(TAKE, "a", client=3)
    assert answers(store.expire(1.0)) == [(2, OK, b"1"), (3, OK, b"2")]


def test_the_claims_of_the_dead_are_given_back_at_once(store: Driver) -> None:
    for number in range(3):
        store.put("a", b"%d" % number)
    for client in (1, 2, 1):
        store.claim("a", client=client)
    store.ask(TAKE, "a", client=1)  # dies while it waits
    store.ask(TAKE, "a", client=3)
    assert answers(store.client_died(1)) == [(3, OK, b"0")]
    assert [store.take("a"), store.take("a")] == [b"2", None]
    assert store.store.tuples_held == 1  # client 2 still has its own


def test_who_claims_from_the_dead_has_its_whole_lease(store: Driver) -> None:
    store.put("a", b"1")
    store.claim("a", client=1)
    store.ask(CLAIM, "a", client=2, argument=1000)
    store.now_s = 50.0
    assert answers(store.client_died(1)) == [(2, OK, b"1")]
    assert store.store.next_deadline_s() == 51.0


@pytest.mark.parametrize("waits", [True, False])
def test_a_claim_says_that_a_client_has_died_with_the_tuple(store: Driver, waits: bool) -> None:
    store.put("a", b"1")
    store.put("b", b"2")
    store.claim("a", client=1)
    if waits:
        store.ask(CLAIM, "a", client=2)
    given = store.client_died(1)
    ((client, reply),) = given if waits else store.ask(CLAIM, "a", client=2)
    assert (client, bytes(reply.payload)) == (2, b"1")
    assert reply.number & HELD_BY_DEAD
    assert not store.claim("b", client=2) & HELD_BY_DEAD
    assert store.only(GIVE_BACK, argument=reply.number, client=2).status == OK
    name = store.claim("a", client=3)
    assert name & HELD_BY_DEAD
    assert store.only(ACKNOWLEDGE, argument=name, client=3).status == OK
    store.put("a", b"1")
    assert not store.claim("a", client=3) & HELD_BY_DEAD
