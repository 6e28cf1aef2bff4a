"""Patience and several seeds of a trial, alone and with others in a plan."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from diel.testing import Module, run_modules
from dnn import EarlyStopping, NeuralNetwork, load
from modules import master, trainer, training
from modules.hyperparameters import Hyperparameters, batch_size_of, optimizer_of
from modules.network_trainer import NetworkTrainer
from modules.networks import layers_of
from modules.sweep.ledger import ledger_path, trials_of
from modules.sweep.output import export
from modules.trial import Report, run_trial, trial_seed
from modules.trial_plan import TrialPlan

pytest.importorskip("sklearn", reason="the data come with scikit-learn")

POINTS: list[dict[str, Any]] = [
    {"learning_rate": rate, "hidden": [8], "epochs": epochs, "batch_size": 64}
    for rate, epochs in ((0.5, 30), (0.02, 40), (0.1, 2), (1.5, 30))
]
FOLDS = {"method": "k_fold", "folds": 3}
NESTED = {"method": "nested", "folds": 2, "inner_folds": 2}
PATIENT = {"dataset": "breast_cancer", "patience": 3, "min_delta": 0.001}


def prepared(**options: Any) -> NetworkTrainer:
    return trainer.prepare({**PATIENT, **options}, Path())


def tried(
    train: NetworkTrainer, point: dict[str, Any], seed: int, **more: Any
) -> tuple[dict[str, Any], Report]:
    report = Report(0, seed, options={}, folder=Path(), **more)
    result = run_trial(train, point, report)
    assert not result.reason, result.detail
    return result.metrics, report


def timeless(found: Any) -> Any:
    """Without the times: those are never the same."""
    if isinstance(found, dict):
        return {name: timeless(x) for name, x in found.items() if name != "training_time_s"}
    return [timeless(x) for x in found] if isinstance(found, (list, tuple)) else found


@pytest.mark.sample(3)
@pytest.mark.parametrize("evaluation", [None, FOLDS, NESTED])
@pytest.mark.parametrize("seeds", [{}, {"seeds": 3, "seeds_score": 0.25}])
def test_patience_and_seeds_are_the_same_alone_and_together(evaluation: Any, seeds: Any) -> None:
    train = prepared(**({"evaluation": evaluation} if evaluation else {}), **seeds)
    reports = [Report(0, seed, options={}, folder=Path()) for seed in range(4)]
    together = train.train_together(list(zip(POINTS, reports, strict=True)))
    for seed, (point, found) in enumerate(zip(POINTS, together, strict=True)):
        alone, report = tried(train, point, seed)
        watched, _ = tried(train, point, seed, on_report=lambda *_: True)
        assert timeless(alone) == timeless(found) == timeless(watched)
        assert timeless(report.curve.points) == timeless(reports[seed].curve.points)


def test_the_metrics_are_those_of_the_best_epoch() -> None:
    train = prepared()
    data = train._rounds[0]
    for seed, point in enumerate(POINTS):
        metrics, report = tried(train, point, seed)
        wanted = Hyperparameters.model_validate(point)
        model = NeuralNetwork(layers_of(wanted, 30, 2), optimizer=optimizer_of(wanted, data.count),
                              seed=seed)  # fmt: skip
        rule = EarlyStopping("validation_loss", 3, 0.001)
        history = model.fit(
            data.training,
            validation=data.validation,
            epochs=wanted.epochs,
            batch_size=batch_size_of(wanted),
            callbacks=[rule],
        )
        assert rule.best_epoch is not None
        assert metrics["best_epoch"] == rule.best_epoch + 1
        assert type(metrics["best_epoch"]) is int
        assert metrics["loss"] == rule.best == model.evaluate(data.validation)["loss"]
        curve = [(step, reported["loss"]) for step, reported in report.curve.points]
        losses = [scores["loss"] for scores in history.validation]
        assert curve == list(enumerate(losses, 1))  # each epoch as it was


def test_rows_that_test_the_choice_choose_no_epoch() -> None:
    train = prepared(evaluation=NESTED)
    jobs = train._rounds.jobs
    metrics, _ = tried(train, POINTS[1], 5)
    assert [job.is_test for job in jobs] == [False, False, True] * 2
    for outer in range(2):
        choice = metrics["splits"]["choice"][outer]["best_epoch"]
        number = 3 * outer + 2
        data, seed = train._rounds[number], trial_seed(5, number)
        alone = training.train(POINTS[1], seed, data, epochs=round(choice))
        assert alone["loss"] == metrics["splits"]["test"][outer]["loss"]
        assert "best_epoch" not in metrics["splits"]["test"][outer]


def test_a_rule_of_the_sweep_may_stop_a_training_before_its_patience() -> None:
    train = prepared(seeds=2)
    seen = []

    def on_report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
        seen.append(step)
        return step < 2

    metrics, report = tried(train, POINTS[1], 0, on_report=on_report)
    assert report.is_stopped
    assert seen == [1, 2]  # of the first seed: the others are not trained
    assert "accuracy_deviation" not in metrics


def test_metrics_of_seeds() -> None:
    one, *others = (tried(prepared(), POINTS[0], seed)[0] for seed in
                    (7, trial_seed(7, -1), trial_seed(7, -2)))  # fmt: skip
    of_seeds = [one, *others]
    for score, expected in (
        ("mean", fmean),
        (0.0, min),
        (0.25, lambda values: float(np.quantile(values, 0.25))),
        (0.5, lambda values: float(np.median(values))),
    ):
        found, _ = tried(prepared(seeds=3, seeds_score=score), POINTS[0], 7)
        assert found["accuracy"] == pytest.approx(expected([m["accuracy"] for m in of_seeds]))
        # Of a loss the worse end is the upper one.
        assert -found["loss"] == pytest.approx(expected([-m["loss"] for m in of_seeds]))
        assert found["accuracy_deviation"] == pytest.approx(stdev(m["accuracy"] for m in of_seeds))
        assert found["best_epoch"] == pytest.approx(fmean(m["best_epoch"] for m in of_seeds))
        assert [m["loss"] for m in found["splits"]["seeds"]] == [m["loss"] for m in of_seeds]
    nan = TrialPlan(seeds=2, score=0.25).combined([{"loss": math.nan}, {"loss": 1.0}], spread=True)
    assert all(value != value for value in nan.values())


def test_a_seed_that_diverges_is_the_trial_that_diverges() -> None:
    point = {**POINTS[0], "learning_rate": 1e25}
    metrics, _ = tried(trainer.prepare({"dataset": "breast_cancer", "seeds": 2}, Path()), point, 1)
    assert metrics["diverged"] is True


@pytest.mark.parametrize("evaluation", [None, FOLDS])
def test_a_sweep_records_each_seed_and_keeps_the_best_epoch(
    tmp_path: Path, evaluation: Any
) -> None:
    pytest.importorskip("safetensors")
    options = {"space": {"hidden": [[4], [8]], "epochs": 20, "learning_rate": 0.3}, "seed": 4}
    more = {"evaluation": evaluation} if evaluation else {}
    given = trainer.Options.model_validate({**PATIENT, "seeds": 2, **more})
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options)),
            "trainer": Module(trainer.run, given),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    best = runs["master"][0].returned
    ledger = ledger_path(tmp_path, "group", "master", (0,))
    (record,) = (each for each in trials_of(ledger) if each["trial"] == best["trial"])
    first, second = record["splits"]["seeds"]
    assert best["accuracy"] == pytest.approx(fmean([first["accuracy"], second["accuracy"]]))
    (file,) = export(ledger, ["csv"], tmp_path)[:1]
    rows = csv.DictReader(file.read_text().splitlines())
    row = next(row for row in rows if int(row["trial"]) == best["trial"])
    assert float(row["loss_seed_2"]) == second["loss"]
    assert float(row["loss_deviation"]) == best["loss_deviation"]
    model = load(ledger.with_name("best.safetensors"))
    about = model.provenance
    assert (about["seed"], about["seeds"]) == (record["seed"], "the first of 2")
    assert about["epochs"] == round(first["best_epoch"])
    if not evaluation:  # the network of the first seed, to the last bit
        assert about["metrics"]["loss"] == first["loss"]


def test_a_regression_has_patience_seeds_and_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    options = {"dataset": "diabetes", "patience": 3, "watch": "rmse", "seeds": 2}
    point = {"learning_rate": 0.02, "hidden": [8], "batch_size": 64}
    metrics = []
    for epochs in ([5, 30], [30]):  # from a shorter one, and from the start
        given = trainer.Options.model_validate({**options, "checkpoints": {}})
        train = given.task(Path(), kept_in=tmp_path / f"{len(epochs)}").load()
        assert isinstance(train, NetworkTrainer)
        for count in epochs:
            metrics.append(timeless(tried(train, {**point, "epochs": count}, 4)[0]))
    _, continued, whole = metrics
    assert continued == whole
    assert whole["rmse_deviation"] > 0
    first, second = whole["splits"]["seeds"]
    assert whole["rmse"] == pytest.approx(fmean([first["rmse"], second["rmse"]]))
    report = Report(0, 4, options={}, folder=Path())
    about = load(train.save_model({**point, "epochs": 30}, report, tmp_path / "best")).provenance
    assert about["metrics"]["rmse"] == first["rmse"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_delta": 0.1}, "goes with patience"),
        ({"watch": "loss"}, "goes with patience"),
        ({"patience": 2, "watch": "los"}, "Input should be"),
        ({"patience": 2, "watch": "rmse"}, "rmse"),
        (
            {"dataset": "diabetes", "patience": 2, "watch": "accuracy"},
            "is no metric of a regression",
        ),
        ({"patience": 0}, "greater than or equal to 1"),
        ({"seeds_score": 0.2}, "of one seed"),
        ({"seeds": 2, "seeds_score": 0.9}, "no quantile at the worse end"),
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"dataset": None, "train": "./mine.py:train", "seeds": 2}, "seeds: of a dataset"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        trainer.Options.model_validate({"dataset": "digits", **options})
    assert words in str(caught.value)
