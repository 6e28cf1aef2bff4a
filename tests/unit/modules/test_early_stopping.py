"""Rules that stop trials, beside Optuna's pruners on the same reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random as Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.space import Space
from modules.strategies import (
    Cutoffs,
    Halving,
    Hyperband,
    Lagged,
    Median,
    Random,
    StoppingRule,
    StrategyWithRule,
)
from modules.strategies.stopping import Window
from modules.strategies.strategy import Wait

SPACE = Space.parse({"a": {"from": 0.0, "to": 1.0}})


class Reports:
    """What trials report, in an order in which up to `window` are under way at once.

    Learning curves that rise, with noise; some reports are NaN, some trials fail.
    """

    def __init__(self, seed: int, trials: int = 60, steps: int = 30, window: int = 5) -> None:
        self.generator = Generator(seed)
        self.trials, self.steps, self.window = trials, steps, window

    def curve(self, trial: int) -> Iterator[tuple[int, float]]:
        generator = Generator(f"{trial}")
        quality = generator.random()
        step = 0
        while True:
            step += generator.choice([1, 1, 1, 2])
            if step > self.steps:
                return
            score = quality * (1 - 1 / (step + 1)) + 0.05 * generator.random()
            yield step, math.nan if generator.random() < 0.01 else score

    def play(self, begin: Any, report: Any, end: Any) -> dict[int, int]:
        """Tell everything; return the step at which each trial was stopped."""
        curves: dict[int, Iterator[tuple[int, float]]] = {}
        stopped, trial = {}, 0
        while curves or trial < self.trials:
            if trial < self.trials and len(curves) < self.window:
                begin(trial)
                curves[trial] = self.curve(trial)
                trial += 1
                continue
            one = self.generator.choice(sorted(curves))
            point = next(curves[one], None)
            if point is None or self.generator.random() < 0.002:
                del curves[one]
                end(one, "completed" if point is None else "failed")
            elif report(one, *point):
                del curves[one]
                stopped[one] = point[0]
                end(one, "stopped")
        return stopped


def ours(rule: StoppingRule, reports: Reports) -> dict[int, int]:
    strategy = StrategyWithRule(Random(SPACE, 0), rule)
    stopped = reports.play(
        lambda trial: None,
        strategy.report,
        lambda trial, how: strategy.tell(trial, {}, 1.0 if how == "completed" else None),
    )
    assert strategy._histories == strategy._taken == {}
    return stopped


def optunas(pruner: Any, reports: Reports) -> dict[int, int]:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    asked = {}

    def report(trial: int, step: int, score: float) -> bool:
        asked[trial].report(score, step)
        return bool(asked[trial].should_prune())

    def end(trial: int, how: str) -> None:
        state = {"completed": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}[how]
        score = 1.0 if how == "completed" else None
        study.tell(asked[trial].number, score, state=optuna.trial.TrialState[state])

    return reports.play(lambda trial: asked.update({trial: study.ask()}), report, end)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("min_steps", "reduction"), [(1, 2), (1, 3), (2, 4), (5, 3)])
def test_halving_stops_what_optuna_prunes(seed: int, min_steps: int, reduction: int) -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_steps, reduction, 0)
    expected = optunas(pruner, Reports(seed))
    assert ours(Halving(min_steps, reduction), Reports(seed)) == expected
    assert 20 < len(expected) < 60


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # Optuna's, of NumPy
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("startup", "warmup"), [(1, 0), (5, 0), (10, 7)])
def test_the_median_rule_stops_what_optuna_prunes(seed: int, startup: int, warmup: int) -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    pruner = optuna.pruners.MedianPruner(startup, warmup)
    expected = optunas(pruner, Reports(seed))
    assert ours(Median(startup, warmup), Reports(seed)) == expected
    assert len(expected) > 10


def test_halving_by_hand() -> None:
    """Rungs at steps 2, 6 and 18; of those that have reached one, a third goes on, one at least."""
    strategy = StrategyWithRule(Random(SPACE, 0), Halving(min_steps=2, reduction=3))
    for trial, step, score, stops in [
        (0, 1, 0.1, False),  # before the first rung
        (0, 2, 0.5, False),  # the first one there is the best so far
        (1, 2, 0.4, True),
        (2, 2, 0.6, False),
        (3, 2, 0.55, True),  # of four, one goes on
        (4, 2, 0.6, False),  # as good as the best
        (5, 2, 0.57, True),  # of six, two go on: 0.6 and 0.6
        (6, 2, 0.6, False),
        (7, 3, 0.59, True),  # a rung that was stepped over is reached
        (8, 2, 0.6, False),  # of nine, three
        (0, 6, 0.7, False),
        (2, 6, 0.69, True),
        (4, 7, 0.71, False),
        (4, 8, 0.0, False),  # no rung since the last report
        (6, 20, 0.8, False),  # two rungs at once
        (9, 20, 0.7, True),  # enough for the first rung, not for the second
        (8, 18, 0.75, True),  # enough for the second, where two of six go on, not for the third
        (10, 18, 0.9, False),
    ]:
        assert strategy.report(trial, step, score) == stops, (trial, step)
    rungs: Any = strategy.rule
    assert {step: len(window) for step, window in rungs._rungs.items()} == {2: 11, 6: 7, 18: 3}


def test_the_median_rule_by_hand() -> None:
    strategy = StrategyWithRule(Random(SPACE, 0), Median(startup_trials=2, warmup_steps=3))
    for step, score in ((1, 0.25), (3, 0.5), (4, 0.625)):
        assert not strategy.report(0, step, score)
    strategy.tell(0, {}, 0.625)
    assert not strategy.report(1, 3, 0.125)  # one trial is completed, which is too few
    strategy.tell(1, {}, None)  # failed: it does not count
    for step, score in ((1, 0.0), (3, 0.75), (4, 0.875)):
        assert not strategy.report(2, step, score)
    strategy.tell(2, {}, 0.875)
    # The medians are 0.625 at step 3 and 0.75 at step 4.
    for trial, step, score, stops in [
        (3, 1, 0.0, False), (3, 2, 0.0, False),  # still warming up
        (3, 3, 0.5, True),
        (4, 3, 0.625, False),  # as good as the median
        (4, 4, 0.0, True),  # the best so far, 0.625, is below that of this step
        (5, 1, 0.75, False), (5, 4, 0.0, False),  # the best so far counts
        (6, 5, 0.0, False),  # nobody was here
    ]:  # fmt: skip
        assert strategy.report(trial, step, score) == stops, (trial, step)


def test_halving_lets_one_in_reduction_go_on() -> None:
    reports = Reports(0, trials=900, steps=30, window=20)
    reached = dict.fromkeys((1, 3, 9, 27), 0)
    stopped = ours(Halving(1, 3), reports)
    for trial in range(900):
        last = stopped.get(trial, 99)
        for rung in reached:
            reached[rung] += last >= rung
    for low, high in [(1, 3), (3, 9), (9, 27)]:
        assert 0.25 < reached[high] / reached[low] < 0.55
    # Those that are never stopped are among the best.
    qualities = sorted(
        Generator(f"{trial}").random() for trial in range(900) if trial not in stopped
    )
    assert qualities[len(qualities) // 2] > 0.95


def test_hyperband_halves_in_brackets_that_begin_later() -> None:
    rule = Hyperband(min_steps=2, reduction=3, brackets=3)
    brackets = [rule.bracket(trial) for trial in range(1700)]
    kinds = [rule, *(each for each in dict.fromkeys(brackets) if each is not rule)]
    kinds.sort(key=lambda each: each.steps[0])
    assert [list(each.steps[:2]) for each in kinds] == [[2, 6], [6, 18], [18, 54]]
    # As many trials as let each bracket have the same steps: 9 to 4.5 to 3.
    shares = [brackets.count(each) / 1700 for each in kinds]
    assert shares == pytest.approx([9 / 16.5, 4.5 / 16.5, 3 / 16.5], abs=0.003)
    # Neighbours are in all of them.
    assert all(len({*brackets[start : start + 12]}) == 3 for start in range(0, 1700, 12))
    # Each stops what halving stops alone.
    strategy = StrategyWithRule(Random(SPACE, 0), Hyperband(2, 3, 3))
    alone = {each: StrategyWithRule(Random(SPACE, 0), Halving(each.steps[0], 3)) for each in kinds}
    stopped = 0
    for trial in range(300):
        for step, score in Reports(0).curve(trial):
            stops = strategy.report(trial, step, score)
            assert stops == alone[brackets[trial]].report(trial, step, score)
            if stops:
                stopped += 1
                break
    assert 100 < stopped < 300
    assert Hyperband(1, 2, 1).bracket(7).steps == Halving(1, 2).steps


def test_a_score_that_is_no_number_falls_short() -> None:
    strategy = StrategyWithRule(Random(SPACE, 0), Halving(1, 2))
    assert strategy.report(0, 1, math.nan)
    assert not strategy.report(1, 1, 0.1)  # nothing was learned from it
    median = StrategyWithRule(Random(SPACE, 0), Median(startup_trials=1))
    assert not median.report(0, 1, math.nan)  # nothing to compare with
    assert not median.report(0, 2, 0.5)
    median.tell(0, {}, 0.5)
    assert median.report(1, 2, math.nan)
    assert not median.report(2, 2, 0.5)
    assert median.report(3, 2, 0.4)


def test_a_trial_that_starts_again_counts_once() -> None:
    once, twice = (StrategyWithRule(Random(SPACE, 0), Halving(1, 2)) for _ in range(2))
    curve = list(Reports(0).curve(1))
    verdicts = [once.report(1, *point) for point in curve]
    for point in curve[:7]:
        twice.report(1, *point)
    again = [twice.report(1, *point) for point in curve]
    assert verdicts == again
    for trial in range(2, 30):
        for point in Reports(0).curve(trial):
            assert once.report(trial, *point) == twice.report(trial, *point)


def test_a_step_that_is_reported_again_counts_once_and_the_later_score_holds() -> None:
    halving = StrategyWithRule(Random(SPACE, 0), Halving(1, 2))
    for score in (0.25, 0.5, 0.75):
        assert not halving.report(0, 1, score)
    rule: Any = halving.rule
    assert len(rule._rungs[1]) == 1
    median = StrategyWithRule(Random(SPACE, 0), Median(startup_trials=1))
    for step, score in ((1, 0.25), (2, 0.5), (1, 0.75), (2, 0.75), (2, 0.875)):
        median.report(0, step, score)
    median.tell(0, {}, 1.0)
    assert [median.rule.cutoff(step) for step in (1, 2)] == [0.75, 0.875]


def test_a_rule_makes_no_strategy_stateless_that_does_not_say_so() -> None:
    class Mine:
        def ask(self, trial: int) -> dict[str, Any]:
            return {"a": 0.5}

        def tell(self, trial: int, parameters: Any, score: float | None) -> None: ...

    assert not StrategyWithRule(Mine(), Median()).is_stateless
    assert StrategyWithRule(Mine(), Median()).size is None
    assert StrategyWithRule(Random(SPACE, 0), Median()).is_stateless


# -- with a lag, the same trials are stopped whoever is faster ------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda: Halving(1, 2), lambda: Hyperband(1, 2, 2), lambda: Median(3)],
    ids=["halving", "hyperband", "median"],
)
def test_with_a_lag_the_same_trials_are_stopped(make: Any) -> None:
    found = []
    for window, seed in [(1, 0), (3, 1), (6, 2), (6, 3)]:
        strategy = Lagged(Random(SPACE, 0), 6, make())
        stopped: dict[int, int] = {}
        curves: dict[int, Iterator[tuple[int, float]]] = {}
        generator, trial = Generator(seed), 0
        while curves or trial < 80:
            if trial < 80 and len(curves) < window and isinstance(strategy.ask(trial), dict):
                curves[trial] = Reports(0).curve(trial)
                trial += 1
                continue
            one = generator.choice(sorted(curves))
            point = next(curves[one], None)
            if point is not None and not strategy.report(one, *point):
                continue
            del curves[one]
            if point is not None:
                stopped[one] = point[0]
            strategy.tell(one, {}, None if point else 1.0)
        found.append(stopped)
        # Only what is under way, and what is within the lag, is kept.
        assert len(strategy._histories) <= 7
        assert strategy._cutoffs == {}
    assert all(one == found[0] for one in found)
    assert 20 < len(found[0]) < 80


# -- the window, and what it bounds ---------------------------------------------------------------


@given(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=60), st.integers(1, 20))
def test_a_window_holds_the_last_numbers_in_order(scores: list[float], limit: int) -> None:
    numpy = pytest.importorskip("numpy")
    window = Window(limit)
    for end, score in enumerate(scores, start=1):
        window.add(score)
        last = scores[max(end - limit, 0) : end]
        assert len(window) == len(last)
        assert [window.largest(place + 1) for place in range(len(last))] == sorted(last)[::-1]
        for fraction in (0.0, 0.3, 0.5, 1.0):
            assert window.quantile(fraction) == pytest.approx(numpy.quantile(last, fraction))


@pytest.mark.parametrize("make", [Halving, Median])
def test_a_rule_keeps_no_more_than_its_window(make: Any) -> None:
    strategy = StrategyWithRule(Random(SPACE, 0), make(window=50))
    for trial in range(2000):
        for step in (1, 2, 3):
            strategy.report(trial, step, float(trial % 97))
        strategy.tell(trial, {}, 1.0)
    rule: Any = strategy.rule
    windows = list((rule._rungs if make is Halving else rule._steps).values())
    assert [len(window) for window in windows] == [50] * len(windows)
    assert all(len(window._arrived) == 50 for window in windows)
    assert strategy._histories == strategy._taken == {}


class Noted:
    """A strategy and a rule that note what they are told; scores below the cutoff stop."""

    size = 7

    def __init__(self) -> None:
        self.worst = 0.0
        self.notes: list[tuple[object, ...]] = []

    steps = ()

    def bracket(self, trial: int) -> Noted:
        return self

    def ask(self, trial: int) -> dict[str, object]:
        return {"trial": trial}

    def tell(self, trial: int, parameters: dict[str, object], score: float | None) -> None:
        self.notes.append(("told", trial, parameters, score))

    def cutoff(self, step: int) -> float:
        return self.worst

    def frozen(self, together: int = 1) -> Cutoffs:
        return Cutoffs({}, {step: [self.worst] for step in (1, 2)})

    def least(self, numbers: Sequence[float], scores: Sequence[float]) -> float:
        return numbers[0]

    def stops(self, history: Sequence[tuple[int, float]], cutoff: Callable[[int], float]) -> bool:
        return history[-1][1] < cutoff(history[-1][0])

    def reported(self, history: Sequence[tuple[int, float]]) -> None:
        self.notes.append(("reported", tuple(history)))

    def completed(self, history: Sequence[tuple[int, float]]) -> None:
        self.notes.append(("completed", tuple(history)))


def test_a_lag_passes_on_everything_when_its_turn_comes() -> None:
    noted = Noted()
    lagged = Lagged(noted, 1, noted)
    assert lagged.size == 7
    assert [lagged.ask(trial) for trial in (0, 1)] == [{"trial": 0}, {"trial": 1}]
    assert isinstance(lagged.ask(2), Wait)
    noted.worst = 0.5  # later than these trials: their cutoffs are those of their start
    assert not lagged.report(0, 1, 0.1)
    assert not lagged.report(0, 2, 0.2)
    assert lagged.report(1, 1, -0.1)
    lagged.tell(1, {"trial": 1}, None)
    assert noted.notes == []
    lagged.tell(0, {"trial": 0}, 0.2)
    assert lagged.ask(2) == {"trial": 2}
    first = [
        ("reported", ((1, 0.1),)),
        ("reported", ((1, 0.1), (2, 0.2))),
        ("completed", ((1, 0.1), (2, 0.2))),
        ("told", 0, {"trial": 0}, 0.2),
    ]
    assert noted.notes == first
    assert lagged.report(2, 1, 0.4)  # by the cutoff of now
    lagged.tell(2, {"trial": 2}, None)
    assert lagged.ask(3) == {"trial": 3}
    assert noted.notes[4:] == [("reported", ((1, -0.1),)), ("told", 1, {"trial": 1}, None)]
    assert not Lagged(noted, 1).report(0, 1, -9.0)  # without a rule nothing is stopped
