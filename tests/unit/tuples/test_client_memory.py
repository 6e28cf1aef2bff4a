"""Puts into a space that is full: they wait, or raise, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.tuples.driving import PATIENCE_S

from diel.errors import TupleSpaceFull, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def full_space(*, refuse: bool) -> tuple[LocalTransport, TupleStore]:
    store = TupleStore(2**17, refuse_when_full=refuse)
    return LocalTransport([store]), store


def repeat(action: Callable[[int], object]) -> None:
    for number in range(10_000):
        action(number)


def test_a_full_space_raises_if_the_file_says_so() -> None:
    transport, store = full_space(refuse=True)
    tuples = TupleClient(transport)
    with pytest.raises(TupleSpaceFull, match=r"tput\('a'\): .* do not fit: .* holds [\d,]+ bytes"):
        repeat(lambda number: tuples.tput("a", b"x"))
    assert 100 < tuples.count("a") < 10_000
    assert store.memory.held_bytes <= 2**17 * 9 // 8
    assert len(tuples.collect("a")) > 100
    assert store.memory.held_bytes == 0
    tuples.tput("a", b"x")


def test_what_can_never_fit_is_refused(tuples: TupleClient) -> None:
    for refuse in (False, True):
        transport, store = full_space(refuse=refuse)
        tuples = TupleClient(transport)
        tuples.tput("a", 1)
        for put in (
            lambda value: tuples.tput("b", value),  # noqa: B023
            lambda value: tuples.put_if_absent("b", value),  # noqa: B023
            lambda value: tuples.update("a", lambda _: value),  # noqa: B023
        ):
            with pytest.raises(TupleSpaceFull, match="more than the 131,072"):
                put(bytes(2**17))
        assert tuples.tget("a") == 1
        assert (store.tuples_held, store.memory.held_bytes) == (0, 0)


def test_a_put_waits_for_room_and_says_that_it_waits(threads: ThreadPoolExecutor) -> None:
    transport, store = full_space(refuse=False)
    putter, taker = TupleClient(transport.another_client()), TupleClient(transport)
    putter.tput("a", bytes(100_000))
    waiting = threads.submit(putter.tput, "b", bytes(100_000))
    time.sleep(0.05)
    assert not waiting.done()
    assert putter.waiting_for is not None
    assert putter.waiting_for[:2] == ("tput", "b")
    assert len(taker.tget("a")) == 100_000
    waiting.result(PATIENCE_S)
    assert putter.waiting_for is None
    assert len(taker.tget("b", timeout=0)) == 100_000
    assert store.memory.held_bytes == 0


def test_a_put_that_waited_long_enough_puts_nothing() -> None:
    transport, store = full_space(refuse=False)
    tuples = TupleClient(transport)
    tuples.tput("a", bytes(100_000))
    for timeout_s in (0, 0.1):
        with pytest.raises(TupleTimeout, match=r"tput\('b'\)"):
            tuples.tput("b", bytes(100_000), timeout=timeout_s)
    assert store.tuples_held == 1
    tuples.tget("a")
    tuples.tput("b", bytes(100_000), timeout=0)


def test_numbers_that_are_counted_in_keep_to_the_cap() -> None:
    transport, store = full_space(refuse=True)
    tuples = TupleClient(transport)
    with pytest.raises(TupleSpaceFull):
        repeat(lambda number: tuples.increment(("n", number)))
    assert store.memory.held_bytes <= 2**17 * 9 // 8


def test_a_slow_taker_holds_up_a_fast_putter_and_nothing_is_lost(
    threads: ThreadPoolExecutor,
) -> None:
    transport, store = full_space(refuse=False)
    most = 0

    def put(tuples: TupleClient) -> None:
        for number in range(300):
            tuples.tput("a", (number, bytes(7000)))

    putters = [threads.submit(put, TupleClient(transport.another_client())) for _ in range(2)]
    tuples = TupleClient(transport)
    found = []
    for _ in range(600):
        most = max(most, store.memory.held_bytes)
        found.append(tuples.tget("a", timeout=PATIENCE_S)[0])
    for putter in putters:
        putter.result(PATIENCE_S)
    assert sorted(found) == sorted([*range(300), *range(300)])
    assert 2**16 < most <= 2**17 * 9 // 8
    assert store.memory.held_bytes == 0
