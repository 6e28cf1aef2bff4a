"""The model of scale in `benchmarks`: known costs by hand, simulated ranks, published points."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from support import ROOT


@pytest.fixture(scope="module")
def model() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("scaling_model")
        del sys.modules["scaling_model"]


@pytest.fixture
def flat(model: ModuleType):
    """Nodes of one rank, 1 s for a message and 1 s for a byte."""
    link = model.Link(1.0, 1.0)
    return model.Machine(link, link, 1)


@pytest.fixture
def nodes(model: ModuleType):
    """Nodes of 4 ranks, between which everything takes ten times as long."""
    return model.Machine(model.Link(1e-6, 1e10), model.Link(1e-5, 1e9), 4, 5e9)


def test_exchanges_of_four_ranks_cost_what_one_counts_by_hand(model: ModuleType, flat) -> None:
    assert model.tree(8.0, flat, 4) == 2 * 2 * (1 + 8)
    assert model.doubling(8.0, flat, 4) == 2 * (1 + 8)
    assert model.halving(8.0, flat, 4) == 2 * ((1 + 4) + (1 + 2))
    assert model.ring(8.0, flat, 4) == 2 * 3 * (1 + 2)
    assert model.fastest(8.0, flat, 4) == model.halving(8.0, flat, 4)
    adding = replace(flat, added_bytes_per_s=2.0)
    assert model.ring(8.0, adding, 4) - model.ring(8.0, flat, 4) == 0.75 * 8 / 2
    assert model.doubling(8.0, adding, 4) - model.doubling(8.0, flat, 4) == 2 * 8 / 2


def test_ranks_of_a_node_share_its_link(model: ModuleType, nodes) -> None:
    inside, between = nodes.inside, nodes.between
    # One round inside carries half of the array, the next a quarter; then all four ranks of a
    # node send an eighth each through one link.
    size = 8e6
    expected = sum(inside.seconds(size / 2**k) for k in (1, 2)) + between.seconds(4 * size / 8)
    added = 7 / 8 * size / nodes.added_bytes_per_s
    assert model.halving(size, nodes, 8) == pytest.approx(2 * expected + added)
    assert model.doubling(size, nodes, 8) > between.seconds(4 * size)


@pytest.mark.parametrize("routine", ["tree", "doubling", "halving", "ring", "hierarchical"])
def test_one_rank_exchanges_nothing_and_more_ranks_or_bytes_cost_more(
    model: ModuleType, nodes, routine: str
) -> None:
    cost = getattr(model, routine)
    assert cost(1e6, nodes, 1) == 0
    for size in (1e3, 1e6, 1e9):
        costs = [cost(size, nodes, 4**k) for k in range(7)]
        assert costs == sorted(costs)
        assert cost(2 * size, nodes, 64) > cost(size, nodes, 64)


def test_small_arrays_take_few_rounds_and_large_ones_few_bytes(model: ModuleType, nodes) -> None:
    assert model.tree(8, nodes, 1024) < model.ring(8, nodes, 1024)
    assert model.ring(1e9, nodes, 64) < model.tree(1e9, nodes, 64)
    assert model.hierarchical(1e6, nodes, 1024) < model.ring(1e6, nodes, 1024)


@pytest.mark.parametrize("ranks", [1, 2, 16, 256])
def test_the_slowest_rank_is_as_slow_as_in_a_simulation(model: ModuleType, ranks: int) -> None:
    spread = 0.1
    drawn = np.random.default_rng(ranks).lognormal(0, spread, (4000, ranks)).max(1)
    # The median of one rank's time is 1.
    middle = np.median(drawn) if ranks == 1 else drawn.mean()
    assert model.slowest(ranks, spread) == pytest.approx(middle, rel=0.02)


def test_local_steps_even_out_slow_ranks_as_in_a_simulation(model: ModuleType, nodes) -> None:
    training = model.Training(1.0, 0.1, 0.0)
    nothing = replace(nodes, inside=model.Link(0, 1), between=model.Link(0, 1))
    drawn = np.random.default_rng(1).lognormal(0, 0.1, (300, 64, model.LOCAL_STEPS))
    simulated = drawn.sum(2).max(1).mean() / model.LOCAL_STEPS
    assert model.local_sgd(training, nothing, 64) == pytest.approx(simulated, rel=0.01)


def test_what_goes_on_behind_the_backward_pass_costs_nothing(model: ModuleType, flat) -> None:
    scheme = model.data_parallel(model.ring)
    seen = model.Training(90.0, 0.0, 8.0)
    half, hidden = replace(seen, behind=0.1), replace(seen, behind=2 / 3)
    assert scheme(seen, flat, 4) == 90 + 18
    assert scheme(half, flat, 4) == 90 + 18 - 9
    assert scheme(hidden, flat, 4) == 90
    # What is sent after the step stays seen.
    assert model.sharded(hidden, flat, 4) == 90 + model.fastest(8.0, flat, 4) / 2


def test_a_server_is_the_narrow_place(model: ModuleType, flat) -> None:
    training = model.Training(20.0, 0.0, 8.0)
    assert model.server(training, flat, 4) == 20 + 2 + 2 * 3 * 8
    # Few workers wait for their own messages, many for the server.
    assert model.asynchronous(training, flat, 2) == 20 + 2 + 2 * 8
    assert model.asynchronous(training, flat, 1001) == 2 + 2 * 1000 * 8


def test_a_pipeline_waits_while_it_fills_and_drains(model: ModuleType, flat) -> None:
    free = replace(flat, inside=model.Link(0, math.inf))
    training = model.Training(32.0, 0.0, 8.0)
    assert model.pipeline(training, free, 4) == 32 + 3
    # Two pipelines exchange a rank's quarter of the network four times over: all of it.
    assert model.pipeline(training, free, 8) == 35 + model.fastest(8.0, flat, 2)


def test_one_rank_is_fully_efficient_and_no_scheme_exceeds_that(model: ModuleType, nodes) -> None:
    training = model.Training(0.01, 0.05, 5e6, 0.3, 2e5)
    for scheme in model.SCHEMES.values():
        found = [model.efficiency(scheme, training, nodes, 2**k) for k in range(14)]
        assert found[0] == pytest.approx(1, abs=0.01)
        assert max(found) <= 1
        assert min(found) > 0


def test_the_model_is_near_what_was_published(model: ModuleType) -> None:
    found = {point.name: model.predicted(point) for point in model.HOROVOD}
    assert found["ResNet-101"] == pytest.approx(0.90, abs=0.03)
    assert found["VGG-16"] == pytest.approx(0.68, abs=0.08)
