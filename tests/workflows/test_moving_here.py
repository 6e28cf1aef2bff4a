"""The pipelines of docs/moving-here.md: what they make, and that they make nothing twice."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pytest
from support import ROOT, WORKFLOWS, diel

PAGE = (ROOT / "docs" / "moving-here.md").read_text(encoding="utf-8")


def test_the_page_shows_the_files() -> None:
    shown = re.findall(r"^```toml (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [file for file, _ in shown] == ["workflows/greetings.toml", "workflows/scaling.toml"]
    for file, text in shown:
        assert text in (ROOT / file).read_text(encoding="utf-8")


def run(folder: Path, name: str, *arguments: str) -> str:
    finished = diel("run", name, *arguments, cwd=folder)
    assert finished.status == 0, finished.output
    return finished.stdout


def test_greetings_are_gathered_and_made_once(tmp_path: Path) -> None:
    for name in ("greetings.toml", "greetings.csv"):
        shutil.copy(WORKFLOWS / name, tmp_path)
    run(tmp_path, "greetings.toml")
    results = tmp_path / "results"
    gathered = (results / "COLLECTED-test-batch-output.txt").read_text()
    assert sorted(gathered.splitlines()) == ["BONJOUR", "GUTEN TAG", "HELLO", "HOLA"]
    assert (results / "Guten Tag-output.txt").read_text() == "Guten Tag\n"
    assert len(list(results.iterdir())) == 9
    with (tmp_path / "greetings.csv").open("a") as table:
        table.write("{copy} $HOME\n")  # no placeholder, and nothing for the shell
    printed = run(tmp_path, "greetings.toml", "--set", "batch=more")
    (current,) = re.findall(r"^up to date, and not run: (.*)", printed, re.MULTILINE)
    assert {*current.split(", ")} == {
        f"{name}-{i}.0" for name in ("say", "shout") for i in range(4)
    }
    assert (results / "UPPER-{copy} $HOME-output.txt").read_text() == "{COPY} $HOME\n"
    assert len((results / "COLLECTED-more-output.txt").read_text().splitlines()) == 5


@pytest.mark.thorough
def test_more_processes_are_measured_when_they_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("amdahl", reason="it is the program that is measured")
    for name in ("scaling.toml", "scaling.py"):
        shutil.copy(WORKFLOWS / name, tmp_path)
    run(tmp_path, "scaling.toml", "--set", "counts=[1]")
    (one,) = (tmp_path / "times" / "p_0.8").iterdir()
    before = one.read_bytes()
    run(tmp_path, "scaling.toml", "--set", "counts=[1, 2]")
    assert one.read_bytes() == before
    with (tmp_path / "times" / "p_0.8.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["processes"], row["law"]) for row in rows] == [("1", "1.0"), ("2", "1.667")]
