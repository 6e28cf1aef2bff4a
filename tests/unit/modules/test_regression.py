"""Trials of a regression, of several labels and with weights: training, scores and models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support import WORKFLOWS

import dnn
from dnn import Dataset
from modules import master, sklearn_trainer, torch_trainer, trainer
from modules.evaluation import EvaluationError, PreparedSplits, SplitData, TrainingJob, prepared
from modules.fused import FusedTrainings
from modules.hyperparameters import Hyperparameters
from modules.network_trainer import NetworkTrainer
from modules.training import train
from modules.trial import Report

SMALL = {"hidden": [4], "epochs": 4, "activation": "tanh", "learning_rate": 0.05}


def report(seed: int = 1, **options: Any) -> Report:
    return Report(0, seed, options=options, folder=Path())


def homes(rows: int = 80, task: str = "regression") -> Dataset:
    """Prices in tens of thousands, or two labels; weights of rows."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(rows, 3))
    price = 250_000 + 30_000 * x[:, :1] + 5000 * generator.normal(size=(rows, 1))
    if task == "multilabel":
        y = np.hstack([x[:, :1] > 0, x[:, 1:2] > 1])
        return Dataset(x, y, 0, "homes", task=task, targets=("dear", "rare"))
    return Dataset(x, price, 0, "homes", task=task, targets=("price",))


def rounds(data: Dataset, folds: int = 2, **options: Any) -> PreparedSplits:
    rows = np.arange(len(data))
    jobs = [TrainingJob(rows[rows % 4 != k], rows[rows % 4 == k], k) for k in range(folds)]
    return PreparedSplits(data, jobs, **options)


@pytest.mark.parametrize("loss", [None, "huber", "quantile", "poisson"])
def test_together_and_alone_are_the_same_to_the_last_bit(loss: str | None) -> None:
    points = [{**SMALL, "learning_rate": rate} for rate in (0.01, 0.1)]
    points = points if loss is None else [{**point, "loss": loss} for point in points]
    split = rounds(homes())
    split = split.of_counts if loss == "poisson" else split
    together = FusedTrainings(split)(
        [(Hyperparameters.model_validate(point), [[7, 8]], report()) for point in points]
    )
    for point, (results,) in zip(points, together, strict=True):
        for number, found in enumerate(results):
            alone = train(point, 7 + number, split[number])
            assert {**alone, "training_time_s": 0} == {**found, "training_time_s": 0}
            assert ("pinball" in found) == (loss == "quantile")
            assert ("loss" in found) == (loss is None)


def test_counts_and_values_are_trained_in_one_lease() -> None:
    counts = dnn.Dataset(homes().x, np.arange(80.0)[:, None] % 7, 0, "counts", task="regression")
    trainer_of = NetworkTrainer(rounds(counts))
    points = [{**SMALL, "loss": loss} for loss in ("poisson", "huber")]
    found = trainer_of.train_together([(point, report()) for point in points])
    for point, metrics in zip(points, found, strict=True):
        alone = trainer_of(dict(point), report())
        assert metrics is not None
        assert alone["rmse"] == metrics["rmse"]


def test_several_labels_and_weights_of_rows() -> None:
    data = homes(task="multilabel")
    weights = np.linspace(1, 3, len(data)).astype(np.float32)
    split = rounds(dnn.Dataset(data.x, data.y, 0, "w", task="multilabel", weights=weights))
    wanted = Hyperparameters.model_validate(SMALL)
    ((results,),) = FusedTrainings(split)([(wanted, [[7, 8]], report())])
    for number, found in enumerate(results):
        alone = train(SMALL, 7 + number, split[number])
        assert {**alone, "training_time_s": 0} == {**found, "training_time_s": 0}
    assert {*found} == {
        *("exact_match", "hamming", "macro_f1", "micro_f1", "loss", "training_time_s"),
    }
    plain = train(SMALL, 8, rounds(data)[1])
    assert plain["loss"] != found["loss"]


def test_classes_are_weighted_by_name_with_mean_1() -> None:
    x = np.zeros((10, 2))
    y = np.array([0] * 8 + [1] * 2)
    data = Dataset(x, y, 2, "d", class_names=("no", "yes"))
    balanced = SplitData(data, data, class_weight="balanced").training.weights
    assert np.asarray(balanced).tolist() == pytest.approx([0.625] * 8 + [2.5] * 2)
    by_name = SplitData(data, data, class_weight={"yes": 4.0}).training.weights
    assert np.asarray(by_name).tolist() == pytest.approx([0.625] * 8 + [2.5] * 2)
    with pytest.raises(EvaluationError, match=r"no class 'maybe' \(it has 'no', 'yes'"):
        SplitData(data, data, class_weight={"maybe": 1.0})
    train_part, _ = prepared(homes(), rounds(homes()).jobs[0])
    with pytest.raises(EvaluationError, match="class_weight is of classes, and homes is for reg"):
        SplitData(train_part, train_part, class_weight="balanced")


def context(**options: Any) -> Any:
    return {
        "folder": Path(),
        "modules": {"trainer": SimpleNamespace(processes=1, options=options)},
        "names": ["trainer"],
        "locations": {"trainer": SimpleNamespace(file=Path(trainer.__file__), function="run")},
    }


def test_a_sweep_has_the_objective_of_its_data() -> None:
    space = {"learning_rate": [0.01, 0.1], "epochs": 3, "loss": ["huber", "mean_squared_error"]}
    found = master.Options.model_validate({"space": space}, context=context(dataset="diabetes"))
    assert found.objective == ["rmse"]
    assert not found.objectives()[0].maximise
    on_a_rank = {"options_of": {"trainer": {"dataset": "diabetes"}}}
    assert master.Options.model_validate({"space": space}, context=on_a_rank).objective == ["rmse"]
    plain = {"space": {"epochs": 3}}
    for options, objective in (
        ({"dataset": "digits"}, "accuracy"),
        ({"dataset": "csv", "reading": {"target": "price"}}, "rmse"),
        ({"train": "modules.torch_trainer:train", "options": {"dataset": "diabetes"}}, "rmse"),
        ({"train": "./mine.py:train", "options": {"dataset": "diabetes"}}, "accuracy"),
    ):
        read = master.Options.model_validate(plain, context=context(**options))
        assert read.objective == [objective]


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (
            {"objective": "accuracy"},
            {"dataset": "diabetes"},
            "no 'accuracy'.*rmse, mae, r2",
        ),
        ({"objective": "rmse"}, {"dataset": "digits"}, "the trainer reports no 'rmse'"),
        ({"space": {"loss": "focal"}}, {"dataset": "diabetes"}, "'focal' takes classes, and these"),
        ({"objective": "pinball"}, {"dataset": "diabetes"}, "no 'pinball'"),
        (
            {"objective": "loss", "space": {"loss": ["huber", "quantile"]}},
            {"dataset": "diabetes"},
            '"loss" is a parameter',
        ),
        ({"space": {"loss": "huber"}}, {"dataset": "digits"}, "'huber' takes values, and these"),
        (
            {"space": {"label_smoothing": 0.1}},
            {"dataset": "diabetes"},
            "label_smoothing is of classes",
        ),
        (
            {"space": {"loss": "huber"}},
            {"train": "./mine.py:train"},
            "loss: a column of the",
        ),
        (
            {"space": {"class_weight": "balanced"}},
            {"dataset": "digits", "class_weight": "balanced"},
            "trainer has a class_weight too",
        ),
    ],
)
def test_a_sweep_that_does_not_fit_its_data(table: Any, options: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        master.Options.model_validate({"space": {"epochs": 3}, **table}, context=context(**options))


def test_other_frameworks_train_the_same_rows() -> None:
    pytest.importorskip("torch")
    wanted = {"dataset": "diabetes", "split_seed": 1}
    linear = sklearn_trainer.train({}, report(**wanted))
    small = {"hidden": [], "epochs": 60, "learning_rate": 0.01}
    by_torch = torch_trainer.train(small, report(**wanted))
    ours = trainer.prepare(wanted, Path())(small, report())
    for found in (linear, by_torch, ours):
        assert found["rmse"] == pytest.approx(linear["rmse"], rel=0.03)
        assert found["median_absolute_error"] < found["mae"] < found["rmse"]
    assert ours.keys() - {"splits"} == by_torch.keys()


def test_the_model_of_a_trial_predicts_in_the_units_of_the_data(tmp_path: Path) -> None:
    trials = trainer.prepare({"dataset": "diabetes"}, tmp_path)
    told = report()
    metrics = trials(dict(SMALL), told)
    file = trials.save_model(dict(SMALL), told, tmp_path / "best")
    model = dnn.load(file)
    guess = model.predict(dnn.load_diabetes())
    assert guess.shape == (442, 1)
    assert 100 < guess.mean() < 200
    assert model.provenance["metrics"]["rmse"] == metrics["rmse"]
    assert model.targets == ("progression",)


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({"target": "body_mass_g"}, "weights are of classes, and csv is for regression"),
        ({"label": "species", "label_separator": "|"}, "csv is for multilabel"),
    ],
)
def test_weights_of_classes_need_classes(reading: Any, words: str) -> None:
    given = {"dataset": "csv", "path": str(WORKFLOWS / "penguins.csv"), "class_weight": "balanced"}
    with pytest.raises(ValidationError, match=words):
        trainer.Options.model_validate({**given, "reading": reading})


def test_weights_of_a_class_that_is_not_there_are_found_before_the_run() -> None:
    reading = {"label": "species", "missing": ["NA"]}
    given = {"dataset": "csv", "path": str(WORKFLOWS / "penguins.csv"), "reading": reading}
    options = trainer.Options.model_validate({**given, "class_weight": {"Gento": 2.0}})
    problem, _ = trainer.look_at_data(options, Path())
    assert "penguins has no class 'Gento' (it has 'Adelie', 'Chinstrap', 'Gentoo')" in problem


def test_labels_are_balanced_alone_and_in_a_lease() -> None:
    split = rounds(homes(task="multilabel"))
    point = {**SMALL, "class_weight": "balanced"}
    trials = NetworkTrainer(split)
    assert trials.train_together([(point, report()), (point, report())]) == [None, None]
    assert trials(point, report())["loss"] != trials(dict(SMALL), report())["loss"]


def test_targets_that_are_no_counts_are_told_in_their_units() -> None:
    data = homes()
    data.y[3] = -7
    with pytest.raises(EvaluationError, match="homes: 'price' is -7 in row 4, and loss poisson"):
        NetworkTrainer(rounds(data))({**SMALL, "loss": "poisson"}, report())
