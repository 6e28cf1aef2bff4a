"""Densities over the points of a space."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from modules.space import Finite, Space
from modules.space.density import Coordinates, Mixture
from modules.strategies import Random

SPACE = Space.parse(
    {
        "nesterov": {"choices": [True, False], "if": {"momentum": {"at_least": 0.5}}},
        "optimizer": ["sgd", "adam"],
        "learning_rate": {"from": 1e-5, "to": 1e-1, "scale": "log"},
        "momentum": {"from": 0.9, "to": 0.0, "step": -0.1, "if": {"optimizer": "sgd"}},
        "hidden": [[16], [32], [64, 32]],
        "batch_size": {"from": 512, "to": 8, "scale": "log"},
        "decay": {"from": 1e-5, "to": 1e-1, "log_steps": 5, "if": {"batch_size": {"at_most": 64}}},
        "epochs": 20,
        "warm_up": {"value": 5, "if": {"optimizer": "adam"}},
    }
)
FINITE = Space.parse(
    {
        "kind": ["a", "b", "c"],
        "n": {"from": 1, "to": 5},
        "m": {"from": 0, "to": 3, "if": {"kind": ["a", "b"]}},
        "deep": {"choices": [0, 1], "if": {"m": {"at_least": 2}}},
        "only": 7,
    }
)


def points(space: Space, count: int, seed: int = 0) -> list[dict[str, Any]]:
    strategy = Random(space, seed)
    return [strategy._draw(strategy._draws, trial) for trial in range(count)]


def mixture(space: Space, count: int, seed: int = 0) -> Mixture:
    of = Coordinates(space)
    rows = np.array([of.row(point) for point in points(space, count, seed)])
    return Mixture(of, rows, [1.0 + place for place in range(count)], 1.0)


def test_points_become_rows_and_rows_points() -> None:
    of = Coordinates(SPACE)
    for point in points(SPACE, 200):
        row = of.row(point)
        assert {name for name, one in zip(of.names, row, strict=True) if one == one} == set(point)
        again = of.point(of.settle(row[None].copy())[0])
        rate = again.pop("learning_rate")
        assert rate == pytest.approx(point["learning_rate"], rel=1e-12)
        assert again == {name: point[name] for name in point if name != "learning_rate"}


def test_uniform_rows_are_points_that_random_search_draws() -> None:
    of = Coordinates(SPACE)
    rows = of.uniform(np.random.default_rng(0).random((3000, len(of.names))))
    found = [of.point(row) for row in rows]
    for point in found:
        SPACE.check(point)
    expected = Counter(tuple(point) for point in points(SPACE, 3000))
    seen = Counter(tuple(point) for point in found)
    assert set(seen) == set(expected)
    assert all(abs(seen[names] - count) < 6 * math.sqrt(count) for names, count in expected.items())


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_density_of_a_finite_space_adds_up_to_one(count: int) -> None:
    of, density = Coordinates(FINITE), mixture(FINITE, count)
    total = 0.0
    for index in range(FINITE.size):
        point = FINITE.point(index)
        dimensions = [FINITE.dimensions[name] for name in point]
        chance = math.prod(1 / len(one) for one in dimensions if isinstance(one, Finite))
        logarithm = density.log_density(of.features(of.row(point)[None]))[0]
        total += chance * math.exp(logarithm)
    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("count", [1, 5])
def test_a_density_of_real_numbers_integrates_to_one(count: int) -> None:
    space = Space.parse(
        {"x": {"from": 0.0, "to": 1.0}, "y": {"from": 1e-3, "to": 1, "scale": "log"}}
    )
    space = Space.parse({"x": {"from": 0.0, "to": 1.0}, "y": {"from": -3.0, "to": 5.0}})
    of, density = Coordinates(space), mixture(space, count)
    shares = (np.arange(200) + 0.5) / 200
    rows = np.array(np.meshgrid(shares, shares)).reshape(2, -1).T
    assert np.exp(density.log_density(of.features(rows))).mean() == pytest.approx(1, abs=1e-4)


def test_what_is_drawn_is_dense_where_the_density_is() -> None:
    of, density = Coordinates(FINITE), mixture(FINITE, 4, seed=3)
    rows = density.sample(np.random.default_rng(0), 20_000, None)
    for row in rows[:300]:
        FINITE.check(of.point(row))
    kinds = Counter(of.point(row)["kind"] for row in rows)
    for kind in "abc":
        chance = sum(
            math.exp(density.log_density(of.features(of.row(point)[None]))[0])
            * math.prod(
                1 / len(one)
                for one in map(FINITE.dimensions.__getitem__, point)
                if isinstance(one, Finite)
            )
            for point in map(FINITE.point, range(FINITE.size))
            if point["kind"] == kind
        )
        assert kinds[kind] / 20_000 == pytest.approx(chance, abs=0.02)


def test_drawn_points_agree_with_what_is_given() -> None:
    of = Coordinates(FINITE)
    told = [{"kind": "a", "n": 1, "m": 0, "only": 7}, {"kind": "b", "n": 5, "m": 1, "only": 7}]
    density = Mixture(of, np.array([of.row(point) for point in told * 20]), [1.0] * 40, 1.0)
    like = of.row({"kind": "b"})
    found = [of.point(row) for row in density.sample(np.random.default_rng(0), 500, like)]
    for point in found:
        FINITE.check(point)
        assert point["kind"] == "b"
    # Where the kind is b, trials had a large n.
    assert sum(point["n"] for point in found) / 500 > 4
