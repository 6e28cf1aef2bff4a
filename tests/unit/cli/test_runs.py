"""``diel runs``: the list, for people and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import status_of

from diel.text import format_duration

STARTED = (
    '{"time_s": 1000.0, "event": "RunStarted", "workflow": "study", "ranks": 4, "groups": []}\n'
)
FAILED = (
    '{"time_s": 1001.0, "event": "ModuleFailed", "module": "m", "copy": 0, '
    f'"error": "E: {"long " * 40}[red]"}}\n'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(*arguments: str) -> object:
    return status_of("runs", *arguments)


def make(place: Path, text: str) -> None:
    place.mkdir(parents=True)
    (place / "journal.jsonl").write_text(text)


def test_the_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = '{"time_s": 1075.0, "event": "RunEnded", "exit_code": %d}\n'
    make(folder / "runs" / "old", STARTED + end % 0)
    make(folder / "runs" / "new", STARTED.replace("1000", "1001") + FAILED + end % 1)
    assert runs() == 0
    head, new, old = capsys.readouterr().out.splitlines()
    assert head.split() == ["started", "took", "ranks", "state", "run"]
    assert re.fullmatch(
        r"\S+ \S+  1 min 14 s  4      failed    runs/new  m\.0: E: long .*\.\.\.", new
    )
    assert re.fullmatch(r"\S+ \S+  1 min 15 s  4      finished  runs/old", old)
    assert len(new) < 180


def test_the_list_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(folder / "here" / "a", STARTED + FAILED)
    assert runs("here", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one == {
        "path": str(folder / "here" / "a"),
        "workflow": "study",
        "state": "killed",
        "started_s": 1000.0,
        "duration_s": 1.0,
        "ranks": 4,
        "reason": f"m.0: E: {'long ' * 40}[red]",
        "parameters": {},
        "versions": {"mpi": "MPI"},
        "scores": [],
        "part": "",
    }


DECLARED = {
    "event": "ResultsDeclared", "module": "m", "columns": ["x", "loss"], "objective": "loss",
    "maximise": False, "expected": None,
}  # fmt: skip


def make_study(folder: Path, name: str, dt: float, losses: Sequence[float] = ()) -> None:
    """Make a run of a file with parameters, that has rows of results."""
    given = [f"dt={dt}", "module.m.options.cells=8"]
    added = [{"event": "ResultAdded", "module": "m", "row": {"x": 1, "loss": x}} for x in losses]
    records = [
        {"event": "RunCreated", "file": "w.toml", "given": given},
        {**json.loads(STARTED), "time_s": 1000.0 + dt, "parameters": {"dt": dt, "seed": 1}},
        *([DECLARED, *added] if losses else []),
        {"time_s": 1010.0 + dt, "event": "RunEnded", "exit_code": 0 if losses else 1},
    ]
    text = "".join(json.dumps({"time_s": 1000.0 + dt, **record}) + "\n" for record in records)
    make(folder / name, text)
    (folder / name / "workflow.toml").write_text(f'[workflow]\nname = "{name}"\n')


def test_scores_and_parameters_are_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(folder / "runs", "a", 0.25, [3.0, 0.5, 2.0])
    make_study(folder / "runs", "b", 0.5)
    assert runs() == 0
    head, b, a = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    assert head[4:] == ["run", "best loss", "dt", "parameters"]
    assert a[4:] == ["runs/a", "0.5", "0.25", "seed=1 module.m.options.cells=8"]
    assert b[3:6] == ["failed", "runs/b", "0.5"]
    assert runs("--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[1]["scores"] == [
        {"module": "m", "objective": "loss", "maximise": False, "best": 0.5}
    ]
    assert rows[1]["parameters"] == {"dt": 0.25, "seed": 1, "module.m.options.cells": 8}


def test_a_condition_chooses_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(folder / "runs", "a", 0.25, [3.0, 0.5, 2.0])
    make_study(folder / "runs", "b", 0.5)
    assert runs("--where", "dt < 0.4 and state == 'finished'", "--json") == 0
    assert [row["path"][-1] for row in json.loads(capsys.readouterr().out)] == ["a"]
    assert runs("--where", "dt > 7") == 0
    assert capsys.readouterr().out == "none of 2 runs in runs fits: dt > 7\n"
    assert runs("--where", "dtt < 0.4") == 2
    said = capsys.readouterr().err
    assert said == 'diel: no run has dtt (did you mean "dt"?; a text stands in quotes)\n'


def test_what_differs_between_two_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(folder / "runs", "a", 0.25, [3.0, 0.5, 2.0])
    make_study(folder / "runs", "b", 0.5)
    assert status_of("diff", "runs/a", "runs/b") == 0
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["", "key", "runs/a", "runs/b"],
        ["file", "workflow.name", '"a"', '"b"'],
        ["parameters", "dt", "0.25", "0.5"],
        ["outcome", "state", "finished", "failed"],
        ["outcome", "best loss", "0.5", "-"],
    ]
    assert status_of("diff", "runs", "runs/a", "--json") == 0  # the newest is b
    assert json.loads(capsys.readouterr().out)[1] == {
        "part": "parameters", "key": "dt", "first": 0.5, "second": 0.25,
    }  # fmt: skip
    assert status_of("diff", "runs/a", "runs/a") == 0
    assert capsys.readouterr().out == "runs/a and runs/a differ in nothing\n"
    (folder / "runs" / "b" / "workflow.toml").write_text("[no")
    assert status_of("diff", "runs/a", "runs/b") == 2
    assert "is not TOML" in capsys.readouterr().err
    (folder / "runs" / "b" / "workflow.toml").unlink()
    assert status_of("diff", "runs/a", "runs/b") == 2
    assert "workflow.toml cannot be read" in capsys.readouterr().err
    assert status_of("diff", "runs/a", "gone") == 2


def test_where_nothing_has_run_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs() == 0
    assert "no runs in runs" in capsys.readouterr().out
    assert runs("--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    (folder / "runs").mkdir()
    assert runs() == 0


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert runs("gone") == 2
    assert "diel: gone cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.04, "40 ms"),
        (0.0996, "0.1 s"),
        (3.2, "3.2 s"),
        (59.94, "59.9 s"),
        (60, "1 min"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (100000, "1 d 3 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
