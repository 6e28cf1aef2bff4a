"""Constraints of a sweep: trials that break one count behind all others, and are never the best."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.expressions import ExpressionError
from modules.best_network import BestNetwork
from modules.objective import (
    Aim,
    Constraint,
    ObjectiveError,
)
from modules.options import SweepOptions
from modules.pareto import infeasible_score, is_infeasible
from modules.search import Search
from modules.sweep.output import export
from modules.sweep.watched import WatchedSweep
from modules.trial import Report

from .sweeping import Sweep

METRICS = {"accuracy": 0.9, "recall": 0.75, "training_time_s": 3.0}


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("training_time_s <= 2", 1.0),
        ("training_time_s <= 3", 0.0),
        ("2 >= training_time_s", 1.0),
        ("0.9 <= recall", 0.15),
        ("recall >= 0.9", 0.15),
        ("0.7 <= recall <= 0.8", 0.0),
        ("0.8 <= recall <= 0.7", 0.1),  # both sides at once
        (" (training_time_s + 1) * 2 <= 10 * (recall - 0.05) ", 1.0),
        ("log10(training_time_s / 0.003) <= 2.5", 0.5),
        ("(1 if accuracy > 0.5 else 0) <= 0", 1.0),
    ],
)
def test_the_violation_is_by_how_much_a_side_is_too_large(text: str, violation: float) -> None:
    constraint = Constraint.parse(text)
    assert constraint.violation(METRICS) == pytest.approx(violation)
    assert set(constraint.names) <= set(METRICS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recall", "compares nothing: write it with <= or >="),
        ("recall < 0.9", "compares by something else: write it with <= or >="),
        ("recall == 0.9", "compares by something else"),
        ("recall <=", "is no constraint"),
        ("1 <= 2", "has no metric in it"),
        ("__import__('os') <= 1", "not allowed"),
        ("recall <= accuracy.real", "not allowed"),
        ("recall <= " + "9" * 2000, "too long"),
        ("\0 <= 1", "is no constraint"),
        ("(" * 300 + "recall" + ")" * 300 + " <= 1", "is no constraint"),
    ],
)
def test_what_is_no_constraint(text: str, words: str) -> None:
    with pytest.raises((ExpressionError, ObjectiveError), match=words):
        Constraint.parse(text)


def test_metrics_that_are_not_there_or_no_numbers() -> None:
    constraint = Constraint.parse("recall <= 1 / loss", ["loss", "recall"])
    for value in (0.0, math.nan, math.inf):
        if value != math.inf:
            assert math.isnan(constraint.violation({"recall": 0.5, "loss": value}))
        assert math.isnan(constraint.violation({"recall": math.inf, "loss": 1.0}))
    with pytest.raises(ObjectiveError, match=r"constraint .*: the trainer reported no 'loss'"):
        constraint.violation({"recall": 0.5})
    with pytest.raises(ObjectiveError, match=r"constraint .*: loss = 'low' is"):
        constraint.violation({"recall": 0.5, "loss": "low"})
    with pytest.raises(ObjectiveError, match=r"reports no 'recal' \(did you mean 'recall'") as told:
        Constraint.parse("recal <= 1", ["loss", "recall"])
    assert told.value.remedy == 'take one of these, as in constraints = ["loss <= 0.5"]'


@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
)
def test_scores_of_infeasible_trials_fall_with_the_violation(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert infeasible_score(high) <= infeasible_score(low) < -1e307
    assert math.isfinite(infeasible_score(high))
    if high > low * (1 + 1e-9):
        assert infeasible_score(high) < infeasible_score(low)
    assert is_infeasible(infeasible_score(low))
    assert not is_infeasible(-1e300)


# -- the search -----------------------------------------------------------------------------------


def search(**table: Any) -> Search:
    given = {
        "space": {"x": {"from": 0, "to": 9, "step": 1}},
        "objective": "accuracy",
        "constraints": ["training_time_s <= 4"],
        **table,
    }
    return Search(SweepOptions.model_validate(given))


def metrics(x: float) -> dict[str, float]:
    return {"accuracy": x / 10, "loss": 1 - x / 10, "training_time_s": x}


def tell_all(head: Search, order: list[int]) -> None:
    for x in order:
        head.tell(x, {"x": x}, metrics(x))


@pytest.mark.parametrize("order", [[*range(10)], [*range(9, -1, -1)], [9, 4, 3, 8, 0]])
def test_the_best_is_one_that_keeps_the_constraints(order: list[int]) -> None:
    head = search(until={"objective": 0.45})
    tell_all(head, order)
    assert head.best is not None
    assert head.best[0] == 4
    assert head.reason is None  # 0.5 and more were reached by trials that break a constraint
    assert head.judge(metrics(6)).violation == 2
    assert head.judge(metrics(6)).broken == "breaks training_time_s <= 4"
    assert not head.judge(metrics(6)).reason
    assert head.judge({"accuracy": 0.5}).reason
    assert head.judge({**metrics(1), "training_time_s": math.inf}).is_diverged


def test_if_none_keeps_them_the_best_is_the_one_that_breaks_them_least() -> None:
    head = search()
    tell_all(head, [9, 6, 8])
    assert head.best is not None
    assert head.best[0] == 6


def test_none_that_breaks_a_constraint_is_on_the_front() -> None:
    head = search(objective=["accuracy", "loss"], maximise=[True, True])
    tell_all(head, [9, 2, 4, 7])
    assert sorted(trial for trial, _, _ in head.front) == [2, 4]


def test_strategies_are_told_scores_behind_all_others() -> None:
    told: list[Any] = []
    for objectives in (["loss"], ["loss", "accuracy"]):
        head = search(objective=objectives, strategy={"name": "nsga2"}, trials=9)
        head.strategy.tell = lambda trial, parameters, score: told.append(score)  # type: ignore[method-assign]
        tell_all(head, [0, 5, 9])
        head.learn({"x": 6}, metrics(6))
    behind = [infeasible_score(violation) for violation in (1, 5, 2)]
    assert told[:4] == [(-1.0,), *((score,) for score in behind)]
    assert told[4:] == [(-1.0, 0.0), *((score, score) for score in behind)]


@pytest.mark.parametrize(
    "name", ["cross_entropy", "tpe", "nsga2", "optuna:tpe", "optuna:cmaes", "optuna:nsgaii"]
)
def test_strategies_look_where_the_constraints_hold(name: str) -> None:
    if name.startswith("optuna"):
        pytest.importorskip("optuna", reason="Optuna is not installed")
    if name.endswith("cmaes"):
        pytest.importorskip("cmaes")
    # The objective grows with x, the constraint ends it at 0.3: random points keep it in 30 %.
    head = search(
        space={"x": {"from": 0.0, "to": 1.0}, "y": {"from": 0.0, "to": 1.0}},
        strategy=name,
        trials=150,
        constraints=["training_time_s <= 0.3"],
    )
    kept = []
    for trial in range(150):
        point = head.ask(trial)
        assert isinstance(point, dict)
        x = point["x"]
        head.tell(trial, point, {"accuracy": x, "loss": 0.0, "training_time_s": x})
        kept.append(x <= 0.3)
    assert head.best is not None
    assert 0.25 < head.best[2][0] <= 0.3
    assert sum(kept[75:]) > 75 * 0.35


def test_what_an_infeasible_trial_had_at_a_rung_is_no_rank() -> None:
    head = search(
        space={"x": {"from": 0.0, "to": 9.0}},
        strategy={"name": "tpe", "startup": 4},
        early_stopping={"rule": "halving", "min_steps": 1, "reduction": 2},
        trials=99,
    )
    for trial in range(30):
        head.ask(trial)
        x = trial % 10
        stops = head.report(trial, 1, metrics(x))
        # The rule judges by the objective alone: 9 is never stopped, whatever it breaks.
        assert not (stops and x == 9)
        head.tell(trial, {"x": float(x)}, None if stops else metrics(x), is_stopped=stops)
    ranking = head._own_strategy._ranking  # type: ignore[attr-defined]
    good, _, _ = ranking.split()
    assert {int(ranking._told[index][0]) % 10 for index in good} <= {0, 1, 2, 3, 4}


def problems(table: dict[str, Any]) -> dict[str, str]:
    from pydantic import ValidationError

    try:
        SweepOptions.model_validate({"space": {"a": [0.1, 0.2]}, **table})
    except ValidationError as error:
        return {".".join(map(str, each["loc"])): str(each) for each in error.errors()}
    return {}


def test_a_problem_is_told_at_its_place() -> None:
    assert not problems({"constraints": "recall >= 0.9"})
    assert not problems({"constraints": []})
    found = problems({"constraints": ["recall >= 0.9", "recall"]})
    assert list(found) == ["constraints.1"]
    assert "compares nothing" in found["constraints.1"]
    assert list(problems({"constraints": [3]})) == ["constraints.0"]


def test_a_strategy_that_models_scores_is_refused() -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    gp = {"strategy": "optuna:gp", "trials": 9}
    assert not problems(gp)
    found = problems({**gp, "constraints": ["recall >= 0.9"]})
    assert list(found) == ["constraints"]
    assert '"optuna:gp" models scores' in found["constraints"]
    assert "take tpe or optuna:tpe" in found["constraints"]


# -- trainers, and whole sweeps -------------------------------------------------------------------


def test_a_trainer_keeps_the_network_of_the_best_that_keeps_the_constraints() -> None:
    aim = Aim("accuracy", True, constraints=("training_time_s <= 4",))
    for order, kept in (([9, 2, 4, 7], 4), ([9, 6, 8], 6)):
        best = BestNetwork()
        for x in order:
            best.offer(Report(x, 7, options={}, folder=Path(), aim=aim), metrics(x), lambda: None)  # type: ignore[arg-type, return-value]
        assert best.trial == kept
    # An epoch in the middle does not know all metrics yet.
    assert aim.score({"accuracy": 0.5}, Path()) == 0.5
    assert aim.score({"loss": 0.5}, Path()) is None


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


BOUNDED = {"space": {"x": {"from": 0, "to": 9, "step": 1}}, "constraints": ["square <= 20"]}


def test_a_sweep_with_constraints(sweep: Sweep) -> None:
    done = sweep.run(BOUNDED)
    assert done.returned["x"] == 4
    states = {record["trial"]: record["state"] for record in sweep.records}
    assert states == {x: "finished" if x < 5 else "infeasible" for x in range(10)}
    (seven,) = [record for record in sweep.records if record["trial"] == 7]
    assert (seven["reason"], seven["violation"]) == ("breaks square <= 20", 29)
    table = {int(row["trial"]): row for row in sweep.rows}
    assert table[7]["state"] == "infeasible: breaks square <= 20"
    assert (float(table[7]["score"]), float(table[7]["square"])) == (0, 49)
    (shown,) = [
        record
        for record in done.records
        if record["event"] == "ResultsShown" and record["count"] == 10
    ]
    assert shown["unranked"] == {"infeasible": 5}
    assert [row["x"] for row in shown["best"]] == [4, 3, 2, 1, 0]
    report = (sweep.run_dir / "report.html").read_text()
    assert "Trials that are infeasible" in report
    assert "5 of 10 trials have no result that counts. They break a constraint" in report
    assert 'class="dots infeasible"' in report
    watched = WatchedSweep(sweep.run_dir, sweep.ledger)
    watched.catch_up()
    summary = watched.summary()
    assert (summary["infeasible"], summary["failed"], summary["best"]["x"]) == (5, 0, 4)
    assert "violation" in watched.columns()
    # A session that goes on comes to the same, and other constraints make another sweep.
    sweep.cut_ledger(4)
    assert sweep.run(BOUNDED).returned["x"] == 4
    assert {record["trial"]: record["state"] for record in sweep.records} == states
    with pytest.raises(Exception, match="of another sweep: see constraints"):
        sweep.run({**BOUNDED, "constraints": ["square <= 30"]})


def test_a_sweep_in_which_none_keeps_the_constraints(sweep: Sweep) -> None:
    done = sweep.run({**BOUNDED, "constraints": ["square <= -1", "-2 <= score"]})
    # 7, 8, 9 and 5, 6 keep the second one, and 0 breaks the first one least, by 1, but that by 5.
    violations = {x: x * x + 1 + max(0, abs(x - 7) - 2) for x in range(10)}
    least = min(violations, key=lambda x: (violations[x], x))
    assert done.returned["x"] == least
    assert done.returned["state"].startswith("infeasible: breaks square <= -1")
    wanted = f"no trial keeps the constraints: trial {least}, which breaks them least, breaks"
    assert any(text.startswith(wanted) for text in done.warnings)
    assert "No trial keeps the constraints." in (sweep.run_dir / "report.html").read_text()


def test_metrics_of_a_constraint_are_needed_as_those_of_an_objective(sweep: Sweep) -> None:
    sweep.run(
        {"space": {"x": {"from": 0, "to": 7, "step": 1}}, "constraints": ["score <= 6.5"]},
        train="loses_numbers",
    )
    states = [record["state"] for record in sorted(sweep.records, key=lambda one: one["trial"])]
    of_objective = ["finished", "diverged", "diverged", "failed", "diverged", "diverged"]
    assert states == [*of_objective, "finished", "infeasible"]


def test_an_earlier_sweep_is_judged_by_the_constraints_here(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("earlier", "new", "free")]
    for folder in folders:
        folder.mkdir()
    earlier, new, free = (Sweep(folder) for folder in folders)
    earlier.run(BOUNDED)
    warm = {**BOUNDED, "warm_start": "../earlier/run"}
    assert new.run({**warm, "constraints": ["square <= 40", "2 <= square"]}).returned["x"] == 6
    assert free.run({**warm, "constraints": None}).returned["x"] == 7
    for sweep, kept in ((new, {2, 3, 4, 5, 6}), (free, {*range(10)})):
        assert not (sweep.folder / "tried.txt").exists()
        finished = {one["trial"] for one in sweep.records if one["state"] == "finished"}
        assert finished == kept
        odd = [one for one in sweep.records if ("violation" in one) == (one["trial"] in kept)]
        assert odd == []


def test_exports_have_what_is_infeasible(sweep: Sweep) -> None:
    sweep.run(BOUNDED)
    (path,) = export(sweep.ledger, ["json"], sweep.folder)
    rows = {row["trial"]: row for row in json.loads(path.read_text())}
    assert (rows[7]["violation"], rows[7]["score"]) == (29, 0)
    assert "violation" not in rows[4]
    optuna = pytest.importorskip("optuna")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    (path,) = export(sweep.ledger, ["optuna"], sweep.folder)
    study = optuna.load_study(
        study_name=None, storage=JournalStorage(JournalFileBackend(str(path)))
    )
    assert len(study.trials) == 10
    assert study.best_trial.params["x"] == 4  # Optuna passes over those that break constraints
