"""Metrics that are measured only if an objective, `watch` or the trainer's options ask for them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from diel.testing import Module, run_modules
from dnn import Dataset
from dnn.distributed import Communicator, run_on_threads
from modules import master, trainer
from modules.evaluation import errors_of_groups
from modules.metrics import metrics_of_task
from modules.options import SweepOptions
from modules.trial import Report

pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")

POINT = {"hidden": [6], "epochs": 6, "learning_rate": 0.2}
GIVEN = {"dataset": "breast_cancer"}
NESTED = {"method": "nested", "folds": 2, "inner_folds": 2}
ASKED = {
    "classification": ["balanced_accuracy", "f1", "auc", "log_loss"],
    "multilabel": ["auc"],
}


def options(objective: Any = None, **given: Any) -> trainer.Options:
    """Return the options of a trainer beside a master with an objective, as a rank reads them."""
    given = {"dataset": "breast_cancer", **given}
    asked = {"space": {}, **({"objective": objective} if objective else {})}
    every = {"master": asked, "trainer": given, "other": {"space": {}, "objective": "hamming"}}
    return trainer.Options.model_validate(given, context={"folder": Path(), "options_of": every})


def trained(given: trainer.Options, communicator: Any = None) -> dict[str, Any]:
    task = given.task(Path())
    report = Report(0, 3, options={}, folder=Path(), communicator=communicator)
    return {**task.load()(POINT, report), "curve": report.curve.points}


def timeless(metrics: Any) -> Any:
    if isinstance(metrics, dict):
        return {name: timeless(each) for name, each in metrics.items() if "time_s" not in name}
    return [timeless(each) for each in metrics] if isinstance(metrics, list | tuple) else metrics


def test_what_is_measured_follows_from_what_is_asked_for() -> None:
    usual = [*metrics_of_task("classification"), "splits", "curve"]
    assert sorted(trained(options())) == sorted(usual)
    assert sorted(trained(options("accuracy - loss"))) == sorted(usual)
    found = trained(options(["1 - auc", "log_loss + f1_deviation"], metrics=["balanced_accuracy"]))
    assert sorted(found) == sorted([*usual, "auc", "log_loss", "f1", "balanced_accuracy"])
    assert found["auc"] > 0.9
    assert found["curve"][-1][1]["auc"] == found["auc"]


@pytest.mark.parametrize("evaluation", [None, NESTED, {"method": "k_fold", "folds": 2}])
@pytest.mark.parametrize("more", [{}, {"patience": 2, "watch": "auc", "seeds": 2}], ids=str)
def test_trainings_in_a_plan_measure_what_those_alone_do(evaluation: Any, more: Any) -> None:
    given = {**more, **({"evaluation": evaluation} if evaluation else {})}
    task = options(ASKED["classification"], **given).task(Path())
    train = task.load()
    points = [{**POINT, "learning_rate": rate} for rate in (0.1, 0.2)]
    reports = [Report(n, n, options={}, folder=Path()) for n in range(2)]
    together = train.train_together(list(zip(points, reports, strict=True)))
    assert None not in together
    alone = []
    for number, point in enumerate(points):
        going_on = Report(number, number, options={}, folder=Path(), on_report=lambda *_: True)
        alone.append(timeless(train(point, going_on)))
    assert timeless(together) == alone
    assert {*ASKED["classification"]} <= {*together[0]}
    for split in together[0]["splits"].get("test", ()):
        assert {*ASKED["classification"]} <= {*split}


@pytest.mark.parametrize("task", ASKED)
def test_several_ranks_measure_what_one_does(monkeypatch: Any, task: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 4))
    labels = (x[:, :3] + 0.5 * x[:, 1:4] > 0).astype(np.uint8)
    if task == "classification":
        made = Dataset(x, labels[:, 0].astype(int), 2, "made")
    else:
        made = Dataset(x, labels, 0, "made", task=task, targets=("a", "b", "c"))
    monkeypatch.setattr("dnn.load_dataset", lambda *_, **__: made)
    reading = {"reading": {"label": ["a", "b", "c"]}} if task == "multilabel" else {}
    watched = "exact_match" if task == "multilabel" else "auc"
    given: dict[str, Any] = {"dataset": "csv", "path": ".", "patience": 3, "watch": watched}
    given |= {**reading, "training": {"parallel": "data"}}
    alone = trained(options(ASKED[task], **given))

    def on_rank(communicator: Communicator) -> dict[str, Any]:
        return trained(options(ASKED[task], **given), communicator)

    for found in run_on_threads(2, on_rank):
        for name in (*ASKED[task], watched):
            assert found[name] == pytest.approx(alone[name], rel=1e-3)
        assert found["curve"][0][1].keys() == alone["curve"][0][1].keys()


def test_a_sweep_ranks_by_a_metric_that_is_asked_for(tmp_path: Path) -> None:
    asked = {"space": {"hidden": [[2], [6]], "epochs": 4}, "objective": ["auc", "log_loss"]}
    given = {"dataset": "breast_cancer", "evaluation": NESTED}
    context = {"folder": tmp_path, "options_of": {"master": asked, "trainer": given}}
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(asked, context=context)),
            "trainer": Module(trainer.run, trainer.Options.model_validate(given, context=context)),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    (done,) = runs["master"]
    assert done.returned["auc"] > 0.9
    notes = str([record.get("notes") for record in done.records])
    assert "auc, nested cross-validation (2 folds): 0.9" in notes


def test_the_best_auc_on_one_split_is_partly_luck(tmp_path: Path) -> None:
    asked = {"space": {"hidden": [[2], [6]], "epochs": 2}, "objective": "auc"}
    context = {"folder": tmp_path, "options_of": {"master": asked, "trainer": GIVEN}}
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(asked, context=context)),
            "trainer": Module(trainer.run, trainer.Options.model_validate(GIVEN, context=context)),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    (done,) = runs["master"]
    notes = str([record.get("notes") for record in done.records])
    (gain,) = {*re.findall(r"on 114 rows, luck alone can give ([\d.e-]+) of its auc", notes)}
    assert 0 < float(gain) < 0.1


def test_errors_of_left_out_groups_are_those_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(size=(2, 2000)) * [[1.0], [3.0]]

    def means(rows: Any) -> list[dict[str, float]]:
        return [{"mean": float(each[rows].mean())} for each in values]

    one, two = (found["mean"] for found in errors_of_groups(["mean"], 2000, means))
    assert one == pytest.approx(2000**-0.5, rel=0.4)
    assert two == pytest.approx(3 * 2000**-0.5, rel=0.4)
    assert [*errors_of_groups(["mean"], 1, means)] == [{"mean": 0.0}] * 2


def checked(objective: str, **given: Any) -> None:
    modules = {"trainer": SimpleNamespace(name="trainer", processes=1, gpus=0, options=given)}
    location = SimpleNamespace(file=Path(trainer.__file__), function="run")
    context = {"folder": Path(), "modules": modules, "locations": {"trainer": location}}
    asked = {"space": {"epochs": 1}, "objective": objective}
    SweepOptions.model_validate(asked, context=context)
    trainer.Options.model_validate(given, context={**context, "module": modules["trainer"]})


def test_a_metric_of_another_task_is_refused_before_a_run() -> None:
    checked("auc", dataset="digits", patience=3, watch="balanced_accuracy")
    for objective, given, words in (
        ("hamming", {"dataset": "digits"}, "no 'hamming'.*it reports accuracy.*auc, log_loss"),
        ("auc", {"dataset": "diabetes"}, "no 'auc'.*it reports rmse.*objective = \"rmse\""),
        ("rmse", {"dataset": "diabetes", "metrics": ["auc"]}, "auc is no metric of a regression"),
        (
            "accuracy",
            {"dataset": "digits", "patience": 1, "watch": "hamming"},
            "hamming is no metric of a classification.*there are accuracy.*log_loss",
        ),
    ):
        with pytest.raises(ValidationError) as caught:
            checked(objective, **given)
        assert re.search(words, str(caught.value.errors()), re.DOTALL), caught.value.errors()


def test_a_parameter_of_ones_own_may_have_the_name_of_such_a_metric() -> None:
    assert SweepOptions.model_validate({"space": {"f1": [1, 2]}, "trials": 2}, context={})
