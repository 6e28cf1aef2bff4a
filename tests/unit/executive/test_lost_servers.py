"""Rank 0 waits for a tuple server that dies: the wait ends at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diel.errors import TupleError
from diel.executive.driver import Driver, _ServerLost
from diel.executive.events import RanksDied

DIED = RanksDied({1: "n1"})


def rank0(dead: set[int], known: set[int] | None = None, tails: tuple[int, ...] = ()) -> Any:
    """Return what a wait of rank 0 looks at, with a tuple server on rank 1."""
    return SimpleNamespace(
        _server_ranks=(1,),
        _tail_ranks=tails,
        _parent=SimpleNamespace(dead_ranks=SimpleNamespace(ranks=dead)),
        _look_for_silence=lambda now_s: None,
        _look_for_deaths=lambda: DIED if dead - (known or set()) else None,
    )


def test_a_wait_for_a_server_that_has_died_ends() -> None:
    with pytest.raises(_ServerLost) as raised:
        Driver._raise_if_server_is_lost(rank0({1}))
    assert Driver._loss_behind(rank0({1}), raised.value) is DIED


def test_a_wait_goes_on_where_others_have_died() -> None:
    Driver._raise_if_server_is_lost(rank0({3}))
    Driver._raise_if_server_is_lost(rank0({1}, known={1}))  # the run is ending for it


def test_a_wait_goes_on_where_the_server_has_a_twin() -> None:
    Driver._raise_if_server_is_lost(rank0({1}, tails=(2,)))


def test_a_payload_that_a_dead_server_has_cut_short_is_that_loss() -> None:
    assert Driver._loss_behind(rank0({1}), TupleError("in the middle")) is DIED
    with pytest.raises(TupleError, match="no room"):
        Driver._loss_behind(rank0(set()), TupleError("no room"))
