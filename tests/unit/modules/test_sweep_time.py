"""The time of a sweep: trials end with it, and those that have reported something count."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import wait_until

import dnn
from diel import parse_json
from modules import master
from modules.best_network import BestNetwork
from modules.objective import Aim
from modules.search import Search
from modules.sweep.joining import order_message, order_of, outcome_message, outcome_of
from modules.sweep.leases import Pace, TrialQueue
from modules.sweep.ledger import ENDED_BY_TIME, decisions_of, encode, trials_of
from modules.sweep.messages import Lease, Outcome, SaveModel, SweepOrder
from modules.sweep.models import trial_of
from modules.sweep.steering import Steering, ask, requests_for
from modules.trial import OUT_OF_TIME, Report, StopCause, Trial

from .sweeping import Sweep
from .test_kept_models import heart, swept

ENDLESS = """
import os, time
def train(parameters, report):
    x, step = parameters["x"], 0
    while True:
        step += 1
        time.sleep(report.options.get("seconds", 0.01))
        if not report(step, score=x - abs(step - 5)):
            return {"score": -1e6}

def once(parameters, report):
    started = report.folder / "hangs.txt"
    if parameters["x"] == 1:
        started.write_text(str(os.getpid()))
        time.sleep(600)
    while not started.exists():
        time.sleep(0.01)
    return {"score": 1.0}

def fails(parameters, report):
    raise ValueError("always")
"""
NEVER_ENDS = 10**6


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    found = Sweep(tmp_path)
    (tmp_path / "mine.py").write_text(ENDLESS)
    return found


def random(**more: Any) -> dict[str, Any]:
    space = {"x": {"from": 0, "to": 9, "step": 1}}
    return {"space": space, "strategy": "grid", **more}


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("rule", [None, {"rule": "median", "startup_trials": 99}])
def test_trials_under_way_end_with_their_best_report(
    sweep: Sweep, isolated: bool, rule: Any
) -> None:
    wanted = random(until={"time": 0.3}, **({} if rule is None else {"early_stopping": rule}))
    done = sweep.run(wanted, isolated=isolated)
    results = [record for record in sweep.records if record["state"] == "finished"]
    assert done.returned["trial"] in [record["trial"] for record in results]
    for record in results:
        ended = record[ENDED_BY_TIME]
        scores = {step: metrics["score"] for step, metrics in record["reports"]}
        assert record["metrics"]["score"] == scores[ended["best_step"]] == max(scores.values())
        assert ended["at_step"] == max(scores)
    states = {row["state"].partition(":")[0] for row in sweep.rows}
    assert OUT_OF_TIME in states <= {OUT_OF_TIME, "stopped"}


def test_without_a_result_the_first_report_ends_the_sweep(sweep: Sweep) -> None:
    sweep.run(random(until={"time": 1e-3}), options={"seconds": 0.05}, trainers=1)
    (record,) = sweep.records
    best = record[ENDED_BY_TIME]["best_step"]
    assert record["metrics"] == {"score": -abs(best - 5)}


def test_a_sweep_of_failures_ends_nevertheless(sweep: Sweep) -> None:
    space = {"x": {"from": 0, "to": 999, "step": 1}}
    with pytest.raises(Exception, match="no trial has succeeded"):
        sweep.run(random(until={"time": 1e-3}, space=space), train="fails")
    assert 0 < len(sweep.records) < 100


def test_a_process_that_reports_nothing_is_ended(sweep: Sweep) -> None:
    sweep.run(random(until={"time": 1e-3}), train="once", isolated=True)
    states = {record["trial"]: record for record in sweep.records}
    assert states[0]["state"] == "finished"
    assert (states[1]["state"], states[1]["metrics"]) == ("stopped", {})
    assert "had reported nothing" in states[1]["reason"]


def test_it_goes_on_from_its_ledger_for_as_long_again(sweep: Sweep) -> None:
    for trials, time_s in ((1, 0.2), (2, 0.3)):
        sweep.run(random(until={"time": time_s}), trainers=1)
        assert len(sweep.records) == trials


def test_a_sweep_that_has_finished_is_given_more_time(sweep: Sweep) -> None:
    wanted = random(until={"time": 0.3})
    sweep.run(wanted)
    before = len(sweep.records)
    request = {"kind": "time", "time_s": 2.0}
    ask(sweep.ledger, requests_for(sweep.ledger, [request]))
    sweep.run(wanted)
    assert len(sweep.records) > before
    (decision,) = decisions_of(sweep.ledger)
    assert decision["accepted"]
    # It stays the limit of later sessions.
    again = Search(
        master.Options.model_validate({**wanted, "objective": "score", "maximise": True})
    )
    Steering(again, TrialQueue(None)).apply(decision)
    assert again.left_s(0.0) == 2.0


def test_a_sweep_is_given_time_while_it_runs(sweep: Sweep) -> None:
    wanted = random(until={"time": 100})
    whole = threading.Thread(target=sweep.run, args=(wanted,))
    whole.start()
    wait_until(lambda: sweep.ledger.exists())
    ask(sweep.ledger, requests_for(sweep.ledger, [{"kind": "time", "time_s": 0.2}]))
    whole.join(30)
    assert not whole.is_alive()
    assert any(ENDED_BY_TIME in record for record in sweep.records)


def test_core_hours_are_those_of_all_sessions(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.run(random(until={"core_hours": 0.2 / 3600}))
    assert "core hours are used up" in capsys.readouterr().out
    taken_s = sum(record["seconds"] for record in sweep.records)
    before = len(sweep.records)
    sweep.run(random(until={"core_hours": taken_s / 3600}))
    assert len(sweep.records) == before


def test_a_fit_in_one_call_is_said_not_to_end() -> None:
    def said(trainer: dict[str, Any], **until: Any) -> list[str]:
        options = {"space": {"C": [1.0]}, "until": until}
        context = {"options_of": {"trainer": trainer}}
        return master.Options.model_validate(options, context=context).remarks

    fits = {"train": "modules.sklearn_trainer:train"}
    (remark,) = said(fits, time=9)
    assert remark.endswith("with isolated = true in the options of trainer it does")
    assert len(said(fits, core_hours=1.0)) == 1
    assert said(fits, objective=0.5) == said({**fits, "isolated": True}, time=9) == []
    assert said({"train": "./mine.py:train"}, time=9) == said({"dataset": "digits"}, time=9) == []


def test_workers_are_told_too() -> None:
    order = SweepOrder("s", 1, None, aim=Aim("loss", maximise=False, has_time_limit=True))
    assert order_of(parse_json(encode(order_message(order, 1)).encode()), "s", "") == order
    lease = Lease("s", 1, 4, 7, [{}, {}, {}])
    outcome = Outcome("s", 1, 4, 0, [{}, {}], [{"a": 1.0}, {}], [1.0, 2.0], [0.1, 0.0])
    outcome.stopped, outcome.out_of_time, outcome.untried = {4, 5}, {4}, {5}
    sent = parse_json(encode(outcome_message(outcome)).encode())
    got = outcome_of(sent, lease, "w", 3)
    assert (got.stopped, got.out_of_time, got.untried) == ({4, 5}, {4}, {5})


def test_the_order_to_save_is_passed_on_to_who_keeps_the_network() -> None:
    wanted = SaveModel("s", Trial(1, {}, 2), Path("best"), holder=2, most_passes=3)
    assert wanted.is_for(2)
    assert not wanted.is_for(0)
    assert replace(wanted, passed_by=(0, 1, 0)).is_for(1)  # the holder has gone
    assert replace(wanted, holder=None).is_for(5)


SLOW = {"epochs": NEVER_ENDS, "learning_rate": [0.01, 0.03, 0.1, 0.3]}


@pytest.mark.parametrize(
    ("space", "options"),
    [
        ({**SLOW, "hidden": [[4]]}, {}),
        ({**SLOW, "hidden": [[4], [6]]}, {"isolated": True}),
        ({**SLOW, "hidden": [[4]], "batch_growth": 1.1}, {}),
        ({**SLOW, "hidden": [[4]]}, {"patience": NEVER_ENDS}),
    ],
)
def test_networks_keep_their_best_epoch(tmp_path: Path, space: Any, options: Any) -> None:
    data = heart(tmp_path)
    folder = swept(tmp_path, {**data, **options}, space=space, until={"time": 0.5}, seed=3)
    records = list(trials_of(folder / "trials.jsonl"))
    ended = [record for record in records if ENDED_BY_TIME in record]
    assert ended
    assert all(record["state"] == "finished" for record in ended)
    for record in ended:
        assert record["metrics"]["best_epoch"] == record[ENDED_BY_TIME]["best_step"]
        scores = [metrics["accuracy"] for _, metrics in record["reports"]]
        assert "patience" in options or record["metrics"]["accuracy"] >= max(scores)
    best = min(records, key=lambda each: (-each["metrics"].get("accuracy", -1), each["trial"]))
    assert trial_of(folder / "best.safetensors") == best["trial"]
    model = dnn.load(folder / "best.safetensors")
    table = dnn.load_dataset(data["dataset"], tmp_path / data["path"])
    _, held_out = dnn.train_validation_split(table, 0.2, seed=0)
    scores = model.evaluate(held_out.x, held_out.y)
    assert scores == {name: best["metrics"][name] for name in scores}
    assert model.provenance["epochs"] == best["metrics"]["best_epoch"]


@pytest.mark.parametrize("isolated", [False, True])
def test_of_folds_those_that_are_done_count(tmp_path: Path, isolated: bool) -> None:
    folds = {"evaluation": {"method": "k_fold", "folds": 3}, "isolated": isolated}
    space = {"hidden": [[4]], "epochs": [7, 8]}
    folder = swept(tmp_path, {**heart(tmp_path), **folds}, space=space, until={"time": 1e-3})
    records = trials_of(folder / "trials.jsonl")
    best = next(each for each in records if each["state"] == "finished")
    model = dnn.load(folder / "best.safetensors")
    assert model.provenance["trained_on"] == "all 120 rows"
    assert "epochs" not in model.provenance
    assert best["metrics"]["accuracy"] == best["reports"][-1][1]["accuracy"]


def test_a_regression_that_a_rule_stops_is_no_failure(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which has the data, is not installed")
    space = {"hidden": [[3]], "epochs": 9, "learning_rate": [0.1, 0.01, 1e-6, 1e-7, 1e-8, 1e-9]}
    strategy = {"name": "halving", "min_steps": 1, "reduction": 3}
    wanted = {"objective": "rmse", "strategy": strategy, "trials": 6}
    folder = swept(tmp_path, {"dataset": "diabetes"}, space=space, **wanted)
    states = {each["state"] for each in trials_of(folder / "trials.jsonl")}
    assert states == {"finished", "stopped"}


@pytest.mark.parametrize(
    ("space", "options"),
    [
        ({"hidden": [[4], [5]], "epochs": [2, 3]}, {}),
        ({"hidden": [[4]], "epochs": 3, "learning_rate": [0.1, 0.2, 0.3, 0.4]}, {}),
        ({"hidden": [[4]], "epochs": 9}, {"patience": 1}),
        ({"hidden": [[4]], "epochs": [2, 3], "batch_norm": True, "average": 0.9}, {}),
        ({"hidden": [[4]], "epochs": [2, 3]}, {"isolated": True}),
    ],
)
def test_the_network_that_is_kept_is_the_one_trained_again(
    tmp_path: Path, space: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("kept", "again"):
        place = tmp_path / name / "run"
        place.mkdir(parents=True)
        if name == "again":
            monkeypatch.setattr(BestNetwork, "offer", lambda *given: None)
            options = {name: value for name, value in options.items() if name != "isolated"}
        folder = swept(place, {**heart(place), **options}, space=space)
        found.append(dnn.load(folder / "best.safetensors"))
    kept, again = found
    assert kept.provenance == again.provenance
    for name, array in kept.network.parameters.items():
        np.testing.assert_array_equal(array, again.network.parameters[name])
    x = np.zeros((1, 13))
    np.testing.assert_array_equal(kept.predict(x), again.predict(x))


def test_which_network_is_kept() -> None:
    aim, best = Aim("loss", maximise=False), BestNetwork()
    asked = []

    def offer(trial: int, loss: float, cause: StopCause = StopCause.NO, aim: Any = aim) -> None:
        stops = (lambda trial: cause) if cause else None
        report = Report(trial, 7, options={}, folder=Path(), aim=aim, is_to_stop=stops)
        report.check_stop()
        best.offer(report, {"loss": loss}, lambda: asked.append(trial) or trial)  # type: ignore

    offer(3, 0.5)
    offer(4, 0.5)
    offer(5, float("nan"))
    offer(6, 0.1, StopCause.REQUESTED)
    offer(7, 0.1, aim=None)
    assert best.trial == 3
    offer(2, 0.5)
    offer(8, 0.2, StopCause.TIME)
    assert (best.trial, asked) == (8, [3, 2, 8])


def test_leases_are_sized_by_the_time_that_is_left() -> None:
    pace = Pace()
    assert pace.size(10_000, 2, 60.0) == 1  # nothing is known
    pace.observe(1, 0.5)
    pace.at_once = 128
    assert pace.size(10_000, 2) == 128
    assert pace.size(10_000, 2, 60.0) == 60
    assert pace.size(10_000, 2, 6.0) == 6
    assert pace.size(None, 2, 6.0) <= 6
    assert pace.size(10_000, 2, 0.0) == pace.size(10_000, 2, -1.0) == 1
    pace.trial_s = 0.0
    assert pace.size(10_000, 2, 1.0) == pace.size(10_000, 2)


def test_trials_that_have_not_begun_are_given_out_again() -> None:
    queue = TrialQueue(10)
    grant = queue.take(4)
    assert grant is not None
    queue.came_back(grant.lease, 4, {1}, {2, 3})
    again = [queue.take(1) for _ in range(3)]
    assert [(each.start, each.attempt) for each in again if each] == [(1, 2), (2, 1), (3, 1)]
    assert 0 in queue.recorded
