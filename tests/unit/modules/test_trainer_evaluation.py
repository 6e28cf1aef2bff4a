"""Our trainer on one split and on several, without MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from modules import trainer, training
from modules.evaluation import SplitData
from modules.metrics import metrics_of_task
from modules.trial import Report


def trainer_options(folder: Path, **options: Any) -> trainer.Options:
    return trainer.Options.model_validate(options, context={"folder": folder})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": "./f.py:train", "evaluation": {"method": "k_fold"}}, "evaluation: of a dataset"),
        ({"dataset": "digits", "evaluation": {"folds": 5}}, "folds belongs to k_fold and nested"),
        (
            {"dataset": "digits", "evaluation": {"method": "k_fold"}, "split_seed": 1},
            "leave out validation_fraction, split_seed",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        trainer_options(Path(), **options)
    assert words in str(caught.value)


MADE = """
from dnn import Dataset
import numpy as np

def load(name, path=None):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 4))
    return Dataset(x, (x[:, 0] + x[:, 1] > 0).astype(int), 2, name)
"""


class Said(list):
    """What a trial reported; it is told to stop after `most`."""

    def __init__(self, most: int = 99) -> None:
        self.most = most

    def __call__(self, trial: int, step: int, metrics: dict[str, Any]) -> bool:
        self.append((step, metrics))
        return len(self) < self.most


def tried(
    monkeypatch: pytest.MonkeyPatch, said: Said, **options: Any
) -> tuple[dict[str, Any], Report]:
    """Try a point of our trainer on made-up rows."""
    names: dict[str, Any] = {}
    exec(MADE, names)
    monkeypatch.setattr("dnn.load_dataset", names["load"])
    given = trainer_options(Path(), dataset="cleveland", path=".", **options)
    task = given.task(Path())
    train = trainer.prepare(task.options, task.folder)
    report = Report(3, 7, options={}, folder=Path(), on_report=said)
    return dict(train({"epochs": 3, "hidden": [4], "learning_rate": 0.05}, report)), report


def test_a_trial_on_nested_folds_says_what_each_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"method": "nested", "folds": 3, "inner_folds": 2}
    metrics, _ = tried(monkeypatch, said := Said(), evaluation=nested)
    assert sorted(metrics) == sorted([*metrics_of_task("classification"), "splits"])
    splits = metrics["splits"]
    assert (len(splits["choice"]), len(splits["test"]), splits["rows"]) == (3, 3, 30)
    # It reports after each inner training how it stands on the rows of the choice.
    assert [step for step, _ in said] == [1, 2, 4, 5, 7, 8]
    assert said[-1][1]["accuracy"] == pytest.approx(metrics["accuracy"])
    again, _ = tried(monkeypatch, Said(), evaluation=nested)
    assert again["splits"]["test"][0]["accuracy"] == splits["test"][0]["accuracy"]
    assert again["loss"] == metrics["loss"]


def test_a_trial_is_stopped_between_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, report = tried(monkeypatch, said := Said(2), evaluation={"method": "k_fold"})
    assert report.is_stopped
    assert [step for step, _ in said] == [1, 2]
    assert metrics == said[1][1]


def test_one_split_trains_once_as_it_always_did(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, _ = tried(monkeypatch, said := Said(), validation_fraction=0.3, split_seed=2)
    assert [step for step, _ in said] == [1, 2, 3]  # after each epoch
    assert said[-1][1]["loss"] == metrics["loss"]
    from dnn import impute, load_dataset, standardise, train_validation_split  # the rows made up

    assert metrics["splits"] == {"rows": 27}
    parts = standardise(*impute(*train_validation_split(load_dataset("cleveland", "."), 0.3, 2)))
    data = SplitData(*parts)
    expected = training.train({"epochs": 3, "hidden": [4], "learning_rate": 0.05}, 7, data)
    assert all(metrics[name] == expected[name] for name in ("accuracy", "loss", "mcc"))
