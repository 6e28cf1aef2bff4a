"""How many tuples match, and all of them at once: count, collect."""

from __future__ import annotations

import numpy as np
import pytest
from unit.tuples.driving import Unreadable, held

from diel import ANY
from diel.errors import PayloadError
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def test_count_and_collect(tuples: TupleClient, stores: list[TupleStore]) -> None:
    for number in range(6):
        tuples.tput(("a", number % 2), number)
    tuples.tput("b", np.arange(30_000))
    assert [tuples.count(tag) for tag in (("a", 1), ("a", ANY), (ANY, ANY), ANY, "c")] == [
        *(3, 6, 6, 1, 0)
    ]
    assert tuples.collect(("a", 1), limit=2) == [(("a", 1), 1), (("a", 1), 3)]
    assert tuples.collect(("a", ANY)) == [
        *((("a", 0), 0), (("a", 0), 2), (("a", 0), 4)),
        (("a", 1), 5),
    ]
    ((tag, array),) = tuples.collect(ANY)
    assert (tag, array.tolist()) == ("b", list(range(30_000)))
    assert tuples.collect((ANY, ANY)) == []
    assert held(stores) == (0, 0)


@pytest.mark.parametrize("limit", [None, 1, 7, 19, 20, 21])
def test_a_collection_larger_than_one_reply_is_whole(
    tuples: TupleClient, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr("diel.tuples.store.store.REPLY_BYTES", 2000)
    for number in range(20):
        tuples.tput(("a", number % 3), (number, bytes(400)))
    found = [value[0] for _, value in tuples.collect(("a", ANY), limit=limit)]
    assert found == list(range(20))[:limit]
    assert tuples.count(("a", ANY)) == 20 - len(found)


def test_a_limit_holds_over_all_servers(tuples: TupleClient) -> None:
    for number in range(30):
        tuples.tput((number,), number)
    found = tuples.collect(ANY, limit=25)
    assert len(found) == 25
    assert sorted(found + tuples.collect(ANY)) == [((number,), number) for number in range(30)]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(tuples: TupleClient, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        tuples.collect("a", limit=limit)


def test_a_bulk_that_cannot_be_rebuilt_loses_nothing() -> None:
    tuples = TupleClient(LocalTransport())
    for number, value in enumerate([1, Unreadable(), 3]):
        tuples.tput(("x", number), value)
    with pytest.raises(PayloadError, match="cannot be rebuilt"):
        tuples.collect(("x", ANY))
    assert [tuples.tget(("x", number), timeout=0) for number in (0, 2)] == [1, 3]
    assert tuples.count(("x", ANY)) == 1
