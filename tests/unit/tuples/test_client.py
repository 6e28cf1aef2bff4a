"""Clients over the transport that stays within one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from diel import ANY
from diel.errors import PayloadError, TagError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport

PATIENCE_S = 20  # for what should come at once


@pytest.fixture
def transport() -> LocalTransport:
    return LocalTransport()


@pytest.fixture
def tuples(transport: LocalTransport) -> TupleClient:
    return TupleClient(transport)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.mark.parametrize(
    "value",
    [np.arange(6.0).reshape(2, 3), np.array(5), np.empty((0, 2)), b"bytes", {"a": 1}, None],
    ids=["array", "0-d", "empty", "bytes", "dict", "None"],
)
def test_a_value_is_read_and_taken(tuples: TupleClient, value: Any) -> None:
    tuples.tput(("a", 1), value)
    for get in (tuples.tread, tuples.tget):
        found = get(("a", 1), timeout=0)
        assert type(found) is type(value)
        np.testing.assert_array_equal(found, value)
    with pytest.raises(TupleTimeout):
        tuples.tget(("a", 1), timeout=0)


def test_what_was_put_may_be_changed_afterwards(tuples: TupleClient) -> None:
    array = np.zeros(3)
    tuples.tput("a", array)
    array += 1
    assert tuples.tget("a").tolist() == [0.0, 0.0, 0.0]


def test_what_was_read_may_be_changed(tuples: TupleClient) -> None:
    tuples.tput("a", np.zeros(2))
    tuples.tread("a")[:] = 1
    assert tuples.tget("a").tolist() == [0.0, 0.0]


def test_a_put_that_waits_and_a_flush_return(tuples: TupleClient) -> None:
    tuples.tput("a", 1, wait=True)
    tuples.flush()
    assert tuples.tget("a") == 1


def test_the_tag_that_matched_is_told(tuples: TupleClient) -> None:
    tuples.tput(("a", 3), "x")
    tuples.tput("b", "y")
    assert tuples.tread(("a", ANY), with_tag=True) == (("a", 3), "x")
    assert tuples.tget(ANY, with_tag=True) == ("b", "y")


def test_out_receives(tuples: TupleClient) -> None:
    for shape in [(2, 3), (), (0, 4)]:
        tuples.tput("a", np.full(shape, 7.0))
        out = np.zeros(shape)
        assert tuples.tread("a", out=out) is out
        assert (out == 7.0).all()
        out[...] = 0.0
        assert tuples.tget("a", out=out) is out
        assert (out == 7.0).all()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros(3), r"array of dtype float64 and shape \(3,\)"),
        (np.zeros(2, "f4"), r"array of dtype float32 and shape \(2,\)"),
        (b"0123456789abcdef", "the tuple is bytes"),
        ([0.0, 0.0], "a pickled Python object"),
    ],
)
def test_out_that_does_not_fit_leaves_the_tuple(
    tuples: TupleClient, value: Any, found: str
) -> None:
    tuples.tput("a", value)
    out = np.ones(2)
    for get, name in ((tuples.tget, "tget"), (tuples.tread, "tread")):
        with pytest.raises(PayloadError, match=rf"{name}\('a'\): out= is .*{found}.*left there"):
            get("a", out=out, timeout=0)
    assert out.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(tuples.tget("a", timeout=0), value)


@pytest.mark.parametrize("timeout_s", [0, 0.15])
def test_a_timeout_says_what_was_waited_for(tuples: TupleClient, timeout_s: float) -> None:
    started_s = time.monotonic()
    with pytest.raises(TupleTimeout, match=r"tread\(\('a', ANY\)\): nothing matched") as caught:
        tuples.tread(("a", ANY), timeout=timeout_s)
    assert time.monotonic() - started_s >= timeout_s
    assert (caught.value.operation, caught.value.timeout_s) == ("tread", timeout_s)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"timeout": -1}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"timeout": True}, TypeError),
        ({"out": [0]}, PayloadError),
        ({"out": np.zeros((2, 2)).T}, PayloadError),
    ],
)
def test_a_bad_get_leaves_the_space_as_it_was(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    store = TupleStore()
    tuples = TupleClient(LocalTransport(store))
    tuples.tput("a", np.zeros((2, 2)))
    for get in (tuples.tget, tuples.tread):
        with pytest.raises(error):
            get("a", **arguments)
        with pytest.raises(TagError):
            get("", timeout=0)
    assert store.tuples_held == 1
    assert tuples.tget("a", timeout=0).shape == (2, 2)


@pytest.mark.parametrize(
    ("tag", "value", "error"),
    [
        ("", 1, TagError),
        (("a", 1.5), 1, TagError),
        (ANY, 1, TagError),
        ("a", lambda: 0, PayloadError),
    ],
)
def test_a_bad_put_leaves_the_space_as_it_was(tag: Any, value: Any, error: type[Exception]) -> None:
    store = TupleStore()
    tuples = TupleClient(LocalTransport(store))
    with pytest.raises(error):
        tuples.tput(tag, value)
    assert (store.tuples_held, store.bytes_held) == (0, 0)


# -- several clients ------------------------------------------------------------------------------


def test_a_taker_that_waits_gets_what_another_thread_puts(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    taker = TupleClient(transport.another_client())
    waiting = threads.submit(taker.tget, ("answer", ANY), timeout=PATIENCE_S)
    time.sleep(0.05)
    assert not waiting.done()
    TupleClient(transport).tput(("answer", 1), 42)
    assert waiting.result(PATIENCE_S) == 42


def test_readers_that_wait_all_get_the_tuple(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    readers = [TupleClient(transport.another_client()) for _ in range(3)]
    waiting = [threads.submit(reader.tread, "a", timeout=PATIENCE_S) for reader in readers]
    time.sleep(0.05)
    writer = TupleClient(transport)
    writer.tput("a", "for all")
    assert [one.result(PATIENCE_S) for one in waiting] == ["for all"] * 3
    assert writer.tget("a", timeout=0) == "for all"


def test_takers_share_the_tuples_without_loss_or_repetition(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    takers, writers, each = 3, 2, 60

    def take(tuples: TupleClient) -> list[tuple[int, int]]:
        found = []
        while (value := tuples.tget("work", timeout=PATIENCE_S)) is not None:
            found.append(value)
        return found

    def put(writer: int, tuples: TupleClient) -> None:
        for number in range(each):
            tuples.tput("work", (writer, number))

    clients = [TupleClient(transport.another_client()) for _ in range(takers + writers)]
    taking = [threads.submit(take, tuples) for tuples in clients[writers:]]
    for one in [threads.submit(put, writer, clients[writer]) for writer in range(writers)]:
        one.result(PATIENCE_S)
    for _ in range(takers):
        TupleClient(transport).tput("work", None)
    found = [one.result(PATIENCE_S) for one in taking]
    everything = [(writer, number) for writer in range(writers) for number in range(each)]
    assert sorted(value for values in found for value in values) == everything
    for values in found:  # of one writer, each taker saw rising numbers
        for writer in range(writers):
            numbers = [number for who, number in values if who == writer]
            assert numbers == sorted(numbers)


def test_one_waiter_times_out_while_another_goes_on(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    patient = threads.submit(TupleClient(transport.another_client()).tget, "a", timeout=PATIENCE_S)
    hasty = threads.submit(TupleClient(transport.another_client()).tget, "a", timeout=0.1)
    with pytest.raises(TupleTimeout):
        hasty.result(PATIENCE_S)
    TupleClient(transport).tput("a", 1)
    assert patient.result(PATIENCE_S) == 1
