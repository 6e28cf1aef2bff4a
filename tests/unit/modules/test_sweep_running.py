"""A master and trainers that meet in one process: what is tried, recorded, told and shown."""

from __future__ import annotations

import csv
import gc
import threading
import time
import weakref
from collections import Counter
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diel.errors import CopyStopped, ModuleFailed
from diel.testing import Module, ModuleRun, TupleSpace, run_modules
from modules import master, trainer, training
from modules.sweep import results as recording
from modules.sweep.ledger import LedgerError, ledger_path, records_of
from modules.sweep.master_loop import SweepFailed
from modules.sweep.messages import End, Lease, Tags
from modules.trial import MOST_REPORTS, LearningCurve, trial_seed

MINE = """
import os, time
def train(parameters, report):
    with open(report.folder / "tried.txt", "a") as file:
        file.write(f"{report.trial} {report.seed} {report.attempt}\\n")
    x = parameters["x"]
    if report.options.get("fails") == x and report.attempt <= report.options.get("times", 99):
        raise ValueError(f"x is {x}")
    time.sleep(report.options.get("seconds", 0))
    return {"score": -abs(x - 7), "square": x * x}

def leaves(parameters, report):
    if parameters["x"] == 3:
        raise SystemExit(0)
    return {"score": parameters["x"]}

def broken(parameters, report):
    raise RuntimeError("always")

def steps(parameters, report):
    for step in range(1, 10):
        if not report(step, score=parameters["x"] * step):
            return {"score": parameters["x"] * step, "steps": step}
    return {"score": parameters["x"] * 9, "steps": 9}

def loses_numbers(parameters, report):
    return [
        {"score": 0.0}, {"score": float("nan")}, {"score": float("inf")}, {"other": 1.0},
        {"score": 9.0, "diverged": True}, {"diverged": True}, {"score": 6.0, "diverged": False},
        {"score": 7.0},
    ][parameters["x"]]

def clashes(parameters, report):
    return {"score": parameters["x"], "x": -1, "trial": -1, "splits": 5, "state": "odd"}

ODD = [
    {"score": 10**400}, {"score": 1.0, "other": 10**5000}, {"score": 1j}, {"score": None}, None,
    {"score": "many"}, {"score": 1.0, 7: 1.0}, {"score": 1.0, "splits": {"a": 1}},
]

def strange(parameters, report):
    return ODD[parameters["x"]] if parameters["x"] < len(ODD) else {"score": parameters["x"]}

def odd_report(parameters, report):
    if parameters["x"] == 0:
        report(1.5, score=1.0)
    report(1, score=0.25, odd=1j)
    raise ValueError("as it does")

def takes_apart(parameters, report):
    x = parameters.pop("x")
    parameters["kind"].append(x)
    parameters["more"] = 1
    return {"score": x, "kinds": len(parameters["kind"])}

def endless(parameters, report):
    assert isinstance(parameters["x"], (int, float)), parameters
    return {"score": float(parameters["x"] == float("inf"))}

def dated(parameters, report):
    return {"score": parameters["day"].toordinal()}

def many_steps(parameters, report):
    for step in range(1, report.options["steps"] + 1):
        report(step, score=parameters["x"] * step)
    return {"score": parameters["x"]}

def dies(parameters, report):
    report(1, score=0.5)
    if parameters["x"] == 2:
        report(2, score=0.75)
        os._exit(1)
    return {"score": 1.0}

def misspelt(parameters, report):
    if parameters["learning_rate"] == 1:
        return {"score": parameters["lr"]}
    if parameters["learning_rate"] == 2:
        return {"score": parameters.pop("beta")}
    return {"score": parameters.pop("beta", 3) + parameters.get("lr", 4) + parameters.pop("kind")}
"""


class Sweep:
    """A folder with a trainer's file and a run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mine.py").write_text(MINE)
        self.run_dir = folder / "run"
        self.run_dir.mkdir()

    def run(
        self, wanted: dict[str, Any], *, trainers: int = 2, train: str = "train", **trained: Any
    ) -> ModuleRun:
        """Run it; return what the master did."""
        mine = trainer.Options.model_validate(
            {"train": f"./mine.py:{train}", **trained}, context={"folder": self.folder}
        )
        given = {"objective": "score", "maximise": True, **wanted}
        runs = run_modules(
            {
                "master": Module(
                    master.run,
                    master.Options.model_validate(given, context={"folder": self.folder}),
                ),
                "trainer": Module(trainer.run, mine, copies=trainers),
            },
            folder=self.folder,
            run_dir=self.run_dir,
            timeout=30,
        )
        (done,) = runs["master"]
        assert done.tuples == []  # nothing is left over
        return done

    @property
    def records(self) -> list[dict[str, Any]]:
        return list(records_of(ledger_path(self.run_dir, "group", "master", (0,))))

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.run_dir / "results.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def tried(self) -> Counter[int]:
        text = (self.folder / "tried.txt").read_text()
        return Counter(int(line.split()[0]) for line in text.splitlines())


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


GRID = {"space": {"x": {"from": 0, "to": 29, "step": 1}, "kind": "k"}, "seed": 5}


@pytest.mark.parametrize("trainers", [1, 3])
def test_every_point_is_tried_and_recorded_once(sweep: Sweep, trainers: int) -> None:
    done = sweep.run(GRID, trainers=trainers)
    assert sweep.tried == Counter(range(30))
    records = sorted(sweep.records, key=lambda one: one["trial"])
    assert [one["trial"] for one in records] == list(range(30))
    for trial, record in enumerate(records):
        assert record["parameters"] == {"x": trial, "kind": "k"}
        assert record["seed"] == trial_seed(5, trial)
        assert record["state"] == "finished"
        assert 0 <= record["seconds"] < 10
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
        one = Sweep(folder)
        one.run(
            {
                "space": {"x": {"from": 0.0, "to": 9.0}},
                "strategy": "random",
                "trials": 40,
                "seed": 3,
            },
            trainers=trainers,
        )
        keys = ("trial", "parameters", "metrics", "seed", "state")
        rows = sorted((one["trial"], [one[key] for key in keys]) for one in one.records)
        tables.append(rows)
    assert len(tables[0]) == 40
    assert tables[0] == tables[1] == tables[2]


def test_a_trial_that_fails_is_marked_and_the_sweep_goes_on(sweep: Sweep) -> None:
    done = sweep.run(GRID, options={"fails": 12})
    (failed,) = [one for one in sweep.records if one["state"] == "failed"]
    assert (failed["trial"], failed["reason"]) == (12, "ValueError: x is 12")
    assert len(sweep.records) == 30
    assert {row["trial"]: row["state"] for row in sweep.rows}["12"] == "ValueError: x is 12"
    assert any("1 of 30 trials failed" in text for text in done.warnings)
    assert sweep.tried == Counter(range(30))


def test_a_script_that_exits_fails_its_trial_and_not_its_trainer(sweep: Sweep) -> None:
    done = sweep.run(GRID, train="leaves")
    states = {one["trial"]: one for one in sweep.records}
    assert len(states) == 30
    assert {trial for trial, one in states.items() if one["state"] == "failed"} == {3}
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


def test_a_sweep_in_which_everything_failed_goes_on_once_its_function_is_mended(
    sweep: Sweep,
) -> None:
    big = {"space": {"x": {"from": 0, "to": 9999, "step": 1}}, "trials": 6000}
    with pytest.raises(SweepFailed):
        sweep.run(big, train="broken")
    assert {row["state"] for row in sweep.rows} == {"RuntimeError: always"}
    failed = len(sweep.records)
    sweep.run(big, train="leaves")
    assert len(sweep.records) == 6000
    assert sum(one["state"] == "failed" for one in sweep.records) == failed


def test_metrics_without_the_objective_are_a_failure_and_lost_numbers_diverge(
    sweep: Sweep,
) -> None:
    done = sweep.run({"space": {"x": {"from": 0, "to": 7, "step": 1}}}, train="loses_numbers")
    states = {one["trial"]: (one["state"], one.get("reason")) for one in sweep.records}
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
    (shown,) = [one for one in done.records if one["event"] == "ResultsShown" and one["count"] == 8]
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


def curves_of(file: Path) -> int:
    """Count the learning curves that a report draws."""
    _, _, section = file.read_text().partition('<section id="curves"')
    return section.partition("</section>")[0].count("<polyline")


def test_learning_curves_are_kept_drawn_and_survive_a_resume(sweep: Sweep) -> None:
    options = {"space": {"x": {"from": 1, "to": 12, "step": 1}}}
    sweep.run(options, train="steps")
    for record in sweep.records:
        x = record["parameters"]["x"]
        assert record["reports"] == [[step, {"score": x * step}] for step in range(1, 10)]
    report = sweep.run_dir / "report.html"
    assert curves_of(report) == 10  # those of the best
    assert "learning curve" not in (sweep.run_dir / "results.csv").read_text()
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:9]))
    done = sweep.run(options, train="steps")
    assert all(len(record["reports"]) == 9 for record in sweep.records)
    assert curves_of(report) == 10
    assert all("learning curve" not in row for row in done.records[-1].get("best", ()))


def test_learning_curves_are_bounded_in_each_trial_and_in_all(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_CURVES", 30)
    options = {"space": {"x": {"from": 1, "to": 100, "step": 1}}, "order": "shuffled"}
    sweep.run(options, train="many_steps", options={"steps": 1000})
    kept = [record for record in sweep.records if "reports" in record]
    assert all("reports" in record for record in sweep.records[:30])
    best = {record["trial"] for record in sorted(sweep.records, key=_score)[-20:]}
    assert best <= {record["trial"] for record in kept}
    assert len(kept) < 90
    for record in kept:
        steps = [step for step, _ in record["reports"]]
        assert len(steps) <= MOST_REPORTS
        assert (steps[0], steps[-1]) == (1, 1000)
        assert len({later - step for step, later in pairwise(steps[:-1])}) == 1


def _score(record: dict[str, Any]) -> float:
    return float(record["metrics"]["score"])


@pytest.mark.parametrize("reports", [0, 1, 2, 63, 64, 65, 127, 128, 1000, 12345])
def test_a_learning_curve_keeps_some_points_and_the_last(reports: int) -> None:
    curve = LearningCurve()
    for step in range(reports):
        curve.add(step, {"score": step})
        curve.add(step, {"score": -step})  # said again: the later one counts
    points = curve.points
    assert curve.points == points
    assert len(points) == reports if reports < MOST_REPORTS else 32 <= len(points) <= MOST_REPORTS
    assert points == [(step, {"score": -step}) for step, _ in points]
    steps = [step for step, _ in points]
    assert steps == sorted(set(steps))
    if reports:
        assert (steps[0], steps[-1]) == (0, reports - 1)


def test_a_learning_curve_holds_numbers_and_nothing_that_they_come_from() -> None:
    class Tensor:
        size = 1

        def item(self) -> float:
            return 0.5

    given = [Tensor() for _ in range(1000)]
    alive = [weakref.ref(one) for one in given]
    curve = LearningCurve()
    for step, one in enumerate(given):
        curve.add(step, {"loss": one, "odd": object()})
    del given, one
    gc.collect()
    assert sum(one() is not None for one in alive) == 1  # the last one
    assert {str(metrics) for _, metrics in curve.points} == {"{'loss': 0.5}"}


def test_a_trial_that_dies_leaves_its_learning_curve(sweep: Sweep) -> None:
    options = {"space": {"x": [1, 2]}}
    sweep.run(options, trainers=1, train="dies", isolated=True)
    first, second = sorted(sweep.records, key=lambda one: one["trial"])
    assert (first["state"], second["state"]) == ("finished", "failed")
    assert first["reports"] == [[1, {"score": 0.5}]]
    assert second["reports"] == [[1, {"score": 0.5}], [2, {"score": 0.75}]]


def test_a_metric_that_is_called_like_a_parameter_takes_no_place(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": [4, 9]}}, train="clashes")
    assert sorted((row["trial"], row["x"], row["score"]) for row in sweep.rows) == [
        ("0", "4", "4"),
        ("1", "9", "9"),
    ]
    assert {row["state"] for row in sweep.rows} == {"finished"}
    assert (done.returned["trial"], done.returned["x"]) == (1, 9)
    assert all(
        one["metrics"]["x"] == -1 for one in sweep.records
    )  # and in the ledger nothing is lost


def test_parameters_are_recorded_as_they_were_given(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": [4, 9, 2], "kind": [[1, 2]]}}, train="takes_apart")
    assert sorted((one["trial"], one["parameters"]["x"]) for one in sweep.records) == [
        (0, 4),
        (1, 9),
        (2, 2),
    ]
    assert all(one["parameters"]["kind"] == [1, 2] for one in sweep.records)
    assert {row["kinds"] for row in sweep.rows} == {"3"}  # no trial saw another's
    assert (done.returned["x"], done.returned["score"]) == (9, 9)


def test_no_metrics_however_strange_end_a_sweep(sweep: Sweep) -> None:
    done = sweep.run({**GRID, "space": {"x": list(range(10))}}, train="strange")
    states = [one["state"] for one in sorted(sweep.records, key=lambda one: one["trial"])]
    assert states == ["failed"] * 8 + ["finished"] * 2
    reasons = {one["parameters"]["x"]: one["reason"] for one in sweep.records if "reason" in one}
    assert reasons[0] == "TypeError: metric 'score' is too large a number"
    assert reasons[1] == "TypeError: metric 'other' is too large a number"
    assert reasons[7] == "TypeError: metric 'splits' is a dict, and no number"
    assert done.returned["x"] == 9


def test_a_trial_that_fails_after_an_odd_report_is_a_trial_that_fails(sweep: Sweep) -> None:
    with pytest.raises(SweepFailed):
        sweep.run({**GRID, "space": {"x": [0, 1]}}, train="odd_report")
    first, second = sorted(sweep.records, key=lambda one: one["trial"])
    assert first["reason"] == "TypeError: a step is a whole number, not 1.5"
    assert second["reason"] == "ValueError: as it does"
    assert second["metrics"] == {"score": 0.25}


def test_infinity_is_a_choice_that_a_resumed_sweep_knows(sweep: Sweep) -> None:
    options = {
        "space": {"x": [1, 2, float("inf")]},
        "strategy": {"name": "cross_entropy", "elite": 4},
        "trials": 40,
    }
    assert sweep.run(options, train="endless").returned["x"] == float("inf")
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:21]))
    assert sweep.run(options, train="endless").returned["x"] == float("inf")
    assert len(sweep.records) == 40


def test_a_date_is_a_choice_that_a_resumed_sweep_knows(sweep: Sweep) -> None:
    days = [date(2026, 11, 22), date(1979, 5, 27), datetime(2026, 12, 1, 7, 32, tzinfo=None)]
    options = {
        "space": {"day": days},
        "strategy": {"name": "cross_entropy", "elite": 4},
        "trials": 30,
    }
    assert sweep.run(options, train="dated").returned["day"] == days[2]
    texts = {"2026-11-22", "1979-05-27", "2026-12-01T07:32:00"}
    assert {one["parameters"]["day"] for one in sweep.records} == texts
    whole = {one["trial"]: one["parameters"] for one in sweep.records}
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:11]))
    again = sweep.run(options, train="dated")  # which would fail with a text in place of a date
    assert again.returned["day"] == days[2]
    assert {one["state"] for one in sweep.records} == {"finished"}
    assert len(sweep.records) == 30
    assert {trial: whole[trial] for trial in range(12)} == {
        one["trial"]: one["parameters"] for one in sweep.records if one["trial"] < 12
    }


def test_a_parameter_that_is_not_there_is_told_from_those_that_are(sweep: Sweep) -> None:
    options = {**GRID, "space": {"learning_rate": [1, 2, 3], "kind": 5}}
    done = sweep.run(options, train="misspelt")
    reasons = {one["trial"]: one.get("reason") for one in sweep.records}
    there = "there are learning_rate, kind"
    assert reasons == {
        0: "NoSuchParameter: 'lr' is no parameter of this trial "
        f"(did you mean 'learning_rate'?): {there}",
        1: f"NoSuchParameter: 'beta' is no parameter of this trial: {there}",
        2: None,
    }
    assert done.returned["score"] == 12


def test_what_is_recorded_is_not_run_again(sweep: Sweep) -> None:
    sweep.run(GRID)
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    lines = path.read_bytes().splitlines(keepends=True)
    whole = {one["trial"]: (one["parameters"], one["metrics"]) for one in sweep.records}
    path.write_bytes(b"".join(lines[:11]) + lines[11][:-9])  # ten trials and half of one
    before = sweep.tried
    left = {one["trial"] for one in sweep.records}
    assert len(left) == 10
    done = sweep.run(GRID)
    assert sweep.tried - before == Counter(set(range(30)) - left)
    again = {one["trial"]: (one["parameters"], one["metrics"]) for one in sweep.records}
    assert again == whole
    assert len(sweep.records) == len(sweep.rows) == 30
    assert done.returned["trial"] == 7
    # And once more, when nothing is left to do.
    before = sweep.tried
    assert sweep.run(GRID).returned["trial"] == 7
    assert sweep.tried == before


def test_a_ledger_of_half_a_line_is_one_that_has_not_begun(sweep: Sweep) -> None:
    """What a full disk, or a death in the middle of the first line, leaves."""
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"format": 1, "sweep": {"spa')
    sweep.run(GRID)
    assert len(sweep.records) == 30


def test_another_sweep_does_not_go_on_from_this_one(sweep: Sweep) -> None:
    sweep.run(GRID)
    with pytest.raises(LedgerError, match="another sweep"):
        sweep.run({**GRID, "seed": 6})


def test_no_trial_begins_once_one_is_good_enough(sweep: Sweep) -> None:
    big = {"space": {"x": {"from": 0, "to": 99_999, "step": 1}}}
    done = sweep.run({**big, "until": {"objective": 0.0}})
    assert done.returned["trial"] == 7
    assert 8 <= len(sweep.records) < 50_000
    before = len(sweep.records)
    sweep.run({**big, "until": {"objective": 0.0}})  # what goes on has reached it already
    assert len(sweep.records) == before


def test_no_trial_begins_after_the_time(sweep: Sweep) -> None:
    started_s = time.monotonic()
    big = {"space": {"x": {"from": 0, "to": 99_999, "step": 1}}}
    sweep.run({**big, "until": {"time": 0.3}}, options={"seconds": 0.02})
    assert time.monotonic() - started_s < 10
    assert 4 <= len(sweep.records) < 1000


def test_trials_are_stopped_early_by_what_they_report(sweep: Sweep) -> None:
    options = {
        "space": {"x": {"from": 1, "to": 40, "step": 1}},
        "order": "shuffled",
        "strategy": {"name": "grid"},
        "early_stopping": {"rule": "halving", "min_steps": 1, "reduction": 3},
    }
    done = sweep.run(options, train="steps")
    states = Counter(one["state"] for one in sweep.records)
    assert states["stopped"] > 10
    assert states["stopped"] + states["finished"] == 40
    for record in sweep.records:
        assert len(record["reports"]) == record["metrics"]["steps"]
        assert record["metrics"]["steps"] in ((1, 3, 9) if record["state"] == "stopped" else (9,))
    assert done.returned["x"] >= 35


def test_a_strategy_that_learns_is_told_and_goes_on(sweep: Sweep) -> None:
    options = {
        "space": {"x": {"from": 0.0, "to": 100.0}},
        "strategy": {"name": "cross_entropy"},
        "trials": 150,
        "deterministic": True,
        "lag": 8,
        "seed": 1,
    }
    sweep.run(options, trainers=3)
    whole = {one["trial"]: one["parameters"] for one in sweep.records}
    assert sorted(whole) == list(range(150))
    late = [abs(point["x"] - 7) for trial, point in whole.items() if trial >= 100]
    assert sum(late) / len(late) < 15  # it has learned
    path = ledger_path(sweep.run_dir, "group", "master", (0,))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:61]))
    sweep.run(options, trainers=1)
    assert {one["trial"]: one["parameters"] for one in sweep.records} == whole
    assert len(sweep.records) == 150


def test_what_an_earlier_life_has_left_is_dropped(sweep: Sweep) -> None:
    """Leases, ends of earlier iterations, and claims that a dead trainer held."""
    with TupleSpace() as space:
        tuples = space.client()
        for tag, value in (
            (Tags("group", "trainer").lease, Lease("old", 1, 0, 5)),
            (Tags("group", "trainer").lease, End((7,))),
        ):
            tuples.tput(tag, value, wait=True)
        # The trainers come first, and find them.
        mine = trainer.Options.model_validate(
            {"train": "./mine.py:train"}, context={"folder": sweep.folder}
        )
        waiting = threading.Event()

        def late_master(ctx: Any) -> Any:
            while tuples.count(Tags("group", "trainer").lease):
                time.sleep(0.01)
            waiting.set()
            return master.run(ctx)

        runs = run_modules(
            {
                "master": Module(
                    late_master,
                    master.Options.model_validate({"objective": "score", "maximise": True, **GRID}),
                ),
                "trainer": Module(trainer.run, mine, copies=2),
            },
            space=space,
            folder=sweep.folder,
            run_dir=sweep.run_dir,
            timeout=30,
        )
    assert waiting.is_set()
    assert sum(one.returned for one in runs["trainer"]) == 30
    assert sweep.tried == Counter(range(30))


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
    assert [tuple(one["metrics"]) for one in records] == [tuple(training.METRICS)] * 4
    assert runs["master"][0].returned["accuracy"] == max(
        one["metrics"]["accuracy"] for one in records
    )
