"""``diel compare``: the sweeps of several runs in a table and one report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diel.cli.main import main
from diel.loading.sweeps import named_sweeps
from diel.run.directory import RunDirectory


def compare(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments])
    return ended.value.code


def make_run(folder: Path, name: str, best: float, **asked: object) -> Path:
    """Make up the directory of a run with a sweep."""
    workflow = folder / "study.toml"
    workflow.write_text('[workflow]\nname = "study"\n')
    run = RunDirectory.create(folder, name, workflow)
    ledger = run.path / "sweeps" / "search.master" / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    about = {"space": {"rate": [1, 2]}, "objective": ["accuracy"], "maximise": None, **asked}
    lines = [json.dumps({"format": 1, "sweep": about})]
    for trial, value in enumerate([0.5, best, 0.25]):
        record = {
            "trial": trial,
            "state": "finished",
            "parameters": {"rate": trial},
            "metrics": {"accuracy": value, "training_time_s": 1.0 + trial},
        }
        lines.append(json.dumps(record))
    ledger.write_text("\n".join([*lines, ""]))
    return run.path


def test_the_best_of_each_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make_run(tmp_path, "<i>one", 0.75), make_run(tmp_path, "two", 0.875)
    report = tmp_path / "both.html"
    assert compare(str(first), str(second), "--report", str(report)) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()] == [
        ["run", "trials", "accuracy", "trial", "rate"],
        [first.name, "3", "0.75", "1", "1"],
        [second.name, "3", "0.875", "1", "1"],
        [str(report)],
    ]
    text = report.read_text()
    assert "<i>" not in text
    assert text.count('class="line r') == 4  # of each a history and a front
    assert "1 of 0 to 2" in text
    assert len(text) < 60_000


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        run = RunDirectory(make_run(tmp_path / folder, "one", 0.75))
        sweeps = run.path / "sweeps"
        shutil.copytree(sweeps / "search.master", sweeps / "search.other")
        runs.append(RunDirectory(run.path.rename(tmp_path / folder / "run")))
    alone = RunDirectory(make_run(tmp_path, "alone", 0.5))
    found = named_sweeps([*runs, alone, alone, alone])
    again = tmp_path / "b" / "run"
    assert list(found) == [
        "run search.master", "run search.other", f"{again} search.master", f"{again} search.other",
        alone.path.name, str(alone.path), f"{alone.path} (2)",
    ]  # fmt: skip


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, "one", 0.75)
    other = make_run(tmp_path, "two", 0.5, maximise=[False])
    empty = RunDirectory.create(tmp_path, "three", tmp_path / "study.toml").path
    for runs, words in (
        ([run, other], "maximises accuracy, and"),
        ([run, empty], "holds no sweep"),
        ([run], "one sweep"),
        ([run, tmp_path / "nowhere"], "is no run's directory"),
    ):
        assert compare(*map(str, runs), "--report", str(tmp_path / "x.html")) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
    assert compare(str(run), str(run), "--report", str(tmp_path / "no" / "x.html")) == 2
    assert "cannot be written" in capsys.readouterr().err
