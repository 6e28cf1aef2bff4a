"""What clients change in place: put_if_absent, increment, update."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from unit.tuples.driving import PATIENCE_S, held

from diel import ANY
from diel.errors import PayloadError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def test_put_if_absent_puts_what_is_not_there(tuples: TupleClient, other: TupleClient) -> None:
    assert tuples.put_if_absent("a", 1)
    assert not other.put_if_absent("a", 2)
    with tuples.claim("a") as claim:
        assert claim.value == 1
        assert not other.put_if_absent("a", 2)  # it may come back
    assert other.put_if_absent("a", np.zeros(100_000))
    assert not tuples.put_if_absent("a", np.zeros(100_000))
    assert tuples.tget("a").shape == (100_000,)


def test_increment_is_typed(tuples: TupleClient) -> None:
    found = [tuples.increment("n"), tuples.increment("n", 41), tuples.increment("n", -2)]
    assert [(type(one), one) for one in found] == [(int, 1), (int, 42), (int, 40)]
    assert (type(tuples.tread("n")), tuples.tread("n")) == (int, 40)
    assert tuples.increment("n", 0.5) == 40.5
    assert tuples.increment("n", 1) == 41.5
    assert (tuples.count("n"), tuples.tget("n")) == (1, 41.5)
    assert tuples.increment("n", 2.5) == 2.5


def test_increment_of_what_was_put(tuples: TupleClient) -> None:
    tuples.tput("n", 2**63 - 2)
    assert tuples.increment("n") == 2**63 - 1
    with pytest.raises(PayloadError, match="the result needs over 64 bits"):
        tuples.increment("n")
    with pytest.raises(PayloadError, match="needs over 64 bits"):
        tuples.increment("n", 2**63)
    assert tuples.tget("n") == 2**63 - 1


@pytest.mark.parametrize("value", [None, "1", True, 2**64, np.arange(1), b"12345678"])
def test_what_is_not_a_number_cannot_be_incremented(tuples: TupleClient, value: Any) -> None:
    tuples.tput("a", value)
    with pytest.raises(PayloadError, match="the tuple there is not a number"):
        tuples.increment("a")
    assert tuples.tget("a", timeout=0) == value


@pytest.mark.parametrize("by", [None, "1", True, 1j, [1]])
def test_only_numbers_can_be_added(tuples: TupleClient, stores: list[TupleStore], by: Any) -> None:
    with pytest.raises(PayloadError, match="by is a number"):
        tuples.increment("a", by)
    assert held(stores) == (0, 0)


def test_increments_by_many_are_all_counted(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    clients = [TupleClient(transport.another_client()) for _ in range(4)]

    def count(tuples: TupleClient) -> list[int]:
        return [tuples.increment("n") for _ in range(100)]

    found = [
        one.result(PATIENCE_S) for one in [threads.submit(count, client) for client in clients]
    ]
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 401))
    assert all(numbers == sorted(numbers) for numbers in found)


def test_update_replaces_in_place(tuples: TupleClient, stores: list[TupleStore]) -> None:
    tuples.tput(("a", 1), [1])
    tuples.tput(("a", 2), "after")
    assert tuples.update(("a", 1), lambda value: [*value, 2]) == [1, 2]
    large = tuples.update(("a", 1), lambda value: np.full(50_000, 3.0))
    assert tuples.tget(("a", ANY)).tolist() == large.tolist()
    assert tuples.tget(("a", ANY)) == "after"
    assert held(stores) == (0, 0)


def test_update_tries_again_after_another_rank_was_faster(
    tuples: TupleClient, other: TupleClient
) -> None:
    tuples.tput("a", 1)
    seen = []

    def change(value: int) -> int:
        seen.append(value)
        if len(seen) < 3:
            other.update("a", lambda value: value * 10)
        return value + 1

    assert tuples.update("a", change) == 101
    assert seen == [1, 10, 100]
    assert tuples.tget("a") == 101


def test_update_whose_tuple_is_taken_meanwhile_takes_the_next(
    tuples: TupleClient, other: TupleClient
) -> None:
    for number in (1, 2):
        tuples.tput("a", number)
    assert tuples.update("a", lambda value: other.tget("a") * 10 if value == 1 else 7) == 7
    assert tuples.tget("a") == 7


def test_update_that_raises_or_finds_nothing_changes_nothing(tuples: TupleClient) -> None:
    with pytest.raises(TupleTimeout, match="update"):
        tuples.update("a", lambda value: value, timeout=0)
    tuples.tput("a", 1)
    with pytest.raises(ZeroDivisionError):
        tuples.update("a", lambda value: value / 0)
    with pytest.raises(PayloadError, match="cannot travel"):
        tuples.update("a", lambda value: lambda: value)
    assert tuples.tget("a") == 1


def test_updates_by_many_are_all_applied(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    TupleClient(transport).tput("a", {})
    clients = [TupleClient(transport.another_client()) for _ in range(4)]

    def add(who: int) -> None:
        for number in range(25):
            clients[who].update("a", lambda value, number=number: {**value, (who, number): 1})

    for one in [threads.submit(add, who) for who in range(4)]:
        one.result(PATIENCE_S)
    assert len(TupleClient(transport).tget("a")) == 100


def test_integers_of_any_kind_count() -> None:
    tuples = TupleClient(LocalTransport())
    assert tuples.increment("n", np.int64(2)) == 2
    assert type(tuples.increment("n", np.uint8(3))) is int
    assert tuples.tget("n", timeout=0) == 5
