"""Targets that are numbers, with their scale; several labels a sample; weights of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dnn
from dnn import DataError, Dataset, DeviceData, Ensemble, LabelError, NeuralNetwork, ShapeError, mlp
from dnn.data.targets import TargetScale
from dnn.metrics import metrics_of_labels, metrics_of_sums, metrics_of_values, sums_of_values


def prices(rows: int = 120, seed: int = 0) -> Dataset:
    """Two targets of very different units."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3))
    price = 250_000 + 40_000 * x[:, 0] + 3000 * generator.normal(size=rows)
    age = 0.02 + 0.001 * (x[:, 1] - x[:, 2])
    y = np.stack([price, age], axis=1)
    return Dataset(x, y, 0, "prices", task="regression", targets=("price", "age"))


def test_a_regression_keeps_numbers_and_splits_without_classes():
    data = prices()
    assert (data.y.dtype, data.y.shape, data.outputs, data.classes) == (np.float32, (120, 2), 2, 0)
    assert repr(data) == "Dataset('prices': 120 samples of 3 features, 2 targets)"
    train, validation = dnn.train_validation_split(data, 0.25, seed=3)
    assert (len(train), len(validation)) == (90, 30)
    single = Dataset(data.x, data.y[:, 0], 0, "one", task="regression")
    assert single.y.shape == (120, 1)
    with pytest.raises(DataError, match="a regression has no classes"):
        _ = data.class_counts


def test_targets_are_scaled_by_training_rows_alone():
    train, validation = dnn.train_validation_split(prices(), 0.25)
    scaled, held_out = dnn.standardise(train, validation)
    np.testing.assert_allclose(scaled.y.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.y.std(axis=0), 1, rtol=1e-4)
    assert scaled.scale is held_out.scale is not None
    np.testing.assert_allclose(scaled.scale.in_units(held_out.y), validation.y, rtol=1e-5)
    assert dnn.standardise(train, by="none")[0].scale is not None
    constant = replace(train, y=np.full((len(train), 2), 0.1))
    np.testing.assert_array_equal(dnn.standardise(constant)[0].y, np.zeros((len(train), 2)))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"y": np.full((4, 1), np.nan)},
            DataError,
            "row 0, target 'price' is missing: leave",
        ),
        ({"y": np.full((4, 1), 1e300)}, DataError, "row 0, target 'price': 1e\\+300 is beyond"),
        ({"y": np.full((4, 1), "a")}, DataError, "targets must be numbers"),
        ({"y": np.zeros((4, 2))}, ShapeError, r"y has shape \(4, 2\), and not \(n, 1\)"),
        ({"y": np.zeros((3, 1))}, ShapeError, "do not fit"),
        ({"classes": 2}, ValueError, "a regression has no classes"),
        ({"task": "regresion"}, ValueError, "unknown task 'regresion'"),
        ({"weights": np.zeros(4)}, DataError, "all weights of samples are 0"),
        ({"weights": np.array([1, 2, -1, 0])}, DataError, "row 2: the weight is -1"),
        ({"weights": np.ones(1)}, ShapeError, "of 4 samples"),
        ({"beside": {"group": np.zeros(3)}}, ShapeError, "column 'group' has 3 rows"),
        ({"task": "multilabel", "y": np.full((4, 1), 2)}, LabelError, "row 0, label price: .*2"),
    ],
)
def test_targets_that_are_wrong(changes: dict, error: type[Exception], words: str) -> None:
    given = {"y": np.zeros((4, 1)), "classes": 0, "task": "regression", "targets": ("price",)}
    with pytest.raises(error, match=words):
        Dataset(np.zeros((4, 2)), name="d", **{**given, **changes})


def test_rows_keep_their_weights_and_the_columns_beside():
    data = replace(prices(), weights=np.arange(120), beside={"group": np.arange(120) // 10})
    some = data.take(np.array([7, 50]))
    assert some.weights is not None
    assert some.weights.tolist() == [7, 50]
    assert some.beside["group"].tolist() == [0, 5]


def test_metrics_equal_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(1)
    y = generator.normal(3, 2, size=(2, 50, 3)).astype(np.float32)
    guess = (y + generator.normal(size=y.shape)).astype(np.float32)
    y[0, :, 2] = 7.0  # a target that does not vary
    units = np.array([1.0, 8.0, 0.125])
    for k, found in enumerate(metrics_of_values(y, guess, units)):
        pair = (y[k] * units, guess[k] * units)
        assert found == {
            "rmse": pytest.approx(metrics.root_mean_squared_error(*pair), rel=1e-6),
            "mae": pytest.approx(metrics.mean_absolute_error(*pair), rel=1e-6),
            "r2": pytest.approx(metrics.r2_score(*pair), rel=1e-6),
            "median_absolute_error": pytest.approx(metrics.median_absolute_error(*pair), rel=1e-6),
        }
    parts = [
        sums_of_values(y[:, part], guess[:, part], units) for part in (slice(20), slice(20, 50))
    ]
    whole = metrics_of_values(y, guess, units)
    for found, expected in zip(metrics_of_sums(parts[0] + parts[1]), whole, strict=True):
        assert found == pytest.approx({name: expected[name] for name in found})
    truth, predicted = (y > 3).astype(np.uint8), guess > 3
    for k, found in enumerate(metrics_of_labels(truth, predicted)):
        pair = (truth[k], predicted[k])
        assert found == pytest.approx(
            {
                "exact_match": metrics.accuracy_score(*pair),
                "hamming": metrics.hamming_loss(*pair),
                "macro_f1": metrics.f1_score(*pair, average="macro", zero_division=0),
                "micro_f1": metrics.f1_score(*pair, average="micro", zero_division=0),
            }
        )


def test_a_model_predicts_in_the_units_of_the_file(tmp_path: Path) -> None:
    train, validation = dnn.train_validation_split(prices(), 0.25)
    prepared, held_out = dnn.standardise(train, validation)
    model = NeuralNetwork(mlp(3, [8], 2, "tanh"), "mean_squared_error", dnn.SGD(0.1), seed=1)
    held = DeviceData(held_out.x, held_out.y, deviation=held_out.scale.deviation)
    history = model.fit(prepared.x, prepared.y, epochs=30, validation=held)
    model.save(tmp_path / "m.safetensors", data=prepared)
    loaded = dnn.load(tmp_path / "m.safetensors")
    guess = loaded.predict(validation.x)
    assert (guess.shape, loaded.targets, loaded.classes) == ((30, 2), ("price", "age"), ())
    rmse = float(np.sqrt(np.square(guess[:, 0] - validation.y[:, 0]).mean()))
    assert 1000 < rmse < 15_000
    for given in (validation, held_out):
        found = loaded.evaluate(given)
        assert found == pytest.approx(history.validation[-1], rel=1e-4)
        both = np.sqrt(np.square(guess - validation.y).mean(axis=0)).mean()
        assert found["rmse"] == pytest.approx(both, rel=1e-4)
    assert loaded.evaluate(validation.x, validation.y)["mae"] == pytest.approx(found["mae"])
    assert "targets" in str(loaded)
    with pytest.raises(ValueError, match="for regression, and the loss of the network for class"):
        NeuralNetwork(mlp(3, [8], 2)).save(tmp_path / "n.safetensors", data=prepared)


def test_a_table_with_a_target(tmp_path: Path) -> None:
    data = prices()
    file = tmp_path / "homes.csv"
    rows = [f"{a},{p},{b},{c},{g}" for (a, b, c), (p, g) in zip(data.x, data.y, strict=True)]
    file.write_text("\n".join(["a,price,b,c,age", *rows]))
    read = dnn.load_csv(file, target=["price", "age"])
    assert read.targets == ("price", "age")
    np.testing.assert_array_equal(read.y, data.y)
    np.testing.assert_array_equal(read.x, data.x)
    one = dnn.load_csv(file, target="price")
    assert (one.features, one.targets) == (4, ("price",))
    (prepared,) = dnn.standardise(read)
    model = NeuralNetwork(mlp(3, [], 2), "mean_squared_error")
    model.save(tmp_path / "m.safetensors", data=prepared)
    loaded = dnn.load(tmp_path / "m.safetensors")
    found = loaded.predict_file(file)
    assert found.metrics == pytest.approx(loaded.evaluate(read), rel=1e-4)
    (tmp_path / "new.csv").write_text("c,b,a\n1,2,3\n")
    new = loaded.predict_file(tmp_path / "new.csv")
    np.testing.assert_allclose(new.values, loaded.predict([[3.0, 2.0, 1.0]]))
    assert not new.metrics
    (tmp_path / "some.csv").write_text("c,b,a,price,age\n1,2,3,,1\n")
    partly = loaded.predict_file(tmp_path / "some.csv")
    assert not partly.metrics
    assert "target 'price' is missing" in partly.rows.notes[0]
    with pytest.raises(LabelError, match="for a regression say target = 'age'"):
        dnn.load_csv(file)


def test_networks_of_an_ensemble_take_weights_and_their_own_units():
    (train,) = dnn.standardise(prices())
    weights = np.linspace(0.5, 1.5, len(train))
    data = DeviceData(train.x, train.y, weights=weights, deviation=train.scale.deviation)
    networks = Ensemble(mlp(3, [4], 2), "mean_squared_error", dnn.SGD([0.1, 0.05]), seeds=[1, 2])
    networks.fit(data, epochs=3)
    together = networks.evaluate(data)
    for k, rate in enumerate((0.1, 0.05)):
        alone = NeuralNetwork(mlp(3, [4], 2), "mean_squared_error", dnn.SGD(rate), seed=k + 1)
        alone.fit(train.x, train.y, epochs=3, sample_weight=weights)
        assert alone.evaluate(data) == together[k]
        other = DeviceData(
            train.x, train.y, deviation=np.tile(train.scale.deviation, (len(train), 1))
        )
        assert alone.evaluate(other) == together[k]


@pytest.mark.parametrize("loss", ["mean_squared_error", "quantile", "poisson", "multi_label"])
def test_every_kind_of_model_predicts_files_and_as_onnx(tmp_path: Path, loss: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 3)).astype(np.float32)
    y = np.stack([100 + 20 * x[:, 0], 5 + x[:, 1]], axis=1)
    data = Dataset(x, y, 0, "d", task="regression", targets=("a", "b"))
    name, outputs, columns = loss, 2, ("a", "b")
    (prepared,) = dnn.standardise(data)
    if loss == "quantile":
        outputs, columns = 6, ("a_0.1", "a_0.5", "a_0.9", "b_0.1", "b_0.5", "b_0.9")
    if loss == "poisson":
        scale = TargetScale.of_counts(y)
        prepared = replace(prepared, y=scale.apply(np.maximum(y, 0)), scale=scale)
    if loss == "multi_label":
        name, y = "multi_label_cross_entropy", (x[:, :2] > 0).astype(np.uint8)
        labelled = Dataset(x, y, 0, "d", task="multilabel", targets=("a", "b"))
        (prepared,) = dnn.standardise(labelled)
    model = NeuralNetwork(mlp(3, [8], outputs, "tanh"), name, dnn.Adam(0.02), seed=1)
    model.fit(prepared.x, prepared.y, epochs=60)
    model.save(tmp_path / "m.safetensors", data=prepared)
    loaded = dnn.load(tmp_path / "m.safetensors")
    assert loaded.outputs == columns
    guess = loaded.predict(x)
    assert guess.shape == (60, outputs)
    if loss == "quantile":
        assert (guess[:, 0] < guess[:, 2]).mean() > 0.9
        assert loaded.evaluate(x, y)["pinball"] < 2
    elif loss == "multi_label":
        assert loaded.evaluate(x, y)["exact_match"] > 0.8
        assert loaded.predict_proba(x).shape == (60, 2)
    else:
        assert loaded.evaluate(x, y)["r2"] > 0.8
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    loaded.export_onnx(tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    made = session.run(None, {"x": x})
    if loss == "multi_label":
        np.testing.assert_allclose(made[1], loaded.predict_proba(x), atol=1e-5)
    else:
        np.testing.assert_allclose(made[0], guess, rtol=1e-4, atol=1e-4)
