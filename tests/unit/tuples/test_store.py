"""The store, request by request: order, waiting, claims, changes, subscriptions."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from unit.tuples.driving import Driver, answers, cost_of, key_bytes

from diel import ANY
from diel.tuples import codec
from diel.tuples import store as store_module
from diel.tuples.protocol import Operation, Reply, Status, unpack_frames

PUT_IF_ABSENT, REPLACE, INCREMENT = (
    Operation.PUT_IF_ABSENT,
    Operation.REPLACE,
    Operation.INCREMENT,
)
TAKE, READ, CLAIM, WATCH = Operation.TAKE, Operation.READ, Operation.CLAIM, Operation.WATCH
ACKNOWLEDGE, GIVE_BACK, RENEW = Operation.ACKNOWLEDGE, Operation.GIVE_BACK, Operation.RENEW
COUNT, COLLECT, FLUSH = Operation.COUNT, Operation.COLLECT, Operation.FLUSH
SUBSCRIBE, NEXT, UNSUBSCRIBE = Operation.SUBSCRIBE, Operation.NEXT, Operation.UNSUBSCRIBE
OK = Status.OK


@pytest.fixture
def store() -> Driver:
    return Driver()


def integer(value: int) -> dict[str, Any]:
    return {"kind": codec.INTEGER, "meta": value.to_bytes(8, "little", signed=True)}


def number_in(reply: Reply) -> float:
    assert reply.status == OK
    return codec.decode_number(reply.kind, reply.payload)


# -- queues ---------------------------------------------------------------------------------------


def test_tuples_of_a_tag_leave_in_the_order_in_which_they_came(store: Driver) -> None:
    for payload in (b"1", b"2", b"3"):
        assert store.put("a", payload) == []
    assert [store.take("a") for _ in range(4)] == [b"1", b"2", b"3", None]


def test_a_pattern_takes_the_oldest_across_tags(store: Driver) -> None:
    for tag, payload in [(("a", 2), b"1"), (("b", 1), b"2"), (("a", 1), b"3"), (("a", 2), b"4")]:
        store.put(tag, payload)
    assert [store.take(("a", ANY)) for _ in range(4)] == [b"1", b"3", b"4", None]
    assert store.take((ANY, 1)) == b"2"


@pytest.mark.parametrize("asked_before", [True, False])
def test_exact_tags_and_patterns_agree_whichever_came_first(
    store: Driver, asked_before: bool
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


def test_a_pattern_matches_only_tags_of_its_length(store: Driver) -> None:
    store.put("a", b"1")
    store.put(("a", "b", "c"), b"2")
    assert store.take(("a", ANY)) is None
    assert store.take(ANY) == b"1"


def test_a_star_in_a_string_and_a_length_of_42_are_no_wildcards(store: Driver) -> None:
    for tag in ("*", ("*", "a"), "x" * 42, ("a" * 42, 42)):
        store.put(tag, b"1")
        assert store.take("other") is None
        assert store.take(tag) == b"1"


def test_indexes_for_patterns_come_and_go(store: Driver) -> None:
    """Ever new first fields leave no index for each, and none is lost that has tuples."""
    store.put(("kept", 1), b"1")
    for number in range(1000):
        assert store.take((str(number), ANY)) is None
    assert store.take(("kept", ANY)) == b"1"
    for number in range(600):
        store.put((number, 1), b"%d" % number)
        assert store.take((number, ANY)) == b"%d" % number
    assert len(store.store.queues.buckets) < 600


def test_a_reader_leaves_the_tuple(store: Driver) -> None:
    store.put("a", b"1")
    for _ in range(2):
        assert answers(store.ask(READ, "a", client=1)) == [(1, OK, b"1")]
    assert store.take("a") == b"1"


def test_the_reply_names_the_tag_that_matched(store: Driver) -> None:
    store.put(("a", 7), b"1", meta=b"about it", kind=codec.PICKLE)
    ((client, reply),) = store.ask(TAKE, ("a", ANY), client=3, serial=9)
    found = (client, reply.serial, reply.status, reply.kind, reply.key, reply.meta)
    assert found == (3, 9, OK, codec.PICKLE, key_bytes(("a", 7)), b"about it")
    assert bytes(reply.payload) == b"1"


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 100_000])
def test_a_payload_comes_back_whichever_way_it_travels(store: Driver, size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    store.put("a", payload)
    assert store.take("a") == payload
    assert store.held_bytes == 0


# -- waiting --------------------------------------------------------------------------------------


def test_waiters_are_served_in_order_of_arrival_up_to_the_first_taker(store: Driver) -> None:
    waiting = [(READ, "a"), (READ, ANY), (TAKE, "a"), (READ, "a"), (TAKE, ANY), (READ, "b")]
    for client, (operation, tag) in enumerate(waiting):
        assert store.ask(operation, tag, client=client) == []
    assert answers(store.put("a", b"1")) == [(client, OK, b"1") for client in (0, 1, 2)]
    assert answers(store.put("a", b"2")) == [(client, OK, b"2") for client in (3, 4)]
    assert answers(store.put("b", b"3")) == [(5, OK, b"3")]
    assert store.take("a") is None
    assert store.take("b") == b"3"


def test_a_waiter_is_served_once(store: Driver) -> None:
    store.ask(TAKE, "a", client=1)
    assert len(store.put("a", b"1")) == 1
    assert store.put("a", b"2") == []
    assert store.take("a") == b"2"


def test_a_timeout_ends_a_wait_and_only_that(store: Driver) -> None:
    store.now_s = 100.0
    store.ask(TAKE, "a", client=1, serial=5, timeout_s=2.0)
    store.ask(TAKE, "a", client=2, timeout_s=1.0)
    store.ask(TAKE, "a", client=3)
    assert store.store.next_deadline_s() == 101.0
    assert store.expire(0.9) == []
    assert answers(store.expire(0.1)) == [(2, Status.TIMEOUT, b"")]
    assert store.store.next_deadline_s() == 102.0
    ((client, reply),) = store.expire(400.0)
    assert (client, reply.serial, reply.status) == (1, 5, Status.TIMEOUT)
    assert store.store.next_deadline_s() == math.inf
    assert answers(store.put("a", b"1")) == [(3, OK, b"1")]


def test_who_was_served_does_not_time_out(store: Driver) -> None:
    store.ask(TAKE, "a", client=1, timeout_s=1.0)
    assert len(store.put("a", b"1")) == 1
    assert store.expire(10.0) == []


def test_deadlines_of_those_who_were_served_do_not_pile_up(store: Driver) -> None:
    store.ask(TAKE, "never", client=1, timeout_s=1.0)  # stays the next deadline
    for _ in range(2000):
        store.ask(TAKE, "a", client=2, timeout_s=3600.0)
        store.put("a")
    assert len(store.store._waiters._deadlines) < 200
    assert store.store.next_deadline_s() == 1.0


def test_a_timeout_of_zero_looks_once(store: Driver) -> None:
    assert answers(store.ask(TAKE, "a", client=1, timeout_s=0)) == [(1, Status.TIMEOUT, b"")]
    assert store.put("a", b"1") == []


@pytest.mark.parametrize("operation", [TAKE, READ])
def test_a_tuple_that_does_not_fit_stays(store: Driver, operation: Operation) -> None:
    store.put("a", b"1234", kind=1, meta=b"four")
    reply = store.only(operation, "a", kind=1, meta=b"eight")
    assert (reply.status, reply.meta, bytes(reply.payload)) == (Status.MISMATCH, b"four", b"")
    assert store.take("a") == b"1234"


def test_a_waiter_whom_the_tuple_does_not_fit_leaves_it_to_the_next(store: Driver) -> None:
    store.ask(TAKE, "a", client=1, kind=1, meta=b"eight")
    store.ask(TAKE, "a", client=2, kind=1, meta=b"four")
    told = store.put("a", b"1234", kind=1, meta=b"four")
    assert answers(told) == [(1, Status.MISMATCH, b""), (2, OK, b"1234")]


def test_watchers_are_told_and_take_nothing(store: Driver) -> None:
    store.put("a", b"1")
    assert answers(store.ask(WATCH, ANY, client=1)) == [(1, OK, b"")]
    assert store.take("a") == b"1"
    store.ask(WATCH, ANY, client=1)
    store.ask(TAKE, ANY, client=2)
    store.ask(WATCH, ANY, client=3)
    assert answers(store.put("a", b"2")) == [(1, OK, b""), (2, OK, b"2")]
    assert answers(store.put("a", b"3")) == [(3, OK, b"")]
    assert store.take("a") == b"3"


def test_a_watch_can_be_cancelled(store: Driver) -> None:
    store.ask(WATCH, ANY, client=1, serial=7)
    store.ask(WATCH, ANY, client=2, serial=7)
    assert store.ask(Operation.CANCEL, argument=7, client=1) == []
    assert store.ask(Operation.CANCEL, argument=8, client=1) == []  # answered long ago
    assert answers(store.put("a", b"1")) == [(2, OK, b"")]


def test_a_flush_is_answered_at_once(store: Driver) -> None:
    ((client, reply),) = store.ask(FLUSH, client=4, serial=2)
    assert (client, reply.serial, reply.status) == (4, 2, OK)


# -- counting and collecting ----------------------------------------------------------------------


def test_count_leaves_out_what_is_claimed(store: Driver) -> None:
    for tag in [("a", 1), ("a", 1), ("a", 2), ("b", 1), "a"]:
        store.put(tag)
    wanted = [(("a", 1), 2), (("a", ANY), 3), ((ANY, ANY), 4), (ANY, 1), ("none", 0)]
    assert [(tag, store.only(COUNT, tag).number) for tag, _ in wanted] == wanted
    store.ask(CLAIM, ("a", 1), client=1)
    assert store.only(COUNT, ("a", ANY)).number == 2
    assert store.store.tuples_held == 5


def collected(reply: Reply) -> list[bytes]:
    found = [bytes(item.payload) for item in unpack_frames(reply.payload)]
    assert (reply.status, reply.number) == (OK, len(found))
    return found


def test_collect_takes_what_matches_oldest_first_up_to_a_limit(store: Driver) -> None:
    for number, tag in enumerate([("a", 1), ("b", 1), ("a", 2), ("a", 1), ("a", 3), ("a", 1)]):
        store.put(tag, b"%d" % number)
    assert collected(store.only(COLLECT, ("a", ANY), argument=2)) == [b"0", b"2"]
    assert collected(store.only(COLLECT, ("a", 1), argument=1)) == [b"3"]
    assert collected(store.only(COLLECT, ("a", ANY))) == [b"4", b"5"]
    assert collected(store.only(COLLECT, ("a", ANY))) == []
    assert collected(store.only(COLLECT, ("b", 1))) == [b"1"]
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)


def test_a_collection_of_large_and_small_payloads(store: Driver) -> None:
    payloads = [b"", b"x" * 16384, b"y" * 16385, b"z" * 100_000, b"1"]
    for payload in payloads:
        store.put("a", payload)
    assert collected(store.only(COLLECT, "a")) == payloads


def test_a_reply_to_collect_is_bounded(store: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "COLLECT_BYTES", 3 * cost_of("a", b"0"))
    for number in range(7):
        store.put("a", b"%d" % number)
    found = []
    while piece := collected(store.only(COLLECT, "a")):
        assert len(piece) <= 3
        found += piece
    assert found == [b"%d" % number for number in range(7)]


# -- putting under a condition and changing -------------------------------------------------------


def put_if_absent(store: Driver, tag: Any, payload: bytes = b"") -> bool:
    told = store.put(tag, payload, operation=PUT_IF_ABSENT, client=5, serial=3)
    client, reply = told[0]
    assert (client, reply.serial, reply.status) == (5, 3, OK)
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


# -- claims ---------------------------------------------------------------------------------------


def claim(store: Driver, tag: Any, client: int = 1, lease_ms: int = 0) -> int:
    reply = store.only(CLAIM, tag, client=client, argument=lease_ms, timeout_s=0)
    assert reply.status == OK
    return reply.number


def test_a_claim_that_is_acknowledged_is_gone(store: Driver) -> None:
    store.put("a", b"1")
    name = claim(store, "a")
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
    names = [claim(store, ("a", ANY)) for _ in range(3)]
    assert store.only(COUNT, (ANY, ANY)).number == 1
    for name in (names[1], names[2], names[0]):
        assert store.only(GIVE_BACK, argument=name, client=1).status == OK
    assert store.take(("a", 1)) == b"0"
    assert [store.take((ANY, ANY)) for _ in range(4)] == [b"1", b"2", b"3", None]


def test_only_its_holder_ends_a_claim(store: Driver) -> None:
    store.put("a", b"1")
    name = claim(store, "a", client=1)
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
    name = claim(store, "a")
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
    name = claim(store, "a", lease_ms=1500)
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
    lost = claim(store, "a", lease_ms=1000)
    store.expire(1.0)
    again = claim(store, "a")
    for operation in (ACKNOWLEDGE, GIVE_BACK, RENEW):
        assert store.only(operation, argument=lost, client=1).status == Status.GONE
    assert store.only(ACKNOWLEDGE, argument=again, client=1).status == OK


def test_leases_that_end_together_go_oldest_first_to_who_waits(store: Driver) -> None:
    for payload in (b"1", b"2"):
        store.put("a", payload)
    first = claim(store, "a", lease_ms=1000)
    claim(store, "a", lease_ms=1000)
    store.ask(GIVE_BACK, argument=first, client=1)
    claim(store, "a", lease_ms=1000)  # the oldest tuple has the newest claim
    store.ask(TAKE, "a", client=2)
    store.ask(TAKE, "a", client=3)
    assert answers(store.expire(1.0)) == [(2, OK, b"1"), (3, OK, b"2")]


def test_the_claims_of_the_dead_are_given_back_at_once(store: Driver) -> None:
    for number in range(3):
        store.put("a", b"%d" % number)
    for client in (1, 2, 1):
        claim(store, "a", client=client)
    store.ask(TAKE, "a", client=1)  # dies while it waits
    store.ask(TAKE, "a", client=3)
    assert answers(store.client_died(1)) == [(3, OK, b"0")]
    assert [store.take("a"), store.take("a")] == [b"2", None]
    assert store.store.tuples_held == 1  # client 2 still has its own


def test_who_claims_from_the_dead_has_its_whole_lease(store: Driver) -> None:
    store.put("a", b"1")
    claim(store, "a", client=1)
    store.ask(CLAIM, "a", client=2, argument=1000)
    store.now_s = 50.0
    assert answers(store.client_died(1)) == [(2, OK, b"1")]
    assert store.store.next_deadline_s() == 51.0


# -- subscriptions --------------------------------------------------------------------------------


def following(store: Driver, name: int, client: int = 1) -> bytes | None:
    reply = store.only(NEXT, argument=name, client=client, timeout_s=0)
    return bytes(reply.payload) if reply.status == OK else None


def test_a_subscription_gets_a_copy_of_all_that_is_put_from_then_on(store: Driver) -> None:
    store.put(("a", 0), b"before")
    store.ask(SUBSCRIBE, ("a", ANY), client=1, serial=7)
    for number in range(3):
        store.put(("a", number), b"%d" % number)
        store.put(("b", number), b"other")
    assert store.take(("a", 0)) == b"before"
    assert store.take(("a", 0)) == b"0"
    assert [following(store, 7) for _ in range(4)] == [b"0", b"1", b"2", None]
    assert store.take(("a", 1)) == b"1"


def test_a_subscriber_that_waits_is_told_before_a_taker(store: Driver) -> None:
    store.ask(TAKE, "a", client=2)
    store.ask(SUBSCRIBE, "a", client=1, serial=7)
    assert store.ask(NEXT, argument=7, client=1, serial=8) == []
    told = store.put("a", b"1")
    assert answers(told) == [(1, OK, b"1"), (2, OK, b"1")]
    assert told[0][1].serial == 8
    assert store.held_bytes == 0


def test_a_subscriber_does_not_stand_in_for_who_waits_for_anything(store: Driver) -> None:
    """Requests of subscriptions wait under names that no pattern matches."""
    store.ask(SUBSCRIBE, "a", client=1, serial=7)
    store.ask(TAKE, ANY, client=2, serial=3)
    assert answers(store.put("a", b"1")) == [(2, OK, b"1")]
    assert following(store, 7) == b"1"
    store.ask(TAKE, ANY, client=2, serial=4)
    store.ask(UNSUBSCRIBE, argument=7, client=1)
    assert answers(store.put("a", b"2")) == [(2, OK, b"2")]


def test_increments_and_what_is_given_back_are_no_puts(store: Driver) -> None:
    store.put("n", integer(1)["meta"], kind=codec.INTEGER)
    store.ask(SUBSCRIBE, ANY, client=1, serial=7)
    store.ask(INCREMENT, "n", **integer(1))
    store.ask(GIVE_BACK, argument=claim(store, "n", client=2), client=2)
    assert following(store, 7) is None
    store.ask(INCREMENT, "new", **integer(1))
    assert following(store, 7) is not None


def test_a_backlog_counts_as_memory_until_it_is_given_out_or_dropped(store: Driver) -> None:
    cost = cost_of("a", b"1")
    store.ask(SUBSCRIBE, "a", client=1, serial=7)
    store.ask(SUBSCRIBE, ANY, client=1, serial=8)
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
    store.ask(SUBSCRIBE, "a", client=1, serial=7)
    store.ask(NEXT, argument=7, client=1, timeout_s=1.0)
    assert answers(store.expire(1.0)) == [(1, Status.TIMEOUT, b"")]
    store.ask(NEXT, argument=7, client=1)
    store.ask(UNSUBSCRIBE, argument=7, client=1)
    assert not store.store._waiters
    assert store.put("a", b"1") == []


# -- what is held ---------------------------------------------------------------------------------


def test_what_is_held_is_counted(store: Driver) -> None:
    store.put("a", b"12345")
    store.put(("b", 1), b"6" * 100_000)
    assert store.store.tuples_held == 2
    assert store.held_bytes == cost_of("a", b"12345") + cost_of(("b", 1), b"6" * 100_000)
    store.take((ANY, ANY))
    assert (store.store.tuples_held, store.held_bytes) == (1, cost_of("a", b"12345"))
    store.take("a")
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)


def test_a_dump_copies_everything_oldest_first_in_pieces(
    store: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "COLLECT_BYTES", 2 * cost_of("a", b"0"))
    for number, tag in enumerate("abcab"):
        store.put(tag, b"%d" % number)
    claim(store, "a")
    found = collected(store.only(Operation.DUMP, argument=0))
    while piece := collected(store.only(Operation.DUMP, argument=1)):
        found += piece
    assert found == [b"%d" % number for number in range(5)]
    assert store.store.tuples_held == 5
