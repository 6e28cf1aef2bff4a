"""Runs as objects of Python: `diel.open_run`."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

import diel
from diel.errors import MissingPackage, RunDirectoryError
from diel.run import records

FIXTURES = ROOT / "tests" / "fixtures" / "run_directories"


@pytest.fixture(params=["finished", "killed"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> diel.Run:
    shutil.copytree(FIXTURES / request.param, tmp_path / request.param)
    return diel.open_run(tmp_path / request.param)


def test_what_a_run_says_of_itself(run: diel.Run) -> None:
    assert run.state == run.path.name
    assert run.name == "study"
    assert list(run.groups) == ["first", "loop", "search", "last"]
    kinds = [type(record) for record in run.journal()]
    assert records.RunStarted in kinds
    assert run.view.ranks > 0
    assert run.complaint == ""
    assert "launcher.log" in run.logs
    assert run.log("add.0.0") == run.log("add.0.0.log")
    with pytest.raises(RunDirectoryError, match=r"no log 'sub.0.0'; there are add.0.0.log"):
        run.log("sub.0.0")
    assert run.wait(timeout_s=0) == run.state
    assert repr(run) == f"<run study: {run.state}, {run.path}>"


def test_results_as_rows_and_frames(run: diel.Run) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert run.tables == ["results.csv", "results-2.csv"]
    rows = run.results("results-2", as_="rows")
    assert rows
    frame = run.results("results-2.csv")
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(rows[0])
    assert len(frame) == len(rows)
    other = run.results("results-2", as_="polars")
    assert isinstance(other, polars.DataFrame)
    assert other.rows(named=True) == rows
    with pytest.raises(RunDirectoryError, match=r"has several tables: name one of results\.csv"):
        run.results()
    with pytest.raises(RunDirectoryError, match="has no table 'x'"):
        run.results("x")
    with pytest.raises(ValueError, match="as_ is pandas, polars or rows, not 'numpy'"):
        run.results("results", as_="numpy")  # type: ignore[arg-type]


def test_trials_and_figures_of_a_sweep(run: diel.Run) -> None:
    assert run.sweeps == ["search.master"]
    trials = run.trials(as_="rows")
    assert [trial["trial"] for trial in trials] == sorted(trial["trial"] for trial in trials)
    assert all(isinstance(trial["curve"], list) for trial in trials)
    number = trials[0]["trial"]
    assert run.trial(number)["parameters"]
    with pytest.raises(RunDirectoryError, match="has no trial 999"):
        run.trial(999)
    with pytest.raises(RunDirectoryError, match=r"has no sweep 'x': name one of search\.master"):
        run.trials("x")
    graph = pytest.importorskip("plotly.graph_objects")
    names = run.figures()
    assert "history" in names
    assert isinstance(run.figure("history", theme="dark"), graph.Figure)
    with pytest.raises(RunDirectoryError, match=f"no figure 'x'; .* there are {names[0]}"):
        run.figure("x")


def test_html_of_a_run_is_text(run: diel.Run) -> None:
    page = run._repr_html_()
    assert "group loop" in page
    assert run.state in page
    journal = run.path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"study"', '"<b onclick=x>"'))
    page = diel.open_run(run.path)._repr_html_()
    assert "<b onclick" not in page
    assert "&lt;b onclick=x&gt;" in page


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"is no run's directory.*diel runs DIR"):
        diel.open_run(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "workflow.toml").write_text("")
    run = diel.open_run(tmp_path)
    assert run.state == "never started"
    for ask in (run.results, run.trials, run.figures):
        with pytest.raises(RunDirectoryError, match=r"holds no results|has no sweep"):
            ask()
    assert run.best is None
    assert "never started" in run._repr_html_()


def test_a_missing_package_is_named(run: diel.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("pandas", "polars", "plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackage, match=r'pandas is not installed: pip install "diel\[frame'):
        run.results("results")
    with pytest.raises(MissingPackage, match=r"polars is not installed"):
        run.results("results", as_="polars")
    with pytest.raises(MissingPackage, match=r'figures need Plotly: pip install "diel\[gui\]"'):
        run.figure("history")
