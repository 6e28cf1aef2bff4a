"""A master and trainers that meet in one process: what is tried, recorded, told and shown."""

from __future__ import annotations

import html
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from unit.modules.sweeping import GRID, Sweep

from diel.errors import CopyStopped, ModuleFailed
from diel.testing import Module, run_modules
from modules import master, trainer
from modules.metrics import metrics_of_task
from modules.objective import Objective
from modules.reporter import SweepReporter
from modules.space import Space
from modules.sweep.ledger import ledger_path, records_of
from modules.sweep.master_loop import SweepFailed
from modules.sweep.messages import Tags
from modules.sweep.output import export
from modules.sweep.warm_start import EarlierResults
from modules.trial import trial_seed


@pytest.mark.parametrize("trainers", [1, 3])
def test_every_point_is_tried_and_recorded_once(sweep: Sweep, trainers: int) -> None:
    done = sweep.run(GRID, trainers=trainers)
    assert sweep.tried == Counter(range(30))
    records = sorted(sweep.records, key=lambda record: record["trial"])
    assert [one["trial"] for one in records] == list(range(30))
    for trial, record in enumerate(records):
        assert record["parameters"] == {"x": trial, "kind": "k"}
        assert record["seed"] == trial_seed(5, trial)
        assert record["state"] == "finished"
        assert record["seconds"] >= 0
    assert done.returned["trial"] == 7
    assert done.returned["square"] == 49
    columns = ["trial", "x", "kind", "score", "square", "trainer", "seed", "state"]
    assert list(sweep.rows[0]) == columns
    assert sorted(int(row["trial"]) for row in sweep.rows) == list(range(30))
    shown = [one for one in done.records if one["event"] == "ResultsShown"][-1]
    assert shown["count"] == 30
    assert [row["x"] for row in shown["best"][:3]] == [7, 6, 8]
    assert shown["constants"].items() >= {"kind": "k"}.items()


def test_a_trial_is_the_same_on_any_number_of_trainers(tmp_path: Path) -> None:
    tables = []
    for trainers in (1, 2, 4):
        folder = tmp_path / str(trainers)
        folder.mkdir()
        sweep = Sweep(folder)
        sweep.run(
            {
                "space": {"x": {"from": 0.0, "to": 9.0}},
                "strategy": "random",
                "trials": 40,
                "seed": 3,
            },
            trainers=trainers,
        )
        keys = ("trial", "parameters", "metrics", "seed", "state")
        rows = sorted((record["trial"], [record[key] for key in keys]) for record in sweep.records)
        tables.append(rows)
    assert len(tables[0]) == 40
    assert tables[0] == tables[1] == tables[2]


def test_a_strategy_that_learns_is_asked_once_a_trainer_is_free(sweep: Sweep) -> None:
    (sweep.folder / "own.py").write_text(
        "class Counting:\n"
        "    def __init__(self, space, seed):\n"
        "        self.told = 0\n"
        "    def ask(self, trial):\n"
        "        return {'x': self.told}\n"
        "    def tell(self, trial, parameters, score):\n"
        "        self.told += 1\n"
    )
    wanted = {"space": {"x": {"from": 0, "to": 20, "step": 1}}, "strategy": "./own.py:Counting"}
    sweep.run({**wanted, "trials": 12}, trainers=2, options={"seconds": 0.08})
    trials = {record["trial"]: record["parameters"]["x"] for record in sweep.records}
    assert len(trials) == 12
    assert all(trial - told <= 1 for trial, told in trials.items())  # the other trainer's


def test_a_trial_that_fails_is_marked_and_the_sweep_goes_on(sweep: Sweep) -> None:
    done = sweep.run(GRID, options={"fails": 12})
    (failed,) = [record for record in sweep.records if record["state"] == "failed"]
    assert (failed["trial"], failed["reason"]) == (12, "ValueError: x is 12")
    assert len(sweep.records) == 30
    assert {row["trial"]: row["state"] for row in sweep.rows}["12"] == "ValueError: x is 12"
    assert any("1 of 30 trials failed" in text for text in done.warnings)
    assert sweep.tried == Counter(range(30))


def test_a_script_that_exits_fails_its_trial_and_not_its_trainer(sweep: Sweep) -> None:
    done = sweep.run(GRID, train="leaves")
    states = {record["trial"]: record for record in sweep.records}
    assert len(states) == 30
    assert {trial for trial, state in states.items() if state["state"] == "failed"} == {3}
    assert states[3]["reason"] == "SystemExit: 0"
    assert done.returned["trial"] == 29


@pytest.mark.parametrize(("retries", "times", "state"), [(1, 1, "finished"), (2, 99, "failed")])
def test_a_trial_that_fails_is_tried_again_so_often(
    sweep: Sweep, retries: int, times: int, state: str
) -> None:
    sweep.run({**GRID, "retries": retries}, options={"fails": 12, "times": times})
    (record,) = [one for one in sweep.records if one["trial"] == 12]
    assert record["state"] == state
    assert record["attempt"] == retries + 1
    assert sweep.tried[12] == retries + 1
    assert len(sweep.records) == 30


def test_a_sweep_in_which_everything_fails_ends_soon(sweep: Sweep) -> None:
    big = {"space": {"x": {"from": 0, "to": 9999, "step": 1}}}
    with pytest.raises(SweepFailed, match="the first: RuntimeError: always"):
        sweep.run(big, train="broken")
    assert 20 <= len(sweep.records) < 5000


def test_metrics_without_the_objective_are_a_failure_and_lost_numbers_diverge(
    sweep: Sweep,
) -> None:
    done = sweep.run({"space": {"x": {"from": 0, "to": 7, "step": 1}}}, train="loses_numbers")
    states = {record["trial"]: (record["state"], record.get("reason")) for record in sweep.records}
    assert states == {
        0: ("finished", None),
        1: ("diverged", "score is nan"),
        2: ("diverged", "score is inf"),
        3: ("failed", states[3][1]),
        4: ("diverged", "the training diverged"),
        5: ("diverged", "the training diverged"),
        6: ("finished", None),
        7: ("finished", None),
    }
    assert "reported no 'score'" in str(states[3][1])
    # A score of a training that diverged does not rank, however good it is.
    assert (done.returned["trial"], done.returned["score"]) == (7, 7.0)
    table = {row["trial"]: row["state"] for row in sweep.rows}
    assert [table[str(trial)] for trial in (0, 1, 2, 4, 5)] == ["finished"] + ["diverged"] * 4
    (shown,) = [
        record
        for record in done.records
        if record["event"] == "ResultsShown" and record["count"] == 8
    ]
    assert shown["unranked"] == {"failed": 1, "diverged": 4}
    assert [row["trial"] for row in shown["best"]] == [7, 6, 0]
    assert any(text.startswith("4 of 8 trials diverged") for text in done.warnings)
    report = (sweep.run_dir / "report.html").read_text()
    assert "Trials that failed or diverged" in report
    assert "5 of 8 trials have no result. Of 4 the training, or the objective" in report
    # And once more from the ledger alone.
    again = sweep.run({"space": {"x": {"from": 0, "to": 7, "step": 1}}}, train="loses_numbers")
    assert again.returned["trial"] == 7
    assert {row["trial"]: row["state"] for row in sweep.rows} == table


def test_a_sweep_in_which_everything_diverges_has_no_best(sweep: Sweep) -> None:
    with pytest.raises(SweepFailed, match=r"\(1 failed, 2 diverged\); the first: score is nan"):
        sweep.run({"space": {"x": [1, 3, 2]}}, trainers=1, train="loses_numbers")


def test_a_metric_that_is_called_like_a_parameter_takes_no_place(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": [4, 9]}}, train="clashes")
    assert sorted((row["trial"], row["x"], row["score"]) for row in sweep.rows) == [
        ("0", "4", "4"),
        ("1", "9", "9"),
    ]
    assert {row["state"] for row in sweep.rows} == {"finished"}
    assert (done.returned["trial"], done.returned["x"]) == (1, 9)
    assert all(
        record["metrics"]["x"] == -1 for record in sweep.records
    )  # and in the ledger nothing is lost


def test_parameters_are_recorded_as_they_were_given(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": [4, 9, 2], "kind": [[1, 2]]}}, train="takes_apart")
    assert sorted((record["trial"], record["parameters"]["x"]) for record in sweep.records) == [
        (0, 4),
        (1, 9),
        (2, 2),
    ]
    assert all(record["parameters"]["kind"] == [1, 2] for record in sweep.records)
    assert {row["kinds"] for row in sweep.rows} == {"3"}  # no trial saw another's
    assert (done.returned["x"], done.returned["score"]) == (9, 9)


def test_no_metrics_however_strange_end_a_sweep(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": list(range(10))}}, train="strange")
    states = [
        record["state"] for record in sorted(sweep.records, key=lambda record: record["trial"])
    ]
    assert states == ["failed"] * 8 + ["finished"] * 2
    reasons = {
        record["parameters"]["x"]: record["reason"]
        for record in sweep.records
        if "reason" in record
    }
    assert reasons[0] == "TypeError: metric 'score' is too large a number"
    assert reasons[1] == "TypeError: metric 'other' is too large a number"
    assert reasons[7] == "TypeError: metric 'splits' is a dict, and no number"
    assert done.returned["x"] == 9


@pytest.mark.parametrize("early_stopping", [{}, {"early_stopping": {"rule": "median"}}])
def test_an_objective_that_is_text_fails_its_trial_and_takes_no_table_away(
    sweep: Sweep, early_stopping: dict[str, Any]
) -> None:
    options = {**GRID, **early_stopping, "space": {"x": list(range(8))}}
    done = sweep.run(options, train="texts")
    text = "is text, and no number: return float(...) of it"
    reasons = {
        1: f"objective 'score': score = '0.9' {text}",
        2: f"objective 'score': score = 'nan' {text}",
        3: "objective 'score': score = None is no number",
        4: "TypeError: metric 'score' is a list, and no number",
        5: f"step 1: objective 'score': score = '0.9' {text}",
    }
    assert {row["trial"]: row["reason"] for row in sweep.records if "reason" in row} == reasons
    assert done.returned["score"] == 0.7
    shown = [record for record in done.records if record["event"] == "ResultsShown"][-1]
    assert [row["trial"] for row in shown["best"]] == [7, 6, 0]
    assert shown["unranked"] == {"failed": 5}
    table = {int(row["trial"]): row["state"] for row in sweep.rows}
    assert table == {**dict.fromkeys(range(8), "finished"), **reasons}
    scores = {int(row["trial"]): row["score"] for row in sweep.rows}
    assert scores == {0: "0.0", 1: "", 2: "", 3: "", 4: "", 5: "0.5", 6: "0.6", 7: "0.7"}
    report = (sweep.run_dir / "report.html").read_text()
    assert "score = '0.9' is text" in html.unescape(report)


def test_a_ledger_of_an_earlier_version_may_hold_text_as_an_objective(sweep: Sweep) -> None:
    options = {**GRID, "space": {"x": list(range(8))}}
    sweep.run(options, train="texts")
    ledger = ledger_path(sweep.run_dir, "group", "master", [])
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:  # as if text had been taken for a number, and NaN's had ended there
        if line.get("trial") in (1, 5):
            line["state"] = "finished"
            line["metrics"] = {"score": "0.9"}
            line.pop("reason", None)
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = sweep.run(options, train="texts")
    assert again.returned["score"] == 0.7
    reason = "objective 'score': score = '0.9' is text, and no number: return float(...) of it"
    assert [row["state"] for row in sweep.rows if row["trial"] in ("1", "5")] == [reason] * 2
    (watched,) = SweepReporter().watch_sweeps(sweep.run_dir)
    watched.catch_up()
    assert watched.summary()["failed"] == 5
    assert watched.summary()["best"]["trial"] == 7
    export(ledger, ["csv", "json"], sweep.folder)
    exported = json.loads(ledger.with_name("trials.json").read_text())
    assert {row["trial"]: row.get("score") for row in exported if row["trial"] in (0, 1, 5)} == {
        0: 0.0,
        1: None,
        5: None,
    }
    space, objective = Space.parse(options["space"]), Objective.parse("score", True)
    earlier = EarlierResults(str(ledger), sweep.folder, sweep.folder / "new", space, [objective])
    assert earlier.of({"x": 7})
    assert not earlier.of({"x": 1})


def test_a_trial_that_fails_after_an_odd_report_is_a_trial_that_fails(sweep: Sweep) -> None:
    with pytest.raises(SweepFailed):
        sweep.run({**GRID, "space": {"x": [0, 1]}}, train="odd_report")
    first, second = sorted(sweep.records, key=lambda record: record["trial"])
    assert first["reason"] == "TypeError: a step is a whole number, not 1.5"
    assert second["reason"] == "ValueError: as it does"
    assert second["metrics"] == {"score": 0.25}


def test_a_parameter_that_is_not_there_is_told_from_those_that_are(sweep: Sweep) -> None:
    options = {**GRID, "space": {"learning_rate": [1, 2, 3], "kind": 5}}
    done = sweep.run(options, train="misspelt")
    reasons = {record["trial"]: record.get("reason") for record in sweep.records}
    there = "there are learning_rate, kind"
    assert reasons == {
        0: "NoSuchParameter: 'lr' is no parameter of this trial "
        f"(did you mean 'learning_rate'?): {there}",
        1: f"NoSuchParameter: 'beta' is no parameter of this trial: {there}",
        2: None,
    }
    assert done.returned["score"] == 12


def test_the_trials_of_a_trainer_that_is_given_up_go_to_another(sweep: Sweep) -> None:
    """One trainer leaves in the middle of its lease; its claim goes back, as in a run."""
    left = threading.Event()

    def leaves(ctx: Any) -> None:
        claim = ctx.tuples.claim(Tags("group", "trainer").lease)
        left.set()
        claim.__exit__(CopyStopped, CopyStopped("this copy has failed"), None)

    def waits(ctx: Any) -> int:
        assert left.wait(20)
        return trainer.run(ctx)

    mine = trainer.Options.model_validate(
        {"train": "./mine.py:train"}, context={"folder": sweep.folder}
    )
    runs = run_modules(
        {
            "master": Module(
                master.run,
                master.Options.model_validate({"objective": "score", "maximise": True, **GRID}),
            ),
            "trainer": Module(waits, mine),
            "other": leaves,
        },
        folder=sweep.folder,
        run_dir=sweep.run_dir,
        timeout=30,
    )
    assert runs["trainer"][0].returned == 30
    assert sweep.tried == Counter(range(30))


def test_a_master_without_its_trainer_in_the_group_is_told(sweep: Sweep) -> None:
    options = master.Options.model_validate({"space": {"epochs": 1}})
    with pytest.raises(ModuleFailed, match=r"module 'trainer'.*to the modules of group 'group'"):
        run_modules({"master": Module(master.run, options)}, run_dir=sweep.run_dir)


def test_our_trainer_trains_what_it_takes(tmp_path: Path) -> None:
    """Our own networks on the real digits, if scikit-learn is here."""
    pytest.importorskip("sklearn")
    options = {"space": {"epochs": 1, "hidden": [[8], [9]], "learning_rate": [0.1, 0.2]}}
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options)),
            "trainer": Module(
                trainer.run, trainer.Options.model_validate({"dataset": "digits"}), copies=1
            ),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    records = list(records_of(ledger_path(tmp_path, "group", "master", (0,))))
    assert [tuple(record["metrics"]) for record in records] == [
        tuple(metrics_of_task("classification"))
    ] * 4
    assert runs["master"][0].returned["accuracy"] == max(
        record["metrics"]["accuracy"] for record in records
    )
