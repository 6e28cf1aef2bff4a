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
from modules.pareto import ParetoFront, dominates, ranked
from modules.search import Search
from modules.space import Parameters, Space
from modules.strategies import STRATEGIES, Random
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
