"""What changes a tuple in its store: putting under a condition, increments, replacing."""

from __future__ import annotations

import struct
from typing import Any

from unit.tuples.driving import Driver, answers, integer, key_bytes, number_in

from diel import ANY
from diel.tuples import codec
from diel.tuples.protocol import Operation, Status

PUT_IF_ABSENT, REPLACE, INCREMENT = Operation.PUT_IF_ABSENT, Operation.REPLACE, Operation.INCREMENT
TAKE, READ, CLAIM = Operation.TAKE, Operation.READ, Operation.CLAIM
ACKNOWLEDGE = Operation.ACKNOWLEDGE
OK = Status.OK


def put_if_absent(store: Driver, tag: Any, payload: bytes = b"") -> bool:
    told = store.put(tag, payload, operation=PUT_IF_ABSENT, client=5, request_id=3)
    client, reply = told[0]
    assert (client, reply.request_id, reply.status) == (5, 3, OK)
    return reply.number == 1


def test_put_if_absent_puts_once(store: Driver) -> None:
    assert put_if_absent(store, "a", b"1")
    assert not put_if_absent(store, "a", b"2")
    assert store.take("a") == b"1"
    assert put_if_absent(store, "a", b"3")
    assert store.take("a") == b"3"
    assert store.held_bytes == 0


def test_a_claimed_tuple_counts_as_present(store: Driver) -> None:
    store.put("a")
    claim = store.only(CLAIM, "a").number
    assert not put_if_absent(store, "a")
    store.ask(ACKNOWLEDGE, argument=claim)
    assert put_if_absent(store, "a")


def test_put_if_absent_serves_who_waits(store: Driver) -> None:
    store.ask(TAKE, "a", client=1)
    told = store.put("a", b"1", operation=PUT_IF_ABSENT, client=2)
    assert (told[0][0], told[0][1].number) == (2, 1)
    assert answers(told[1:]) == [(1, OK, b"1")]
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)


def test_increment_counts_and_keeps_the_place(store: Driver) -> None:
    assert number_in(store.only(INCREMENT, ("n", 1), **integer(5))) == 5
    store.put(("n", 2), b"after")
    assert number_in(store.only(INCREMENT, ("n", 1), **integer(-7))) == -2
    half = {"kind": codec.FLOAT, "meta": struct.pack("<d", 0.5)}
    assert number_in(store.only(INCREMENT, ("n", 1), **half)) == -1.5
    assert number_in(store.only(INCREMENT, ("n", 1), **integer(1))) == -0.5
    reply = store.only(TAKE, ("n", ANY))
    assert (reply.key, number_in(reply)) == (key_bytes(("n", 1)), -0.5)
    assert store.take(("n", 2)) == b"after"
    assert store.held_bytes == 0


def test_increment_changes_the_oldest_of_its_tag(store: Driver) -> None:
    for value in (10, 20):
        store.put("n", integer(value)["meta"], kind=codec.INTEGER)
    assert number_in(store.only(INCREMENT, "n", **integer(1))) == 11
    assert [number_in(store.only(TAKE, "n")) for _ in range(2)] == [11, 20]


def test_increment_serves_who_waits(store: Driver) -> None:
    store.ask(TAKE, "n", client=1)
    told = store.ask(INCREMENT, "n", client=2, **integer(4))
    assert [(client, number_in(reply)) for client, reply in told] == [(2, 4), (1, 4)]
    assert number_in(store.only(INCREMENT, "n", **integer(1))) == 1


def test_increment_beyond_64_bits_or_of_no_number_changes_nothing(store: Driver) -> None:
    store.ask(INCREMENT, "n", **integer(2**63 - 1))
    assert store.only(INCREMENT, "n", **integer(1)).status == Status.TOO_LARGE
    assert number_in(store.only(INCREMENT, "n", **integer(0))) == 2**63 - 1
    store.put("b", b"12345678")
    assert store.only(INCREMENT, "b", **integer(1)).status == Status.NOT_A_NUMBER
    assert store.take("b") == b"12345678"


def replace(store: Driver, tag: Any, version: int, payload: bytes) -> int:
    ((_, reply),) = store.put(tag, payload, operation=REPLACE, argument=version)
    return reply.status


def test_replace_keeps_the_place_and_refuses_an_old_version(store: Driver) -> None:
    store.put(("a", 1), b"1")
    store.put(("a", 2), b"2")
    store.put(("a", 1), b"3")
    version = store.only(READ, ("a", 1)).number
    assert replace(store, ("a", 1), version, b"longer than before") == OK
    assert replace(store, ("a", 1), version, b"too late") == Status.CONFLICT
    assert [store.take((ANY, ANY)) for _ in range(3)] == [b"longer than before", b"2", b"3"]
    assert replace(store, ("a", 1), version, b"gone") == Status.CONFLICT
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)


def test_a_version_is_that_of_one_tuple_not_of_its_tag(store: Driver) -> None:
    store.put("a", b"1")
    store.put("a", b"2")
    first = store.only(READ, "a").number
    store.take("a")
    second = store.only(READ, "a").number
    assert replace(store, "a", first, b"x") == Status.CONFLICT
    assert replace(store, "a", second, b"y") == OK
    assert store.take("a") == b"y"


def test_a_claimed_tuple_cannot_be_replaced(store: Driver) -> None:
    store.put("a", b"1")
    version = store.only(READ, "a").number
    store.ask(CLAIM, "a", client=1)
    assert replace(store, "a", version, b"2") == Status.CONFLICT
