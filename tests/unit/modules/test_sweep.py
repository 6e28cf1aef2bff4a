"""Options of a master and its trainers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from modules import master, trainer
from modules.sweep.trying import Report

OURS = {"trainer": SimpleNamespace(function="modules.trainer:run", processes=1, options={})}
THEIRS = {"trainer": SimpleNamespace(function="work:train", processes=1, options={})}


def location(modules: Any, shipped: bool = True) -> dict[str, Any]:
    return {
        name: SimpleNamespace(
            spec=module.function, shipped=shipped and "modules." in module.function
        )
        for name, module in modules.items()
    }


def master_options(
    options: dict[str, Any], modules: Any = OURS, shipped: bool = True
) -> master.Options:
    return master.Options.model_validate(
        options,
        context={"folder": Path(), "modules": modules, "locations": location(modules, shipped)},
    )


def complaint(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        call(*arguments)
    (error,) = caught.value.errors()
    return str(error["msg"])


# -- the master's options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rate": ["fast"]}, "'fast': Input should be a valid number"),
        ({"epochs": [1.5]}, "1.5: Input should be a valid integer"),
        ({"activation": ["relu", "rleu"]}, "'rleu': Input should be 'sigmoid'"),
        ({"hidden": [64]}, "64: Input should be a valid list"),
        ({"hidden": [[64, 0]]}, "[64, 0]: Input should be greater"),
    ],
)
def test_values_that_our_trainer_cannot_train_with(space: dict[str, Any], words: str) -> None:
    assert words in complaint(master_options, {"space": space})


@pytest.mark.parametrize("name", ["trial", "seed", "trainer", "accuracy", "state"])
def test_a_parameter_cannot_be_called_like_a_column_of_the_results(name: str) -> None:
    text = complaint(master_options, {"space": {name: [1]}}, THEIRS)
    assert f"{name}: a column of the results" in text


def test_another_trainer_knows_its_own_parameters() -> None:
    options = master_options({"space": {"anything": [1, 2]}}, THEIRS)
    assert options.space == {"anything": [1, 2]}


@pytest.mark.parametrize(
    "options", [{"objective": "speed"}, {"seed": -1}, {"seed": 1.5}, {"sead": 1}]
)
def test_other_options_of_a_master(options: dict[str, Any]) -> None:
    assert complaint(master_options, {"space": {"epochs": 1}, **options})


# -- a trainer's options --------------------------------------------------------------------------


def trainer_options(folder: Path, **options: Any) -> trainer.Options:
    return trainer.Options.model_validate(options, context={"folder": folder})


def test_data_by_path_is_found_beside_the_workflow_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PLACE", "data")
    for path in ("data", "$PLACE", "${PLACE}", str(tmp_path / "data"), "./data/"):
        options = trainer_options(tmp_path, dataset="mnist", path=path)
        assert options.resolve(tmp_path) == tmp_path / "data"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "mnist"}, "dataset 'mnist' needs path"),
        ({"dataset": "mnist", "path": "gone"}, "(path = 'gone')"),
        ({"dataset": "cleveland", "path": "$NO_SUCH_THING/x"}, "environment variable is not set"),
        ({"dataset": "digits", "path": "x"}, "leave out path"),
        ({"dataset": "digts"}, "Input should be 'digits'"),
        ({"dataset": "digits", "validation_fraction": 1.0}, "less than 1"),
        ({"dataset": "digits", "split_seed": -1}, "greater than or equal to 0"),
        ({}, "either dataset or train"),
        ({"dataset": "digits", "train": "./work.py:train"}, "either dataset or train"),
        ({"train": "./work.py:train"}, "there is no file"),
        (
            {"train": "./work.py:train", "evaluation": {"method": "k_fold"}},
            "evaluation: of a dataset",
        ),
        ({"dataset": "digits", "options": {"a": 1}}, "they go with train"),
        ({"dataset": "digits", "evaluation": {"folds": 5}}, "folds belongs to k_fold and nested"),
        (
            {"dataset": "digits", "evaluation": {"method": "k_fold"}, "split_seed": 1},
            "leave out validation_fraction, split_seed",
        ),
    ],
)
def test_bad_options_of_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("NO_SUCH_THING", raising=False)
    with pytest.raises(ValidationError) as caught:
        trainer_options(tmp_path, **options)
    (error,) = caught.value.errors()
    assert words in str(error["msg"])
    if "path" in options and options["path"] == "gone":
        assert str(tmp_path / "gone") in str(error["msg"])


def test_a_users_own_trainer_of_the_same_name_is_not_checked_against_ours() -> None:
    assert master_options({"space": {"viscosity": [0.1]}}, shipped=False).space
    with pytest.raises(ValidationError, match="no such hyperparameter"):
        master_options({"space": {"viscosity": [0.1]}})


# -- trainings on several splits ------------------------------------------------------------------

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
    report = Report(3, 7, options={}, folder=Path(), hear=said)
    return dict(train({"epochs": 3, "hidden": [4], "learning_rate": 0.05}, report)), report


def test_a_trial_on_nested_folds_says_what_each_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"method": "nested", "folds": 3, "inner_folds": 2}
    metrics, _ = tried(monkeypatch, said := Said(), evaluation=nested)
    assert sorted(metrics) == sorted([*trainer.METRICS, "splits"])
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
    from dnn import impute, load_dataset, standardise, train_validation_split  # the rows made up

    assert said == []
    assert metrics["splits"] == {"rows": 27}
    parts = standardise(*impute(*train_validation_split(load_dataset("cleveland", "."), 0.3, 2)))
    expected = trainer.train({"epochs": 3, "hidden": [4], "learning_rate": 0.05}, 7, *parts)
    assert all(metrics[name] == expected[name] for name in ("accuracy", "loss", "mcc"))
