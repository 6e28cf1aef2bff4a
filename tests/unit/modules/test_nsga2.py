"""What the genetic search for several objectives asks for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random as Generator
from typing import Any

import numpy as np
import pytest

from modules.options import SweepOptions
from modules.pareto import Fronts, ParetoFront, dominates, largest_hypervolume, ranked
from modules.search import Search
from modules.space import Parameters, Space
from modules.strategies import STRATEGIES, TPE, Random
from modules.strategies.nsga2 import Nsga2

SPACE = Space.parse({f"x{place}": {"from": 0.0, "to": 1.0} for place in range(5)})


def zdt1(point: Parameters) -> tuple[float, float]:
    """Return the negated objectives of Zitzler, Deb, Thiele 2000, figure 1."""
    first, *others = point.values()
    g = 1 + 9 * sum(others) / len(others)
    return -first, -g * (1 - math.sqrt(first / g))


def area(scores: Sequence[tuple[float, float]], worst: float = -7.0) -> float:
    """Return the area that a front of two objectives dominates, down to ``(-1.1, worst)``."""
    found, highest = 0.0, worst
    for first, second in sorted(scores, reverse=True):
        if first > -1.1 and second > highest:
            found += (first + 1.1) * (second - highest)
            highest = second
    return found


def searched(strategy: Any, trials: int, score: Callable[[Parameters], Any]) -> list[Any]:
    found = []
    for trial in range(trials):
        point = strategy.ask(trial)
        found.append(score(point))
        strategy.tell(trial, point, found[-1])
    return found


@pytest.mark.parametrize("seed", range(3))
def test_entries_are_ranked_by_fronts_and_spread(seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 6, (40, 3)).astype(float)
    order = ranked(scores)
    assert sorted(order) == list(range(40))
    depth: dict[int, int] = {}
    for place in order:  # those that dominate an entry come before it
        above = [k for k in range(40) if dominates(scores[k], scores[place])]
        assert all(k in depth for k in above)
        depth[place] = 1 + max((depth[k] for k in above), default=0)
    assert list(depth.values()) == sorted(depth.values())


def test_of_a_front_its_ends_and_what_stands_alone_come_first() -> None:
    front = np.array([(0.0, 9.0), (4.0, 5.0), (4.5, 4.5), (5.0, 4.0), (9.0, 0.0)])
    assert list(ranked(front)) == [0, 4, 1, 3, 2]
    assert list(ranked(np.empty((0, 2)))) == []


@pytest.mark.parametrize("seed", range(2))
def test_it_finds_a_larger_front_than_random_points(seed: int) -> None:
    found = searched(Nsga2(SPACE, seed, population=20), 400, zdt1)
    assert area(found) > area(searched(Random(SPACE, seed), 2000, zdt1)) + 0.5


def test_with_one_objective_it_climbs() -> None:
    def score(point: Parameters) -> float:
        return -sum((value - 0.3) ** 2 for value in point.values())

    best = max(searched(Nsga2(SPACE, 1, population=20), 300, score))
    assert best > 10 * max(searched(Random(SPACE, 1), 300, score))


def test_it_asks_for_points_of_the_space() -> None:
    space = Space.parse(
        {
            "kind": ["a", "b"],
            "wide": {"from": 1, "to": 1000, "scale": "log", "if": {"kind": "a"}},
            "steps": {"from": 0.0, "to": 0.9, "step": 0.1, "if": {"kind": "b"}},
            "fixed": 7,
        }
    )
    random, strategy, kinds = Generator(1), Nsga2(space, 3, population=8), set()
    for trial in range(200):
        point = strategy.ask(trial)
        space.check(point)
        kinds.add(point["kind"])
        strategy.tell(trial, point, (random.random(), random.random()) if trial % 5 else None)
    assert kinds == {"a", "b"}


def test_a_small_space_may_be_tried_more_than_once() -> None:
    strategy = Nsga2(Space.parse({"x": [1, 2, 3]}), 0, population=4)
    found = searched(strategy, 40, lambda point: (float(point["x"]), 0.0))
    assert {first for first, _ in found} == {1.0, 2.0, 3.0}


def test_no_point_of_a_population_is_asked_for_again() -> None:
    space = Space.parse({name: {"from": 0, "to": 20} for name in "ab"})
    points = []

    def score(point: Parameters) -> tuple[float, float]:
        points.append(tuple(point.values()))
        return float(point["a"]), float(point["b"])

    searched(Nsga2(space, 5, population=10), 100, score)
    assert len(set(points[:10])) == len(set(points[10:20])) == 10


def test_what_cannot_be_ranked_is_passed_over() -> None:
    strategy = Nsga2(SPACE, 0, population=4)
    for trial in range(20):
        strategy.tell(trial, strategy.ask(trial), (math.nan, 1.0))
    assert strategy.ask(20) == Nsga2(SPACE, 0, population=4).ask(20)


def test_trials_follow_from_the_seed_and_what_was_told() -> None:
    runs = [searched(Nsga2(SPACE, seed, population=8), 60, zdt1) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_late_trial_costs_what_an_early_one_does() -> None:
    strategy = Nsga2(SPACE, 0, population=8)
    searched(strategy, 500, zdt1)
    assert len(strategy._population) == 8
    assert len(strategy._new) < 8
    assert len(strategy._tried) <= 16


@pytest.mark.parametrize("is_lagged", [False, True])
def test_a_sweep_tells_it_all_objectives(is_lagged: bool) -> None:
    options = SweepOptions.model_validate(
        {
            "space": {f"x{place}": {"from": 0.0, "to": 1.0} for place in range(5)},
            "objective": ["first", "second"],
            "maximise": [True, True],
            "strategy": {"name": "nsga2", "population": 20},
            "trials": 400,
            "deterministic": is_lagged,
            "lag": 4,
        }
    )
    search = Search(options, Path())
    front: ParetoFront[tuple[float, float]] = ParetoFront()
    for trial in itertools.count():
        point = search.ask(trial)
        if not isinstance(point, dict):
            break
        first, second = zdt1(point)
        front.add(trial, (first, second), (first, second))
        search.tell(trial, point, {"first": first, "second": second})
    assert trial == 400
    assert area(front.front) > 6.0
    assert len(search.front) == len(front.front)


def test_its_options_are_those_of_its_class() -> None:
    assert set(STRATEGIES["nsga2"].options.model_fields) == {
        *("name", "population", "crossover", "mutation")
    }


# -- fronts and hypervolume, by which tpe tells good trials from bad ones ------------------------


@pytest.mark.parametrize(("seed", "objectives", "levels"), [(0, 2, 8), (1, 3, 5), (2, 2, 1000)])
def test_the_first_fronts_are_kept_in_any_order(seed: int, objectives: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels, (120, objectives)).astype(float)
    depth: dict[int, int] = {}
    for place in ranked(scores):
        above = [k for k in depth if dominates(scores[k], scores[place])]
        depth[place] = 1 + max((depth[k] for k in above), default=0)
    counts = np.cumsum(np.bincount([*depth.values()])[1:])
    last = 1 + int(np.argmax(counts >= 30))
    wanted = sorted((deep, place) for place, deep in depth.items() if deep <= last)
    for order in (range(120), random.permutation(120)):
        fronts, fallen = Fronts(30), []
        for place in order:
            fallen += fronts.add(int(place), scores[place])
        assert fronts.from_best(0) == [place for _, place in wanted]
        assert sorted([*fallen, *fronts.from_best(0)]) == list(range(120))
        # The good ones are those of the first fronts, and of the next one some.
        found = fronts.from_best(12)
        assert sorted(depth[place] for place in found) == [depth[place] for place in found]
        assert sorted(found) == sorted(fronts.from_best(0))


def test_a_large_volume_has_ends_and_what_stands_alone() -> None:
    front = np.array([[0.0, 4.0], [1.0, 3.0], [1.1, 2.9], [1.2, 2.8], [4.0, 0.0]])
    assert {*largest_hypervolume(front, 3)} in ({0, 2, 4}, {0, 3, 4})
    sphere = np.abs(np.random.default_rng(0).normal(size=(200, 3)))
    sphere /= np.linalg.norm(sphere, axis=1)[:, None]
    for scores in (sphere[:, :2] / np.linalg.norm(sphere[:, :2], axis=1)[:, None], sphere):
        chosen = largest_hypervolume(scores, 12)
        assert len({*chosen}) == 12
        # Every entry has a chosen one near.
        far = np.linalg.norm(scores[:, None] - scores[chosen][None], axis=2).min(1)
        assert far.max() < 0.5
    assert {*largest_hypervolume(sphere, 200)} == {*range(200)}
    huge = np.array([[-1.7e308, 1.7e308], [0.0, 0.0], [1.7e308, -1.7e308]])
    assert {*largest_hypervolume(huge, 3)} == {0, 1, 2}


def test_tpe_finds_a_larger_front_than_nsga2() -> None:
    found = {
        strategy.__name__: area(searched(strategy(SPACE, 1), 120, zdt1))
        for strategy in (Random, Nsga2, TPE)
    }
    assert found["TPE"] > max(found["Nsga2"], found["Random"]) + 0.5


def test_tpe_comes_to_the_same_in_any_order_with_several_objectives() -> None:
    points = [Random(SPACE, 5).ask(trial) for trial in range(60)]
    asked = []
    for order in (range(60), Generator(3).sample(range(60), 60)):
        tpe = TPE(SPACE, 1)
        for trial in order:
            scores = None if trial % 7 == 0 else zdt1(points[trial])
            tpe.tell_curve(trial, points[trial], [(1, 0.5)] if trial % 14 == 0 else [], scores)
        asked.append([tpe.ask(trial) for trial in range(60, 64)])
    assert asked[0] == asked[1]


def test_one_objective_in_a_tuple_is_one_objective() -> None:
    asked = []
    for wrap in (lambda score: score, lambda score: (score,)):
        asked.append(searched(TPE(SPACE, 2), 30, lambda point, wrap=wrap: wrap(-point["x0"])))
    assert [(score,) for score in asked[0]] == asked[1]
