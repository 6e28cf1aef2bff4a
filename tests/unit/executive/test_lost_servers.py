"""Rank 0 waits for a tuple server that dies: the wait ends at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diel.errors import TupleError
from diel.executive.events import RanksDied
from diel.executive.heartbeats import LostRanks, ServerLost

DIED = RanksDied({1: "n1"})


def lost_ranks(
    dead: set[int], known: set[int] | None = None, lone_servers: tuple[int, ...] = (1,)
) -> LostRanks:
    """Return what a wait of rank 0 asks, with a tuple server on rank 1."""
    parent: Any = SimpleNamespace(
        dead_ranks=SimpleNamespace(ranks=dead),
        hosts_and_gpus=[(f"n{rank}", ()) for rank in range(4)],
    )
    heartbeats: Any = SimpleNamespace(look=lambda now_s: {}, forget=lambda rank: None)
    plan: Any = SimpleNamespace(server_ranks=lone_servers, tail_ranks=(), survives_loss=False)
    lost = LostRanks(parent, heartbeats, plan, lambda dead: None)
    lost.dead |= known or set()
    return lost


def test_a_wait_for_a_server_that_has_died_ends() -> None:
    with pytest.raises(ServerLost) as raised:
        lost_ranks({1}).raise_if_server_is_lost()
    assert lost_ranks({1}).event_of_loss(raised.value) == DIED


def test_a_wait_goes_on_where_others_have_died() -> None:
    lost_ranks({3}).raise_if_server_is_lost()
    lost_ranks({1}, known={1}).raise_if_server_is_lost()  # the run is ending for it


def test_a_wait_goes_on_where_the_server_has_a_twin() -> None:
    lost_ranks({1}, lone_servers=()).raise_if_server_is_lost()


def test_a_payload_that_a_dead_server_has_cut_short_is_that_loss() -> None:
    assert lost_ranks({1}).event_of_loss(TupleError("in the middle")) == DIED
    with pytest.raises(TupleError, match="no room"):
        lost_ranks(set()).event_of_loss(TupleError("no room"))
