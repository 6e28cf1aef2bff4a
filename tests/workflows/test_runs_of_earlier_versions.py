"""Run directories that an earlier version wrote are read, and gone on with, by this one."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import diel, status_of

FIXTURES = Path(__file__).parents[1] / "fixtures" / "run_directories"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the study, as ``study.toml``, and the runs ``finished`` and ``killed``."""
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    shutil.copytree(FIXTURES / "study", tmp_path, dirs_exist_ok=True)
    for file in (tmp_path).glob("*/journal.jsonl"):
        file.write_text(file.read_text().replace("@FOLDER@", str(tmp_path)))
    return tmp_path


def command(*arguments: str) -> None:
    assert status_of(*arguments) == 0


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as table:
        return list(csv.DictReader(table))


def trials(run: Path) -> list[dict[str, Any]]:
    ledger = run / "sweeps" / "search.master" / "trials.jsonl"
    return [json.loads(line) for line in ledger.read_text().splitlines()[1:]]


def without_trainer(returned: Any) -> Any:
    """Return a value without which of the trainers was the one that found it."""
    if not isinstance(returned, dict):
        return returned
    return {name: value for name, value in returned.items() if name != "trainer"}


def outcome(run: Path) -> Any:
    """Return all that a run has found, without times and who did what."""
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    returned = {
        (record["group"], *record["iteration"], record["module"], record["copy"]): (
            without_trainer(record["returned"]),
            record.get("returned_file"),
        )
        for record in journal
        if record["event"] == "CopyFinished" and record["module"] != "trainer"
    }
    keys = ("trial", "state", "parameters", "metrics", "seed")
    return (
        returned,
        sorted(map(repr, rows(run / "results.csv"))),
        sorted(repr([trial[key] for key in keys]) for trial in trials(run)),
        sorted((row["trial"], row["score"], row["seed"]) for row in rows(run / "results-2.csv")),
    )


def test_they_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("runs", "--json", str(folder))
    runs = {Path(run["path"]).name: run for run in json.loads(capsys.readouterr().out)}
    assert {name: (run["state"], run["ranks"], run["workflow"]) for name, run in runs.items()} == {
        "finished": ("finished", 5, "study"),
        "killed": ("killed", 5, "study"),
    }
    assert all(run["reason"] == "" for run in runs.values())
    assert runs["finished"]["started_s"] == 1795329696.470436
    assert runs["finished"]["duration_s"] == pytest.approx(2.2072, abs=1e-3)


@pytest.mark.parametrize("run", ["finished", "killed"])
def test_they_are_watched(folder: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    command("watch", str(folder / run))
    shown = capsys.readouterr().out
    assert "group loop finished after 2 iterations" in shown
    assert "add: 4 results, best value 1.5" in shown
    assert re.search(rf"^study on 5 ranks, 2\.\d s.* {run}", shown, re.MULTILINE), shown


@pytest.mark.parametrize(("run", "groups"), [("finished", 5), ("killed", 4)])
def test_they_become_a_trace(folder: Path, run: str, groups: int) -> None:
    earlier = folder / run / "trace.json"
    expected = json.loads(earlier.read_text()) if earlier.exists() else None
    command("trace", str(folder / run))
    trace = json.loads(earlier.read_text())
    if expected is not None:
        assert trace == expected
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sum(event["cat"] == "group" for event in spans) == groups
    cut_short = {event["name"] for event in spans if event["args"].get("ended") == "cut short"}
    assert cut_short == ({"master.0", "trainer.0", "trainer.1"} if run == "killed" else set())


@pytest.mark.parametrize(("run", "count"), [("finished", 12), ("killed", 5)])
def test_a_report_is_made_of_them(folder: Path, run: str, count: int) -> None:
    command("report", str(folder / run))
    page = (folder / run / "report-2.html").read_text()
    assert f'<span class="what">trials</span><b>{count}</b>' in page


@pytest.mark.usefixtures("once")
def test_a_killed_one_goes_on_to_the_same_results(folder: Path) -> None:
    """From its ledger, its checkpoint of the tuple space, and its tables of results."""
    before = trials(folder / "killed")
    assert len(before) == 5
    resumed = diel("run", "--resume", "killed", cwd=folder)
    assert resumed.status == 0, resumed.output
    after = trials(folder / "killed")
    assert after[:5] == before
    assert Counter(trial["trial"] for trial in after) == Counter(range(12))
    assert outcome(folder / "killed") == outcome(folder / "finished")
    journal = (folder / "killed" / "journal.jsonl").read_text().splitlines()
    started = [json.loads(line) for line in journal if '"event": "GroupStarted"' in line]
    assert [record["group"] for record in started] == [
        *("first", "loop", "loop", "search"),
        *("search", "last"),
    ]


def test_a_finished_one_has_nothing_left_to_run(folder: Path) -> None:
    resumed = diel("run", "--resume", "finished", cwd=folder)
    assert resumed.status == 0
    assert "has finished: nothing is left to run" in resumed.output
