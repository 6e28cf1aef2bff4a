"""Networks of trials that go on from weights: loaded, frozen, with a new last layer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import dnn
from dnn import NeuralNetwork, mlp
from modules import trainer
from modules.pretrained import Pretrained
from modules.trial import Report, run_trial

pytest.importorskip("sklearn", reason="the data come with scikit-learn")

POINT = {"hidden": [8], "epochs": 2, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of a network for the attributes of breast_cancer, and three classes."""
    NeuralNetwork(mlp(30, [8], 3, "relu"), seed=7).save_weights(tmp_path / "w.npz")
    return tmp_path / "w.npz"


def options(folder: Path, **given: Any) -> trainer.Options:
    given = {"dataset": "breast_cancer", **given}
    return trainer.Options.model_validate(given, context={"folder": folder})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": "gone.npz"}, "no weights at "),
        ({"weights": "w.pt"}, "a pickle, and no safetensors file"),
        ({"weights": "text.npz"}, "truncated, or no safetensors file"),
        ({"weights": "$NO_SUCH_THING/w"}, "weights = '$NO_SUCH_THING/w': the environment"),
        ({"head": "new"}, "head is about weights of a file, and there is none"),
        ({"head": "old"}, "Input should be 'loaded' or 'new'"),
        ({"freeze": "*"}, "Input should be a valid list"),
        ({"weights": "w.npz", "training": {"parallel": {"pipeline": 2}}}, "no rank of a mesh"),
        ({"dataset": None, "train": "./mine.py:train", "freeze": ["*"]}, "freeze: of a dataset"),
    ],
)
def test_options_that_cannot_be(
    given: dict[str, Any], words: str, weights: Path, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    (tmp_path / "w.pt").write_bytes(pickle.dumps({}))
    (tmp_path / "text.npz").write_text("weights")
    with pytest.raises(ValidationError) as caught:
        options(tmp_path, **given)
    assert words in str(caught.value)


def test_the_directory_of_the_run_is_known_when_it_runs(tmp_path: Path) -> None:
    found = options(tmp_path, weights="$DIEL_RUN_DIR/body.npz")
    task = found.task(tmp_path, run_dir=tmp_path / "run")
    assert task.options["weights"] == str(tmp_path / "run" / "body.npz")
    with pytest.raises(ValidationError, match=r"no weights at .*body.npz"):
        task.load()
    with pytest.raises(ValueError, match="the environment variable DIEL_RUN_DIR is not set"):
        found.task(tmp_path)


def tried(train: Any, point: Mapping[str, Any] = POINT, seed: int = 5) -> Any:
    return run_trial(train, dict(point), Report(0, seed, options={}, folder=Path()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trials_begin_with_the_weights_alone_and_together(
    weights: Path, tmp_path: Path, dtype: str
) -> None:
    given = {"weights": str(weights), "head": "new", "freeze": ["*"]}
    compute = {"compute": {"precision": dtype}}
    train = trainer.prepare({"dataset": "breast_cancer", **given, **compute}, tmp_path)
    points = [{**POINT, "learning_rate": rate} for rate in (0.1, 0.01, 0.3)]
    reports = [Report(0, seed, options={}, folder=Path()) for seed in (5, 6, 7)]
    for _ in range(2):  # the second time with the plans that are there
        together = train.train_together(list(zip(points, reports, strict=True)))
        for point, report, metrics in zip(points, reports, together, strict=True):
            alone = tried(train, point, report.seed).metrics
            assert metrics is not None
            assert {**metrics, "training_time_s": 0, "splits": 0} == {
                **alone,
                "training_time_s": 0,
                "splits": 0,
            }


def test_the_model_of_a_trial_has_the_frozen_weights(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    given = {"weights": "w.npz", "head": "new", "freeze": ["*"]}
    train = trainer.prepare({"dataset": "breast_cancer", **given}, tmp_path)
    file = train.save_model(POINT, Report(0, 5, options={}, folder=Path()), tmp_path / "model")
    with np.load(weights) as there:
        body, bias = there["0.weight"].T, there["0.bias"]
    model = dnn.load(file).network
    np.testing.assert_array_equal(model.parameters["fully_connected_1.weight"], body)
    np.testing.assert_array_equal(model.parameters["fully_connected_1.bias"], bias)
    said = capsys.readouterr().out
    assert "w.npz: 2 of 2 arrays fit" in said
    assert "frozen: fully_connected_1.weight, fully_connected_1.bias" in said
    # A model of a sweep is a file of weights too, and its last layer fits.
    again = {"weights": str(file), "freeze": ["fully_connected_1"]}
    train = trainer.prepare({"dataset": "breast_cancer", **again}, tmp_path)
    assert not tried(train).reason


@pytest.mark.parametrize(
    ("given", "point", "words"),
    [
        ({}, {}, r'2.weight has the shape \(3, 8\), and .* takes \(2, 8\); head = "new" leaves'),
        ({"head": "new"}, {"hidden": [9]}, r"0.weight has the shape \(8, 30\), and .* \(9, 30\)"),
        ({"head": "new"}, {"hidden": [8, 8]}, r"4.weight is missing|2.weight has the shape"),
        ({"head": "new", "freeze": ["conv*"]}, {}, r"no parameter is called 'conv\*'; layers wi"),
    ],
)
def test_a_trial_that_does_not_fit_says_why(
    given: dict[str, Any], point: dict[str, Any], words: str, weights: Path, tmp_path: Path
) -> None:
    train = trainer.prepare({"dataset": "breast_cancer", "weights": "w.npz", **given}, tmp_path)
    failed = tried(train, {**POINT, **point})
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(failed.reason)


def test_what_is_loaded_need_not_be_frozen(weights: Path) -> None:
    model = NeuralNetwork(mlp(30, [8], 2, "relu"), seed=1)
    Pretrained(weights, has_new_head=True).begin(model)
    assert model.frozen == []
    with np.load(weights) as there:
        np.testing.assert_array_equal(model.parameters["fully_connected_1.bias"], there["0.bias"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,c,y\n1,2,p,u\n3,4,q,v\n", ""),
        ("c,a,b,y\np,1,2,u\nq,3,4,v\n", 'order, .* reading.features = ["a", "b", "c"]'),
        ("a,d,c,y\n1,2,p,u\n3,4,q,v\n", "no column 'd'"),
        ("a,c,y\n1,p,u\n3,q,v\n", "further columns"),
        ("a,b,c,y\n1,2,p,u\n3,4,r,v\n", "other categories of column 'c'"),
    ],
)
def test_other_columns_than_those_of_the_weights_are_odd(
    text: str, words: str, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    (tmp_path / "old.csv").write_text("a,b,c,y\n1,2,p,u\n3,4,q,v\n")
    (old,) = dnn.encode(dnn.load_csv(tmp_path / "old.csv"))
    network = NeuralNetwork(mlp(old.features, [8], 2, "relu"), seed=7)
    network.save(tmp_path / "old.safetensors", data=old)
    (tmp_path / "new.csv").write_text(text + text.partition("\n")[2] * 4)
    given = options(tmp_path, dataset="csv", path="new.csv", weights="old.safetensors")
    problem, odd = trainer.look_at_data(given, tmp_path)
    found = [line for line in odd if line.startswith("weights: old.safetensors")]
    assert not problem
    if not words:
        assert not found
    else:
        assert all(word in found[0] for word in words.split(".*"))
