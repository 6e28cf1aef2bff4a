"""Trials that are trained together give what each gives alone, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diel.loading import context
from diel.testing import Module, run_modules
from dnn import History, RoutineTable
from modules import master, trainer
from modules.compute import MOST_NETWORKS
from modules.epochs import estimated_time_s
from modules.metrics import SPLITS
from modules.network_trainer import NetworkTrainer
from modules.sweep import trainer_loop
from modules.sweep.ledger import ledger_path, records_of
from modules.trial import Report, Trial, TrialResult, run_trial, trial_seed

pytest.importorskip("sklearn", reason="the data come with scikit-learn")

FOLDS = {"method": "k_fold", "folds": 4}


def alone(train: NetworkTrainer, parameters: dict[str, Any], seed: int) -> dict[str, Any]:
    tried = run_trial(train, parameters, Report(0, seed, options={}, folder=Path()))
    assert not tried.reason, tried.detail
    return tried.metrics


def all_of(
    train: NetworkTrainer, trials: list[tuple[dict[str, Any], int]]
) -> tuple[list[dict[str, Any] | None], list[Report]]:
    """Train together; return metrics, and the reports with the learning curves."""
    reports = [Report(0, seed, options={}, folder=Path()) for _, seed in trials]
    given = [(point, report) for (point, _), report in zip(trials, reports, strict=True)]
    return train.train_together(given), reports


def timeless(metrics: dict[str, Any]) -> Any:
    """Without the times: those are never the same."""
    if isinstance(metrics, dict):
        return {k: timeless(v) for k, v in metrics.items() if k != "training_time_s"}
    return (
        [timeless(metric) for metric in metrics] if isinstance(metrics, (list, tuple)) else metrics
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("evaluation", [None, FOLDS])
@pytest.mark.parametrize("rows", [None, [(0, "numpy"), (1024, "ones")], [(0, "ones")]])
def test_together_and_alone_are_the_same_to_the_last_bit(evaluation: Any, rows: Any) -> None:
    given = {"dataset": "breast_cancer", **({"evaluation": evaluation} if evaluation else {})}
    if rows is not None:
        given["table"] = RoutineTable({"sum": rows, "product": [(0, "whole")]}).to_json()
    train = trainer.prepare(given, Path())
    points = [
        {"learning_rate": rate, "momentum": momentum, "weight_decay": decay, "epochs": epochs,
         "hidden": hidden, "batch_size": 64, "activation": "tanh"}
        for hidden in ([8], [6, 5])
        for rate, momentum, decay, epochs in ((0.01, 0.0, 0.0, 3), (0.3, 0.9, 1e-3, 5),
                                              (0.1, 0.5, 0.0, 1))
    ]  # fmt: skip
    trials = [(point, trial_seed(3, number)) for number, point in enumerate(points)]
    together, _ = all_of(train, trials)
    assert len(together) == 6
    for (point, seed), metrics in zip(trials, together, strict=True):
        assert metrics is not None
        assert timeless(metrics) == timeless(alone(train, point, seed))
        assert metrics["training_time_s"] > 0
        assert SPLITS in metrics
    # However they are put together.
    again, _ = all_of(train, trials[::-2])
    assert [timeless(one) for one in again] == [timeless(one) for one in together[::-2]]


@pytest.mark.parametrize("options", [None, {"method": "k_fold", "folds": 2}])
def test_losses_and_class_weights_together_and_alone(options: Any) -> None:
    evaluation = {"evaluation": options} if options else {}
    train = trainer.prepare({"dataset": "breast_cancer", **evaluation}, Path())
    common = {"hidden": [5], "epochs": 2}
    points: list[dict[str, Any]] = [
        {"loss": "focal", "gamma": 0.5, "class_weight": "balanced"},
        {"loss": "focal", "gamma": 3.0, "class_weight": "balanced"},
        {"class_weight": [1.0, 5.0], "label_smoothing": 0.1},
        {"class_weight": [1.0, 5.0], "label_smoothing": 0.3},
        {"loss": "cross_entropy", "loss_epsilon": 1e-3},
        {"loss": "cross_entropy"},
        {"loss": "binary_cross_entropy", "class_weight": "balanced"},
        {"loss": "binary_cross_entropy", "class_weight": "balanced", "learning_rate": 0.2},
    ]
    points = [{**common, **point} for point in points]
    together, _ = all_of(train, [(point, 5) for point in points])
    found = [timeless(alone(train, point, 5)) for point in points]
    assert [timeless(one or {}) for one in together] == found
    # A loss that is a parameter stands in the place of the metric.
    assert ["loss" in one for one in found] == ["loss" not in point for point in points]
    assert len({str(one) for one in found}) > 2
    by_name = {**points[2], "class_weight": {"0": 1.0, "1": 5.0}}
    assert timeless(alone(train, by_name, 5)) == found[2]


@pytest.mark.parametrize("method", ["holdout", "nested"])
def test_together_and_alone_standardise_the_same(method: str) -> None:
    folds = {"folds": 2, "inner_folds": 2} if method == "nested" else {}
    given = {"dataset": "digits", "evaluation": {"method": method, **folds}}
    points = [{"hidden": [6], "learning_rate": rate, "epochs": 1} for rate in (0.1, 0.5)]
    found = {}
    for by in (None, "columns", "one scale", "none"):
        train = trainer.prepare({**given, "standardise": by}, Path())
        together, _ = all_of(train, [(point, 7) for point in points])
        found[by] = [timeless(one) for one in together if one is not None]
        assert found[by] == [timeless(alone(train, point, 7)) for point in points]
    assert found[None] == found["columns"]
    losses = {found[by][0]["loss"] for by in ("columns", "one scale", "none")}
    assert len(losses) == 3


@pytest.mark.thorough
def test_whatever_the_hyperparameters_are_nobody_can_tell_from_a_result() -> None:
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    kinds: list[dict[str, Any]] = [
        {"optimizer": "adam", "beta1": 0.8, "dropout": 0.2},
        {"optimizer": "adam", "dropout": 0.4, "weight_decay": 1e-3},
        {"optimizer": "adamw", "weight_decay": 0.1, "batch_norm": True},
        {"optimizer": "adamw", "learning_rate": 0.01, "batch_norm": True, "epochs": 3},
        {"optimizer": "rmsprop", "momentum": 0.5, "smoothing": 0.9},
        {"optimizer": "rmsprop", "epsilon": 1e-6},
        {"optimizer": "adagrad", "schedule": "cosine"},
        {"optimizer": "adagrad", "learning_rate": 0.1, "schedule": "cosine"},
        {"optimizer": "nadam", "beta1": 0.8, "decoupled": True, "weight_decay": 0.1},
        {"label_smoothing": 0.1, "l2": 1e-3, "schedule": "one_cycle", "decoupled": True},
        {"label_smoothing": 0.2, "l2": 1e-2, "schedule": "one_cycle", "decoupled": True},
        {"optimizer": "lars", "warm_up": 1, "epochs": 3},
        {"optimizer": "lars", "trust": 0.01, "warm_up": 1},
        {"optimizer": "muon", "learning_rate": 0.1, "average": 0.5},
        {"optimizer": "muon", "weight_decay": 0.1, "average": 0.9},
        {"nesterov": True, "schedule": "step", "decay_every": 1, "warm_up": 1, "epochs": 3},
        {"nesterov": True, "schedule": "step", "decay_every": 1, "warm_up": 1, "momentum": 0.5},
    ]
    points = [{"hidden": [6, 5], "epochs": 2, "batch_size": 64, **kind} for kind in kinds]
    for again in range(2):  # the second time in plans that are kept
        trials = [(point, trial_seed(again, number)) for number, point in enumerate(points)]
        together, _ = all_of(train, trials)
        for (point, seed), metrics in zip(trials, together, strict=True):
            assert metrics is not None
            assert timeless(metrics) == timeless(alone(train, point, seed)), point


def test_a_network_that_diverges_says_so_and_its_neighbours_do_not() -> None:
    for evaluation in ({}, {"evaluation": FOLDS}):
        train = trainer.prepare({"dataset": "breast_cancer", **evaluation}, Path())
        points = [{"hidden": [8], "epochs": 3, "learning_rate": rate} for rate in (0.1, 1e30, 0.2)]
        found, _ = all_of(train, [(one, 7) for one in points])
        for metrics, point in zip(found, points, strict=True):
            assert metrics is not None
            assert metrics.get("diverged", False) == (point["learning_rate"] > 1)
            assert repr(timeless(metrics)) == repr(timeless(alone(train, point, 7)))


def test_a_training_time_does_not_depend_on_the_neighbours() -> None:
    """It is what the network takes alone: epochs times an epoch, timed once for its kind."""
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    point = {"hidden": [8], "epochs": 4}
    seen = []
    for neighbours in (1, 7, 40):
        found, _ = all_of(train, [({**point, "epochs": 8}, one) for one in range(neighbours)])
        found, _ = all_of(
            train, [(point, 9), *(({**point, "epochs": 8}, one) for one in range(neighbours))]
        )
        times_s = [one["training_time_s"] for one in found if one is not None]
        assert len(times_s) == neighbours + 1
        assert times_s[1:] == pytest.approx([2 * times_s[0]] * neighbours, rel=1e-12)
        seen.append(times_s[0])
    assert seen == [seen[0]] * 3
    assert alone(train, point, 9)["training_time_s"] == pytest.approx(seen[0], rel=1e-12)
    wide = alone(train, {**point, "hidden": [200]}, 9)["training_time_s"]
    assert wide > 0  # its own, since nothing is trained with it


def test_a_training_time_is_that_of_a_training_that_nothing_disturbs() -> None:
    history = History(loss=[3.0, 2.0, 1.0], epoch_times_s=[9.0, 0.5, 1.0])
    assert estimated_time_s(history) == 1.5
    sizes = {0: 8, 1: 16, 2: 16}
    assert estimated_time_s(history, batch_size=sizes.__getitem__) == 9.0 + 2 * 0.5


def test_networks_whose_batches_grow_are_trained_alone() -> None:
    """Of their epochs each takes another time."""
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    grows = {"hidden": [6], "epochs": 2, "batch_size": 64, "batch_growth": 2.0, "growth_every": 1}
    same = {"hidden": [6], "epochs": 2, "batch_size": 64}
    found, _ = all_of(train, [(grows, 1), (grows, 2), (same, 1), (same, 2)])
    assert [one is None for one in found] == [True, True, False, False]
    times_s = alone(train, {**grows, "optimizer": "lars"}, 1)["training_time_s"]
    assert times_s > 0


@pytest.mark.parametrize("evaluation", [{}, {"evaluation": FOLDS}])
def test_a_learning_curve_is_the_same_alone_and_together(evaluation: Any) -> None:
    train = trainer.prepare({"dataset": "breast_cancer", **evaluation}, Path())
    rates = {"learning_rate": 0.05}
    points = [
        {"hidden": [8], "epochs": 7, **rates}, {"hidden": [8], "epochs": 3},
        {"hidden": [8], "epochs": 9, "learning_rate": 1e30},
    ]  # fmt: skip
    found, reports = all_of(train, [(point, 5) for point in points])
    for point, metrics, report in zip(points, found, reports, strict=True):
        one = Report(0, 5, options={}, folder=Path())
        tried = run_trial(train, point, one)
        curve = [(step, timeless(said)) for step, said in report.curve.points]
        assert repr(curve) == repr([(step, timeless(said)) for step, said in tried.reports])
        steps = [step for step, _ in curve]
        if evaluation:
            assert steps == [1, 2, 3, 4]  # after each fold
        else:
            wanted = {7: [1, 2, 4, 7], 3: [1, 2, 3]}
            assert steps == wanted.get(point["epochs"], steps)
            assert len(steps) < 9  # the one that diverges ends
        assert metrics is not None
        assert repr(curve[-1][1]) == repr(
            {name: metrics[name] for name in ("accuracy", "loss", "mcc")}
            | ({"diverged": True} if evaluation and "diverged" in metrics else {})
        )


def test_progress_counts_epochs() -> None:
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    said: list[tuple[float, float | None, str]] = []
    reports = [
        Report(trial, trial, options={}, folder=Path(), progress=lambda *how: said.append(how))
        for trial in range(3)
    ]
    train.train_together(
        [({"hidden": [8], "epochs": 2 + report.trial}, report) for report in reports]
    )
    assert said == [
        (1, 4, "3 networks, epoch 1 of 4"),
        (2, 4, "3 networks, epoch 2 of 4"),
        (3, 4, "2 networks, epoch 3 of 4"),
        (4, 4, "a network, epoch 4 of 4"),
    ]
    said.clear()
    train({"hidden": [8], "epochs": 5}, reports[2])
    assert [how[:2] for how in said] == [(done, 5) for done in range(1, 6)]
    assert said[-1] == (5, 5, "trial 2, step 5 of 5")


def test_wide_networks_are_trained_alone() -> None:
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    narrow, wide = ({"hidden": [units], "epochs": 1} for units in (8, 128))
    found, _ = all_of(train, [(narrow, 1), (wide, 2), (narrow, 3)])
    assert [one is None for one in found] == [False, True, False]
    assert all_of(train, [(wide, 1), (wide, 2)])[0] == [None, None]
    assert all_of(train, [(narrow, 1)])[0] == [None]  # one alone is no crowd


@pytest.mark.sample
@pytest.mark.parametrize("routines", ["fixed", "measured"])
def test_a_sweep_gives_its_trainers_many_trials_at_once(
    routines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    here = NetworkTrainer.train_together

    def counting(self: NetworkTrainer, trials: Any) -> Any:
        sizes.append(len(trials))
        return here(self, trials)

    monkeypatch.setattr(NetworkTrainer, "train_together", counting)
    # Everything is said, however quickly it follows the last.
    monkeypatch.setattr(trainer_loop, "_SHOW_EVERY_S", 0.0)
    monkeypatch.setattr(context, "_PROGRESS_EVERY_S", 0.0)
    given = {"dataset": "breast_cancer", "routines": routines}
    options = {
        "space": {"epochs": 2, "hidden": [[4], [200]], "learning_rate": {"from": 0.01, "to": 0.5}},
        "strategy": "random",
        "trials": 120,
        "seed": 4,
    }
    runs = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options)),
            "trainer": Module(trainer.run, trainer.Options.model_validate(given), copies=2),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    records = list(records_of(ledger_path(tmp_path, "group", "master", (0,))))
    assert sorted(one["trial"] for one in records) == list(range(120))
    assert all(one["state"] == "finished" and one["seconds"] > 0 for one in records)
    assert max(sizes) > 20
    said = [
        one["text"]
        for copy in runs["trainer"]
        for one in copy.records
        if one["event"] == "ProgressMade"
    ]
    assert any(text.endswith(" networks, epoch 1 of 2") for text in said)
    assert any(text.startswith("trial ") for text in said)  # a wide one, alone
    assert not any("2 of 2" in text for text in said)  # what is done is not shown
    file = tmp_path / "routines.json"
    assert file.exists() == (routines == "measured")
    table = {"table": file.read_text()} if file.exists() else {}
    train = trainer.prepare({"dataset": "breast_cancer", **table}, Path())
    for record in records[::30]:
        expected = alone(train, record["parameters"], record["seed"])
        assert record["metrics"] == pytest.approx(
            {k: v for k, v in expected.items() if k != SPLITS}
            | {"training_time_s": record["metrics"]["training_time_s"]},
            rel=0,
            abs=0,
        )


def test_what_fails_together_is_found_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from modules.sweep.runners import InProcessRunner, Task

    here = InProcessRunner(Task(trainer.prepare, {"dataset": "breast_cancer"}, Path()))
    assert here.at_once == 2 * MOST_NETWORKS
    fine, wrong = {"epochs": 1}, {"epochs": 0}
    assert here.run_together([Trial(0, fine, 1), Trial(1, wrong, 2)]) == [None, None]
    alone: TrialResult = here(Trial(0, wrong, 2), None)
    assert "epochs" in alone.detail


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from dnn import NeuralNetwork, load_checkpoint, mlp

    options = {"space": {"hidden": [[4]], "epochs": [1, 2, 3]}, "seed": 4}
    for again in (False, True):  # also where all was recorded already
        runs = run_modules(
            {
                "master": Module(master.run, master.Options.model_validate(options)),
                "trainer": Module(
                    trainer.run, trainer.Options.model_validate({"dataset": "breast_cancer"})
                ),
            },
            folder=tmp_path,
            run_dir=tmp_path,
        )
        (done,) = runs["master"]
        file = ledger_path(tmp_path, "group", "master", (0,)).with_name("best.safetensors")
        assert file.exists(), again
        model = NeuralNetwork(mlp(30, [4], 2, "relu"))
        load_checkpoint(model, file, parameters_only=True)
        split = trainer.prepare({"dataset": "breast_cancer"}, Path())._rounds[0]
        assert model.evaluate(split.validation)["loss"] == done.returned["loss"]
        notes = [record["notes"] for record in done.records if "notes" in record]
        assert str(file) in notes[-1][-1]
        assert done.tuples == []
        file.unlink()
