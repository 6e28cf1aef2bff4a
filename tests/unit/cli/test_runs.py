"""``diel runs``: the list, for people and for programs."""

from __future__ import annotations

import json
import re
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
        "part": "",
    }


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
