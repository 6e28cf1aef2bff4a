"""Trainers for other frameworks, where these are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.trainer_data import load_split
from modules.trial import Report, TrialResult, run_trial


def tried(train: Any, parameters: dict[str, Any], seed: int = 1, **options: Any) -> TrialResult:
    given = {"dataset": "digits", **options}
    report = Report(0, seed, options=given, folder=Path())
    return run_trial(train, parameters, report)


def test_rows_are_standardised_as_for_our_trainer() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    deviations = {}
    for by in (None, "columns", "one scale", "none"):
        training, _ = load_split({"dataset": "digits", "standardise": by}, Path())
        inner = training.x.std(axis=0)[20:22]
        deviations[by] = (float(training.x.std()), float(inner.std()))
    assert deviations[None] == deviations["columns"]
    assert deviations["columns"] == pytest.approx((0.97, 0), abs=0.02)
    assert deviations["one scale"][0] == pytest.approx(1, rel=1e-5)
    assert deviations["none"][0] < 0.5
    assert deviations["one scale"][1] > deviations["none"][1] > 0
    with pytest.raises(ValueError, match="did you mean 'one scale'"):
        load_split({"dataset": "digits", "standardise": "one_scale"}, Path())


def timeless(one: TrialResult) -> dict[str, Any]:
    assert one.reason == "", one.detail
    return {name: value for name, value in one.metrics.items() if name != "training_time_s"}


def test_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from modules.sklearn_trainer import train

    forest = {"estimator": "sklearn.ensemble.RandomForestClassifier"}
    parameters = {"n_estimators": 10, "max_depth": 8}
    first, again = (tried(train, parameters, **forest) for _ in range(2))
    assert timeless(first) == timeless(again)
    assert timeless(first) != timeless(tried(train, parameters, seed=2, **forest))
    assert first.metrics["accuracy"] > 0.85
    assert set(first.metrics) == {"accuracy", "mcc", "loss", "training_time_s"}
    svm = tried(train, {"C": 1.0}, estimator="sklearn.svm.LinearSVC")
    assert "loss" not in timeless(svm)
    wrong = tried(train, {"no_such": 1}, **forest)
    assert "no_such" in wrong.reason
    assert "AttributeError" in tried(train, {}, estimator="sklearn.svm.LinearSVM").reason


def test_pytorch() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        from modules.torch_trainer import train

        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
        parameters = {"hidden": [16], "epochs": 5, "learning_rate": 0.1, "momentum": 0.5}
        first, again = (tried(train, parameters) for _ in range(2))
        assert timeless(first) == timeless(again)
        assert first.metrics["accuracy"] > 0.85
        adam = {**parameters, "optimizer": "adam", "learning_rate": 0.01, "activation": "tanh"}
        assert timeless(tried(train, adam))["accuracy"] > 0.85
        # It reports after each epoch, and stops when told to.
        steps: list[int] = []

        def on_report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
            steps.append(step)
            return step < 2

        report = Report(0, 1, options={"dataset": "digits"}, folder=Path(), on_report=on_report)
        assert run_trial(train, parameters, report).is_stopped
        assert steps == [1, 2]
    finally:
        torch.set_num_threads(threads)
