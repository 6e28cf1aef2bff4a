"""What MagmaDNN's hyperparameter search offers, one test each, on networks that are trained.

The words are those of its papers. One process plays master and trainer; tests/workflows runs the
same code on ranks.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnn import Dataset
from modules import trainer
from modules.options import SweepOptions
from modules.search import Search
from modules.trial import Report, trial_seed


def made(name: str, path: object = None) -> Dataset:
    """Rows whose classes a network can learn, but not in an epoch."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(160, 5))
    y = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + 0.3 * generator.normal(size=160) > 0).astype(int)
    return Dataset(x, y, 2, name)


class Sweep:
    """A search and a trainer in one process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, evaluation: Any = None, **table: Any):
        monkeypatch.setattr("dnn.load_dataset", made)
        options = {"dataset": "cleveland", "path": ".", "split_seed": 3}
        if evaluation is not None:
            options = {"dataset": "cleveland", "path": ".", "evaluation": evaluation}
        task = trainer.Options.model_validate(options, context={"folder": Path()}).task(Path())
        train = trainer.prepare(task.options, Path())
        self.search = Search(SweepOptions.model_validate(table))
        self.points: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.stopped: list[int] = []
        self.reports = 0
        while isinstance(point := self.search.ask(len(self.points)), dict):
            trial = len(self.points)
            report = Report(
                trial, trial_seed(0, trial), options={}, folder=Path(), on_report=self.on_report
            )
            metrics = train(point, report)
            self.points.append(point)
            self.metrics.append(dict(metrics))
            self.search.tell(trial, point, None if report.is_stopped else metrics)
            if report.is_stopped:
                self.stopped.append(trial)

    def on_report(self, trial: int, step: int, metrics: dict[str, Any]) -> bool:
        self.reports += 1
        return not self.search.report(trial, step, metrics)

    def column(self, name: str) -> list[float]:
        return [metric[name] for metric in self.metrics]


def test_grid_search_exhaustively_searches_ranges_with_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over learning rate, weight decay, batch size and epochs, as in the papers."""
    sweep = Sweep(
        monkeypatch,
        space={
            "learning_rate": {"from": 0.1, "to": 0.3, "step": 0.1},
            "weight_decay": {"from": 1e-4, "to": 1e-2, "log_steps": 2},
            "batch_size": {"from": 16, "to": 32, "step": 16},
            "epochs": {"from": 1, "to": 5, "step": 4},
            "hidden": {"value": [8]},
        },
    )
    assert len(sweep.points) == 24
    assert len({str(point) for point in sweep.points}) == 24
    assert {point["learning_rate"] for point in sweep.points} == {0.1, 0.2, 0.1 + 2 * 0.1}
    assert sweep.search.best is not None
    trial, point, (accuracy,) = sweep.search.best
    assert accuracy == max(sweep.column("accuracy")) == sweep.metrics[trial]["accuracy"]
    assert point["epochs"] == 5  # one epoch is not enough


def test_the_routine_is_able_to_add_new_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(
        monkeypatch,
        space={
            "hidden": [[4], [8, 8]],
            "activation": ["tanh", "relu"],
            "momentum": 0.5,
            "epochs": 2,
        },
    )
    assert len({str(point) for point in sweep.points}) == len(set(sweep.column("loss"))) == 4


def test_random_sampling_until_some_accuracy_threshold_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = Sweep(
        monkeypatch,
        space={
            "learning_rate": {"from": 1e-4, "to": 1.0, "scale": "log"},
            "hidden": [[8], [16]],
            "epochs": 15,
        },
        strategy="random",
        trials=200,
        until={"objective": 0.8},
    )
    accuracies = sweep.column("accuracy")
    assert 1 < len(accuracies) < 200
    assert accuracies[-1] >= 0.8 > max(accuracies[:-1])
    assert sweep.search.reason == "objective"


def test_random_search_that_updates_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = {
        "space": {
            "learning_rate": {"from": 1e-6, "to": 1.0, "scale": "log"},
            "hidden": {"value": [8]},
            "epochs": 5,
        },
        "objective": "loss",
        "trials": 80,
    }
    learning = Sweep(monkeypatch, strategy={"name": "cross_entropy", "elite": 6}, **table)
    blind = Sweep(monkeypatch, strategy="random", **table)
    median = [sorted(one.column("loss")[40:])[20] for one in (learning, blind)]
    assert median[0] < median[1] - 0.02
    # It has found out where good learning rates are.
    rates = [abs(math.log10(p["learning_rate"]) + 1) for p in learning.points[40:]]
    assert sorted(rates)[30] < 1.0


@pytest.mark.sample
@pytest.mark.parametrize("rule", ["halving", {"rule": "median", "startup_trials": 3}])
def test_a_model_that_performs_poorly_is_stopped_early(
    monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    table: dict[str, Any] = {
        "space": {"learning_rate": {"from": 1e-5, "to": 1.0, "log_steps": 16}, "epochs": 4},
        "evaluation": {"method": "k_fold", "folds": 9},
        "objective": "loss",
        "order": "shuffled",
    }
    whole = Sweep(monkeypatch, **table)
    short = Sweep(monkeypatch, early_stopping=rule, **table)
    assert whole.reports == 16 * 9
    assert short.reports < 0.7 * whole.reports
    assert len(short.stopped) >= 5
    assert whole.search.best is not None
    assert short.search.best is not None
    # What is left is as good, or nearly.
    assert short.search.best[2][0] < whole.search.best[2][0] + 0.05


def test_on_one_split_a_model_is_stopped_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = {
        "space": {"learning_rate": {"from": 1e-5, "to": 1.0, "log_steps": 12}, "epochs": 9},
        "objective": "loss",
        "order": "shuffled",
    }
    whole = Sweep(monkeypatch, **table)
    short = Sweep(monkeypatch, early_stopping="halving", **table)
    assert whole.reports == 12 * 9
    assert short.reports < 0.8 * whole.reports
    assert len(short.stopped) >= 4
    # Reports change nothing: what came to its end is as it was, but for its time.
    for trial in set(range(12)) - set(short.stopped):
        assert short.metrics[trial]["loss"] == whole.metrics[trial]["loss"]


def test_the_objective_is_a_combination_of_training_duration_and_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table: dict[str, Any] = {"space": {"epochs": [1, 4, 60], "hidden": {"value": [8]}}}
    accurate = Sweep(monkeypatch, **table)
    quick = Sweep(monkeypatch, objective="accuracy - 100 * training_time_s", maximise=True, **table)
    fitting = Sweep(monkeypatch, objective="loss", **table)
    assert accurate.search.best is not None
    assert quick.search.best is not None
    assert fitting.search.best is not None
    values = [metric["accuracy"] - 100 * metric["training_time_s"] for metric in quick.metrics]
    assert quick.search.best[2] == (max(values),)
    assert quick.search.best[1]["epochs"] < 60
    assert accurate.search.best[2] == (max(accurate.column("accuracy")),)
    assert fitting.search.best[2] == (min(fitting.column("loss")),)
    both = Sweep(monkeypatch, objective=["accuracy", "training_time_s"], **table)
    front = {trial for trial, _, _ in both.search.front}
    times, accuracies = both.column("training_time_s"), both.column("accuracy")
    assert times.index(min(times)) in front
    assert max(accuracies) in {accuracies[trial] for trial in front}
