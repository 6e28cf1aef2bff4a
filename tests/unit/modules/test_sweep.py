"""Options of a master and its trainers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from modules import master, trainer

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
        ({}, "the grid is empty"),
        ({"learning_rate": []}, "the grid has no points"),
        ({"lerning_rate": [0.1]}, "did you mean 'learning_rate'?"),
        ({"zzz": [0.1]}, "it knows learning_rate"),
        ({"learning_rate": [0.1, -1.0]}, "space.learning_rate: -1.0: Input should be greater"),
        ({"learning_rate": ["fast"]}, "space.learning_rate: 'fast'"),
        ({"epochs": [1.5]}, "space.epochs: 1.5"),
        ({"activation": ["relu", "rleu"]}, "space.activation: 'rleu'"),
        ({"hidden": [64]}, "space.hidden: 64"),
        ({"hidden": [[64, 0]]}, "space.hidden: [64, 0]"),
        ({"momentum": {"from": 0.5, "to": 1.0, "step": 0.25}}, "space.momentum: 1.0"),
    ],
)
def test_a_space_that_our_trainer_cannot_train_is_refused(
    space: dict[str, Any], words: str
) -> None:
    assert words in complaint(master_options, {"space": space})


@pytest.mark.parametrize("name", ["trial", "seed", "trainer", "accuracy"])
def test_a_parameter_cannot_be_called_like_a_column_of_the_results(name: str) -> None:
    text = complaint(master_options, {"space": {name: [1]}}, THEIRS)
    assert f"{name}: a column of the results" in text


def test_our_trainer_is_one_process() -> None:
    modules = {"trainer": SimpleNamespace(function="modules.trainer:run", processes=2, options={})}
    text = complaint(master_options, {"space": {"epochs": 1}}, modules)
    assert "our trainer is one process: module 'trainer' has more" in text


def test_another_trainer_knows_its_own_parameters() -> None:
    options = master_options({"space": {"anything": [1, 2]}}, THEIRS)
    assert options.space == {"anything": [1, 2]}


def test_the_trainer_has_to_be_a_module() -> None:
    text = complaint(master_options, {"space": {"epochs": 1}, "trainer": "trianer"})
    assert "trainer = 'trianer': there is no module of that name" in text


@pytest.mark.parametrize(
    "options", [{"objective": "speed"}, {"seed": -1}, {"seed": 1.5}, {"sead": 1}]
)
def test_other_options_of_a_master(options: dict[str, Any]) -> None:
    assert complaint(master_options, {"space": {"epochs": 1}, **options})


@pytest.mark.parametrize(
    ("objective", "maximise"),
    [("accuracy", True), ("mcc", True), ("loss", False), ("training_time_s", False)],
)
def test_which_direction_is_better(objective: str, maximise: bool) -> None:
    options = master_options({"space": {"epochs": 1}, "objective": objective})
    assert options.maximise == maximise


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
        ({}, "Field required"),
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
