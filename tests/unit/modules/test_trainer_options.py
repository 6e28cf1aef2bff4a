"""Options of our trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dnn import ConfigurationError, Dataset, reading_options, standardise
from dnn.data.known_sets import SOURCES
from dnn.data.loading import DATASETS
from modules import tabular, trainer
from modules.sweep.runners import Limits
from modules.trainer_data import load_split
from modules.trial import Report, Trial


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
        (
            {"dataset": "cleveland", "path": "$NO_SUCH_THING/x"},
            "environment variable NO_SUCH_THING is not set",
        ),
        ({"dataset": "mnist", "path": "${NO_SUCH_THING}"}, "variable NO_SUCH_THING is not set"),
        ({"dataset": "digits", "path": "x"}, "leave out path"),
        ({"dataset": "digts"}, "Input should be 'digits'"),
        ({"dataset": "digits", "validation_fraction": 1.0}, "less than 1"),
        (
            {"dataset": "csv", "path": ".", "reading": {"labels": "fine"}},
            "dataset 'csv' takes no labels: it takes label, delimiter, header, missing",
        ),
        ({"dataset": "digits", "reading": {"label": 1}}, "takes no label: it takes nothing"),
        ({"train": "./mine.py:train", "reading": {}}, "reading: of a dataset"),
        ({"dataset": "digits", "split_seed": -1}, "greater than or equal to 0"),
        (
            {"dataset": "digits", "standardise": "column"},
            "Input should be 'columns', 'one scale' or 'none'",
        ),
        ({"train": "./mine.py:train", "standardise": "none"}, "standardise: of a dataset"),
        ({}, "either dataset or train"),
        ({"dataset": "digits", "train": "./mine.py:train"}, "either dataset or train"),
        ({"train": "./mine.py:trian"}, 'did you mean "train"?'),
        ({"train": "./mine.py:narrow"}, "it is called with two arguments: (parameters, report)"),
        ({"train": "./mine.py:wide"}, "wide in "),
        ({"train": "./gone.py:train"}, "there is no file"),
        ({"train": "no_such_package.x:train"}, "there is no module no_such_package.x"),
        ({"train": "./mine.py:train", "path": "x"}, "path: of a dataset"),
        ({"dataset": "digits", "options": {"a": 1}}, "they go with train"),
        ({"dataset": "digits", "time_limit": 0.0}, "greater than 0"),
        ({"dataset": "digits", "memory_limit": "much"}, 'write "512 MiB"'),
        ({"dataset": "digits", "augment": ["filp"]}, "there is no change 'filp' of images"),
        ({"dataset": "digits", "augment": [{"side": 2}]}, "name is missing"),
        ({"dataset": "digits", "augment": ["shift"]}, "shift: pixels is missing"),
        (
            {"dataset": "digits", "augment": [{"name": "shift", "side": 2}]},
            'shift: unknown key "side"',
        ),
        ({"dataset": "digits", "augment": [{"name": "cutout", "side": 0}]}, "Cutout: side"),
        (
            {"dataset": "digits", "augment": [{"name": "crop", "size": [12, 12]}]},
            "12 pixels are more than the 8 that there are",
        ),
        ({"dataset": "breast_cancer", "augment": ["flip"]}, "and breast_cancer is a table"),
        ({"train": "./mine.py:train", "augment": ["flip"]}, "augment: of a dataset"),
    ],
)
def test_bad_options_of_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("NO_SUCH_THING", raising=False)
    (tmp_path / "mine.py").write_text(
        "def train(parameters, report): return {}\n"
        "def narrow(p): return {}\n"
        "def wide(parameters, report, rate): return {}\n"
    )
    with pytest.raises(ValidationError) as caught:
        trainer_options(tmp_path, **options)
    (error,) = caught.value.errors()
    assert words in f"{error['msg']} ({error.get('ctx', {}).get('remedy', '')})"
    if "path" in options and options["path"] == "gone":
        assert str(tmp_path / "gone") in str(error["msg"])
        call = f"import dnn; dnn.download('mnist', '{tmp_path / 'gone'}')"
        assert error["ctx"]["remedy"] == f'get them: python -c "{call}"'


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"dataset": "csv"}, ("path",)),
        ({"dataset": "digits", "path": "a"}, ("path",)),
        ({"dataset": "digits", "reading": {"label": 1}}, ("reading", "label")),
        ({"dataset": "digits", "evaluation": {}, "groups": "a"}, ("groups",)),
        ({"dataset": "digits", "evaluation": {}, "split_seed": 1}, ("split_seed",)),
        ({"dataset": "digits", "checkpoints": {"earlier": "none"}}, ("checkpoints", "earlier")),
    ],
)
def test_a_problem_stands_at_its_option(options: Any, place: Any, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        trainer_options(tmp_path, **options)
    assert [error["loc"] for error in caught.value.errors()] == [place]


def test_every_data_set_is_one_of_a_trainer() -> None:
    assert SOURCES.keys() < DATASETS.keys()
    known = {option for name in DATASETS for option in reading_options(name)}
    assert set(tabular.ReadingOptions.model_fields) == known


def test_a_table_as_data(tmp_path: Path) -> None:
    rows = ["height;kind;weight"]
    rows += [f"{1.5 + i / 100};{i % 2};{'?' if i == 3 else 50 + i}" for i in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    reading = {"label": "kind", "delimiter": ";", "missing": ["?"]}
    given: dict[str, Any] = {"dataset": "csv", "path": "table.csv", "reading": reading}
    options = trainer_options(tmp_path, **given)
    train = options.task(tmp_path).load()
    report = options.task(tmp_path).report(Trial(0, {}, 1))
    metrics = train({"hidden": [8], "epochs": 2}, report)
    assert 0 <= metrics["accuracy"] <= 1
    training, validation = load_split(given, tmp_path)
    assert (training.x.shape, validation.x.shape, training.classes) == ((16, 2), (4, 2), 2)
    assert np.isfinite(training.x).all()


def test_convolutional_networks_together_are_as_alone() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    train = trainer.prepare({"dataset": "digits", "standardise": "one scale"}, Path())
    point = {"channels": [4, 6], "kernel": 3, "hidden": [16], "epochs": 4, "batch_size": 32}
    trials = [
        ({**point, "learning_rate": rate}, Report(0, seed, options={}, folder=Path()))
        for seed, rate in enumerate((0.01, 0.02, 0.03))
    ]
    together = train.train_together(trials)
    for (parameters, report), found in zip(trials, together, strict=True):
        assert found is not None
        alone = train(parameters, report)
        assert {**alone, "training_time_s": 0} == {**found, "training_time_s": 0}
        assert alone["accuracy"] > 0.7  # one of ten, untrained


def test_convolutions_of_rows_fail_by_name() -> None:
    pytest.importorskip("sklearn", reason="these rows come with scikit-learn")
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    with pytest.raises(ValueError, match="samples are rows of 30 numbers"):
        train({"channels": [4]}, Report(0, 0, options={}, folder=Path()))


def test_images_as_data(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 5, 4), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", x=pixels, kinds=np.arange(30) % 3)
    given: dict[str, Any] = {"dataset": "npz", "path": "made.npz", "reading": {"y": "kinds"}}
    for by in ("none", "columns", None):
        options = trainer_options(tmp_path, **given, **({} if by is None else {"standardise": by}))
        task = options.task(tmp_path)
        metrics = task.load()({"hidden": [4], "epochs": 1}, task.report(Trial(0, {}, 1)))
        assert 0 <= metrics["accuracy"] <= 1
    training, _ = load_split({**given, "standardise": "none"}, tmp_path)
    assert training.x.dtype == np.float32
    assert 0.9 < training.x.max() <= 1


def test_sequences_as_data(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    kinds = np.arange(160) % 2
    x = 0.3 * draw.normal(size=(160, 5, 4))
    x[:, 0, 0] += 2 * kinds - 1  # the first of up to five steps tells
    ends = draw.integers(2, 6, 160)
    np.savez(tmp_path / "made.npz", x=x, y=kinds, ends=ends)
    given: dict[str, Any] = {"dataset": "npz", "path": "made.npz", "reading": {"lengths": "ends"}}
    task = trainer_options(tmp_path, **given).task(tmp_path)
    train, report = task.load(), task.report(Trial(0, {}, 1))
    point = {"recurrent": [6], "hidden": [], "epochs": 8, "learning_rate": 0.5, "batch_size": 16}
    assert train(point, report)["accuracy"] > 0.85  # one of two, untrained
    assert train.train_together([(point, report)] * 2) == [None, None]
    with pytest.raises(ValueError, match="these samples are sequences: give recurrent"):
        train({"hidden": [4]}, report)
    with pytest.raises(ConfigurationError, match="sequences are not scaled by 'columns'"):
        trainer_options(tmp_path, **given, standardise="columns").task(tmp_path).load()


def test_images_row_by_row() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    train = trainer.prepare({"dataset": "digits"}, Path())
    report = Report(0, 0, options={}, folder=Path())
    found = train({"recurrent": [16], "hidden": [], "epochs": 4, "learning_rate": 0.3}, report)
    assert found["accuracy"] > 0.7  # one of ten, untrained


def test_images_that_are_changed_at_random(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    changes: list[Any] = [{"name": "shift", "pixels": 1}, {"name": "cutout", "side": 2}]
    task = trainer_options(tmp_path, dataset="digits", augment=changes).task(tmp_path)
    point = {"hidden": [32], "epochs": 4, "batch_size": 32, "learning_rate": 0.05}
    found = []
    for options in (task.options, {**task.options, "augment": []}):
        train = trainer.prepare(options, tmp_path)
        first, again = (train(point, Report(0, 3, options={}, folder=Path())) for _ in range(2))
        assert {**first, "training_time_s": 0} == {**again, "training_time_s": 0}
        found.append((first["loss"], first["accuracy"]))
    assert min(accuracy for _, accuracy in found) > 0.7
    assert found[0] != found[1]
    cropped = {**task.options, "augment": [{"name": "crop", "size": [6, 4]}]}
    (data,) = trainer.prepare(cropped, tmp_path)._rounds
    assert (data.shape, data.features) == ((1, 6, 4), 24)


def test_a_trainer_standardises_by_all_that_dnn_knows(tmp_path: Path) -> None:
    train = Dataset(np.array([[1.0, 5.0], [3.0, 9.0]]), np.arange(2), 2, "made")
    means = {}
    for by in ("columns", "one scale", "none"):
        options = trainer_options(tmp_path, dataset="digits", standardise=by)
        assert options.task(tmp_path).options["standardise"] == by
        (ready,) = standardise(train, by=by)
        means[by] = ready.x.mean(axis=0).astype(float).round(3).tolist()
    assert means == {"columns": [0, 0], "one scale": [-0.845, 0.845], "none": [2, 7]}
    assert "standardise" not in trainer_options(tmp_path, dataset="digits").task(tmp_path).options


def test_a_function_that_takes_a_trial_somehow_is_fine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import functools\n"
        "def more(parameters, report, rate=1): return {}\n"
        "def any_number(*given): return {}\n"
        "@functools.cache\n"
        "def decorated(p): return {}\n"
        "class Callable:\n    def __call__(self, parameters, report): return {}\n"
        "made = Callable()\n"
    )
    for name in ("more", "any_number", "decorated", "made"):
        trainer_options(tmp_path, train=f"./mine.py:{name}")


def test_limits_make_a_process_of_its_own(tmp_path: Path) -> None:
    assert not trainer_options(tmp_path, dataset="digits").limits.needs_process
    options = trainer_options(tmp_path, dataset="digits", memory_limit="1 GiB", time_limit=2)
    assert options.limits == Limits(time_s=2.0, memory_bytes=2**30)
    assert options.limits.needs_process
    assert trainer_options(tmp_path, dataset="digits", isolated=True).limits.needs_process


def test_changes_of_larger_images_than_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "made.npz", x=np.zeros((30, 5, 4), np.uint8), y=np.arange(30) % 3)
    given = {"dataset": "npz", "path": "made.npz", "augment": [{"name": "crop", "size": [5, 5]}]}
    options = trainer_options(tmp_path, **given)
    problem, _ = trainer.look_at_data(options, tmp_path)
    assert problem == "augment: Crop: 5 pixels are more than the 4 that there are"
