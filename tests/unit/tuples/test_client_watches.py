"""To learn that a tuple is there while something else goes on: watch."""

from __future__ import annotations

from typing import Any

import pytest

from diel import ANY
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore


@pytest.mark.parametrize("pattern", ["a", ("a",), ANY])
def test_a_watch_tells_that_a_tuple_is_there_or_comes(
    tuples: TupleClient, other: TupleClient, pattern: Any, stores: list[TupleStore]
) -> None:
    with tuples.watch(pattern) as watch:
        assert not watch.has_matched()
        other.tput(("b", 1), "no match")
        assert not watch.has_matched()
        other.tput("a", 1)
        assert watch.has_matched()
        assert watch.has_matched()  # once told, for ever
    with tuples.watch(pattern) as watch:
        assert watch.has_matched()
    assert other.count("a") == 1  # a watch takes nothing
    assert not any(store._waiters for store in stores)


def test_what_happens_between_two_looks_at_a_watch_is_no_harm(
    tuples: TupleClient, other: TupleClient
) -> None:
    with tuples.watch("a") as first, tuples.watch(("b", ANY)) as second:
        other.tput(("b", 1), "for the second")
        other.tput("c", 2)
        assert tuples.tget("c") == 2  # receives what is for the watches too
        assert second.has_matched()
        assert not first.has_matched()
        other.tput("a", 1)
        assert first.has_matched()


def test_a_watch_that_is_closed_leaves_nothing(
    tuples: TupleClient, other: TupleClient, stores: list[TupleStore]
) -> None:
    watch = tuples.watch(ANY)
    other.tput("a", 1)  # told, but nobody looks
    watch.close()
    watch.close()
    assert not any(store._waiters for store in stores)
    assert tuples.tget("a") == 1
    assert tuples._requests.transport._early == {}
