"""Networks on a table with a rare category and a single missing cell: alike in all splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from modules import trainer
from modules.trial import Trial

POINT = {"hidden": [8], "epochs": 3}


def write(folder: Path) -> None:
    draw = np.random.default_rng(0)
    rows = ["size,colour,count,good"]
    for row in range(60):
        colour = "rare" if row == 7 else "green" if row % 3 else "red"
        count = "NA" if row == 11 else row % 5
        rows.append(f"{draw.normal():.3f},{colour},{count},{'yes' if row % 4 else 'no'}")
    (folder / "mine.csv").write_text("\n".join(rows))


@pytest.mark.parametrize(("encode", "features"), [("one_hot", 6), ("embedding", 4)])
def test_networks_together_are_as_alone(encode: str, features: int, tmp_path: Path) -> None:
    write(tmp_path)
    given: dict[str, Any] = {"dataset": "csv", "path": "mine.csv", "impute": "indicator"}
    given |= {"encode": encode, "reading": {"missing": ["NA"]}, "evaluation": {"method": "k_fold"}}
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    task = options.task(tmp_path)
    train = task.load()
    # In one of five splits no training row has the rare category, or a missing cell.
    assert [split.features for split in train._rounds] == [features] * 5
    trials = [
        ({**POINT, "learning_rate": rate}, task.report(Trial(number, {}, number + 1)))
        for number, rate in enumerate((0.05, 0.1))
    ]
    together = train.train_together(trials)
    for (parameters, report), found in zip(trials, together, strict=True):
        alone = train(parameters, report)
        for name in ("accuracy", "loss", "mcc"):
            assert alone[name] == found[name]
    layers = [row["name"] for row in trainer.describe_network(options, tmp_path, POINT)]
    assert ("embed_columns_1" in layers) is (encode == "embedding")


def test_the_model_of_a_trial_predicts_names(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    write(tmp_path)
    given = {"dataset": "csv", "path": "mine.csv", "encode": {"colour": "embedding"}}
    given["reading"] = {"missing": ["NA"]}
    task = trainer.Options.model_validate(given, context={"folder": tmp_path}).task(tmp_path)
    file = task.load().save_model(POINT, task.report(Trial(0, {}, 1)), tmp_path / "model")
    model = dnn.load(file)
    assert model.classes == ("no", "yes")
    new = {"size": [0.1, 2.0], "colour": ["rare", "blue"], "count": [None, 3]}
    assert {*model.predict_class(new).tolist()} <= {"no", "yes"}
    assert model.evaluate(tmp_path / "mine.csv")["accuracy"] > 0.5
