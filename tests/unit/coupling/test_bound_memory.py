"""Boundaries on memory that modules have already, and lanes of compiled modules on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diel.comm.direct import LANES, LocalExchange
from diel.coupling.address import Address, CopyRanks, Peers
from diel.coupling.boundary import SharedBoundary
from diel.coupling.channel import Channel
from diel.coupling.lanes import Lanes
from diel.errors import BoundaryError
from diel.testing import run_modules
from diel.workflow.boundary import Boundary

WALL = {
    "name": "wall",
    "shape": [4, 3],
    "owners": [{"module": "left"}],
    "readers": [{"module": "right", "section": [[0, 4], [1, 3]]}],
}


def test_sections_are_sent_from_and_received_into_memory_that_is_given() -> None:
    field, seen = np.zeros((4, 9)), np.zeros((4, 2))

    def left(ctx: Any) -> None:
        wall = ctx.boundary("wall", owned=[field[:, ::4]])
        assert ctx.boundary("wall") is wall
        for step in range(3):
            field[...] = step + np.arange(36.0).reshape(4, 9)
            wall.exchange()

    def right(ctx: Any) -> None:
        wall = ctx.boundary("wall", read=[seen])
        for step in range(3):
            wall.exchange()
            assert (seen == step + np.arange(36.0).reshape(4, 9)[:, 4::4]).all()
        with pytest.raises(BoundaryError, match="has its memory already"):
            ctx.boundary("wall", read=[seen])

    run_modules({"left": left, "right": right}, boundaries=[WALL])
    assert seen[3, 1] == 2 + 35


def test_memory_that_does_not_fit_its_section_is_refused() -> None:
    def left(ctx: Any) -> None:
        for wrong in ([np.zeros((4, 2))], [np.zeros((4, 3), np.float32)], [np.zeros((4, 3))] * 2):
            with pytest.raises(BoundaryError, match=r'boundary "wall": '):
                ctx.boundary("wall", owned=wrong)
        ctx.boundary("wall").push()

    run_modules({"left": left, "right": lambda ctx: ctx.boundary("wall").pull()}, boundaries=[WALL])


class _MpiLikePort:
    """A port with a communicator, as far as lanes ask for it."""

    def __init__(self, rank: int) -> None:
        self._port = LocalExchange().port(rank)
        self.handle = 5

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def lane_tag(self, serial: int, number: int) -> int:
        return serial * LANES + number


def lanes_of(me: Address, by_mpi: tuple[str, ...] = ("left", "right"), **changes: Any) -> Any:
    copies = {"left": (CopyRanks(7, (1, 2)),), "right": (CopyRanks(8, (3,)),)}
    peers = Peers("all", copies, by_mpi=by_mpi)
    declared = Boundary.model_validate(
        WALL | {"owners": [{"module": "left", "split": 0}]} | changes
    )
    channel = Channel(_MpiLikePort(peers.place(me)[1]))
    channel.open(me, peers)
    return Lanes.of(declared, 2, SharedBoundary(declared, channel), channel)


def test_both_ends_of_a_lane_have_the_same_tag_and_size() -> None:
    first, second = lanes_of(Address("left", 0, 0)), lanes_of(Address("left", 0, 1))
    reader = lanes_of(Address("right"))
    assert [lane.peer for lane in reader.lanes] == [1, 2]
    assert not any(lane.is_send for lane in reader.lanes)
    for sender, received in zip((first, second), reader.lanes, strict=True):
        (sent,) = sender.lanes
        assert sent.is_send
        assert (sent.peer, sent.tag) == (3, received.tag)
        assert sent.view.shape == received.view.shape == (2, 2)
        assert sent.tag // LANES == 8  # of the copy that was started last


def test_python_exchanges_what_is_not_between_libraries_with_mpi_alone() -> None:
    right = Address("right")
    assert lanes_of(right) is not None
    assert lanes_of(right, by_mpi=("left",)) is None
    assert lanes_of(right, ahead=2) is None
