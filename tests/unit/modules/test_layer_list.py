"""Networks as lists of layers in a workflow file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support import ROOT

import dnn
from diel.errors import WorkflowError
from diel.loading.functions import check_options
from diel.workflow.load import read_draft
from modules.hyperparameters import Hyperparameters
from modules.layer_list import filled, references, rows_of, with_layers
from modules.networks import layers_of
from modules.trainer import Options, describe_network, prepare
from modules.trial import Report

LAYERS: list[dict[str, Any]] = [
    {"type": "conv2d", "filters": "$filters", "window": 3, "activation": "relu"},
    {"type": "flatten"},
    {"type": "fully_connected", "units": "$units", "activation": "relu", "repeat": "$depth"},
]
POINT = {"filters": 2, "units": 4, "depth": 2}


def test_values_of_a_trial_stand_in_the_places_of_their_names() -> None:
    assert references(LAYERS) == ["filters", "units", "depth"]
    found = with_layers({**POINT, "epochs": 3}, LAYERS)
    assert found["epochs"] == 3
    assert "units" not in found
    assert found["layers"][2] == {**LAYERS[2], "units": 4, "repeat": 2}
    assert with_layers(POINT, None) == POINT
    with pytest.raises(ValueError, match=r'layers use "\$units", which this trial does not have'):
        filled(LAYERS, {"filters": 1})


def test_a_network_is_described_as_dnn_does_it(tmp_path: Path) -> None:
    options = Options(dataset="digits", layers=LAYERS)
    rows = describe_network(options, tmp_path, POINT)
    wanted = Hyperparameters.model_validate(with_layers(POINT, LAYERS))
    summaries = dnn.layer_summaries(layers_of(wanted, 64, 10, (1, 8, 8)))
    assert [(row["name"], tuple(row["shape"]), row["parameters"]) for row in rows] == [
        (summary.name, summary.shape, summary.parameters) for summary in summaries
    ]
    # Which of the list each comes from: neither what reads samples nor the last one does.
    assert [row.get("layer") for row in rows] == [None, None, 0, 0, 1, 2, 2, 2, 2, None]
    assert describe_network(Options(dataset="digits"), tmp_path, {"hidden": [3]})[-1]["shape"] == [
        10
    ]
    # Of a file, which is read for it.
    file = tmp_path / "own.csv"
    file.write_text("\n".join(f"{i},{i % 3},{i % 2}" for i in range(20)))
    of_file = Options.model_validate(
        {"dataset": "csv", "path": "own.csv", "layers": LAYERS[2:]}, context={"folder": tmp_path}
    )
    assert describe_network(of_file, tmp_path, {"units": 4, "depth": 2})[0]["shape"] == [2]


def test_layers_that_do_not_fit_are_shown_up_to_there() -> None:
    wanted = Hyperparameters(layers=[{"type": "fully_connected", "units": 3}])
    rows = rows_of(layers_of(wanted, 64, 10, (1, 8, 8)))
    assert [row["name"] for row in rows] == ["input_1", "reshape_1", "fully_connected"]
    assert "must be a vector" in rows[-1]["problem"]
    with pytest.raises(ValueError, match="layers: there are none"):
        rows_of([])


def test_networks_of_layers_are_the_same_alone_and_together(tmp_path: Path) -> None:
    options = Options(dataset="digits", layers=LAYERS)
    task = options.task(tmp_path)
    trainer = prepare(task.options, tmp_path)
    points = [{**POINT, "epochs": 1, "learning_rate": rate} for rate in (0.05, 0.1)]
    reports = [Report(trial, 5 + trial, options={}, folder=tmp_path) for trial in range(4)]
    together = trainer.train_together(list(zip(points, reports[:2], strict=True)))
    for point, report, fused in zip(points, reports[:2], together, strict=True):
        alone = trainer(point, report)
        assert fused is not None
        assert {name: alone[name] for name in ("accuracy", "loss", "mcc")} == {
            name: fused[name] for name in ("accuracy", "loss", "mcc")
        }
        assert np.isfinite(alone["loss"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [{"type": "flatten"}, {"type": "dense"}]}, "here that is 'fully_connected'"),
        ({"layers": [{"type": "fully_connected", "units": 3}]}, "a sample must be a vector"),
        ({"layers": [{"type": "flatten", "units": "$units"}]}, "unknown argument 'units'"),
        ({"layers": [{"type": "$kind", "units": 3}]}, "cannot come from the space"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({"dataset": "digits", **options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ('"flatten"', '"flaten"', ["module[1].options.layers[2]", "did you mean 'flatten'?"]),
        ("units = 32", "unit = 32", ['layers of the trainer use "$units"', '"unit"']),
        ("units = 32", "units = 0", ["units must be an integer of at least 1, not 0"]),
        ('    { type = "flatten" },\n', "", ["with filters = ", "must be a vector"]),
        ("window = 2", "window = 9", ["options.space", "9"]),
        ("depth = [1, 2]", "depth = [1, 2]\nhidden = [[3]]", ["hidden is of no network"]),
        ("filters = [4, 8]", 'filters = { choices = [4], if = { depth = 2 } }',
         ['layers use "$filters", which this trial does not have']),
    ],
)  # fmt: skip
def test_a_file_is_checked(tmp_path: Path, old: str, new: str, messages: list[str]) -> None:
    text = (ROOT / "workflows" / "digits_layers.toml").read_text()
    assert old in text
    file = tmp_path / "layers.toml"
    file.write_text(text.replace(old, new))
    with pytest.raises(WorkflowError) as caught:
        check_options(read_draft(str(file)))
    assert all(message in str(caught.value) for message in messages), str(caught.value)
