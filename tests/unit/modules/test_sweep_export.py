"""What a sweep has recorded, in the formats of other programs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from modules.sweep.ledger import Ledger
from modules.sweep.output import ExportError, export

RECORDS: list[dict[str, Any]] = [
    {
        "trial": trial,
        "state": "failed" if trial == 3 else "stopped" if trial == 5 else "finished",
        "parameters": {"rate": 0.1 * trial, "size": trial, "hidden": [8, trial % 2], "kind": "a"}
        | ({"beta": 0.5} if trial % 2 else {}),
        "metrics": {} if trial == 3 else {"loss": float("nan") if trial == 4 else trial / 4},
        "seed": trial + 100,
        "trainer": 0,
        "started_s": 1.5,
        "seconds": 0.25,
    }
    | ({"reason": "ValueError: no"} if trial == 3 else {})
    | ({"reports": [[1, {"loss": 3.0}], [2, {"loss": 2.5}]]} if trial == 5 else {})
    for trial in range(8)
]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "search.master" / "trials.jsonl"
    file = Ledger(path, {"objective": ["2 * loss"], "maximise": False})
    file.write(RECORDS)
    file.close()
    return path


def test_csv(ledger: Path) -> None:
    path, curves = export(ledger, ["csv"], ledger.parent)
    assert curves.read_text() == "trial,step,loss\n5,1,3.0\n5,2,2.5\n"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == list(range(8))
    assert rows[1]["hidden"] == "8x1"
    assert (rows[0]["beta"], rows[1]["beta"]) == ("", "0.5")
    assert float(rows[6]["2 * loss"]) == 3.0
    assert rows[3]["reason"] == "ValueError: no"


def test_a_metric_called_like_a_parameter_does_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    file = Ledger(path, {"objective": ["loss"], "maximise": False})
    file.write([{**RECORDS[1], "metrics": {"loss": 0.5, "rate": 7.0, "trial": 9}}])
    file.close()
    (written,) = export(path, ["csv"], tmp_path)
    with written.open(newline="") as table:
        (row,) = csv.DictReader(table)
    assert (row["trial"], row["rate"], row["loss"]) == ("1", "0.1", "0.5")


def test_json(ledger: Path) -> None:
    (path,) = export(ledger, ["json"], ledger.parent)
    rows = json.loads(path.read_text())
    assert rows[5]["reports"] == [[1, {"loss": 3.0}], [2, {"loss": 2.5}]]
    assert [row["trial"] for row in rows] == list(range(8))
    assert rows[1]["hidden"] == [8, 1]
    assert "beta" not in rows[0]
    assert rows[4]["loss"] == "nan"


def test_parquet(ledger: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path, curves = export(ledger, ["parquet"], ledger.parent)
    assert parquet.read_table(curves).to_pylist() == [
        {"trial": 5, "step": 1, "loss": 3.0},
        {"trial": 5, "step": 2, "loss": 2.5},
    ]
    rows = parquet.read_table(path).to_pylist()
    assert [row["trial"] for row in rows] == list(range(8))
    assert rows[2]["rate"] == 0.2
    assert rows[1]["hidden"] == "8x1"
    assert rows[0]["beta"] is None
    assert rows[4]["loss"] != rows[4]["loss"]
    assert rows[3]["loss"] is None
    assert type(rows[6]["2 * loss"]) is float


def test_a_journal_that_optuna_reads(ledger: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    for _ in range(2):  # the second time it replaces the first
        (path,) = export(ledger, ["optuna"], ledger.parent)
    study = optuna.load_study(
        study_name="search.master", storage=JournalStorage(JournalFileBackend(str(path)))
    )
    states = [trial.state.name for trial in study.trials]
    assert states == [*["COMPLETE"] * 3, "FAIL", "FAIL", "PRUNED", "COMPLETE", "COMPLETE"]
    assert study.best_trial.number == 0
    assert study.trials[6].value == 3.0
    assert study.trials[6].params == {"rate": 0.1 * 6, "size": 6, "hidden": "8x0", "kind": "a"}
    assert study.trials[5].intermediate_values == {1: 6.0, 2: 5.0}
    assert study.trials[7].user_attrs["seed"] == 107


def test_choices_that_are_tables_are_words_to_optuna(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    path = tmp_path / "trials.jsonl"
    file = Ledger(path, {"objective": ["loss"], "maximise": False})
    records = [{**one, "metrics": {"loss": 1.0}, "state": "finished"} for one in RECORDS[:2]]
    file.write(
        {**one, "parameters": {"x": x}} for one, x in zip(records, ({"a": 1}, [2]), strict=True)
    )
    file.close()
    (written,) = export(path, ["optuna"], tmp_path)
    assert "{'a': 1}" in written.read_text()


def test_what_cannot_be_exported(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="no such format: xml; there are csv, json"):
        export(ledger, ["csv", "xml"], ledger.parent)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ExportError, match="pip install pyarrow"):
        export(ledger, ["parquet"], ledger.parent)
