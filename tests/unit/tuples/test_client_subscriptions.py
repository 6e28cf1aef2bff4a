"""Copies of whatever is put from now on: subscribe."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from unit.tuples.driving import PATIENCE_S, held

from diel import ANY
from diel.errors import TupleError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.handles import Subscription
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def test_a_subscription_misses_nothing(tuples: TupleClient, other: TupleClient) -> None:
    tuples.tput(("a", 0), "before")
    with tuples.subscribe(("a", ANY)) as news:
        for number in range(5):
            other.tput(("a", number), number)
            other.tput(("b", number), number)
        assert other.tget(("a", 3)) == 3
        assert [next(news) for _ in range(5)] == [(("a", number), number) for number in range(5)]
        with pytest.raises(TupleTimeout, match="nothing matched"):
            news.next(timeout=0)
        with pytest.raises(TupleTimeout):
            news.next(timeout=0.05)
        other.tput(("a", 9), np.zeros(30_000))
        tag, array = news.next(timeout=PATIENCE_S)
        assert (tag, array.shape) == (("a", 9), (30_000,))
    assert list(news) == []


def test_a_subscription_to_all_servers(tuples: TupleClient, other: TupleClient) -> None:
    with tuples.subscribe((ANY, ANY)) as news:
        found = []
        for number in range(30):
            other.tput((number % 10, number), number)
            if number % 3 == 0:  # questions to the other servers stay under way
                found.append(news.next(timeout=0))
            if number % 7 == 0:
                found += until_timeout(news, 0.0)
        found += until_timeout(news, 0.02)
    assert sorted(value for _, value in found) == list(range(30))
    assert all(tag == (value % 10, value) for tag, value in found)


def until_timeout(news: Subscription, timeout_s: float) -> list[Any]:
    found = []
    with contextlib.suppress(TupleTimeout):
        while True:
            found.append(news.next(timeout=timeout_s))
    return found


def test_the_next_waits_for_what_is_put(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    tuples = TupleClient(transport)
    with TupleClient(transport.another_client()).subscribe(ANY) as news:
        waiting = threads.submit(news.next, PATIENCE_S)
        time.sleep(0.05)
        assert not waiting.done()
        tuples.tput("a", 1)
        assert waiting.result(PATIENCE_S) == ("a", 1)


def test_a_backlog_counts_and_ends_with_its_subscription(
    tuples: TupleClient, stores: list[TupleStore]
) -> None:
    news = tuples.subscribe(ANY)
    for tag in ("a", "b", "c", "d"):
        tuples.tput(tag, 1)
        tuples.tget(tag)
    assert held(stores)[0] == 0
    assert held(stores)[1] > 0
    news.next()
    news.close()
    news.close()
    assert held(stores) == (0, 0)
    with pytest.raises(TupleError, match="closed"):
        news.next()
