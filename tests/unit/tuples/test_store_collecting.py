"""What a store counts, gives away in bulk and dumps."""

from __future__ import annotations

import pytest
from unit.tuples.driving import Driver, cost_of

from diel import ANY
from diel.tuples.protocol import Operation, Reply, Status, unpack_frames

CLAIM, COUNT, COLLECT = Operation.CLAIM, Operation.COUNT, Operation.COLLECT
OK = Status.OK


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
    monkeypatch.setattr("diel.tuples.store.store.REPLY_BYTES", 3 * cost_of("a", b"0"))
    for number in range(7):
        store.put("a", b"%d" % number)
    found = []
    while piece := collected(store.only(COLLECT, "a")):
        assert len(piece) <= 3
        found += piece
    assert found == [b"%d" % number for number in range(7)]


def test_a_dump_copies_everything_oldest_first_in_pieces(
    store: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.tuples.store.store.REPLY_BYTES", 2 * cost_of("a", b"0"))
    for number, tag in enumerate("abcab"):
        store.put(tag, b"%d" % number)
    store.claim("a")
    found = collected(store.only(Operation.DUMP, argument=0))
    while piece := collected(store.only(Operation.DUMP, argument=1)):
        found += piece
    assert found == [b"%d" % number for number in range(5)]
    assert store.store.tuples_held == 5
