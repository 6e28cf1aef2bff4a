"""Sweeps that go on from their ledger, and those that end before all points are tried."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from unit.modules.sweeping import GRID, Sweep

from diel.testing import Module, TupleSpace, run_modules
from modules import master, trainer
from modules.options import SweepOptions
from modules.search import Search
from modules.sweep.ledger import LedgerError
from modules.sweep.master_loop import SweepFailed
from modules.sweep.messages import End, Lease, SweepOrder, Tags


def test_a_sweep_in_which_everything_failed_goes_on_once_its_function_is_mended(
    sweep: Sweep,
) -> None:
    space = {"x": {"from": 0, "to": 9999, "step": 1}}
    big = {"space": space, "strategy": "grid", "trials": 6000}
    with pytest.raises(SweepFailed):
        sweep.run(big, train="broken")
    assert {row["state"] for row in sweep.rows} == {"RuntimeError: always"}
    failed = len(sweep.records)
    sweep.run(big, train="leaves")
    assert len(sweep.records) == 6000
    assert sum(record["state"] == "failed" for record in sweep.records) == failed


def test_infinity_is_a_choice_that_a_resumed_sweep_knows(sweep: Sweep) -> None:
    options = {
        "space": {"x": [1, 2, float("inf")]},
        "strategy": {"name": "cross_entropy", "elite": 4},
        "trials": 40,
    }
    assert sweep.run(options, train="endless").returned["x"] == float("inf")
    sweep.cut_ledger(21)
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
    assert {record["parameters"]["day"] for record in sweep.records} == texts
    whole = {record["trial"]: record["parameters"] for record in sweep.records}
    sweep.cut_ledger(11)
    again = sweep.run(options, train="dated")  # which would fail with a text in place of a date
    assert again.returned["day"] == days[2]
    assert {record["state"] for record in sweep.records} == {"finished"}
    assert len(sweep.records) == 30
    assert {trial: whole[trial] for trial in range(12)} == {
        record["trial"]: record["parameters"] for record in sweep.records if record["trial"] < 12
    }


def test_what_is_recorded_is_not_run_again(sweep: Sweep) -> None:
    sweep.run(GRID)
    path = sweep.ledger
    lines = path.read_bytes().splitlines(keepends=True)
    whole = {record["trial"]: (record["parameters"], record["metrics"]) for record in sweep.records}
    path.write_bytes(b"".join(lines[:11]) + lines[11][:-9])  # ten trials and half of one
    before = sweep.tried
    left = {record["trial"] for record in sweep.records}
    assert len(left) == 10
    done = sweep.run(GRID)
    assert sweep.tried - before == Counter(set(range(30)) - left)
    again = {record["trial"]: (record["parameters"], record["metrics"]) for record in sweep.records}
    assert again == whole
    assert len(sweep.records) == len(sweep.rows) == 30
    assert done.returned["trial"] == 7
    # And once more, when nothing is left to do.
    before = sweep.tried
    assert sweep.run(GRID).returned["trial"] == 7
    assert sweep.tried == before


def test_a_ledger_of_half_a_line_is_one_that_has_not_begun(sweep: Sweep) -> None:
    """What a full disk, or a death in the middle of the first line, leaves."""
    path = sweep.ledger
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"format": 1, "sweep": {"spa')
    sweep.run(GRID)
    assert len(sweep.records) == 30


@pytest.mark.parametrize(
    "odd", [{}, {"score": None}, {"score": 10**400}, {"score": []}, {"score": "x"}, {"other": 1}]
)
def test_a_record_without_a_score_is_named_or_failed(sweep: Sweep, odd: dict[str, Any]) -> None:
    sweep.run(GRID)
    head, first, *rest = sweep.ledger.read_text().splitlines(keepends=True)
    record = {**json.loads(first), "metrics": odd}
    sweep.ledger.write_text("".join([head, json.dumps(record) + "\n", *rest]))
    if odd == {"score": 10**400}:  # which no version has written
        with pytest.raises(LedgerError, match=f"record of trial {record['trial']} does not fit"):
            sweep.run(GRID)
        return
    sweep.run(GRID)
    (row,) = [row for row in sweep.rows if row["trial"] == str(record["trial"])]
    assert row["state"].startswith("objective 'score': ")


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
    big = {"space": {"x": {"from": 0, "to": 99_999, "step": 1}}}
    sweep.run({**big, "until": {"time": 0.3}}, options={"seconds": 0.02})
    assert 1 <= len(sweep.records) < 1000


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
    whole = {record["trial"]: record["parameters"] for record in sweep.records}
    assert sorted(whole) == list(range(150))
    late = [abs(point["x"] - 7) for trial, point in whole.items() if trial >= 100]
    assert sum(late) / len(late) < 15  # it has learned
    sweep.cut_ledger(61)
    sweep.run(options, trainers=1)
    assert {record["trial"]: record["parameters"] for record in sweep.records} == whole
    assert len(sweep.records) == 150


def test_what_an_earlier_session_has_left_is_dropped(sweep: Sweep) -> None:
    """Leases, ends of earlier iterations, and claims that a dead trainer held."""
    with TupleSpace() as space:
        tuples = space.client()
        tags, order = Tags("group", "trainer"), SweepOrder("of a checkpoint", 0, None)
        points = [{"x": trial} for trial in range(3)]
        for tag, value in (
            (tags.sweep(order.session), replace(order, run_session="an earlier start")),
            (tags.lease, Lease(order.session, 1, 0, 3, points)),
            (tags.lease, Lease("old", 1, 0, 5)),
            (tags.lease, End((7,))),
        ):
            tuples.tput(tag, value, wait=True)
        # The trainers come first, and find them.
        mine = trainer.Options.model_validate(
            {"train": "./mine.py:train"}, context={"folder": sweep.folder}
        )
        waiting = threading.Event()

        def late_master(ctx: Any) -> Any:
            while tuples.count(tags.lease):
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
    assert sum(run.returned for run in runs["trainer"]) == 30
    assert sweep.tried == Counter(range(30))


def test_a_sweep_begins_with_the_results_of_an_earlier_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("earlier", "new", "half", "other")]
    for folder in folders:
        folder.mkdir()
    earlier, new, half, _ = map(Sweep, folders)
    grid = {"space": {"x": {"from": 0, "to": 9, "step": 1}}, "seed": 5}
    earlier.run(grid, options={"fails": 4})
    wider = {"space": {"x": {"from": 3, "to": 12, "step": 1}}, "seed": 6}
    warm = {**wider, "warm_start": "../earlier/run"}
    done = new.run(warm)
    records = {record["trial"]: record for record in new.records}
    assert {trial: record["parameters"]["x"] for trial, record in records.items()} == {
        trial: trial + 3 for trial in range(10)
    }
    # x = 4 had failed, and 10 to 12 are new.
    assert new.tried == Counter([1, 7, 8, 9])
    before = {record["parameters"]["x"]: record for record in earlier.records}
    for trial in set(range(7)) - {1}:
        then = before[trial + 3]
        assert records[trial]["metrics"] == then["metrics"]
        assert (records[trial]["seed"], records[trial]["warm_start"]) == (then["seed"], trial + 3)
    assert done.returned["x"] == 7
    assert len(new.rows) == 10
    # A session that goes on finds the same, though the earlier run has gone on since.
    ledger = (half.run_dir / "sweeps" / "group.master" / "trials.jsonl").parent
    ledger.mkdir(parents=True)
    for name in ("trials.jsonl", "warm-start.jsonl"):
        text = (new.ledger.parent / name).read_bytes().splitlines(keepends=True)
        (ledger / name).write_bytes(b"".join(text[:4] if name == "trials.jsonl" else text))
    (half.run_dir / "results.csv").touch()
    earlier.cut_ledger(1)
    half.run(warm)
    plain = ("trial", "parameters", "metrics", "seed", "state")
    found = [{name: record[name] for name in plain} for record in half.records]
    wanted = [{name: record[name] for name in plain} for record in new.records]
    assert sorted(found, key=lambda record: record["trial"]) == sorted(
        wanted, key=lambda record: record["trial"]
    )


def test_only_what_is_a_result_here_is_taken_over_and_the_copy_is_enough(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("earlier", "new")]
    for folder in folders:
        folder.mkdir()
    earlier, new = (Sweep(folder) for folder in folders)
    earlier.run({"space": {"x": [0, 1, 2, 3]}})
    lines = [json.loads(line) for line in earlier.ledger.read_text().splitlines()]
    for line in lines[1:]:
        metrics = {0: {"loss": 0.5}, 1: {"score": "nan"}, 2: {"score": 5.0, "diverged": True}}
        line["metrics"] = metrics.get(line["parameters"]["x"], line["metrics"])
    earlier.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = {"space": {"x": [0, 1, 2, 3]}, "warm_start": "../earlier/run"}
    done = new.run(wanted)
    taken = {record["parameters"]["x"] for record in new.records if "warm_start" in record}
    assert taken == {3}
    assert sorted(record["state"] for record in new.records) == ["finished"] * 4
    assert done.returned["x"] == 3
    # The run goes on when the earlier one is gone; a new run does not begin.
    new.cut_ledger(2)
    shutil.rmtree(earlier.run_dir)
    given = {**wanted, "objective": "score", "maximise": True}
    with pytest.raises(ValidationError, match="there is no"):
        master.Options.model_validate(given, context={"folder": new.folder})
    context = {"folder": new.folder, "run_dir": new.run_dir}
    assert master.Options.model_validate(given, context=context)
    assert new.run(wanted).returned["x"] == 3
    assert len(new.records) == 4


def test_a_warm_start_that_does_not_fit_is_refused_before_the_run(tmp_path: Path) -> None:
    earlier = Sweep(tmp_path)
    earlier.run({"space": {"x": [1, 2]}})
    for start, space, words in (
        ("gone", {"x": [1]}, "there is no .*gone"),
        ("mine.py", {"x": [1]}, "is no ledger of a sweep"),
        ("run/logs", {"x": [1]}, "there is no"),
        ("run:search.master", {"x": [1]}, 'write one of "run:group.master"'),
        ("run", {"y": [1]}, "is of another space: its parameters are x, those here y"),
    ):
        given = {"space": space, "objective": "score", "maximise": True, "warm_start": start}
        with pytest.raises(ValidationError, match=words):
            master.Options.model_validate(given, context={"folder": tmp_path})
    given = {"space": {"x": [1]}, "objective": "loss", "warm_start": "run"}
    with pytest.raises(ValidationError, match=r"no trial that is a result here; .* no 'loss'"):
        master.Options.model_validate(given, context={"folder": tmp_path})
    for start in ("run", "run:group.master", str(earlier.ledger)):
        given = {"space": {"x": [1]}, "objective": "score", "maximise": True, "warm_start": start}
        assert master.Options.model_validate(given, context={"folder": tmp_path})


def test_strategies_that_learn_are_told_earlier_results_first() -> None:
    space = {"x": {"from": 0, "to": 29, "step": 1}}
    strategy = {"name": "cross_entropy", "startup": 3, "elite": 3, "explore": 0.0}
    search = Search(SweepOptions(space=space, strategy=strategy, trials=300))  # type: ignore[arg-type]
    for x in (6, 7, 8):
        search.learn({"x": x}, {"accuracy": 1.0 - abs(x - 7) / 100})
    search.learn({"x": 25}, {"loss": 0.0})  # no result here
    assert search.best is None
    drawn = [search.ask(trial) for trial in range(50)]
    assert all(isinstance(point, dict) and 3 <= point["x"] <= 11 for point in drawn)
