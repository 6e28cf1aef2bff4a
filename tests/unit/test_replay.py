"""Searches on recorded curves: what a proposal stands for, what it costs, who is stopped."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import ROOT

POINT = {
    "depth": 2,
    "width": 64,
    "activation": "tanh",
    "learning_rate": 0.1,
    "momentum": 0.5,
    "weight_decay": 1e-4,
    "batch_size": 32,
}


@pytest.fixture(scope="module")
def replay() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("replay")


@pytest.fixture(scope="module")
def curves(replay: Any) -> Any:
    return replay.curves_of("digits")


def test_a_point_stands_for_one_of_its_structure_until_all_have_had_a_turn(curves: Any) -> None:
    table = importlib.import_module("replay_table")
    structure = table.STRUCTURES.index(table.structure_of(POINT))
    there = set(np.flatnonzero(curves.structure == structure))
    used = np.zeros(len(curves), bool)
    for _ in there:
        place, off = curves.nearest(POINT, used)
        assert off < 10
        used[place] = True
    assert set(np.flatnonzero(used)) == there
    assert curves.nearest(POINT, used)[0] in there


def test_predicted_curves_are_no_better_than_recorded_ones_around(curves: Any) -> None:
    random = np.random.default_rng(0)
    best = max(curves.predicted(POINT, random)[0][-1] for _ in range(50))
    assert 0.9 < best < 0.99


def test_networks_at_once_cost_no_more_than_alone(curves: Any) -> None:
    for structure in range(len(curves.alone_s)):
        alone_s = curves.epoch_s(structure, 1, "ours")
        assert curves.epoch_s(structure, 16, "ours") <= 16 * alone_s * (1 + 1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "halving"},
        {"rule": "ray"},
        {"rule": "median"},
        {"rule": "promote"},
        {"rule": "restart", "reduction": 4},
        {"rule": "rungs", "cohort": 8, "alike": True},
        {"rule": "cohort", "cohort": 8},
        {"ahead": 8},
    ],
)
def test_the_same_seed_finds_the_same(replay: Any, change: dict[str, Any]) -> None:
    policy = replay.Policy("tried", **change)
    one, two = (replay.simulate("digits", policy, 3, 5.0, snaps=False) for _ in range(2))
    assert repr(one) == repr(two)
    assert one["begun"] >= one["finished"] > 0


def test_snapped_searches_meet_recorded_accuracies_alone(replay: Any, curves: Any) -> None:
    policy = replay.Policy("tried", rule="halving")
    found = replay.simulate("digits", policy, 1, 5.0, snaps=True)
    assert found["val"][-1] in curves.val[:, -1]


def test_the_area_counts_from_the_first_finished_trial(replay: Any) -> None:
    found = importlib.import_module("replay_search").Found([(2.0, 0.5, 0.4), (3.0, 0.9, 0.8)])
    assert replay.area(found, 4.0, 0.1) == pytest.approx((2 * 0.1 + 0.5 + 0.9) / 4)
    assert replay.best_at(found, 2.5) == (0.5, 0.4)
    assert math.isnan(replay.best_at(found, 1.0)[0])
