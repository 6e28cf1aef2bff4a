"""Sweeps that are started from a script and from a notebook: `diel.sweep`."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, execute

import diel
from diel.errors import SweepCallError

SCRIPT = """
import diel

def train(parameters, report):
    report(1, score=0.0)
    return {"score": -((parameters["rate"] - 0.3) ** 2)}

if __name__ == "__main__":
    space = {"rate": [0.1, 0.3, 0.5], "kind": ["a", "b"]}
    run = diel.sweep(train, space, objective="score", maximise=True, ranks=4, name="mine")
    assert run.state == "finished", run
    assert run.best["rate"] == 0.3
    assert [row["kind"] for row in run.trials(as_="rows")] == ["a", "b"] * 3
    print(run.path)
    try:
        diel.sweep(train, {"rate": {"from": 1}}, objective="score", name="wrong")
    except diel.SweepCallError as error:
        print(error)
"""
UNGUARDED = """
import diel

def train(parameters, report):
    return {"score": 1}

diel.sweep(train, {"rate": [1]})
"""


@pytest.mark.usefixtures("once")
def test_a_script_sweeps_its_function(tmp_path: Path) -> None:
    text = SCRIPT.replace("diel.SweepCallError", "ValueError")
    (tmp_path / "mine.py").write_text(text)
    done = execute([sys.executable, "mine.py"], cwd=tmp_path)
    assert done.status == 0, done.output
    path, *problem = done.stdout.splitlines()
    assert "module[0].options.space.rate: { from } is no range" in "\n".join(problem)
    file = tmp_path / "sweeps" / "mine.toml"
    assert file.read_text() == (Path(path) / "workflow.toml").read_text()
    diel.load_workflow(file)
    (tmp_path / "open.py").write_text(UNGUARDED)
    done = execute([sys.executable, "open.py"], cwd=tmp_path)
    assert done.status == 1
    assert "open.py, line 7: ranks import this file" in done.stderr
    assert "SweepCallError" in done.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "sweep.ipynb").read_text())
    names: dict[str, Any] = {"__name__": "__notebook__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            source, place = "".join(cell["source"]), f"<cell {number}>"
            linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
            exec(compile(source, place, "exec"), names)
    run = names["run"]
    assert run.state == "finished"
    assert (run.path / "train.py").read_text() == (tmp_path / "sweeps" / "train.py").read_text()
    study, model = names["study"], names["model"]
    assert model.provenance["trial"] == study.best["trial"]
    assert model.evaluate("new.csv")["accuracy"] > 0.85
    text = (tmp_path / "sweeps" / "patients.toml").read_text()
    assert f'path = "{tmp_path / "patients.csv"}"' in text
    names.clear()  # else its functions and runs are garbage in a circle


@pytest.mark.parametrize(
    ("train", "more", "words"),
    [
        (3, {}, "train is a function or its place, not 3"),
        (lambda parameters: {}, {}, "which it does not take"),
        ("./mine.py:train", {"until": {"time": object()}}, "cannot stand in a workflow file"),
        ({"dataset": "digts"}, {}, 'or "table", got the string "digts"'),
        ({"dataset": "csv", "path": "gone.csv"}, {}, "no data at .*gone.csv"),
        ({"dataset": "digits"}, {"options": {}}, "put those of the trainer into the mapping"),
    ],
)
def test_what_cannot_be_swept_is_said(
    train: Any, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SweepCallError, match=words):
        diel.sweep(train, {"x": [1]}, folder=tmp_path, runs=tmp_path, name="none", **more)


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[workflow]\n")
    with pytest.raises(SweepCallError, match=r"mine.toml is there, and was not written by diel"):
        diel.sweep("./mine.py:train", {"x": [1]}, folder=tmp_path, name="mine")
    assert (tmp_path / "mine.toml").read_text() == "[workflow]\n"


def test_files_of_an_earlier_sweep_of_that_name_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []
    monkeypatch.setattr("diel.sweeping._run", lambda arguments, file, runs, spec: ran.append(file))

    def sweep(rates: list[float]) -> None:
        diel.sweep("./mine.py:train", {"x": rates}, folder=tmp_path, name="mine")

    for rates in ([1.0], [2.0], [1.0], [2.0]):
        sweep(rates)
    assert [file.name for file in ran] == ["mine.toml", "mine-2.toml", "mine.toml", "mine-2.toml"]
    assert "[1.0]" in ran[0].read_text()
    assert 'name = "mine-2"' in ran[1].read_text()
