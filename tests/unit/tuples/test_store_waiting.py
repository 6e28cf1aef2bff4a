"""Requests that wait at a store: in which order they are served, and when they give up."""

from __future__ import annotations

import json
import math

import pytest
from unit.tuples.driving import Driver, answers

from diel import ANY
from diel.tuples.protocol import Operation, Status, pack_query, unpack_reply

TAKE, READ, WATCH = Operation.TAKE, Operation.READ, Operation.WATCH
FLUSH = Operation.FLUSH
OK = Status.OK


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
    store.ask(TAKE, "a", client=1, request_id=5, timeout_s=2.0)
    store.ask(TAKE, "a", client=2, timeout_s=1.0)
    store.ask(TAKE, "a", client=3)
    assert store.store.next_deadline_s() == 101.0
    assert store.expire(0.9) == []
    assert answers(store.expire(0.1)) == [(2, Status.TIMEOUT, b"")]
    assert store.store.next_deadline_s() == 102.0
    ((client, reply),) = store.expire(400.0)
    assert (client, reply.request_id, reply.status) == (1, 5, Status.TIMEOUT)
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
    store.ask(WATCH, ANY, client=1, request_id=7)
    store.ask(WATCH, ANY, client=2, request_id=7)
    assert store.ask(Operation.CANCEL, argument=7, client=1) == []
    assert store.ask(Operation.CANCEL, argument=8, client=1) == []  # answered long ago
    assert answers(store.put("a", b"1")) == [(2, OK, b"")]


def test_a_flush_is_answered_at_once(store: Driver) -> None:
    ((client, reply),) = store.ask(FLUSH, client=4, request_id=2)
    assert (client, reply.request_id, reply.status) == (4, 2, OK)


def test_a_survey_names_all_who_wait_for_a_tuple_or_for_room() -> None:
    store = Driver(capacity_bytes=20_000)
    store.put("a", bytes(15_000))
    store.ask(Operation.TAKE, "b", client=1, request_id=3)
    store.ask(Operation.ASK_CREDIT, client=2, request_id=4, argument=15_000)
    told = json.loads(bytes(store.only(Operation.SURVEY, client=3).payload))
    assert told["waiting"] == [[1, 3], [2, 4]]
    assert [count for _, count in told["tags"]] == [1]
    for number in range(300):  # a long survey travels apart from its message
        store.put(("a tag with a long name", number))
    ((client, message, payload),) = store.store.handle(3, pack_query(Operation.SURVEY, 9), 0.0)
    told = json.loads(bytes(unpack_reply(message, payload).payload))
    assert (client, len(told["tags"])) == (3, 301)
    assert payload is not None
