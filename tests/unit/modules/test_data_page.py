"""The snippets of docs/data.md do what the text says, and its tables are complete."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from support import ROOT, WORKFLOWS, status_of

from dnn import reading_options
from dnn.data.column_kinds import KINDS
from modules.evaluation import SPLIT_COLUMNS
from modules.trainer import Options
from modules.trial import Trial

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [source for of, source in BLOCKS if of == kind]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(WORKFLOWS / "penguins.csv", tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", blocks("toml"))
def test_the_options_of_a_trainer_are_valid(source: str, folder: Path) -> None:
    given = tomllib.loads(source)["module"]["options"]
    options = Options.model_validate(given, context={"folder": folder})
    task = options.task(folder)
    metrics = task.load()({"hidden": [8], "epochs": 5}, task.report(Trial(0, {}, 1)))
    assert metrics["accuracy"] > 0.6


def test_the_program_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    (program,) = blocks("python")
    exec(compile(program, "data.md", "exec"), {"__name__": "page"})
    new, predicted = blocks("text")[1:]
    (folder / "new.csv").write_text(new)
    assert status_of("predict", "penguins.safetensors", "new.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == predicted.splitlines()[0]
    shown = [line.split(",")[:2] for line in predicted.splitlines()]
    assert [line.split(",")[:2] for line in lines] == shown


def test_the_first_rows_are_those_of_the_file() -> None:
    rows = blocks("text")[0].splitlines()
    assert {*rows} <= {*(WORKFLOWS / "penguins.csv").read_text().splitlines()}


def test_the_page_has_all_words() -> None:
    names = set(re.findall(r"`(\w+)`|`(\w+) = |, or `(\w+)`", TEXT))
    words = {word for groups in names for word in groups}
    assert {*reading_options("table")} - {"beside"} <= words
    assert SPLIT_COLUMNS.keys() <= words
    table = TEXT.partition("| its cells |")[2].partition("\n\n")[0]
    kinds = [line.split("|")[2].strip() for line in table.splitlines()[2:]]
    assert sorted(kinds) == sorted(KINDS)
