"""The head of a sweep: asks, tells, reports and the clock, without ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random as Generator
from typing import Any

import pytest

from modules.evaluation import Evaluated
from modules.objective import ObjectiveError
from modules.options import SweepOptions
from modules.search import Search, StrategyError
from modules.strategies import WAIT


def search(folder: Path = Path(), **table: Any) -> Search:
    table = {"space": {"x": {"from": 0, "to": 9, "step": 1}}, **table}
    return Search(SweepOptions.model_validate(table, context={"folder": folder}), folder)


def remark(**table: Any) -> str:
    table = {"space": {"x": {"from": 0, "to": 9, "step": 1}}, **table}
    return SweepOptions.model_validate(table).remark


def metrics(x: float) -> dict[str, float]:
    return {"accuracy": 1 - abs(x - 6) / 10, "loss": abs(x - 6), "training_time_s": x}


def run(head: Search, order: Any = None) -> list[dict[str, Any]]:
    trials = []
    while isinstance(asked := head.ask(len(trials)), dict):
        trials.append(asked)
        if order is None:
            head.tell(len(trials) - 1, asked, metrics(asked["x"]))
    for trial in order or []:
        head.tell(trial, trials[trial], metrics(trials[trial]["x"]))
    return trials


def test_what_is_a_result_and_what_is_none() -> None:
    head = search(objective=["accuracy", "loss"])
    for given, reason, is_diverged in [
        (metrics(3), "", False),
        ({**metrics(3), "diverged": False}, "", False),
        ({**metrics(3), "diverged": True}, "the training diverged", True),
        ({"diverged": True}, "the training diverged", True),
        ({**metrics(3), "accuracy": float("nan")}, "accuracy is nan", True),
        ({**metrics(3), "loss": float("inf")}, "loss is inf", True),
    ]:
        judgement = head.judge(given)
        assert (judgement.reason, judgement.is_diverged) == (reason, is_diverged)
    missing = head.judge({"accuracy": 0.5})
    assert "reported no 'loss'" in missing.reason
    assert not missing.is_diverged


def test_a_grid_has_a_best_whatever_the_order() -> None:
    for order in itertools.islice(itertools.permutations(range(10)), 0, 4000, 97):
        head = search()
        trials = run(head, order)
        assert [trial["x"] for trial in trials] == list(range(10))
        assert head.best == (6, {"x": 6}, (1.0,))
        assert head.size == 10
    down = search(objective="loss", order="shuffled")
    run(down)
    assert down.best is not None
    assert (down.best[1], down.best[2]) == ({"x": 6}, (0.0,))


def test_of_equals_the_first_is_the_best() -> None:
    head = search()
    best = []
    for trial in (3, 1, 2):
        head.tell(trial, {"x": 1}, {"accuracy": 0.5})
        assert head.best is not None
        best.append(head.best[0])
    assert best == [3, 1, 1]


def test_a_number_of_trials_a_threshold_and_a_time_end_it() -> None:
    few = search(trials=4)
    assert len(run(few)) == 4
    assert few.size == 4
    good = search(until={"objective": 0.75})
    assert [trial["x"] for trial in run(good)] == [0, 1, 2, 3, 4]
    assert good.reason == "objective"
    small = search(until={"objective": 2.5}, objective="loss")
    assert [trial["x"] for trial in run(small)] == [0, 1, 2, 3, 4]
    short = search(until={"time": "1 min"})
    short.clock(59.9)
    assert short.ask(0) == {"x": 0}
    short.clock(60.0)
    assert short.ask(1) is None
    assert short.reason == "time"


def test_failures_are_never_the_best() -> None:
    head = search(until={"objective": 0.9})
    for trial, given in enumerate([None, {"accuracy": float("nan")}]):
        (value,) = head.tell(trial, {"x": 1}, given)
        assert value != value
    assert head.best is None
    assert isinstance(head.ask(2), dict)


def test_a_metric_that_is_not_reported_is_told() -> None:
    with pytest.raises(ObjectiveError, match=r"no 'accuracy' \(did you mean 'acuracy'\?\)"):
        search().tell(0, {"x": 1}, {"acuracy": 1.0})


def test_several_objectives_have_a_front() -> None:
    head = search(objective=["accuracy", "training_time_s"])
    run(head)
    assert [trial for trial, _, _ in head.front] == [6, 5, 4, 3, 2, 1, 0]
    assert head.front[0] == (6, {"x": 6}, (1.0, 6.0))
    lines = head.front_lines()
    assert lines[0] == "7 trials that no other beats in accuracy and training_time_s:"
    assert lines[1] == "  trial 6: accuracy 1, training_time_s 6 (x 6)"
    assert len(lines) == 8
    alone = search(objective=["accuracy", "loss"])
    run(alone)
    assert alone.front_lines()[0] == "one trial that no other beats in accuracy and loss:"
    assert search().front == search().front_lines() == []


def test_halving_stops_trials_through_their_metrics() -> None:
    rate = {"from": 0.0, "to": 1.0}
    head = search(space={"x": rate}, strategy="halving", trials=50, objective="loss")
    assert head.is_stateless
    stopped = 0
    for trial in range(50):
        asked = head.ask(trial)
        assert isinstance(asked, dict)
        if any(head.report(trial, step, {"loss": asked["x"]}) for step in range(1, 10)):
            stopped += 1
            head.tell(trial, asked, None)
        else:
            head.tell(trial, asked, {"loss": asked["x"]})
    assert 25 < stopped < 50
    assert head.best is not None
    assert head.best[1]["x"] < 0.1
    assert head.ask(50) is None
    # Without a rule nothing stops.
    assert not search().report(0, 1, {"accuracy": 0.0})


def test_an_adaptive_search_waits_where_it_is_to_repeat_itself() -> None:
    table = {"space": {"x": {"from": 0.0, "to": 9.0}}, "strategy": "cross_entropy", "trials": 40}
    results = []
    for window, seed in [(1, 0), (3, 1), (5, 2)]:
        head = search(**table, deterministic=True, lag=4)
        assert not head.is_stateless
        generator, under_way, found, trial = Generator(seed), {}, {}, 0
        while trial < 40 or under_way:
            asked = head.ask(trial) if len(under_way) < window else WAIT
            if isinstance(asked, dict):
                under_way[trial] = found[trial] = asked
                trial += 1
                continue
            done = generator.choice(sorted(under_way))
            head.tell(done, under_way[done], metrics(under_way.pop(done)["x"]))
        results.append((found, head.best))
    assert results[0] == results[1] == results[2]


def test_a_search_is_resumed_by_telling() -> None:
    space = {"x": {"from": 0, "to": 9}, "y": {"from": 0.0, "to": 1.0}}
    whole = search(strategy="random", trials=30, space=space)
    trials = run(whole)
    resumed = search(strategy="random", trials=30, space=space)
    for trial in (5, 2, 11, 29):
        resumed.tell(trial, trials[trial], metrics(trials[trial]["x"]))
    for trial in set(range(30)) - {5, 2, 11, 29}:
        assert resumed.ask(trial) == trials[trial]
        resumed.tell(trial, trials[trial], metrics(trials[trial]["x"]))
    assert resumed.best == whole.best
    assert search().ask(10) is None


def test_no_point_of_a_small_space_is_tried_twice_and_the_sweep_ends_with_the_last() -> None:
    whole = search(strategy="random", trials=57)
    assert whole.size == 10
    assert (
        remark(strategy="random", trials=57)
        == "the space has 10 points, and random tries each once: 10 trials, not 57"
    )
    trials = run(whole)
    assert sorted(trial["x"] for trial in trials) == list(range(10))
    assert whole.ask(10) is None
    assert whole.repeat_lines() == []
    # A sweep goes on from any moment, and on any rank, with the same points.
    resumed = search(strategy="random", trials=57)
    for trial in (7, 3, 9):
        resumed.tell(trial, trials[trial], metrics(trials[trial]["x"]))
    assert [resumed.ask(trial) for trial in range(10)] == trials
    assert remark(strategy="random", trials=10) == ""
    # Neither a number of trials nor a time is needed.
    assert sorted(trial["x"] for trial in run(search(strategy="random"))) == list(range(10))
    assert len(run(search(strategy="halving"))) == 10
    assert (
        remark(strategy="random", trials=3, space={"x": [5]})
        == "the space has 1 point, and random tries each once: 1 trial, not 3"
    )
    assert remark(strategy="halving", until={"time": 9}).endswith("each once: 10 trials")


def test_a_strategy_that_learns_says_how_often_it_repeats_a_point() -> None:
    head = search(strategy={"name": "cross_entropy", "startup": 4, "elite": 3}, trials=57)
    assert remark(strategy="cross_entropy", trials=57) == (
        "the space has 10 points: of 57 trials at least 47 repeat one, with another seed (grid "
        "tries each once)"
    )
    tried = {trial["x"] for trial in run(head)}
    assert head.repeat_lines() == [
        f"{57 - len(tried)} of 57 trials repeat a point of another, with another seed: "
        f"{len(tried)} of 10 points were tried"
    ]
    only = search(strategy="cross_entropy", trials=2, space={"x": [5]})
    run(only)
    assert only.repeat_lines() == [
        "1 of 2 trials repeats a point of another, with another seed: the only point was tried"
    ]
    assert remark(strategy="cross_entropy", trials=10) == ""
    assert remark(strategy="grid", trials=57) == ""
    assert remark(strategy="random", trials=57, space={"x": {"from": 0.0, "to": 1.0}}) == ""


def test_the_selection_bias_is_watched() -> None:
    head = search()
    for trial in range(3):
        folds = ({"accuracy": 0.5 + trial / 10},) * 2
        head.tell(trial, {"x": trial}, {"accuracy": 0.5}, Evaluated({}, folds, folds))
    report = head.bias.report()
    assert report is not None
    assert (report.trials, report.honest) == (3, pytest.approx(0.7))


CODE = """
class Descent:
    size = 3
    def __init__(self, space, seed, start):
        self.next, self.told = start, []
    def ask(self, trial):
        return {"x": self.next} if len(self.told) < 3 else None
    def tell(self, trial, parameters, score):
        self.told.append(score)
        self.next -= 1
def closeness(metrics): return -metrics["loss"]
"""


def test_a_strategy_and_an_objective_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "f_own.py").write_text(CODE)
    head = search(
        tmp_path,
        strategy={"name": "./f_own.py:Descent", "start": 8},
        objective="./f_own.py:closeness",
        maximise=True,
    )
    assert [trial["x"] for trial in run(head)] == [8, 7, 6]
    assert head.best == (2, {"x": 6}, (0.0,))
    assert head.size == 3


WRONG = """
class Wrong:
    def __init__(self, space, seed): pass
    def tell(self, trial, parameters, score): pass
class Number(Wrong):
    def ask(self, trial): return 0.5
class Stranger(Wrong):
    def ask(self, trial): return {"x": 1, "y": 2}
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [("Number", r"ask\(0\) returned 0.5; it is to return"), ("Stranger", "y is not in the space")],
)
def test_a_strategy_that_is_none_is_told(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "f_wrong_strategies.py").write_text(WRONG)
    with pytest.raises(StrategyError, match=words):
        search(tmp_path, strategy=f"./f_wrong_strategies.py:{name}").ask(0)


def test_trials_that_were_stopped_have_had_a_part_in_the_choice() -> None:
    head = search()
    head.tell(0, {"x": 0}, metrics(0), Evaluated(metrics(0), (metrics(0),), rows=10))
    head.tell(1, {"x": 1}, None)
    assert head.bias.trials == 1
    head.tell(2, {"x": 2}, None, is_stopped=True)
    assert head.bias.trials == 2


def test_a_front_writes_layers_as_the_table_does() -> None:
    space = {"hidden": [[], [64, 32]], "rate": 0.00012345, "kind": "a"}
    head = search(space=space, objective=["accuracy", "training_time_s"])
    for trial in (0, 1):
        asked = head.ask(trial)
        assert isinstance(asked, dict)
        head.tell(trial, asked, metrics(5 + trial))
    assert head.front_lines()[1:] == [
        "  trial 1: accuracy 1, training_time_s 6 (hidden 64x32, rate 0.0001234, kind a)",
        "  trial 0: accuracy 0.9, training_time_s 5 (hidden none, rate 0.0001234, kind a)",
    ]
