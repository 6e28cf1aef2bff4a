"""What training rows say of columns: missing cells filled, categories encoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from dnn import ConfigurationError, DataError, Dataset, NeuralNetwork
from dnn.data.preparation import STEPS, described_step, prepared, step_of

WORDS = np.array(["red", "green", "blue", "violet"])


def table(rows: int = 60, seed: int = 0) -> Dataset:
    """Return a table of two numbers, a category, a boolean and a date, each with missing cells."""
    draw = np.random.default_rng(seed)
    numbers = draw.normal(5, 2, (2, rows)).round(1)
    colours = WORDS[draw.integers(0, 4, rows)].astype(object)
    truths = draw.integers(0, 2, rows).astype(bool).astype(object)
    days = np.datetime64("2020-01-01") + draw.integers(0, 900, rows)
    for cells in (numbers[0], colours, truths):
        cells[draw.choice(rows, 7, replace=False)] = np.nan if cells.dtype == float else None
    columns = {"a": numbers[0], "colour": colours, "b": numbers[1], "truth": truths, "day": days}
    return dnn.load_table({**columns, "y": draw.integers(0, 2, rows)})


@pytest.mark.parametrize("by", [None, "median", "mean", "most_frequent", 2.5])
def test_missing_cells_as_scikit_learn_fills_them(by: Any) -> None:
    impute = pytest.importorskip("sklearn.impute")
    data = table()
    train, new = dnn.impute(data.take(slice(0, 40)), data.take(slice(40, 60)), by=by)
    name = "constant" if by == 2.5 else by or "median"
    for at, kind in enumerate(data.kinds):
        way = name if kind in ("number", "date") else "most_frequent"
        theirs = impute.SimpleImputer(strategy=way, fill_value=2.5 if by == 2.5 else None)
        ours = theirs.fit(data.x[:40, [at]]).transform(data.x[40:, [at]])
        np.testing.assert_allclose(new.x[:, at], ours[:, 0], rtol=1e-6)
    assert not np.isnan(train.x).any()


def test_indicators_as_scikit_learn_adds_them() -> None:
    impute = pytest.importorskip("sklearn.impute")
    data = table()
    train, new = dnn.impute(data.take(slice(0, 40)), data.take(slice(40, 60)), by="indicator")
    theirs = impute.MissingIndicator().fit(data.x[:40])
    np.testing.assert_array_equal(new.x[:, 5:], theirs.transform(data.x[40:]))
    assert train.kinds == (*data.kinds, *["flag"] * 3)
    some, _ = dnn.impute(data, data, by={"colour": "indicator", "a": 1.0, "b": "mean"})
    assert some.features == 6
    np.testing.assert_array_equal(some.x[:, 5], np.isnan(data.x[:, 1]))
    np.testing.assert_array_equal(some.x[np.isnan(data.x[:, 0]), 0], 1)


def test_categories_as_scikit_learn_encodes_them() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    data = table()
    data = data.take(np.flatnonzero(~np.isnan(data.x).any(axis=1)))
    # A category that is in no training row.
    blue = 0.0
    rows = data.take(np.argsort(data.x[:, 1] == blue, kind="stable"))
    count = int((rows.x[:, 1] != blue).sum())
    train, new = dnn.encode(rows.take(slice(0, count)), rows.take(slice(count - 5, None)))
    theirs = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    theirs.fit(rows.x[:count, [1]])
    expected = theirs.transform(rows.x[count - 5 :, [1]])
    np.testing.assert_array_equal(new.x[:, 5:], expected)
    np.testing.assert_array_equal(new.x[:, :4], rows.x[count - 5 :, [0, 2, 3, 4]])
    # As many columns whatever the training rows have; that of a category of none is 0.
    assert not new.x[:, 4].any()
    assert train.kinds == ("number", "number", "boolean", "date", *["flag"] * 4)
    assert not new.x[5:, 4:].any()


def test_only_quantities_are_scaled() -> None:
    (train,) = dnn.standardise(*dnn.encode(*dnn.impute(table(), by="indicator")))
    for at, kind in enumerate(train.kinds):
        if kind in ("number", "date"):
            assert abs(train.x[:, at].mean()) < 1e-5
            assert train.x[:, at].std() == pytest.approx(1, abs=1e-5)
        else:
            assert {*train.x[:, at].tolist()} <= {0, 1}
    with pytest.raises(DataError, match=r"codes yet, which are no quantities: dnn\.encode comes"):
        dnn.standardise(*dnn.impute(table()))


@pytest.mark.parametrize("encoding", ["one_hot", "embedding"])
def test_a_model_prepares_new_rows_as_those_of_the_training(encoding: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    data = table()
    ready = dnn.standardise(*dnn.encode(*dnn.impute(data, by="indicator"), by=encoding))[0]
    model = NeuralNetwork(dnn.mlp(ready.features, [4], 2), seed=1)
    model.fit(ready.x, ready.y, epochs=2, progress=False)
    model.save(tmp_path / "model", data=ready)
    loaded = dnn.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(data), model.predict_proba(ready.x))
    new = {"a": [np.nan, 3], "b": [1, 2], "truth": [None, True], "day": ["2020-02-01", None],
           "colour": ["pink", "red"]}  # fmt: skip
    codes = [[np.nan, 4, 1, np.nan, 18293], [3, 2, 2, 1, np.nan]]
    assert np.isfinite(loaded.predict_proba(new)).all()
    np.testing.assert_array_equal(loaded.predict_proba(new), loaded.predict_proba(codes))
    assert "encoding" not in repr(loaded)
    for step in loaded.preparation:
        assert step_of(json.loads(json.dumps(described_step(step)))) == step
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    loaded.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    raw = np.vstack([data.x, codes]).astype(np.float32)
    (found,) = session.run(["probabilities"], {"x": raw})
    np.testing.assert_allclose(found, loaded.predict_proba(raw), rtol=1e-5, atol=1e-6)


def test_both_encodings_by_column() -> None:
    words = {"p": ["x", "y", "x"], "n": [1, 2, 3], "q": ["u", "v", "w"], "t": [0, 1, 0]}
    data = dnn.load_table(words)
    (found,) = dnn.encode(data, by={"q": "embedding"})
    assert found.x.tolist() == [[1, 1, 0, 1], [2, 0, 1, 2], [3, 1, 0, 3]]
    assert found.kinds == ("number", "flag", "flag", "code")
    assert found.raw_features == 3
    np.testing.assert_array_equal(prepared(data.x, found.preparation), found.x)
    unknown = np.array([[7, 1, 9], [0, 1, np.nan]], np.float32)
    assert prepared(unknown, found.preparation)[:, [1, 2, 3]].tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: dnn.impute(data, by="middle"), "unknown way to fill missing cells 'middle'"),
        (lambda data: dnn.impute(data, by={"x": 1}), "no feature 'x' .there are: a, colour"),
        (lambda data: dnn.impute(data, by={"colour": "mean"}), "'colour' is a category, which has"),
        (lambda data: dnn.encode(data, by="hash"), "unknown encoding 'hash'"),
        (lambda data: dnn.encode(data, by={"colour": 1}), "unknown encoding 1"),
        (lambda data: dnn.encode(data, by={"a": "one_hot"}), "'a' is a number, and no category"),
    ],
)
def test_ways_that_are_none(call: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call(table())


def test_columns_without_anything_to_learn() -> None:
    data = dnn.load_table({"a": [1, 2], "b": [None, None], "y": [0, 1]})
    with pytest.raises(DataError, match=r"attribute 1 is missing in all .* column 'b', which drop"):
        dnn.impute(data)
    many = np.arange(30_000).astype(str)
    wide = dnn.load_table({"name": np.char.add("n", many), "y": np.arange(30_000) % 2})
    with pytest.raises(DataError, match="'name' has 30,000 categories, too many"):
        dnn.encode(wide)
    assert dnn.encode(wide, by="embedding")[0].x.max() == 30_000


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("one_hot", {"features": 0}),
        ("one_hot", {"columns": []}),
        ("one_hot", {"columns": [{"at": 3, "count": 2, "codes": [1]}]}),
        ("one_hot", {"columns": [{"at": 0, "count": 0, "codes": []}]}),
        ("codes", {"columns": [{"at": 0, "count": 1, "codes": [1]}]}),
        ("codes", {"columns": [{"at": 0, "count": 3, "codes": [n]} for n in (1, 2)]}),
        ("codes", {"columns": [{"at": 0, "count": 3, "codes": [0.5]}]}),
        ("impute", {"by": ["median"]}),
        ("impute", {"indicators": [3]}),
        ("impute", {"fill": [1, 2, float("inf")]}),
    ],
)
def test_descriptions_of_steps_that_are_none(step: str, change: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "step": step,
        "features": 3,
        "columns": [{"at": 0, "count": 3, "codes": [0, 2]}],
    }
    if step == "impute":
        plain = {"step": step, "fill": [1, 2, 3], "by": ["mean"] * 3, "indicators": [1]}
    assert step_of(plain).name in STEPS
    with pytest.raises((KeyError, TypeError, ValueError)):
        step_of(plain | change)
    with pytest.raises(ValueError, match="features"):
        step_of(plain).outputs(4)
