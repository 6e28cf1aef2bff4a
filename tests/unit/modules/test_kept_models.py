"""The model that a sweep keeps takes raw rows, and scores on them what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from diel.testing import Module, run_modules
from modules import master, trainer
from modules.reporter import SweepReporter
from modules.sweep.ledger import ledger_path, records_of
from modules.sweep.messages import SaveModel
from modules.sweep.models import provenance_of, trial_of
from modules.sweep.runners import InProcessRunner
from modules.sweep.subprocess_runner import _saved
from modules.trial import Trial

pytest.importorskip("safetensors", reason="safetensors is not installed")

SPACE = {"learning_rate": [0.03, 0.1, 0.3], "hidden": [[4]], "epochs": 3}


def swept(folder: Path, trained: dict[str, Any], **asked: Any) -> Path:
    """Run a sweep; return the folder of its ledger."""
    context = {"folder": folder, "run_dir": folder}
    run_modules(
        {
            "master": Module(
                master.run,
                master.Options.model_validate({"space": SPACE, **asked}, context=context),
            ),
            "trainer": Module(
                trainer.run, trainer.Options.model_validate(trained, context=context)
            ),
        },
        folder=folder,
        run_dir=folder,
        timeout=60,
    )
    return ledger_path(folder, "group", "master", (0,)).parent


def best_of(folder: Path) -> dict[str, Any]:
    """Return the record of the best trial of a ledger."""
    records = list(records_of(folder / "trials.jsonl"))
    return min(records, key=lambda each: (-each["metrics"]["accuracy"], each["trial"]))


def heart(folder: Path) -> dict[str, Any]:
    """Write a table like Cleveland's, with missing cells; return the options of a trainer."""
    draw = np.random.default_rng(0)
    lines = []
    for row in range(120):
        cells = [f"{number:.1f}" for number in draw.uniform(0, [80, 2, 5, 200, 500] + [9] * 8)]
        if row % 9 == 1:
            cells[11] = "?"
        lines.append(",".join([*cells, str(int(float(cells[4]) > 250) * draw.integers(1, 5))]))
    (folder / "heart.data").write_text("\n".join(lines))
    return {"dataset": "cleveland", "path": "heart.data"}


def sequences(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(80, 5, 4)), np.arange(80) % 2
    np.savez(folder / "made.npz", x=x, y=y, ends=draw.integers(2, 6, 80))
    return {"dataset": "npz", "path": "made.npz", "reading": {"lengths": "ends"}}


def pictures(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8), np.arange(60) % 3
    np.savez(folder / "made.npz", x=x, y=y)
    crop = {"name": "crop", "size": [6, 4], "padding": 1}
    return {"dataset": "npz", "path": "made.npz", "augment": [crop, "flip"]}


def listed(folder: Path) -> dict[str, Any]:
    units = {"type": "fully_connected", "units": "$units", "activation": "tanh"}
    return {**heart(folder), "layers": [units, {"type": "batch_norm"}]}


@pytest.mark.parametrize(
    ("make", "space"),
    [
        (heart, SPACE),
        (listed, {"units": [3, 5], "epochs": 2}),
        (sequences, {"recurrent": [[3]], "hidden": [[]], "epochs": [1, 2]}),
        (pictures, {"channels": [[], [2]], "epochs": 1}),
        (pictures, {"batch_norm": True, "average": [0.9], "epochs": 2}),
    ],
)
def test_raw_rows_score_what_the_table_says(tmp_path: Path, make: Any, space: Any) -> None:
    options = make(tmp_path)
    folder = swept(tmp_path, options, space=space)
    best = best_of(folder)
    model = dnn.load(folder / "best.safetensors")
    data = dnn.load_dataset(options["dataset"], tmp_path / options["path"],
                            **options.get("reading", {}))  # fmt: skip
    train, held_out = dnn.train_validation_split(data, 0.2, seed=0)
    scores = model.evaluate(held_out.x, held_out.y)
    assert scores == {name: best["metrics"][name] for name in scores}
    assert model.evaluate(held_out) == scores
    said = model.provenance
    assert (said["trial"], said["seed"]) == (best["trial"], best["seed"])
    assert said["parameters"] == best["parameters"]
    assert (said["objective"], said["score"]) == ("accuracy", scores["accuracy"])
    assert {name: said["metrics"][name] for name in scores} == scores
    assert said["trained_on"] == f"{len(train)} of {len(data)} rows"
    assert said["scored_on"] == f"{len(held_out)} other rows"
    assert (said["sweep"], said["run"]) == (folder.name, tmp_path.name)
    assert said["validation_fraction"] == 0.2
    assert trial_of(folder / "best.safetensors") == best["trial"]


def test_of_folds_the_network_is_of_all_rows(tmp_path: Path) -> None:
    options = {**heart(tmp_path), "evaluation": {"method": "k_fold", "folds": 3}}
    folder = swept(tmp_path, options)
    model = dnn.load(folder / "best.safetensors")
    data = dnn.load_cleveland(tmp_path / "heart.data")
    (ready,) = dnn.standardise(*dnn.impute(data))
    assert model.preparation == ready.preparation
    assert model.provenance["trained_on"] == "all 120 rows"
    assert model.provenance["scored_on"] == "the mean of 3 trainings on parts of them"
    assert model.provenance["score"] == best_of(folder)["metrics"]["accuracy"]
    assert model.provenance["folds"] == 3


def test_an_isolated_trial_keeps_its_model_too(tmp_path: Path) -> None:
    folder = swept(tmp_path, {**heart(tmp_path), "time_limit": 60.0}, space={"epochs": [1, 2]})
    model = dnn.load(folder / "best.safetensors")
    assert model.provenance["trial"] == best_of(folder)["trial"]


MINE = """
def train(parameters, report):
    return {"accuracy": parameters["x"]}

def save_model(parameters, report, path):
    file = path.with_suffix(SUFFIX)
    file.write_text(str(dict(report.provenance, trial=report.trial)))
    return file

def fails(parameters, report, path):
    raise ValueError("the disk of this machine")
"""


def test_a_function_of_your_own_writes_what_it_likes(tmp_path: Path) -> None:
    text = MINE.replace("SUFFIX", '".pt"') + "\ntrain.save_model = save_model\n"
    (tmp_path / "mine.py").write_text(text)
    folder = swept(tmp_path, {"train": "./mine.py:train"}, space={"x": [0.25, 0.75]})
    said = (folder / "best.pt").read_text()
    assert "'score': 0.75" in said
    assert "'trial': 1" in said
    with pytest.raises(ValueError, match=r"best.pt is no .safetensors file, and diel reads no"):
        SweepReporter().find_model(tmp_path, "", None)


def test_a_sweep_without_a_model_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    swept(tmp_path, {"train": "./mine.py:train"}, space={"x": [0.25, 0.75]})
    with pytest.raises(
        ValueError, match=r"no model of its best trial, 1: .* save_model; with these trial"
    ):
        SweepReporter().find_model(tmp_path, "", None)
    again = SweepReporter().find_model(tmp_path, "", 0)
    assert (again["file"], again["parameters"]) == (None, {"x": 0.25})
    options = trainer.Options.model_validate(
        {"train": "./mine.py:train"}, context={"folder": tmp_path}
    )
    arguments = (again["parameters"], 0, again["seed"], Path(again["path"]), again["provenance"])
    with pytest.raises(ValueError, match=r"mine.py:train writes no models: give the function an"):
        trainer.save_model(options, tmp_path, *arguments)
    ours = trainer.Options.model_validate({"train": "modules.sklearn_trainer:train"})
    with pytest.raises(ValueError, match="sklearn_trainer:train writes no models: networks of dnn"):
        trainer.save_model(ours, tmp_path, *arguments)
    with pytest.raises(ValueError, match="has no trial 5"):
        SweepReporter().find_model(tmp_path, "", 5)
    wrong: list[Any] = [True, "1", 1.0, [1]]
    for trial in wrong:
        with pytest.raises(ValueError, match="a trial is a whole number, not"):
            SweepReporter().find_model(tmp_path, "", trial)
    assert SweepReporter().find_model(tmp_path, "", np.int64(0)) == again
    with pytest.raises(ValueError, match="has no sweep 'x': name one of"):
        SweepReporter().find_model(tmp_path, "x", None)
    with pytest.raises(ValueError, match="has no sweep that has begun"):
        SweepReporter().find_model(tmp_path / "nowhere", "", None)
    with pytest.raises(dnn.CheckpointError, match="cannot be read"):
        SweepReporter().load_model(tmp_path / "none.safetensors")


def test_the_model_of_another_trial_is_trained_again(tmp_path: Path) -> None:
    options = heart(tmp_path)
    folder = swept(tmp_path, options)
    best = best_of(folder)
    kept = SweepReporter().find_model(tmp_path, "", best["trial"])
    assert kept["file"] == str(folder / "best.safetensors")
    other = (best["trial"] + 1) % 3
    found = SweepReporter().find_model(tmp_path, folder.name, other)
    given = trainer.Options.model_validate(options, context={"folder": tmp_path})
    where = Path(found["path"])
    file = trainer.save_model(
        given, tmp_path, found["parameters"], other, found["seed"], where, found["provenance"]
    )
    assert SweepReporter().find_model(tmp_path, "", other)["file"] == str(file)
    record = next(each for each in records_of(folder / "trials.jsonl") if each["trial"] == other)
    assert dnn.load(file).provenance["metrics"]["loss"] == record["metrics"]["loss"]
    (folder / "best.safetensors").write_bytes(file.read_bytes())
    if record["metrics"]["accuracy"] < best["metrics"]["accuracy"]:
        with pytest.raises(ValueError, match=f"and trial {best['trial']} is better by now"):
            SweepReporter().find_model(tmp_path, "", None)


def test_where_a_model_comes_from_is_json(tmp_path: Path) -> None:
    made = provenance_of(tmp_path / "a-20260101-120000", "s.m", "f", float("nan"), {"splits": {}})
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert (made["workflow"], made["score"], made["metrics"]) == ("a", "nan", {})


def test_a_model_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE + "\ntrain.save_model = fails\n")
    options = trainer.Options.model_validate(
        {"train": "./mine.py:train"}, context={"folder": tmp_path}
    )
    runner = InProcessRunner(options.task(tmp_path))
    wanted = SaveModel("", Trial(0, {"x": 1}, 1), tmp_path / "best", {})
    assert _saved(runner, wanted) == (None, "ValueError: the disk of this machine")
    (tmp_path / "none.py").write_text(MINE + "\ntrain.save_model = lambda *given: None\n")
    options = trainer.Options.model_validate(
        {"train": "./none.py:train"}, context={"folder": tmp_path}
    )
    runner = InProcessRunner(options.task(tmp_path))
    assert _saved(runner, wanted) == (
        None,
        "ValueError: save_model returns the file that it has written, not None",
    )
