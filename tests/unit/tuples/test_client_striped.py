"""Striped tuples: all or nothing where there is no room, counted, and taken while others wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diel.errors import TupleSpaceFull, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport

SERVERS = 3
CAPACITY = 2**17
FIELD = np.arange(30_000, dtype=np.int32)  # 120 kB: 40 kB a server


def fill(tuples: TupleClient, stores: list[TupleStore], server: int) -> str:
    """Put one large tuple on a server; return its tag."""
    for number in range(100):
        tuples.tput(f"large {number}", bytes(100_000), timeout=0)
        if stores[server].memory.held_bytes:
            return f"large {number}"
        tuples.tget(f"large {number}", timeout=0)
    raise AssertionError(f"no tag belongs to server {server}")


@pytest.mark.parametrize("refuse", [True, False], ids=["refuses", "waits"])
@pytest.mark.parametrize("full", range(SERVERS))
def test_where_one_server_is_full_nothing_is_put_and_no_credit_is_kept(
    full: int, refuse: bool
) -> None:
    stores = [TupleStore(CAPACITY, refuse_when_full=refuse) for _ in range(SERVERS)]
    tuples = TupleClient(LocalTransport(stores))
    tag = fill(tuples, stores, full)
    before = [(store.tuples_held, store.memory.held_bytes) for store in stores]
    puts = tuples.puts
    for _ in range(20):  # credit that was not given back would soon fill the other servers
        with pytest.raises(TupleSpaceFull if refuse else TupleTimeout, match="field"):
            tuples.dist_tput("field", FIELD, timeout=0)
        assert [(store.tuples_held, store.memory.held_bytes) for store in stores] == before
        assert all(store.memory.credit_out_bytes <= CAPACITY // 8 for store in stores)
    assert tuples.puts == puts
    assert tuples.count("field") == 0
    assert len(tuples.tget(tag, timeout=0)) == 100_000
    tuples.dist_tput("field", FIELD, timeout=0)
    np.testing.assert_array_equal(tuples.dist_tget("field", timeout=0), FIELD)
    assert [store.memory.held_bytes for store in stores] == [0] * SERVERS


@pytest.mark.parametrize("servers", [1, SERVERS])
def test_client_and_servers_count_the_same_puts(servers: int) -> None:
    """A deadlock is looked for only where every put that was sent has been applied."""
    stores = [TupleStore() for _ in range(servers)]
    tuples = TupleClient(LocalTransport(stores))
    puts: list[Callable[[], Any]] = [
        lambda: tuples.tput("a", 1),
        lambda: tuples.tput(("a", 2), bytes(50_000)),
        lambda: tuples.dist_tput("field", FIELD),
        lambda: tuples.dist_tput("small", b"x"),
        lambda: tuples.put_if_absent("b", 1),
        lambda: tuples.put_if_absent("b", 2),
        lambda: tuples.increment("n"),
        lambda: tuples.update("n", lambda number: number + 1),
        lambda: tuples.dist_tget("field", timeout=0),
        lambda: tuples.collect("a"),
    ]
    for put in puts:
        put()
        tuples.flush()
        applied = [tuples.survey(one)["puts_applied"].get("0", 0) for one in range(servers)]
        assert applied == tuples.puts
    assert sum(tuples.puts) >= 2 + 2 + servers + 1


class Interrupted(TupleClient):
    """A client during whose look for pieces somebody else acts."""

    def __init__(self, transport: LocalTransport) -> None:
        super().__init__(transport)
        self.act: Callable[[], None] | None = None
        self._fetch, self._striper.fetch = self._striper.fetch, self._act_and_fetch  # type: ignore[method-assign]

    def _act_and_fetch(self, *arguments: Any, **options: Any) -> memoryview | None:
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return self._fetch(*arguments, **options)


def interrupted() -> tuple[Interrupted, TupleClient]:
    transport = LocalTransport([TupleStore() for _ in range(SERVERS)])
    return Interrupted(transport), TupleClient(transport.another_client())


def test_a_reader_whose_tuple_is_taken_waits_on_for_what_is_left_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, taker = interrupted()
    asked_s: list[float] = []
    match = reader._requests.match

    def note(*arguments: Any) -> Any:
        asked_s.append(arguments[3])
        return match(*arguments)

    monkeypatch.setattr(reader._requests, "match", note)
    taker.dist_tput("field", FIELD)

    def take_late() -> None:
        time.sleep(0.2)
        taker.dist_tget("field", timeout=0)

    reader.act = take_late
    with pytest.raises(TupleTimeout, match=r"dist_tread\('field'\): nothing matched within 0.4 s"):
        reader.dist_tread("field", timeout=0.4)
    first_s, then_s = asked_s
    assert first_s == 0.4
    assert then_s <= 0.2
    # Where its time is over by then, it looks once more without waiting.
    taker.dist_tput("field", FIELD)
    reader.act = take_late
    with pytest.raises(TupleTimeout):
        reader.tread("field", timeout=0.1)


def test_a_reader_whose_tuple_is_taken_finds_the_next() -> None:
    reader, taker = interrupted()
    taker.dist_tput("field", FIELD)

    def replace() -> None:
        taker.dist_tget("field", timeout=0)
        taker.dist_tput("field", FIELD + 1)

    for timeout_s in (None, 5, 0):
        reader.act = replace
        np.testing.assert_array_equal(reader.tread("field", timeout=timeout_s), FIELD + 1)
        assert reader.act is None
