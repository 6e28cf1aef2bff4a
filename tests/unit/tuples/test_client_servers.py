"""Several servers: where a tag goes, and patterns whose matches may be anywhere."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from unit.tuples.driving import PATIENCE_S, held

from diel import ANY
from diel.errors import PayloadError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.protocol import Reply
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def test_tags_are_spread_over_the_servers(tuples: TupleClient, stores: list[TupleStore]) -> None:
    for number in range(60):
        tuples.tput((number, "x"), number)
        tuples.tput((number, "y"), number)
    assert min(store.tuples_held for store in stores) >= 20
    assert all(store.tuples_held % 2 == 0 for store in stores)  # the first field decides
    assert tuples.count((ANY, ANY)) == 120
    found = tuples.collect((ANY, "x"))
    assert sorted(found) == [((number, "x"), number) for number in range(60)]
    assert sorted(tuples.tget((ANY, ANY)) for _ in range(60)) == list(range(60))
    assert held(stores) == (0, 0)


def test_whichever_server_has_it_wakes_who_waits_for_anything(
    transport: LocalTransport, threads: ThreadPoolExecutor, stores: list[TupleStore]
) -> None:
    taker, putter = TupleClient(transport.another_client()), TupleClient(transport)
    for number in range(12):
        waiting = threads.submit(taker.tget, (ANY, "x"), timeout=PATIENCE_S, with_tag=True)
        time.sleep(0.01)
        putter.tput((number, "y"), "no match")
        putter.tput((number, "x"), number)
        assert waiting.result(PATIENCE_S) == ((number, "x"), number)
    assert held(stores)[0] == 12
    assert not any(store._waiters for store in stores)


class Racing(LocalTransport):
    """Lets somebody else act just before a message of a server is received."""

    def __init__(self, stores: list[TupleStore]) -> None:
        super().__init__(stores)
        self.act_before: list[Any] = []

    def receive(
        self,
        request_ids: Collection[int],
        timeout_s: float = float("inf"),
        out: memoryview | None = None,
    ) -> tuple[int, Reply]:
        if isinstance(request_ids, dict) and self.act_before:  # what was asked to be told
            self.act_before.pop(0)()
        return super().receive(request_ids, timeout_s, out)


@pytest.mark.parametrize("operation", ["tget", "tread", "claim"])
def test_a_race_that_is_lost_is_run_again(operation: str) -> None:
    stores = [TupleStore() for _ in range(3)]
    transport = Racing(stores)
    tuples, faster = TupleClient(transport), TupleClient(transport.another_client())

    def put_and_take(tag: str) -> None:
        faster.tput(tag, "gone")
        assert faster.tget(tag, timeout=0) == "gone"

    transport.act_before = [
        lambda: put_and_take("a"),
        lambda: put_and_take("b"),
        lambda: [put_and_take("a"), put_and_take("c"), faster.tput("d", "left")],
    ]
    found = getattr(tuples, operation)(ANY, timeout=PATIENCE_S)
    assert (found.value if operation == "claim" else found) == "left"
    assert transport.act_before == []
    assert tuples.count(ANY) == (1 if operation == "tread" else 0)
    assert not any(store._waiters for store in stores)


def test_races_that_are_lost_do_not_prolong_the_wait() -> None:
    transport = Racing([TupleStore() for _ in range(3)])
    tuples, faster = TupleClient(transport), TupleClient(transport.another_client())

    def put_and_take() -> None:
        time.sleep(0.1)
        faster.tput("a", 1)
        faster.tget("a")

    transport.act_before = [put_and_take] * 20
    with pytest.raises(TupleTimeout):
        tuples.tget(ANY, timeout=0.3)
    assert len(transport.act_before) > 10


def test_out_that_does_not_fit_anywhere_leaves_the_tuple(tuples: TupleClient) -> None:
    tuples.tput("a", np.zeros(3))
    with pytest.raises(PayloadError, match="left there"):
        tuples.tget(ANY, out=np.zeros(2), timeout=PATIENCE_S)
    assert tuples.tget(ANY, out=np.ones(3)).tolist() == [0, 0, 0]
