"""Which points strategies ask for, and that they never grow slower."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import sys
from collections import Counter
from random import Random as Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from modules.pareto import ParetoFront
from modules.space import Parameters, Space, SpaceError
from modules.strategies import (
    WAIT,
    CrossEntropy,
    Grid,
    Halving,
    Lagged,
    Median,
    Random,
    Strategy,
    StrategyWithRule,
)
from modules.strategies.cross_entropy import Frequencies, Normal
from modules.strategies.strategy import Draws
from modules.until import Until

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
FINITE = Space.parse({"a": [1, 2, 3], "b": {"choices": [1, 2], "if": {"a": [2, 3]}}, "c": [0, 1]})


def badness(parameters: Parameters) -> float:
    """What a good learning rate, optimizer and batch size would make small."""
    found = (
        abs(math.log10(parameters["learning_rate"]) + 3) + abs(parameters["batch_size"] - 64) / 64
    )
    return found + (parameters["optimizer"] == "adam")


# -- grid -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_a_grid_asks_for_every_point_once(order: Any) -> None:
    grid = Grid(FINITE, 5, order)
    found = [grid.ask(trial) for trial in range(grid.size)]
    points = [FINITE.point(index) for index in range(FINITE.size)]
    assert grid.size == FINITE.size == 10
    assert grid.ask(grid.size) is None
    assert (found == points) == (order == "natural")
    assert sorted(map(str, found)) == sorted(map(str, points))


def test_a_shuffled_grid_follows_from_its_seed() -> None:
    one, again, other = (
        [Grid(FINITE, seed, "shuffled").ask(t) for t in range(10)] for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_grid_needs_points_that_can_be_counted() -> None:
    with pytest.raises(SpaceError, match="learning_rate"):
        Grid(SPACE, 0)


# -- random ---------------------------------------------------------------------------------------


def test_a_random_trial_follows_from_seed_and_number_alone() -> None:
    one, other = Random(SPACE, 3), Random(SPACE, 3)
    trials = list(range(50))
    asked = {trial: one.ask(trial) for trial in trials}
    Generator(1).shuffle(trials)
    for trial in trials:  # in any order, by anybody, more than once
        other.tell(trial, {}, 1.0)
        assert other.ask(trial) == asked[trial]
        SPACE.check(asked[trial])
    assert [Random(SPACE, 4).ask(trial) for trial in range(50)] != list(asked.values())


def test_what_a_parameter_draws_does_not_depend_on_the_others() -> None:
    small = Random(Space.parse({"a": {"from": 0.0, "to": 1.0}}), 0)
    large = Random(Space.parse({"z": [1, 2], "a": {"from": 0.0, "to": 1.0}}), 0)
    for trial in range(20):
        assert small.ask(trial)["a"] == large.ask(trial)["a"]


CONDITIONAL = {
    "optimizer": ["sgd", "adam"],
    "momentum": {"from": 0.0, "to": 0.9, "step": 0.1, "if": {"optimizer": "sgd"}},
    "units": {"from": 1, "to": 3, "scale": "log"},
    "layers": {"choices": [[1], [2, 2]], "if": {"units": {"at_least": 2}}},
}


@pytest.mark.parametrize(
    ("table", "points"),
    [
        ({"x": {"from": 1, "to": 8, "scale": "log"}}, 8),
        ({"x": {"from": 8, "to": 1, "scale": "log"}}, 8),
        ({"x": [1, 1.5, True, "1", [1], None]}, 6),
        ({"x": {"from": 0.1, "to": 0.9, "step": 0.1}, "y": {"value": 3}}, 9),
        ({"x": {"from": 1e-4, "to": 1.0, "log_steps": 5}, "y": [[1], [1, 1]]}, 10),
        (CONDITIONAL, 11 * (1 + 2 * 2)),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_random_tries_each_point_of_a_small_space_once(
    table: dict[str, Any], points: int, seed: int
) -> None:
    strategy = Random(Space.parse(table), seed)
    assert strategy.size == points
    found = [strategy.ask(trial) for trial in range(points)]
    assert len({repr(point) for point in found}) == points
    for point in found:
        Space.parse(table).check(point)
    assert strategy.ask(points) is None
    # On another rank it comes to the same, from whichever trial it begins.
    copy = pickle.loads(pickle.dumps(strategy))
    order = Generator(seed).sample(range(points), points)
    assert [copy.ask(trial) for trial in order] == [found[trial] for trial in order]


def test_a_trial_changes_only_if_its_point_was_tried_before() -> None:
    space = Space.parse({"x": list(range(50)), "y": list(range(50))})
    strategy, draws = Random(space, 3), Draws(3, "random")
    tried, again = [], 0
    for trial in range(300):
        drawn = space.sample(lambda name, trial=trial: draws.share(trial, name))
        asked = strategy.ask(trial)
        again += drawn in tried
        assert (asked == drawn) == (drawn not in tried)
        tried.append(asked)
    assert again > 5
    assert Random(Space.parse({"x": {"from": 1, "to": 70_000}}), 0).size is None


def test_random_trials_are_uniform() -> None:
    strategy = Random(SPACE, 0)
    found = [strategy.ask(trial) for trial in range(4000)]
    optimizers = Counter(point["optimizer"] for point in found)
    hidden = Counter(str(point["hidden"]) for point in found)
    decades = Counter(math.floor(math.log10(point["learning_rate"])) for point in found)
    assert all(1850 < count < 2150 for count in optimizers.values())
    assert all(1200 < count < 1470 for count in hidden.values())
    assert set(decades) == {-5, -4, -3, -2}
    assert all(880 < count < 1120 for count in decades.values())
    assert len({str(point) for point in found}) > 3990


def test_draws_never_change() -> None:
    # Recorded sweeps would mean something else if these numbers moved.
    draws = Draws(0, "random")
    assert [draws.share(trial, "a") for trial in range(2)] == [
        0.6340245738241079,
        0.9257469238504187,
    ]
    shares = [draws.share(trial, name) for trial in range(1000) for name in "ab"]
    assert len(set(shares)) == 2000
    assert 0 <= min(shares) < 0.01
    assert 0.99 < max(shares) < 1


# -- cross-entropy --------------------------------------------------------------------------------


def run(strategy: Strategy, trials: int) -> list[Parameters]:
    """Ask and tell, one after the other."""
    found = []
    for trial in range(trials):
        asked = strategy.ask(trial)
        assert isinstance(asked, dict)
        SPACE.check(asked)
        found.append(asked)
        strategy.tell(trial, asked, -badness(asked))
    return found


def test_cross_entropy_finds_more_good_points_than_random() -> None:
    found, blind = run(CrossEntropy(SPACE, 1), 600), run(Random(SPACE, 1), 600)

    def typical(points: list[Parameters]) -> float:
        return sorted(badness(point) for point in points[300:])[150]

    assert typical(found) < 0.35 * typical(blind)
    # Some trials are drawn uniformly for ever.
    assert {point["optimizer"] for point in found[300:]} == {"sgd", "adam"}
    assert any(point["learning_rate"] < 1e-4 for point in found[300:])


def test_cross_entropy_begins_like_random_search() -> None:
    strategy = CrossEntropy(SPACE, 1, elite=4, startup=10)
    found = run(strategy, 40)
    fresh = CrossEntropy(SPACE, 1, elite=4, startup=10)
    assert found[:10] == [fresh.ask(trial) for trial in range(10)]
    assert found[10:] != [fresh.ask(trial) for trial in range(10, 40)]


@pytest.mark.parametrize("seed", range(3))
def test_what_cross_entropy_learns_does_not_depend_on_the_order_of_telling(seed: int) -> None:
    told = [
        (trial, point, -badness(point)) for trial, point in enumerate(run(Random(SPACE, seed), 90))
    ]
    told += [
        (200 + extra, point, score) for extra, (_, point, score) in enumerate(told[:40])
    ]  # ties
    expected = None
    for shuffle in range(4):
        strategy = CrossEntropy(SPACE, 0, elite=10)
        order = list(told)
        Generator(shuffle).shuffle(order)
        for trial, point, score in order:
            # As it comes back from a journal.
            strategy.tell(trial, json.loads(json.dumps(point)), score)
        asked = [strategy.ask(trial) for trial in range(1000, 1010)]
        expected = expected or asked
        assert asked == expected


def test_failures_do_not_touch_the_distribution() -> None:
    one, other = CrossEntropy(SPACE, 1, elite=5), CrossEntropy(SPACE, 1, elite=5)
    points = run(one, 50)
    for trial, point in enumerate(points):
        other.tell(trial, point, None if trial % 2 else math.nan)
        other.tell(trial, point, -badness(point))
    assert [one.ask(trial) for trial in range(50, 60)] == [
        other.ask(trial) for trial in range(50, 60)
    ]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
def test_a_cut_normal_distribution_stays_within_its_range(shares: list[float]) -> None:
    fitted = Normal.fit(shares)
    drawn = [fitted((place + 0.5) / 50) for place in range(50)]
    assert drawn == sorted(drawn)
    assert 0 <= min(drawn) <= max(drawn) < 1
    assert fitted(0.0) >= 0
    assert fitted(1 - 2**-53) < 1


def test_a_cut_normal_distribution_has_its_moments() -> None:
    fitted = Normal.fit([0.4, 0.5, 0.6])
    drawn = [fitted((place + 0.5) / 10_000) for place in range(10_000)]
    mean = sum(drawn) / 10_000
    assert mean == pytest.approx(0.5, abs=1e-6)
    variance = sum((one - mean) ** 2 for one in drawn) / 10_000
    assert math.sqrt(variance) == pytest.approx(math.sqrt(2 / 300), rel=1e-3)


def test_frequencies_count_each_choice_once_more() -> None:
    fitted = Frequencies.fit([2, 2, 0, 2], 4)
    drawn = Counter(int(fitted((place + 0.5) / 800) * 4) for place in range(800))
    assert drawn == {0: 200, 1: 100, 2: 400, 3: 100}


# -- cost -----------------------------------------------------------------------------------------


class Counting(CrossEntropy):
    """Counts how often the distribution is fitted, and to how many."""

    fits = 0

    def _fit(self, elite: Any) -> None:
        self.fits += 1
        assert len(elite) <= 8
        super()._fit(elite)


def test_cross_entropy_costs_the_same_after_any_number_of_trials() -> None:
    strategy = Counting(SPACE, 0, elite=8)
    point = Random(SPACE, 0).ask(0)
    generator = Generator(0)
    late = 0
    for trial in range(20_000):
        before = strategy.fits
        strategy.tell(trial, point, generator.random())
        late += trial >= 10_000 and strategy.fits > before
    assert len(strategy._elite) == 8
    # The best eight of n change at one trial in n / 8: ever more seldom.
    assert late < 20
    assert strategy.fits < 8 * (1 + math.log(20_000))


def calls_of(function: Any, *arguments: Any) -> int:
    """Return how many calls a call makes, of Python's and C's functions."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return count


HUGE = Space.parse({name: {"from": 0, "to": 999, "step": 1} for name in "abc"})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grid(HUGE, 1, "natural"),
        lambda: Grid(HUGE, 1, "shuffled"),
        lambda: Random(HUGE, 1),
        lambda: CrossEntropy(HUGE, 1, elite=10),
        lambda: StrategyWithRule(Random(HUGE, 1), Halving(1, 3)),
        lambda: StrategyWithRule(Random(HUGE, 1), Median()),
    ],
    ids=["grid", "shuffled grid", "random", "cross-entropy", "halving", "median"],
)
def test_a_late_trial_costs_what_an_early_one_does(make: Any) -> None:
    strategy, generator = make(), Generator(0)
    point = Random(HUGE, 1).ask(0)
    report = getattr(strategy, "report", None)
    most: dict[int, int] = {}
    told = 0
    for early in (100, 1000, 6000):
        while told < early:
            if report is not None:
                report(told, 1, generator.random())
            strategy.tell(told, point, generator.random())
            told += 1
        number = early if early < 6000 else 10**6
        counts = []
        for trial in range(number, number + 20):
            counts.append(calls_of(strategy.ask, trial))
            if report is not None:
                counts[-1] += calls_of(report, trial, 1, 0.5)
            counts[-1] += calls_of(strategy.tell, trial, point, 0.0)
        most[early] = sorted(counts)[10]
    assert most[6000] <= most[100] + 5


def test_stateless_strategies_hold_nothing() -> None:
    for strategy in (Grid(FINITE, 0, "shuffled"), Random(SPACE, 0)):
        before = repr(vars(strategy))
        for trial in range(100):
            strategy.ask(trial)
            strategy.tell(trial, {}, 0.5)
        assert repr(vars(strategy)) == before
        assert strategy.is_stateless


# -- a lag ----------------------------------------------------------------------------------------


class Recorder:
    """Asks for what it has been told of: shows on what a trial depends."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def ask(self, trial: int) -> Parameters:
        return {"trial": trial, "known": list(self.told)}

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        self.told.append(trial)


def finished_in_any_order(
    strategy: Lagged, trials: int, window: int, seed: int
) -> list[Parameters]:
    """Keep up to `window` trials under way and finish them in a random order."""
    generator, under_way, found, trial = Generator(seed), [], {}, 0
    while len(found) < trials:
        while trial < trials and len(under_way) < window:
            asked = strategy.ask(trial)
            if asked is WAIT:
                break
            under_way.append((trial, asked))
            trial += 1
        assert under_way, "waits for nobody"
        done, asked = under_way.pop(generator.randrange(len(under_way)))
        found[done] = asked
        strategy.tell(done, asked, generator.random())
    return [found[trial] for trial in range(trials)]


@pytest.mark.parametrize("lag", [1, 3, 8])
def test_a_trial_knows_those_before_its_lag_in_order(lag: int) -> None:
    for window, seed in itertools.product([1, 2, 20], range(5)):
        found = finished_in_any_order(Lagged(Recorder(), lag), 40, window, seed)
        assert [one["known"] for one in found] == [
            list(range(max(trial - lag, 0))) for trial in range(40)
        ]


def test_adaptive_trials_repeat_themselves_with_a_lag() -> None:
    def trials(window: int, seed: int) -> list[Parameters]:
        strategy = Lagged(CrossEntropy(SPACE, 0, elite=4), 8)
        generator, under_way, found, trial = Generator(seed), [], {}, 0
        while len(found) < 60:
            while (
                trial < 60
                and len(under_way) < window
                and isinstance(asked := strategy.ask(trial), dict)
            ):
                under_way.append((trial, asked))
                trial += 1
            done, asked = under_way.pop(generator.randrange(len(under_way)))
            found[done] = asked
            strategy.tell(done, asked, -badness(asked))
        return [found[trial] for trial in range(60)]

    alone = trials(1, 0)
    for window, seed in itertools.product([2, 5, 9], range(3)):
        assert trials(window, seed) == alone


@settings(max_examples=case_count(30))
@given(st.integers(0, 39), st.sets(st.integers(0, 8)), st.integers(0, 99))
def test_a_lagged_sweep_is_resumed_from_any_record(ended: int, lost: set[int], seed: int) -> None:
    whole = finished_in_any_order(Lagged(Recorder(), 8), 40, 4, 0)
    # Recorded: all but some of the last ones.
    recorded = [trial for trial in range(ended) if ended - trial not in lost]
    Generator(seed).shuffle(recorded)
    strategy = Lagged(Recorder(), 8)
    for trial in recorded:
        strategy.tell(trial, whole[trial], 1.0)
    for trial in range(40):
        asked = strategy.ask(trial)
        assert asked == whole[trial]
        if trial not in recorded:
            strategy.tell(trial, whole[trial], 1.0)


# -- when it is enough ----------------------------------------------------------------------------


def test_until_a_number_of_trials() -> None:
    until = Until(trials=3)
    assert [until.allows(trial) for trial in range(5)] == [True, True, True, False, False]
    assert until.reason is None


def test_until_a_score() -> None:
    until = Until(score=0.9)
    for score in (0.5, None, math.nan, 0.89):
        until.told(score)
        assert until.allows(10)
    until.told(0.9)
    assert not until.allows(10)
    until.clock(1e9)
    assert until.reason == "objective"


def test_until_a_time_that_passes_only_when_told() -> None:
    until = Until(time_s=10.0)
    until.clock(9.9)
    assert until.allows(0)
    until.clock(10.0)
    assert not until.allows(0)
    assert until.reason == "time"


def test_until_all_ranks_have_taken_some_time() -> None:
    until = Until(core_s=100.0)
    until.clock(1e9, 99.0)
    assert until.allows(0)
    assert until.left_s(1e9, 60.0, ranks=4) == 10.0
    assert Until(time_s=50.0, core_s=100.0).left_s(45.0, 60.0, ranks=4) == 5.0
    assert Until().left_s(1.0) is None
    until.clock(0.0, 100.0)
    assert not until.allows(0)
    assert until.reason == "core hours"


def test_choices_are_drawn_as_often_as_they_were_seen_and_once_more() -> None:
    drawn = Frequencies.fit([1, 3, 1], 4)
    choices = [int(drawn((place + 0.5) / 7) * 4) for place in range(7)]
    assert choices == [1, 1, 3, 0, 1, 2, 3]
    assert [int(drawn(place / 7) * 4) for place in range(7)] == choices


# -- several objectives ---------------------------------------------------------------------------


SCORES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(SCORES, max_size=30), st.randoms(use_true_random=False))
def test_the_front_is_what_nothing_dominates(scores: list[Any], shuffle: Any) -> None:
    trials = list(enumerate(scores))
    expected = [
        trial
        for trial, own in trials
        if own not in scores[:trial]
        and all(other == own or any(a < b for a, b in zip(other, own)) for other in scores)  # noqa: B905
    ]
    shuffle.shuffle(trials)
    front: ParetoFront[int] = ParetoFront()
    for trial, own in trials:
        front.add(trial, own, trial)
    assert sorted(front.front) == expected
    firsts = [scores[trial][0] for trial in front.front]
    assert firsts == sorted(firsts, reverse=True)


def test_equal_trials_do_not_fill_the_front() -> None:
    front: ParetoFront[int] = ParetoFront()
    for trial in range(1000):
        front.add(trial, (1.0, 1.0), trial)
    assert front.front == [0]
    assert not front.add(1000, (math.nan, 9.0), 1000)
    assert front.add(1001, (0.5, 2.0), 1001)
    assert not front.add(1002, (0.5, 1.0), 1002)  # beaten by both
    assert not front.add(1003, (0.5, 2.0), 1003)
    assert front.add(7, (0.5, 2.0), 7)  # of equals the first trial, whenever it comes
    assert front.front == [0, 7]
