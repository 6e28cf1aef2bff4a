"""The store, request by request: the order in which tuples leave, and what they take."""

from __future__ import annotations

import pytest
from unit.tuples.driving import Driver, answers, cost_of, key_bytes

from diel import ANY
from diel.tuples import codec
from diel.tuples.protocol import Operation, Status

TAKE, READ = Operation.TAKE, Operation.READ
OK = Status.OK


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
    ((client, reply),) = store.ask(TAKE, ("a", ANY), client=3, request_id=9)
    found = (client, reply.request_id, reply.status, reply.kind, reply.key, reply.meta)
    assert found == (3, 9, OK, codec.PICKLE, key_bytes(("a", 7)), b"about it")
    assert bytes(reply.payload) == b"1"


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 100_000])
def test_a_payload_comes_back_whichever_way_it_travels(store: Driver, size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    store.put("a", payload)
    assert store.take("a") == payload
    assert store.held_bytes == 0


def test_what_is_held_is_counted(store: Driver) -> None:
    store.put("a", b"12345")
    store.put(("b", 1), b"6" * 100_000)
    assert store.store.tuples_held == 2
    assert store.held_bytes == cost_of("a", b"12345") + cost_of(("b", 1), b"6" * 100_000)
    store.take((ANY, ANY))
    assert (store.store.tuples_held, store.held_bytes) == (1, cost_of("a", b"12345"))
    store.take("a")
    assert (store.store.tuples_held, store.held_bytes) == (0, 0)
