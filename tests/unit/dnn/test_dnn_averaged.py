"""An average of networks predicts the mean of what they predict, from raw samples."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from dnn import AveragedModel, ConfigurationError, NeuralNetwork, mlp

pytest.importorskip("safetensors", reason="safetensors is not installed")

HEADS = ["age", "dose", "kind", "tags", "price", "size"]


def table(path: Path, seed: int = 0, rows: int = 40) -> Path:
    draw = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(HEADS)
        for _ in range(rows):
            age, dose = draw.uniform(20, 90), draw.uniform(0, 1)
            kind = "low" if age < 40 else "middle" if age < 70 else "high"
            there = {"young": age < 60, "old": age > 50, "much": dose > 0.4}
            tags = "|".join(name for name, is_there in there.items() if is_there)
            write.writerow([age, dose, kind, tags, 100 * dose + age, age / 9])
    return path


KINDS: dict[str, dict[str, Any]] = {
    "classes": {"label": "kind", "drop": ["tags", "price", "size"]},
    "labels": {
        "label": "tags",
        "label_separator": "|",
        "drop": ["kind", "price", "size"],
    },
    "values": {"target": ["price", "size"], "drop": ["kind", "tags"]},
}


LOSSES = {
    "classes": "softmax_cross_entropy",
    "labels": "multi_label_cross_entropy",
    "values": "mean_squared_error",
}


def model(folder: Path, kind: str, seed: int) -> dnn.TrainedModel:
    """Return a network of a kind of target, trained a little, with a preparation of its own."""
    reading = KINDS[kind]
    data = dnn.load_csv(table(folder / "mine.csv"), **reading)
    # Each with other rows, and so scaled in another way.
    part = dnn.train_validation_split(data, 0.3, seed=seed)[0]
    (ready,) = dnn.standardise(part)
    outputs = data.classes if kind == "classes" else len(data.targets)
    network = NeuralNetwork(mlp(data.features, [5], outputs), LOSSES[kind], seed=seed)
    network.fit(ready.x, ready.y, epochs=3, progress=False)
    file = folder / f"{kind}-{seed}.safetensors"
    network.save(file, data=ready, provenance={"trial": seed, "parameters": {"rate": 0.1}})
    return dnn.load(file)


@pytest.fixture
def three(request: pytest.FixtureRequest, tmp_path: Path) -> list[dnn.TrainedModel]:
    return [model(tmp_path, request.param, seed) for seed in (1, 2, 3)]


def of_file(models: list[dnn.TrainedModel], file: Path) -> list[dnn.Prediction]:
    return [each.predict_file(file) for each in models]


@pytest.mark.parametrize("three", ["classes"], indirect=True)
def test_classes(three: list[dnn.TrainedModel], tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", seed=7)
    each = of_file(three, new)
    weights = np.array([2, 1, 1]) / 4
    average = AveragedModel(three, [2, 1, 1])
    mean = sum(w * one.probabilities for w, one in zip(weights, each, strict=True))
    found = average.predict_file(new)
    assert found.probabilities == pytest.approx(mean)
    assert [*found.values] == [average.classes[n] for n in mean.argmax(axis=1)]
    rows = dnn.load_csv(new, "kind", drop=["tags", "price", "size"])
    right = np.array(rows.class_names)[rows.y]
    assert found.metrics["accuracy"] == pytest.approx((found.values == right).mean())
    numbers = [average.classes.index(name) for name in right]
    log_loss = -np.log(mean[np.arange(len(numbers)), numbers]).mean()
    assert found.metrics["log_loss"] == pytest.approx(log_loss)
    assert found.scored == len(numbers)
    samples = rows.x
    assert average.predict_proba(samples) == pytest.approx(mean)
    assert [*average.predict_class(samples)] == [*found.values]
    assert [*average.predict(samples)] == [*mean.argmax(axis=1)]
    # A single one is itself.
    alone = AveragedModel(three[:1]).predict_file(new)
    assert alone.probabilities == pytest.approx(each[0].probabilities)
    assert alone.metrics["accuracy"] == each[0].metrics["accuracy"]


@pytest.mark.parametrize("three", ["labels"], indirect=True)
def test_several_labels(three: list[dnn.TrainedModel], tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", seed=7)
    each = of_file(three, new)
    average = AveragedModel(three)
    found = average.predict_file(new)
    mean = np.mean([one.probabilities for one in each], axis=0)
    assert found.probabilities == pytest.approx(mean)
    assert np.array_equal(found.values, mean > 0.5)
    assert set(found.metrics) >= {"exact_match", "hamming"}
    assert found.metrics.keys() <= {*each[0].metrics, "log_loss"}
    with pytest.raises(ConfigurationError, match="predict no classes"):
        average.predict_class([[50.0, 0.5]])
    assert average.predict([[50.0, 0.5]]).shape == (1, 3)


@pytest.mark.parametrize("three", ["values"], indirect=True)
def test_values_in_their_units(three: list[dnn.TrainedModel], tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", seed=7)
    each = of_file(three, new)
    found = AveragedModel(three).predict_file(new)
    mean = np.mean([one.values for one in each], axis=0)
    assert found.values == pytest.approx(mean)
    assert found.probabilities is None
    truth = dnn.load_csv(new, target=["price", "size"], drop=["kind", "tags"]).y
    assert found.residuals == pytest.approx(truth - mean, rel=1e-4, abs=1e-4)
    errors = np.sqrt(((truth - mean) ** 2).mean(axis=0)).mean()
    assert found.metrics["rmse"] == pytest.approx(errors, rel=1e-5)
    # Of rows without answers there are no metrics.
    bare = tmp_path / "bare.csv"
    bare.write_text("age,dose\n40,0.5\n")
    assert AveragedModel(three).predict_file(bare).metrics == {}


def test_models_that_have_no_average(tmp_path: Path) -> None:
    first, other = model(tmp_path, "classes", 1), model(tmp_path, "labels", 2)
    with pytest.raises(ConfigurationError, match="no models: give at least one"):
        AveragedModel([])
    with pytest.raises(ConfigurationError, match=r"no average: classes .*low.* and labels .*old"):
        AveragedModel([first, other])
    for weights in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]):
        with pytest.raises(ConfigurationError, match="weights are 2 numbers above 0"):
            AveragedModel([first, first], weights)
    average = AveragedModel([first, first], [3, 1], provenance={"count": 4})
    assert average.weights == (0.75, 0.25)
    assert str(average) == "75% trial 1: rate 0.1\n25% trial 1: rate 0.1"
    with pytest.raises(ConfigurationError, match="average of 2 networks is not written as ONNX"):
        average.export_onnx(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
