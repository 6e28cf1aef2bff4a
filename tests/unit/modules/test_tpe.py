"""Our tree-structured Parzen estimator."""

from __future__ import annotations

import json
import math
from random import Random as Generator
from typing import Any

import pytest

from modules.space import Parameters, Space
from modules.strategies import Random, Strategy, make_strategy
from modules.strategies.tpe import TPE, Ranking

SPACE = Space.parse(
    {
        "optimizer": ["sgd", "adam"],
        "learning_rate": {"from": 1e-5, "to": 1e-1, "scale": "log"},
        "momentum": {"from": 0.0, "to": 0.9, "step": 0.1, "if": {"optimizer": "sgd"}},
        "hidden": [[16], [32], [64, 32]],
        "batch_size": {"from": 8, "to": 512, "scale": "log"},
        "epochs": 20,
    }
)
SMALL = Space.parse({"a": [1, 2, 3], "b": {"from": 0, "to": 3, "if": {"a": [2, 3]}}, "c": [0, 1]})


def score(point: Parameters) -> float:
    far = abs(math.log10(point["learning_rate"]) + 3) + abs(point["batch_size"] - 64) / 64
    return -far - (point["momentum"] if point["optimizer"] == "sgd" else 0.5)


def run(strategy: Any, trials: int, first: int = 0) -> list[Parameters]:
    found = []
    for trial in range(first, trials):
        found.append(strategy.ask(trial))
        SPACE.check(found[-1])
        strategy.tell(trial, found[-1], score(found[-1]))
    return found


def test_it_learns_more_than_random_search() -> None:
    strategy = make_strategy({"name": "tpe"}, SPACE, 1)
    assert isinstance(strategy, Strategy)
    found, blind = run(strategy, 120), run(Random(SPACE, 1), 120)
    assert sum(map(score, found[40:])) > 0.5 * sum(map(score, blind[40:]))
    assert max(map(score, found)) > -0.1
    assert {point["optimizer"] for point in found[60:]} == {"sgd", "adam"}


def test_trials_follow_from_the_seed_and_what_was_told() -> None:
    one = run(TPE(SPACE, 1), 60)
    assert run(TPE(SPACE, 1), 60) == one
    assert run(TPE(SPACE, 2), 12) != one[:12]
    assert run(TPE(SPACE, 1, startup=20), 60)[:10] != one[:10]  # cut into other parts


def test_the_first_trials_cover_each_range() -> None:
    strategy = TPE(Space.parse({"x": {"from": 0.0, "to": 1.0}, "k": [0, 1]}), 3, startup=10)
    found = [strategy.ask(trial) for trial in range(10)]
    assert sorted(int(point["x"] * 10) for point in found) == list(range(10))
    assert sum(point["k"] for point in found) == 5


@pytest.mark.parametrize("seed", range(3))
def test_a_resumed_sweep_goes_on_as_if_told_in_order(seed: int) -> None:
    generator = Generator(seed)
    told: list[tuple[int, Parameters, list[tuple[int, float]], float | None]] = []
    for trial, point in enumerate(run(Random(SPACE, seed), 90)):
        length = generator.choice([1, 3, 9])
        reports = [(step, score(point) - 1 / step) for step in range(1, length + 1)]
        if generator.random() < 0.1:
            told.append((trial, point, [], None))
        else:
            told.append((trial, point, reports, score(point) if length == 9 else None))
    expected = None
    for shuffle in range(4):
        strategy = TPE(SPACE, 0)
        Generator(shuffle).shuffle(told)
        for trial, point, reports, own in told:
            again = json.loads(json.dumps(point))
            strategy.tell_curve(trial, again, reports, own)
        asked = [strategy.ask(trial) for trial in range(100, 110)]
        expected = expected or asked
        assert asked == expected


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_each_point_of_a_small_space_is_tried_once(seed: int, in_flight: int) -> None:
    strategy = TPE(SMALL, seed, startup=3)
    assert strategy.size == SMALL.size == 2 + 2 * 4 * 2
    under_way, found = [], []
    while (asked := strategy.ask(len(found))) is not None:
        SMALL.check(asked)
        under_way.append((len(found), asked))
        found.append(asked)
        if len(under_way) == in_flight:
            trial, point = under_way.pop(0)
            strategy.tell(trial, point, float(point["a"] + point.get("b", 0)))
    assert len({repr(point) for point in found}) == len(found) == SMALL.size
    assert strategy.ask(len(found)) is None
    # Good ones come early.
    best = [point == {"a": 3, "b": 3, "c": point["c"]} for point in found]
    assert best.index(True) < 12


def test_trials_in_flight_differ() -> None:
    strategy = TPE(Space.parse({"x": {"from": 0.0, "to": 1.0}}), 0)
    for trial in range(30):
        strategy.tell(trial, {"x": trial / 30}, -abs(trial / 30 - 0.5))
    first = [strategy.ask(trial)["x"] for trial in range(30, 40)]
    later = [strategy.ask(trial)["x"] for trial in range(40, 140)]

    def far(values: list[float]) -> float:
        return sum(abs(one - 0.5) for one in values) / len(values)

    assert far(later[-10:]) > 2 * far(first)  # they leave where others are under way
    for trial, x in enumerate([*first, *later], 30):
        strategy.tell(trial, {"x": x}, -abs(x - 0.5))
    assert 2 * far([strategy.ask(trial)["x"] for trial in range(140, 150)]) < far(later[-10:])


def test_failed_trials_are_avoided() -> None:
    space = Space.parse({"x": {"from": 0.0, "to": 1.0}, "y": {"from": 0.0, "to": 1.0}})
    strategy, failed = TPE(space, 0), []
    for trial in range(120):
        point = strategy.ask(trial)
        fails = point["x"] > 0.5
        failed.append(fails)
        strategy.tell(trial, point, None if fails else -abs(point["x"] - 0.3) - 0.1 * point["y"])
    assert sum(failed[:20]) > 5
    assert sum(failed[60:]) < 12
    strategy.tell(120, {"x": 0.1, "y": 0.1}, math.nan)  # counts as failed


def test_it_learns_from_trials_that_were_all_stopped_early() -> None:
    strategy = TPE(SPACE, 4)
    for trial in range(120):
        point = strategy.ask(trial)
        strategy.tell_curve(trial, point, [(1, score(point) - 2), (2, score(point) - 1)], None)
    blind = [score(point) for point in run(Random(SPACE, 4), 60)]
    late = [score(strategy.ask(trial)) for trial in range(120, 130)]
    assert sum(late) / 10 > 0.6 * sum(blind) / 60


def test_trials_are_compared_at_the_furthest_step_that_enough_have_reached() -> None:
    ranking = Ranking()
    for trial in range(27):  # a third goes on at each rung; the later a trial, the better
        reports = [(step, trial + step / 100) for step in (1, 3, 9)[: 1 + trial // 9]]
        ranking.add(trial, reports, None)
    good, bad, weights = ranking.split()
    assert ranking.level == 3
    assert good == [22, 23, 24, 25, 26]
    assert bad == list(range(22))
    assert weights == [1.0] * 22
    for trial in range(27, 37):  # and some come to their end, with scores of their own
        ranking.add(trial, [(1, 0.0), (9, 99.0)], -float(trial))
    assert ranking.level == math.inf
    assert ranking.split()[0][-1] == 27
    ranking.add(37, (), None)
    ranking.add(38, [(1, math.nan)], None)
    assert ranking.split()[1][:2] == [37, 38]  # the worst come first
    assert ranking.scored == 38


def test_trials_that_completed_count_by_what_they_had_at_the_rung() -> None:
    ranking = Ranking()
    ranking.add(0, [(2, 5.0), (9, 6.0)], 7.0)
    for trial in range(1, 12):
        ranking.add(trial, [(1, 0.0), (3, 5.0 + trial / 10)], None)
    assert ranking.level == 3
    assert ranking.split()[1][0] == 0


def test_many_bad_trials_are_represented_by_some() -> None:
    ranking = Ranking()
    for trial in range(3000):
        ranking.add(trial, (), float(trial))
    good, bad, weights = ranking.split()
    assert good == list(range(2975, 3000))
    assert bad[128:] == list(range(2847, 2975))
    assert sum(weights) == pytest.approx(2975)
    assert bad == sorted(set(bad))
    assert len(bad) == len(weights) == 256


def test_points_alike_differ_in_what_is_free() -> None:
    strategy = TPE(SPACE, 1)
    run(strategy, 5)
    like = {"optimizer": "sgd", "learning_rate": 1e-2, "momentum": 0.5, "hidden": [32]}
    like |= {"batch_size": 33, "epochs": 20}
    for trial in range(5, 60):
        free = {"learning_rate", "momentum"} if trial % 2 else {"optimizer", "learning_rate"}
        point = strategy.ask_alike(trial, like, free)
        SPACE.check(point)
        assert point["hidden"] == [32]
        assert point["batch_size"] == 33
        assert trial % 2 == 0 or point["optimizer"] == "sgd"
        strategy.tell(trial, point, score(point))
    alike = [Random(SPACE, 0).ask_alike(trial, like, {"momentum"}) for trial in range(40)]
    assert len({point["momentum"] for point in alike}) > 5
    assert all({**point, "momentum": 0.5} == like for point in alike)


def test_points_alike_are_drawn_as_they_go_with_the_rest() -> None:
    space = Space.parse({"kind": ["a", "b"], "x": {"from": 0.0, "to": 1.0}})
    strategy = TPE(space, 0)
    for trial, point in enumerate(Random(space, 0).ask(t) for t in range(200)):
        wanted = 0.2 if point["kind"] == "a" else 0.8
        strategy.tell(trial, point, -abs(point["x"] - wanted))
    means = {}
    for kind in "ab":
        asked = [strategy.ask_alike(t, {"kind": kind, "x": 0.5}, {"x"}) for t in range(200, 220)]
        means[kind] = sum(point["x"] for point in asked) / 20
    assert means["a"] < 0.4 < 0.6 < means["b"]


def test_no_point_alike_is_left() -> None:
    strategy = TPE(SMALL, 0)
    like = SMALL.point(0)
    found = [strategy.ask_alike(trial, like, {"c"}) for trial in range(3)]
    assert sorted(point["c"] for point in found[:2]) == [0, 1]
    assert found[2] is None


def test_points_of_another_space_are_passed_over() -> None:
    strategy = TPE(SPACE, 0)
    strategy.add({"optimizer": "lion", "learning_rate": 1.0}, 0.5)
    for point in run(Random(SPACE, 5), 20):
        strategy.add(point, score(point))
    SPACE.check(strategy.ask(0))


def test_a_space_of_choices_alone() -> None:
    space = Space.parse({name: list(range(9)) for name in "abcdef"})
    strategy, found = TPE(space, 0), []
    for trial in range(80):
        found.append(strategy.ask(trial))
        strategy.tell(trial, found[-1], float(sum(found[-1].values())))
    assert sum(sum(point.values()) for point in found[-20:]) / 20 > 32  # blindly, it would be 24


def test_a_space_of_one_point() -> None:
    strategy = TPE(Space.parse({"epochs": 20, "x": {"from": 3, "to": 3}}), 0)
    assert strategy.ask(0) == {"epochs": 20, "x": 3}
    assert strategy.ask(1) is None


def test_a_late_ask_computes_what_an_early_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from modules.space import density

    sizes = []

    class Counted(density.Mixture):
        def __init__(self, of: Any, rows: Any, *more: Any) -> None:
            sizes.append(len(rows))
            super().__init__(of, rows, *more)

    monkeypatch.setattr(density, "Mixture", Counted)
    strategy, generator = TPE(SPACE, 0), Generator(0)
    for trial, point in enumerate(run(Random(SPACE, 0), 100) * 40):
        strategy.tell(trial, point, generator.random())
    strategy.ask(4000)
    assert sizes == [25, 256]
