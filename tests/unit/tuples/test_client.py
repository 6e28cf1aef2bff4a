"""Clients over the transport that stays within one process, with one server and with three."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from diel import ANY
from diel.errors import (
    ClaimLost,
    PayloadError,
    TagError,
    TupleError,
    TupleSpaceFull,
    TupleTimeout,
)
from diel.tuples import store as store_module
from diel.tuples.client import TupleClient
from diel.tuples.local_transport import LocalTransport
from diel.tuples.protocol import Reply
from diel.tuples.store import TupleStore
from diel.tuples.subscriptions import Subscription

PATIENCE_S = 20  # for what should come at once


@pytest.fixture(params=[1, 3], ids=["1 server", "3 servers"])
def stores(request: pytest.FixtureRequest) -> list[TupleStore]:
    return [TupleStore() for _ in range(request.param)]


@pytest.fixture
def transport(stores: list[TupleStore]) -> LocalTransport:
    return LocalTransport(stores)


@pytest.fixture
def tuples(transport: LocalTransport) -> TupleClient:
    return TupleClient(transport)


@pytest.fixture
def other(transport: LocalTransport) -> TupleClient:
    """Another rank."""
    return TupleClient(transport.another_client())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def held(stores: list[TupleStore]) -> tuple[int, int]:
    """Return how many tuples there are and what they take."""
    return (
        sum(store.tuples_held for store in stores),
        sum(store.memory.held_bytes for store in stores),
    )


@pytest.mark.parametrize(
    "value",
    [
        *(np.arange(6.0).reshape(2, 3), np.array(5), np.empty((0, 2)), np.zeros(100_000)),
        *(b"bytes", {"a": 1}, None, 7, 1.5, 2**100, True),
    ],
    ids=["array", "0-d", "empty", "large", "bytes", "dict", "None", "int", "float", "long", "bool"],
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


def test_an_array_that_takes_long_to_describe(tuples: TupleClient) -> None:
    """Its dtype needs more room than a message has for it."""
    dtype = np.dtype(
        [(f"a field with quite a long name, number {number}", "f8") for number in range(200)]
    )
    array = np.ones(3, dtype)
    tuples.tput("a", array)
    assert tuples.tget("a").dtype == dtype
    assert tuples.put_if_absent("a", array)
    assert (tuples.update("a", lambda one: one) == array).all()
    with pytest.raises(PayloadError, match="out="):
        tuples.tget("a", out=np.zeros(3, dtype), timeout=0)
    assert (tuples.tget("a", timeout=0) == array).all()


@pytest.mark.parametrize("timeout_s", [0, 0.15])
@pytest.mark.parametrize("tag", [("a", ANY), (ANY, 1), "a"], ids=repr)
def test_a_timeout_says_what_was_waited_for(
    tuples: TupleClient, timeout_s: float, tag: Any
) -> None:
    started_s = time.monotonic()
    words = re.escape(f"tread({tag!r}): nothing matched")
    with pytest.raises(TupleTimeout, match=words) as caught:
        tuples.tread(tag, timeout=timeout_s)
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
    tuples: TupleClient,
    stores: list[TupleStore],
    arguments: dict[str, Any],
    error: type[Exception],
) -> None:
    tuples.tput("a", np.zeros((2, 2)))
    for get in (tuples.tget, tuples.tread):
        with pytest.raises(error):
            get("a", **arguments)
        with pytest.raises(TagError):
            get("", timeout=0)
    assert held(stores)[0] == 1
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
def test_a_bad_put_leaves_the_space_as_it_was(
    tuples: TupleClient, stores: list[TupleStore], tag: Any, value: Any, error: type[Exception]
) -> None:
    for put in (tuples.tput, tuples.put_if_absent):
        with pytest.raises(error):
            put(tag, value)
    assert held(stores) == (0, 0)


@pytest.mark.parametrize("tag", ["", (), ("a", 1.5), None, ["a"], {"a": 1}, b"a", ("a", ("b",))])
def test_every_operation_refuses_what_is_no_tag(
    tuples: TupleClient, stores: list[TupleStore], tag: Any
) -> None:
    for operation in (
        *(tuples.tget, tuples.tread, tuples.tget_nowait, tuples.tread_nowait, tuples.claim),
        *(tuples.count, tuples.collect, tuples.subscribe, tuples.increment),
        lambda tag: tuples.tput(tag, 1),
        lambda tag: tuples.put_if_absent(tag, 1),
        lambda tag: tuples.update(tag, lambda value: value),
    ):
        with pytest.raises(TagError):
            operation(tag)
    assert held(stores) == (0, 0)


def test_what_changes_a_tuple_takes_no_wildcard(tuples: TupleClient) -> None:
    for operation in (tuples.increment, lambda tag: tuples.update(tag, abs)):
        with pytest.raises(TagError, match="ANY"):
            operation(("a", ANY))


def test_what_cannot_be_rebuilt_is_an_error_of_its_own(tuples: TupleClient) -> None:
    tuples.tput("a", RaisesThere())
    with pytest.raises(PayloadError, match="cannot be rebuilt"):
        tuples.tread("a", timeout=0)
    assert tuples.count("a") == 1


class RaisesThere:
    def __reduce__(self) -> Any:
        return (int, ("not a number",))


def test_nowait_raises_at_once(tuples: TupleClient) -> None:
    for get, name in [(tuples.tget_nowait, "tget_nowait"), (tuples.tread_nowait, "tread_nowait")]:
        for tag in ("a", ANY, ("a", ANY)):
            with pytest.raises(TupleTimeout, match=name):
                get(tag)
        tuples.tput("a", 1)
        assert get("a", with_tag=True) == ("a", 1)
        tuples.collect(ANY)


def test_tuples_of_a_tag_are_first_in_first_out(tuples: TupleClient) -> None:
    tags = [("a", 1), "b", ("c", 1), ("a", 2)]
    for number in range(12):
        tuples.tput(tags[number % 4], number)
    for index, tag in enumerate(tags):
        assert [tuples.tget(tag) for _ in range(3)] == [index, index + 4, index + 8]


def test_a_string_and_a_tuple_of_it_are_one_tag(tuples: TupleClient) -> None:
    for tag in [f"tag {number}" for number in range(20)]:
        tuples.tput(tag, 1)
        assert tuples.tget((tag,), timeout=0) == 1
        tuples.tput((tag,), 2)
        assert tuples.tget(tag, timeout=0) == 2


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


# -- putting under a condition and changing -------------------------------------------------------


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

    found = [one.result(PATIENCE_S) for one in [threads.submit(count, one) for one in clients]]
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


# -- counting and collecting ----------------------------------------------------------------------


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
    monkeypatch.setattr(store_module, "COLLECT_BYTES", 2000)
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


# -- claims ---------------------------------------------------------------------------------------


def test_a_claim_ends_with_its_block(tuples: TupleClient, stores: list[TupleStore]) -> None:
    for number in range(2):
        tuples.tput(("job", number), np.full(30_000, number))
    with tuples.claim(("job", ANY)) as job:
        assert (job.tag, job.value.tolist()) == (("job", 0), [0] * 30_000)
        assert tuples.count(("job", ANY)) == 1
        assert held(stores)[0] == 2
    tuples.tget(("job", 1), timeout=0)
    assert held(stores) == (0, 0)


def test_a_claim_whose_block_raises_is_given_back_to_its_place(tuples: TupleClient) -> None:
    for number in range(3):
        tuples.tput(("job", number % 2), number)
    with pytest.raises(ZeroDivisionError), tuples.claim(("job", ANY)):
        raise ZeroDivisionError
    assert [tuples.tget(("job", ANY), timeout=0) for _ in range(3)] == [0, 1, 2]


def test_a_claim_can_be_ended_by_hand(tuples: TupleClient) -> None:
    tuples.tput("a", 1)
    with tuples.claim("a") as claim:
        claim.give_back()
    with tuples.claim("a") as claim:
        claim.acknowledge()
    for end in (claim.acknowledge, claim.give_back, lambda: claim.renew(1)):
        with pytest.raises(ClaimLost, match="'a'"):
            end()
    assert tuples.count("a") == 0


def test_a_claim_that_waits_goes_to_who_came_first(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    tuples = TupleClient(transport)
    tuples.tput("a", 1)
    first = tuples.claim("a")
    waiting = threads.submit(TupleClient(transport.another_client()).claim, "a", timeout=PATIENCE_S)
    time.sleep(0.05)
    first.give_back()
    second = waiting.result(PATIENCE_S)
    assert second.value == 1
    second.acknowledge()
    assert tuples.count("a") == 0


def test_a_lease_that_ends_loses_the_claim(tuples: TupleClient, other: TupleClient) -> None:
    tuples.tput("a", 1)
    with pytest.raises(ClaimLost), tuples.claim("a", lease=0.05):
        assert other.tget("a", timeout=PATIENCE_S) == 1
    tuples.tput("a", 2)
    # What the block raises says more than the loss.
    with pytest.raises(ZeroDivisionError), tuples.claim("a", lease=0.05):
        other.tget("a", timeout=PATIENCE_S) / 0


def test_a_lease_is_renewed_by_its_holder(tuples: TupleClient, other: TupleClient) -> None:
    tuples.tput("a", 1)
    with tuples.claim("a", lease=30) as claim:
        claim.renew(0.2)
        with pytest.raises(TupleTimeout):
            other.tget("a", timeout=0.05)
        claim.renew(30)
        with pytest.raises(TupleTimeout):
            other.tget("a", timeout=0.3)


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_a_lease_takes_a_while(tuples: TupleClient, lease: float) -> None:
    tuples.tput("a", 1)
    with pytest.raises(ValueError, match="lease"):
        tuples.claim("a", lease=lease)
    with tuples.claim("a") as claim, pytest.raises(ValueError, match="lease"):
        claim.renew(lease)


def test_the_claims_of_the_dead_go_to_the_living(
    tuples: TupleClient, other: TupleClient, stores: list[TupleStore]
) -> None:
    tuples.tput("a", 1)
    lost = other.claim("a")
    for store in stores:
        store.client_died(1)
    assert tuples.tget("a", timeout=0) == 1
    with pytest.raises(ClaimLost):
        lost.acknowledge()


def test_a_claim_on_what_cannot_be_rebuilt_is_given_back(tuples: TupleClient) -> None:
    tuples.tput("a", RaisesThere())
    with pytest.raises(PayloadError, match="cannot be rebuilt"):
        tuples.claim("a")
    assert tuples.count("a") == 1


# -- subscriptions --------------------------------------------------------------------------------


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


# -- a wildcard in the first field, which decides the server ---------------------------------------


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
        serials: Collection[int],
        timeout_s: float = float("inf"),
        out: memoryview | None = None,
    ) -> tuple[int, Reply]:
        if isinstance(serials, dict) and self.act_before:  # what was asked to be told
            self.act_before.pop(0)()
        return super().receive(serials, timeout_s, out)


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
    started_s = time.monotonic()
    with pytest.raises(TupleTimeout):
        tuples.tget(ANY, timeout=0.3)
    assert time.monotonic() - started_s < 0.9


def test_out_that_does_not_fit_anywhere_leaves_the_tuple(tuples: TupleClient) -> None:
    tuples.tput("a", np.zeros(3))
    with pytest.raises(PayloadError, match="left there"):
        tuples.tget(ANY, out=np.zeros(2), timeout=PATIENCE_S)
    assert tuples.tget(ANY, out=np.ones(3)).tolist() == [0, 0, 0]


# -- watches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["a", ("a",), ANY])
def test_a_watch_tells_that_a_tuple_is_there_or_comes(
    tuples: TupleClient, other: TupleClient, pattern: Any, stores: list[TupleStore]
) -> None:
    with tuples.watch(pattern) as watch:
        assert not watch.is_told()
        other.tput(("b", 1), "no match")
        assert not watch.is_told()
        other.tput("a", 1)
        assert watch.is_told()
        assert watch.is_told()  # once told, for ever
    with tuples.watch(pattern) as watch:
        assert watch.is_told()
    assert other.count("a") == 1  # a watch takes nothing
    assert not any(store._waiters for store in stores)


def test_what_happens_between_two_looks_at_a_watch_is_no_harm(
    tuples: TupleClient, other: TupleClient
) -> None:
    with tuples.watch("a") as first, tuples.watch(("b", ANY)) as second:
        other.tput(("b", 1), "for the second")
        other.tput("c", 2)
        assert tuples.tget("c") == 2  # receives what is for the watches too
        assert second.is_told()
        assert not first.is_told()
        other.tput("a", 1)
        assert first.is_told()


def test_a_watch_that_is_closed_leaves_nothing(
    tuples: TupleClient, other: TupleClient, stores: list[TupleStore]
) -> None:
    watch = tuples.watch(ANY)
    other.tput("a", 1)  # told, but nobody looks
    watch.close()
    watch.close()
    assert not any(store._waiters for store in stores)
    assert tuples.tget("a") == 1
    assert tuples._transport._early == {}


# -- memory ---------------------------------------------------------------------------------------


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
    for one in putters:
        one.result(PATIENCE_S)
    assert sorted(found) == sorted([*range(300), *range(300)])
    assert 2**16 < most <= 2**17 * 9 // 8
    assert store.memory.held_bytes == 0


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


class Unreadable:
    """Can be pickled, and not be rebuilt."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_bulk_that_cannot_be_rebuilt_loses_nothing() -> None:
    tuples = TupleClient(LocalTransport())
    for number, value in enumerate([1, Unreadable(), 3]):
        tuples.tput(("x", number), value)
    with pytest.raises(PayloadError, match="cannot be rebuilt"):
        tuples.collect(("x", ANY))
    assert tuples.tget(("x", 2), timeout=0) == 3
    assert tuples.count(("x", ANY)) == 1


def test_out_of_a_dtype_that_does_not_fit_into_a_message() -> None:
    tuples = TupleClient(LocalTransport())
    wide = np.zeros(
        3, [(f"a field with a long name, number {index}", "f8") for index in range(500)]
    )
    tuples.tput("wide", wide)
    with pytest.raises(PayloadError, match="too many fields"):
        tuples.tget("wide", out=np.empty_like(wide), timeout=0)
    np.testing.assert_array_equal(tuples.tget("wide", timeout=0), wide)


def test_integers_of_any_kind_count() -> None:
    tuples = TupleClient(LocalTransport())
    assert tuples.increment("n", np.int64(2)) == 2
    assert type(tuples.increment("n", np.uint8(3))) is int
    assert tuples.tget("n", timeout=0) == 5
