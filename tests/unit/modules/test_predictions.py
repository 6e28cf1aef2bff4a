"""Predictions of the best trial: their file, and what the report draws of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnn import Dataset
from modules import trainer
from modules.predictions import (
    Predictions,
    place_of_predictions,
    read_predictions,
    write_predictions,
)
from modules.report import Moment, Sweep
from modules.report.data import RowSelection, SweepView
from modules.report.figures import figures_of
from modules.report.markup import with_unit
from modules.report.panels import Heatmap, Plot
from modules.trial import Report

SMALL = {"hidden": [4], "epochs": 3, "learning_rate": 0.05}


def view_of(file: Path) -> SweepView:
    sweep = Sweep("s", "rmse", False, ["rate"], model={"predictions": str(file)})
    selection = RowSelection(sweep)
    selection.add([{"trial": 0, "rate": 0.1, "rmse": 1.0}])
    return SweepView.of(selection, Moment())


def saved(tmp_path: Path, **options: Any) -> tuple[Path, Any]:
    """Write the model of a trial; return the file of its predictions, and its metrics."""
    trials = trainer.prepare(options, tmp_path)
    told = Report(0, 1, options={}, folder=tmp_path)
    metrics = trials(dict(SMALL), told)
    file = trials.save_model(dict(SMALL), told, tmp_path / "best")
    return place_of_predictions(file), metrics


@pytest.mark.parametrize(
    ("evaluation", "rows"),
    [({}, 88), ({"method": "k_fold", "folds": 3}, 442), ({"method": "nested", "folds": 2}, 442)],
)
def test_rows_are_predicted_that_were_not_trained_on(
    tmp_path: Path, evaluation: Any, rows: int
) -> None:
    options = {"evaluation": evaluation} if evaluation else {}
    file, metrics = saved(tmp_path, dataset="diabetes", **options)
    found = read_predictions(file)
    assert found is not None
    assert found.are_values
    ((name, true, predicted),) = found.pairs()
    assert (name, len(true)) == ("progression", rows)
    assert len({*file.read_text().splitlines()}) == rows + 1
    rmse = float(np.sqrt(np.square(np.subtract(true, predicted)).mean()))
    if not evaluation:
        assert rmse == pytest.approx(metrics["rmse"], rel=1e-4)
    elif evaluation["method"] == "k_fold":
        assert rmse == pytest.approx(metrics["rmse"], rel=0.05)
    figures = figures_of(view_of(file), None)
    for figure in (figures["predictions"], figures["residuals"]):
        (panel,) = figure.panels
        assert isinstance(panel, Plot)
        assert len(panel.layers[0].x) == rows
        assert "<svg" in figure.draw(560)
        assert figure.plotly()["data"]
    assert "confusion" not in figures


def test_classes_are_confused_by_name(tmp_path: Path) -> None:
    data = Dataset(
        np.zeros((5, 1)), np.array([0, 1, 1, 2, 2]), 3, "d", class_names=("a", "<b>", "c")
    )
    write_predictions(tmp_path / "p.csv", data, [(np.arange(5), np.array([0, 1, 2, 2, 2]))])
    assert (tmp_path / "p.csv").read_text().splitlines()[:2] == [
        "row,class,predicted class",
        "1,a,a",
    ]
    figures = figures_of(view_of(tmp_path / "p.csv"), None)
    (panel,) = figures["confusion"].panels
    assert isinstance(panel, Heatmap)
    assert panel.labels == (["<b>", "a", "c"], ["c", "a", "<b>"])
    assert panel.trials == [[0, 0, 1], [0, 1, 0], [2, 0, 1]]
    assert panel.value[2] == [1.0, 0.0, 0.5]
    drawn = figures["confusion"].draw(560)
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert "predictions" not in figures


def test_columns_of_the_data_are_named_as_they_are(tmp_path: Path) -> None:
    y = np.array([[0, 1], [1, 1], [1, 0]])
    for task in ("multilabel", "regression"):
        data = Dataset(np.zeros((3, 1)), y, 0, "d", task=task, targets=("body_mass_g", "age_s"))
        write_predictions(tmp_path / "p.csv", data, [(np.arange(3), y)])
        figures = figures_of(view_of(tmp_path / "p.csv"), None)
        for name in {"predictions", "residuals", "confusion"} & figures.keys():
            drawn = figures[name].draw(560, with_unit)
            assert "body_mass_g" in drawn
            assert "body mass" not in drawn


def test_each_label_has_a_plane_of_its_own(tmp_path: Path) -> None:
    y = np.array([[0, 1], [1, 1], [1, 0]])
    data = Dataset(np.zeros((3, 1)), y, 0, "d", task="multilabel", targets=("red", "blue"))
    write_predictions(
        tmp_path / "p.csv", data, [(np.arange(3), np.array([[0, 1], [0, 1], [1, 0]]))]
    )
    figures = figures_of(view_of(tmp_path / "p.csv"), None)
    red, blue = figures["confusion"].panels
    assert (red.caption, blue.caption) == ("red, F1 0.67", "blue, F1 1.00")
    assert red.trials == [[1, 1], [1, 0]]
    assert "how many without (0) and with (1) each label" in figures["confusion"].note
    assert "predictions" not in figures


@pytest.mark.parametrize(
    "text",
    ["", "row,price\n1,2\n", "row,price,predicted cost\n1,2,3\n", "row,a,predicted a\n1,2\n"],
)
def test_a_file_that_holds_no_predictions(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    assert read_predictions(tmp_path / "p.csv") is None
    assert read_predictions(tmp_path / "missing.csv") is None
    assert not {"predictions", "residuals", "confusion"} & {
        *figures_of(view_of(tmp_path / "p.csv"), None)
    }


def test_cells_that_are_no_numbers_are_left_out() -> None:
    found = Predictions(False, ("a",), [["1", "x", "3"]], [["1.5", "2", "nan"]])
    assert [*found.pairs()] == [("a", [1.0], [1.5])]
