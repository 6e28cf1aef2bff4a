"""A sweep that leaves its strategy out: what it does, says, and goes on with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from unit.modules.sweeping import Sweep

from modules import trainer
from modules.master import preview_sweep
from modules.options import SweepOptions
from modules.search import Search
from modules.space import Space
from modules.strategies import TPE, Auto, Grid, Halving, StrategyWithRule

GRID = {"x": {"from": 0, "to": 29, "step": 1}, "kind": ["k"]}
WIDE = {"x": {"from": 0.0, "to": 9.0}}
NETWORKS: dict[str, Any] = {
    "hidden": [[16], [64], [128], [256]],
    "batch_size": [16, 32],
    "learning_rate": {"from": 1e-3, "to": 1.0, "scale": "log"},
    "momentum": {"from": 0.0, "to": 0.9},
}


def search(space: dict[str, Any], **table: Any) -> Search:
    """Return the search of a sweep with the trainer of this package."""
    location = type("Place", (), {"file": Path(trainer.__file__), "function": "run"})
    context = {
        "folder": Path(),
        "options_of": {"trainer": {"dataset": "digits"}},
        "locations": {"trainer": location},
    }
    return Search(SweepOptions.model_validate({"space": space, **table}, context=context))


def test_a_grid_that_fits_into_the_time_is_that_of_a_file_that_names_it() -> None:
    space, found = Space.parse(GRID), []
    auto = Auto(space, 3, may_be_grid=True, room_s=60.0)
    for trial in range(30):
        found.append(auto.ask(trial))
        auto.took(0.2)
        auto.tell(trial, found[-1], -trial)  # type: ignore[arg-type]
    assert auto.is_grid
    assert auto.measured.startswith("a grid of 30 points: a trial takes 0.2 s")
    assert found == [Grid(space, 3).ask(trial) for trial in range(30)]
    assert auto.ask(30) is None


def test_one_that_does_not_fit_becomes_a_search_that_has_learnt_from_it() -> None:
    space = Space.parse(GRID)
    auto, learner = Auto(space, 3, may_be_grid=True, room_s=9.0), TPE(space, 3)
    points = [auto.ask(trial) for trial in range(3)]
    for trial in (0, 1):
        auto.took(0.3)
        auto.tell(trial, points[trial], float(trial))  # type: ignore[arg-type]
        learner.tell(trial, points[trial], float(trial))  # type: ignore[arg-type]
    assert not auto.is_grid
    assert auto.measured == (
        "a trial takes 0.3 s, so there is time for 30, "
        "too few to be sure of the 30 points of a grid"
    )
    learner.under_way(2, points[2])  # type: ignore[arg-type]
    rest = []
    for trial in range(3, 30):
        rest.append(auto.ask(trial))
        assert rest[-1] == learner.ask(trial)
        auto.tell(trial, rest[-1], 0.0)  # type: ignore[arg-type]
        learner.tell(trial, rest[-1], 0.0)  # type: ignore[arg-type]
    # No point was tried twice, that under way when it became a search included.
    assert len({point["x"] for point in (*points, *rest)}) == 30  # type: ignore[index]


def test_a_search_never_becomes_a_grid_again() -> None:
    space = Space.parse(GRID)
    auto = Auto(space, 3, may_be_grid=True, room_s=1e6)
    for trial, x in enumerate((0, 1, 17)):  # by an earlier session, in less time
        auto.took(0.001)
        auto.tell(trial, {"x": x, "kind": "k"}, float(x))
    assert not auto.is_grid
    # What was recorded is not asked for anew; all else is asked for once.
    assert [auto.ask(trial) for trial in range(3)] == [{"x": x, "kind": "k"} for x in (0, 1, 17)]
    left = [auto.ask(trial)["x"] for trial in range(3, 30)]  # type: ignore[index,call-overload]
    assert sorted([0, 1, 17, *left]) == list(range(30))


def test_no_rule_of_its_own_stops_trials_of_a_grid() -> None:
    space = Space.parse(GRID)
    auto = Auto(space, 3, may_be_grid=True, room_s=60.0, spares=True)
    ruled = StrategyWithRule(auto, Halving(1, 3))
    assert ruled.cohorts([0, 1])[1] == [0, 1]
    assert [ruled.report(trial, 1, -float(trial)) for trial in range(4)] == [False] * 4
    for trial in (0, 1):
        auto.took(5.0)
        ruled.tell(trial, ruled.ask(trial), 0.0)  # type: ignore[arg-type]
    assert not auto.is_grid
    assert ruled.report(4, 1, -9.0)
    assert ruled.cohorts([5, 6])[1] == [0, 0]


@pytest.mark.parametrize(("trials", "fits"), [(40, True), (60, False)])
def test_no_trial_is_stopped_if_there_is_time_for_all(trials: int, fits: bool) -> None:
    head = search(NETWORKS, trials=trials, until={"time": 10})
    assert "unless there is time for all trials" in head.chosen
    points: list[Any] = [head.ask(trial) for trial in range(5)]
    for trial in range(5):
        metrics = {"accuracy": 1.0 - trial / 10}
        assert not head.report(trial, 1, metrics)
        head.took(0.1)
        head.tell(trial, points[trial], metrics)
    assert head.report(5, 1, {"accuracy": 0.0}) is not fits
    enough = "enough for" if fits else "too few to be sure of"
    assert f"time for 100, {enough} all {trials} trials to be trained to the end" in head.chosen
    assert ("halving" in head.chosen) is not fits
    assert head.cohorts([6, 7])[1] == ([0, 1] if fits else [0, 0])  # type: ignore[index]


def test_cohorts_of_narrow_networks_have_one_structure() -> None:
    def asked(count: int) -> list[dict[str, Any]]:
        head = search(NETWORKS, trials=300, seed=2)
        points: list[dict[str, Any]] = []
        for trial in range(count):
            points.append(head.ask(trial))  # type: ignore[arg-type]
            head.tell(trial, points[-1], {"accuracy": points[-1]["learning_rate"]})
        return points

    points, place, sizes = asked(80), 0, Counter[int]()
    while place < 70:
        size = 8 if max(points[place]["hidden"]) < 128 else 1
        of_one = points[place : place + size]
        assert len({str((point["hidden"], point["batch_size"])) for point in of_one}) == 1
        assert len({point["learning_rate"] for point in of_one}) == size
        sizes[size] += 1
        place += size
    assert min(sizes[1], sizes[8]) > 2
    assert asked(80) == points


def test_the_same_trials_with_a_lag_in_whatever_order_they_end() -> None:
    found = []
    for order in (1, -1):
        head = search(NETWORKS, trials=300, deterministic=True, lag=8)
        points: list[Any] = []
        while len(points) < 60:
            block = range(len(points), min(len(points) + 8, 60))
            points += [head.ask(trial) for trial in block]
            for trial in block[::order]:
                metrics = {"accuracy": points[trial]["momentum"]}
                for step in (1, 3):
                    head.report(trial, step, metrics)
                head.tell(trial, points[trial], metrics)
        found.append(points)
        assert head.choice is not None
        assert head.choice.cohort == 8
    assert found[0] == found[1]


def test_a_function_of_ones_own_is_searched_without_a_rule(sweep: Sweep) -> None:
    done = sweep.run({"space": WIDE, "trials": 24, "seed": 1}, trainers=2, train="steps")
    assert {record["state"] for record in sweep.records} == {"finished"}
    notes = [one for one in done.records if one["event"] == "ResultsShown"][-1]["notes"]
    assert any(
        note.startswith("strategy, as chosen: tpe: no grid, as x can be any number")
        for note in notes
    )
    declared = [one for one in done.records if one["event"] == "ResultsDeclared"][-1]
    assert declared["facts"]["strategy"].startswith(
        "tpe: no grid, as x can be any number of a range"
    )
    best = max(record["metrics"]["score"] for record in sweep.records)
    assert done.returned["score"] == best > 70


def test_it_goes_on_from_the_ledger(sweep: Sweep) -> None:
    options = {"space": WIDE, "trials": 24, "deterministic": True, "lag": 3}
    sweep.run(options, trainers=2)
    whole = {record["trial"]: record["parameters"] for record in sweep.records}
    sweep.cut_ledger(11)
    sweep.run(options)
    assert {record["trial"]: record["parameters"] for record in sweep.records} == whole


@pytest.mark.parametrize(("time_s", "seconds"), [(900.0, 0.02), (1.0, 0.2)])
def test_a_time_has_room_for_a_grid_or_not(sweep: Sweep, time_s: float, seconds: float) -> None:
    options = {"space": GRID, "until": {"time": time_s}}
    done = sweep.run(options, options={"seconds": seconds})
    found = {record["trial"]: record["parameters"]["x"] for record in sweep.records}
    declared = [one for one in done.records if one["event"] == "ResultsDeclared"][-1]
    if seconds < 0.1:
        assert found == {trial: trial for trial in range(30)}
        assert declared["facts"]["strategy"].startswith("a grid of 30 points: a trial takes")
    else:
        assert len({*found.values()}) == len(found)
        assert declared["facts"]["strategy"].startswith("tpe: a trial takes")


def test_a_preview_says_what_would_be_chosen() -> None:
    from modules.master import Options

    def shown(**table: Any) -> str:
        return preview_sweep(Options.model_validate(table), Path()).strategy

    assert shown(space={"a": [1, 2]}) == "grid"
    assert shown(space=WIDE, trials=9).startswith("auto: tpe: no grid, as x can be any number")
