"""A sweep as its files have it while it goes on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from unit.modules.sweeping import GRID, Sweep

from diel.cli.main import main
from modules.reporter import SweepReporter
from modules.sweep.in_flight import (
    RunningCurve,
    forget_running_curves,
    read_running_curves,
)
from modules.sweep.ledger import LedgerError, LedgerReader, record_at
from modules.sweep.messages import Tags
from modules.trial import LearningCurve


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    sweep = Sweep(tmp_path_factory.mktemp("sweep"))
    sweep.run({**GRID}, train="steps", trainers=1)
    return sweep


def test_a_growing_ledger_gives_each_trial_once(done: Sweep, tmp_path: Path) -> None:
    lines = done.ledger.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "sweeps" / "group.master"
    folder.mkdir(parents=True)
    ledger = folder / "trials.jsonl"
    ledger.write_bytes(lines[0] + lines[1] + lines[2][:20])
    (watched,) = SweepReporter().watch_sweeps(tmp_path)
    assert watched.name == "group.master"
    assert watched.refresh()
    assert [row["trial"] for row in watched.rows()] == [0]
    assert not watched.refresh()
    with ledger.open("ab") as file:
        file.write(lines[2][20:] + b"no record\n" + b"".join(lines[3:]))
    assert watched.refresh()
    assert watched.complaint.endswith("line 4: no record of a trial, left out")
    summary = watched.summary()
    assert (summary["trials"], summary["expected"], summary["failed"]) == (30, 30, 0)
    assert (
        summary["best"]["trial"] == max(done.records, key=lambda r: r["metrics"]["score"])["trial"]
    )
    assert watched.columns()[:4] == ["trial", "state", "score", "x"]
    assert len(watched.rows(10)) == 20
    assert set(watched.figures()) >= {"history", "curves", "parallel", "timeline"}
    figures = {name: figure.plotly("dark") for name, figure in watched.figures().items()}
    json.dumps([watched.rows(), summary, figures], allow_nan=False)
    scores = {row["trial"]: row["score"] for row in watched.rows()}
    axis = figures["parallel"]["data"][0]["dimensions"][-1]
    assert axis["label"] == "score"
    middle = sorted(axis["values"])[len(axis["values"]) // 2]
    upper = watched.within({"score": (middle, 1.0), "no axis": (0.0, 0.1)})
    assert sorted(scores[one] for one in upper) == sorted(scores.values())[-len(upper) :]
    assert 0 < len(upper) < 30
    assert len(watched.within({"score": (0.0, 1.0)})) == 30
    ledger.write_bytes(lines[0])
    assert not watched.refresh()
    assert watched.complaint.endswith("was cut short")


def test_what_was_asked_for_meanwhile_is_expected(
    done: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.sweep.watched._AT_ONCE", 4)
    folder = tmp_path / "sweeps" / "group.master"
    folder.mkdir(parents=True)
    ledger = folder / "trials.jsonl"
    lines = done.ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines))
    (watched,) = SweepReporter().watch_sweeps(tmp_path)
    refresh = watched.refresh

    def growing() -> bool:  # while it is read
        with ledger.open("ab") as file:
            file.write(b"".join(lines[1:5]))
        return bool(refresh())

    monkeypatch.setattr(watched, "refresh", growing)
    watched.catch_up()
    assert watched.summary()["trials"] >= 30
    monkeypatch.undo()
    watched.catch_up()
    asked = [("trials", 50, True), ("enqueue", None, True), ("trials", 99, False)]
    with ledger.open("a") as file:
        for kind, number, accepted in asked:
            request = {"version": 1, "id": kind, "kind": kind, "number": number}
            record = {"request": request, "accepted": accepted, "answer": "so"}
            file.write(json.dumps(record) + "\n")
    assert watched.refresh()
    assert watched.summary()["expected"] == 51
    assert not watched.refresh()


def test_a_point_is_chosen_without_what_a_condition_switches_off(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "group.master"
    folder.mkdir(parents=True)
    space = {
        "kind": ["a", "b"],
        "rate": {"from": 0.0, "to": 1.0, "if": {"kind": "a"}},
        "deep": {"choices": [1, 2], "if": {"rate": {"at_least": 0.5}}},
        "same": 3,
    }
    about = {"space": space, "objective": ["accuracy"], "maximise": [True]}
    (folder / "trials.jsonl").write_text(json.dumps({"format": 1, "sweep": about}) + "\n")
    (watched,) = SweepReporter().watch_sweeps(tmp_path)
    assert watched.space == space
    chosen = {"kind": "b", "rate": 0.7, "deep": 1, "same": 3}
    assert watched.point_of(chosen) == ({"kind": "b", "same": 3}, {})
    # All that is wrong at once, and what depends on a wrong one is not judged.
    point, problems = watched.point_of({"kind": "a", "rate": "x", "deep": 1})
    assert point == {"kind": "a", "rate": "x"}
    assert problems == {"rate": "'x' is not between 0.0 and 1.0", "same": "is missing"}


def test_what_is_known_of_a_trial(done: Sweep) -> None:
    (watched,) = SweepReporter().watch_sweeps(done.run_dir)
    watched.refresh()
    record = next(record for record in done.records if record["trial"] == 7)
    told = watched.trial(7)
    assert told is not None
    assert told["parameters"] == {"x": 7, "kind": "k"}
    assert (told["seed"], told["state"]) == (record["seed"], "finished")
    assert told["command"] == f"diel sweep {done.run_dir} --repeat 7"
    assert told["figure"].plotly()["data"][0]["y"] == [7 * step for step in range(1, 10)]
    assert watched.trial(1000) is None
    assert told["files"] == []
    names = [
        f"logs/trainer.{record['trainer']}.0.log",
        f"sweeps/{watched.name}/trial-7.safetensors",
    ]
    for name in (*names, "logs/trainer.99.0.log", f"sweeps/{watched.name}/trial-71.safetensors"):
        (done.run_dir / name).parent.mkdir(exist_ok=True)
        (done.run_dir / name).touch()
    assert (watched.trial(7) or {})["files"] == names


def test_an_objective_of_the_users_is_read_from_the_table_and_not_called(done: Sweep) -> None:
    (folder,) = (done.run_dir / "sweeps").iterdir()
    about, *records = done.ledger.read_text().splitlines()
    asked = json.loads(about)
    text = "./mine.py:no_such_function"
    asked["sweep"] |= {"objective": [text], "maximise": True}
    other = done.folder / "other"
    (other / "sweeps" / folder.name).mkdir(parents=True)
    (other / "sweeps" / folder.name / "trials.jsonl").write_text(
        "\n".join([json.dumps(asked), *records[:2], ""])
    )
    (other / "results.csv").write_text(f"trial,{text}\n0,2.5\n1,nothing\n")
    (watched,) = SweepReporter().watch_sweeps(other)
    watched.refresh()
    assert watched.summary()["best"][text] == 2.5
    assert watched.summary()["diverged"] == 1


def test_a_folder_without_sweeps_or_with_damaged_ones_has_none(tmp_path: Path) -> None:
    assert SweepReporter().watch_sweeps(tmp_path) == []
    for number, text in enumerate(["", "x\n", '{"format": 1, "sweep": {"objective": 3}}\n']):
        (tmp_path / "sweeps" / f"g.{number}").mkdir(parents=True)
        (tmp_path / "sweeps" / f"g.{number}" / "trials.jsonl").write_text(text)
    assert SweepReporter().watch_sweeps(tmp_path) == []


def test_a_place_in_a_ledger_gives_its_record(done: Sweep) -> None:
    reader = LedgerReader(done.ledger)
    first = reader.new_records(most=3)
    assert len(first) == 3
    assert [record["trial"] for _, record in first + reader.new_records()] == [
        record["trial"] for record in done.records
    ]
    place, record = first[1]
    assert record_at(done.ledger, place) == record
    with pytest.raises(LedgerError, match="no record at byte 3"):
        record_at(done.ledger, 3)


def test_curves_of_running_trials_are_there_until_their_trainer_leaves(tmp_path: Path) -> None:
    now = [0.0]
    tags = Tags("g", "t")
    shown = RunningCurve(tmp_path, tags, 3, copies=500, clock=lambda: now[0])
    curve = LearningCurve()
    shown.begin(9, curve)
    curve.add(1, {"score": 0.5, "loss": math.nan})
    shown.write_if_due()
    assert read_running_curves(tmp_path, "g", "t") == {}  # a short trial writes nothing
    now[0] = 4.9
    shown.write_if_due()
    assert read_running_curves(tmp_path, "g", "t") == {}  # nor do 500 trainers each second
    now[0] = 5.0
    shown.write_if_due()
    assert read_running_curves(tmp_path, "g", "t") == {9: [(1, {"score": 0.5, "loss": "nan"})]}
    assert read_running_curves(tmp_path, "g", "t", recorded={9}) == {}
    curve.add(2, {"score": 0.75})
    now[0] = 10.0
    shown.write_if_due()
    assert [step for step, _ in read_running_curves(tmp_path, "g", "t")[9]] == [1, 2]
    (tmp_path / "sweeps" / "g.t.4.curve").write_text('{"trial": 8, "cur')
    (tmp_path / "sweeps" / "g.t.5.curve").write_text('{"trial": 8, "curve": [["a", 1]]}')
    assert set(read_running_curves(tmp_path, "g", "t")) == {9}
    shown.close()
    assert read_running_curves(tmp_path, "g", "t") == {}
    forget_running_curves(tmp_path, tags)
    assert list((tmp_path / "sweeps").iterdir()) == []


def test_a_trainer_shows_the_curve_of_a_long_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.sweep.in_flight._WRITE_CURVE_EVERY_S", 0.0)
    monkeypatch.setattr("modules.sweep.in_flight._CURVES_PER_S", math.inf)
    monkeypatch.setattr("modules.sweep.trainer_loop._SHOW_EVERY_S", 0.0)
    sweep = Sweep(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import pathlib\n"
        "def train(parameters, report):\n"
        "    for step in range(3):\n"
        "        report(step, score=step)\n"
        "    (there,) = pathlib.Path(report.folder, 'run', 'sweeps').glob('*.curve')\n"
        "    return {'score': there.read_text().count('score')}\n"
    )
    sweep.run({"space": {"x": [1, 2]}}, trainers=1)
    assert [record["metrics"] for record in sweep.records] == [{"score": 3}] * 2
    assert list((sweep.run_dir / "sweeps").glob("*.curve")) == []


SWEEP_FILE = """
[workflow]
name = "s"
[[module]]
name = "master"
function = "modules.master:run"
options = { objective = "score", maximise = true, seed = 5, space = { x = [1, 2, 3], kind = "k" } }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { train = "./mine.py:train" }
[[group]]
name = "group"
modules = ["master", "trainer"]
"""


def test_a_recorded_trial_is_tried_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(tmp_path)
    sweep.run({"space": {"x": [1, 2, 3], "kind": "k"}, "seed": 5})
    (sweep.run_dir / "logs").mkdir()
    (sweep.run_dir / "workflow.toml").write_text(SWEEP_FILE)
    (sweep.run_dir / "mine.py").write_text((tmp_path / "mine.py").read_text())
    (watched,) = SweepReporter().watch_sweeps(sweep.run_dir)
    watched.refresh()
    told = watched.trial(1)
    assert told is not None
    _, command, *arguments = told["command"].split()
    for given, code, words in (
        (arguments, 0, "score -5 -5\n"),
        ([arguments[0], "--repeat", "group.master:9"], 2, "no record of a trial 9"),
        ([arguments[0], "--repeat", "other:1"], 2, "several sweeps or none"),
        ([str(tmp_path / "mine.py"), "--repeat", "1"], 2, "no run's directory"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([command, *given])
        assert ended.value.code == code, given
        told_here = capsys.readouterr()
        assert words in re.sub(" +", " ", told_here.out + told_here.err)
    tried = (sweep.run_dir / "tried.txt").read_text()
    assert tried == f"1 {told['seed']} 1\n"  # with the seed that it had
    # One that was taken over has the seed of an earlier sweep.
    sweep.ledger.write_text(
        sweep.ledger.read_text().replace(f'"seed": {told["seed"]}', '"seed": 7')
    )
    with pytest.raises(SystemExit):
        main([command, *arguments])
    assert (sweep.run_dir / "tried.txt").read_text().splitlines()[-1] == "1 7 1"
