"""What a sweep says below its table: how far to believe the best score, and the Pareto front."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diel.testing import Module, run_modules
from dnn import Dataset
from modules import master, trainer
from modules.sweep.ledger import ledger_path, records_of


def made(name: str, path: object = None) -> Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 4))
    return Dataset(x, (x[:, 0] + x[:, 1] > 0).astype(int), 2, name)


def notes(folder: Path, evaluation: dict[str, Any], **table: Any) -> list[str]:
    """Run a sweep, or what is left of it; return the lines below its table."""
    options = {
        "space": {"hidden": [[2], [4], [8]], "weight_decay": {"value": 0.01}, "epochs": 3},
        **table,
    }
    rows = {"dataset": "cleveland", "path": ".", "evaluation": evaluation}
    context = {"folder": folder}
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options, context=context)),
            "trainer": Module(
                trainer.run, trainer.Options.model_validate(rows, context=context), copies=2
            ),
        },
        folder=folder,
        run_dir=folder / "run",
        timeout=60,
    )
    (done,) = runs["master"]
    shown = [record["notes"] for record in done.records if "notes" in record]
    return list(shown[-1]) if shown else []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dnn.load_dataset", made)
    (tmp_path / "run").mkdir()
    return tmp_path


NESTED = {"method": "nested", "folds": 3, "inner_folds": 2}


def test_nested_folds_give_an_honest_figure_also_after_a_crash(folder: Path) -> None:
    lines = notes(folder, NESTED)
    assert lines[0].startswith("accuracy, nested cross-validation (3 folds): 0.")
    assert lines[1].startswith("accuracy, best of 3 on the rows that chose it: 0.")
    assert all(line.startswith("the model of trial ") for line in lines[2:])
    path = ledger_path(folder / "run", "group", "master", (0,))
    records = list(records_of(path))
    assert all(len(record["splits"]["test"]) == 3 for record in records)
    assert all("splits" not in record["metrics"] for record in records)
    with (folder / "run" / "results.csv").open(newline="") as table:
        assert "splits" not in next(csv.reader(table))
    # The last line is lost, and its trial is tried again: the figures are the same.
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]))
    assert notes(folder, NESTED) == lines
    assert len(list(records_of(path))) == 3


def test_one_split_is_warned_of(folder: Path) -> None:
    lines = notes(folder, {"method": "holdout", "fraction": 0.3})
    assert lines[0].startswith("accuracy, best of 3 on the rows that chose it: 0.")
    assert lines[1].startswith("warning: the rows that score the best of 3 trials are those that")
    assert "on 27 rows, luck alone can give 0." in lines[1]
    # The report says the same, word for word, beside the best score.
    header = (folder / "run" / "report.html").read_text().partition("</header>")[0]
    (caution,) = re.findall(r'<p class="warning">accuracy [\d.]+: (.*?)\. <a href="#bias">', header)
    assert html.unescape(caution) == lines[1].removeprefix("warning: ")


def test_the_front_of_several_objectives_is_listed(folder: Path) -> None:
    lines = notes(
        folder,
        {"method": "k_fold", "folds": 3},
        objective=["accuracy", "training_time_s"],
        space={"hidden": [[]], "batch_size": [16, 32], "epochs": 1},
    )
    assert "no other beats in accuracy and training_time_s:" in lines[0]
    assert lines[1].startswith("  trial ")
    assert "(hidden none, batch_size " in lines[1]  # as the table has it
    assert "accuracy, 3 folds, corrected for the choice: 0." in "\n".join(lines)


def test_trials_that_were_stopped_have_had_a_part_in_the_choice(folder: Path) -> None:
    lines = notes(
        folder,
        {"method": "holdout", "fraction": 0.3},
        space={"learning_rate": {"from": 1e-4, "to": 1.0, "log_steps": 12}, "epochs": 9},
        early_stopping="halving",
    )
    records = list(records_of(ledger_path(folder / "run", "group", "master", (0,))))
    assert sum(record["state"] == "stopped" for record in records) >= 3
    assert lines[0].startswith("accuracy, best of 12 on the rows that chose it: ")
    assert "the best of 12 trials" in lines[1]
