"""Optuna's samplers as strategies."""

from __future__ import annotations

import math
from typing import Any

import pytest

from modules.space import Space
from modules.strategies import OptunaSearch, make_strategy

pytest.importorskip("optuna", reason="Optuna is not installed")

SPACE = Space.parse(
    {
        "optimizer": ["sgd", "adam"],
        "learning_rate": {"from": 1e-1, "to": 1e-5, "scale": "log"},
        "decay": {"from": 1e-5, "to": 1e-1, "log_steps": 5},
        "momentum": {"from": 0.9, "to": 0.0, "step": -0.1, "if": {"optimizer": "sgd"}},
        "hidden": [[16], [32], [64, 32]],
        "batch_size": {"from": 8, "to": 512, "scale": "log"},
        "epochs": 20,
    }
)


def score(parameters: dict[str, Any]) -> float:
    return -abs(math.log10(parameters["learning_rate"]) + 3) - len(parameters["hidden"])


def run(strategy: Any, trials: int) -> list[dict[str, Any]]:
    found = []
    for trial in range(trials):
        found.append(strategy.ask(trial))
        SPACE.check(found[-1])
        strategy.tell(trial, found[-1], score(found[-1]) if trial % 7 else None)
    return found


def test_tpe_learns_and_repeats_itself() -> None:
    one = run(make_strategy({"name": "optuna:tpe"}, SPACE, 1), 60)
    assert run(make_strategy({"name": "optuna:tpe"}, SPACE, 1), 60) == one
    assert run(make_strategy({"name": "optuna:tpe"}, SPACE, 2), 20) != one[:20]
    blind = run(make_strategy({"name": "optuna:random"}, SPACE, 1), 60)
    late = [sum(map(score, found[30:])) / 30 for found in (one, blind)]
    assert late[0] > late[1] + 0.3


def test_the_history_is_bounded_and_keeps_the_best() -> None:
    strategy = OptunaSearch(SPACE, 0, "random", best=5, last=15)
    largest = 0
    for trial in range(300):
        asked = strategy.ask(trial)
        strategy.tell(trial, asked, 1e6 if trial == 3 else float(trial))
        largest = max(largest, strategy.trials_in_study, len(strategy._study.trials))
        assert strategy.trials_in_study == len(strategy._study.trials)
    assert largest <= 2 * (5 + 15) + 1
    assert len(strategy._best) == 5
    assert len(strategy._last) == 15
    values = [one.value for one in strategy._study.trials]
    assert max(values) == 1e6  # long ago, and never forgotten
    assert len(strategy._in_flight) == 0


def test_what_a_sampler_knows_of_its_study_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = run(OptunaSearch(SPACE, 1, best=10, last=20), 60)
    monkeypatch.setattr("modules.strategies.optuna_search._SEARCH_SPACE", "no such thing")
    assert run(OptunaSearch(SPACE, 1, best=10, last=20), 60) == one


def test_a_range_of_many_values_is_searched_to_its_ends() -> None:
    """Optuna is asked for a real number then: also the first and the last value can come."""
    space = Space.parse({"x": {"from": 0, "to": 999, "step": 1}, "y": {"from": 1, "to": 3}})
    for best in (0, 613, 999):
        strategy = OptunaSearch(space, 3)
        found = []
        for trial in range(80):
            asked = strategy.ask(trial)
            space.check(asked)
            found.append(abs(asked["x"] - best))
            strategy.tell(trial, asked, -float(found[-1]))
        assert min(found) <= 5
        assert sum(found[-20:]) / 20 < 150  # blindly, it would be 250 or more


def test_trials_that_never_come_back_do_not_stay() -> None:
    strategy = OptunaSearch(SPACE, 0, "random", best=5, last=5)
    for trial in range(100):
        strategy.ask(trial)
    assert strategy.trials_in_study <= 20
    assert len(strategy._in_flight) <= 20
    strategy.tell(0, strategy.ask(100), 1.0)  # told after its study was thrown away


def test_a_new_one_learns_from_what_it_is_told() -> None:
    told = run(make_strategy({"name": "optuna:tpe"}, SPACE, 1), 60)
    resumed = make_strategy({"name": "optuna:tpe"}, SPACE, 1)
    for trial, point in enumerate(told):
        resumed.tell(trial, point, score(point) if trial % 7 else None)
    later = [resumed.ask(trial) for trial in range(60, 75)]
    assert sum(map(score, later)) / 15 > sum(map(score, told[:15])) / 15


def test_a_sampler_that_needs_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ImportError, match="this strategy needs cmaes"):
        OptunaSearch(SPACE, 0, "cmaes")
