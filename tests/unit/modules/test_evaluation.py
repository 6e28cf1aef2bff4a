"""Splits, what a trial trains on them, and how much of the best score is luck."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from random import Random as Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import case_count

from dnn import SGD, Dataset, NeuralNetwork, load_cleveland, mlp
from modules.evaluation import (
    Evaluated,
    EvaluationError,
    EvaluationOptions,
    NestedFold,
    SelectionBias,
    collect,
    jobs_of,
    prepared,
)
from modules.evaluation.bias import luck, luck_of_means
from modules.evaluation.standard_errors import standard_errors
from modules.objective import Objective
from modules.trial import trial_seed


def k_fold(
    y: Any, folds: int, seed: int = 0, repeats: int = 1, stratified: bool = True
) -> list[Any]:
    given = {"folds": folds, "seed": seed, "repeats": repeats, "stratified": stratified}
    return EvaluationOptions(method="k_fold", **given).cut(y)


def nested_folds(y: Any, folds: int, inner_folds: int, seed: int = 0) -> list[Any]:
    given = {"folds": folds, "inner_folds": inner_folds, "seed": seed}
    return EvaluationOptions(method="nested", **given).cut(y)


def holdout(y: Any, fraction: float, seed: int = 0, stratified: bool = True) -> Any:
    (fold,) = EvaluationOptions(fraction=fraction, seed=seed, stratified=stratified).cut(y)
    return fold


LABELS = st.lists(st.integers(0, 3), min_size=12, max_size=80)


def balanced(labels: Any, parts: list[Any]) -> bool:
    """Whether each class is spread evenly, to within a row."""
    counts = np.array([np.bincount(labels[part], minlength=4) for part in parts])
    return bool((np.ptp(counts, axis=0) <= 1).all())


@given(LABELS, st.integers(2, 6), st.integers(0, 99), st.integers(1, 3), st.booleans())
def test_every_row_is_scored_once_a_repeat(
    y: list[int], folds: int, seed: int, repeats: int, stratified: bool
) -> None:
    labels = np.array(y)
    if stratified:
        labels = np.concatenate([labels, np.repeat(np.unique(labels), folds)])
    found = k_fold(labels, folds, seed, repeats, stratified)
    assert len(found) == folds * repeats
    for start in range(0, folds * repeats, folds):
        tests = [fold.test for fold in found[start : start + folds]]
        assert sorted(np.concatenate(tests)) == list(range(len(labels)))
        sizes = [len(test) for test in tests]
        assert max(sizes) - min(sizes) <= 1
        assert not stratified or balanced(labels, tests)
    for fold in found:
        assert sorted([*fold.train, *fold.test]) == list(range(len(labels)))
        assert list(fold.train) == sorted(fold.train)
        assert list(fold.test) == sorted(fold.test)


def test_splits_follow_from_their_seed() -> None:
    y = np.arange(90) % 3

    def tests(seed: int, repeats: int = 2) -> list[list[int]]:
        return [fold.test.tolist() for fold in k_fold(y, 5, seed, repeats)]

    assert tests(1) == tests(1) != tests(2)
    assert tests(1)[:5] == tests(1, 1)
    assert tests(1)[:5] != tests(1)[5:]
    # Recorded results would mean something else if these rows moved.
    assert k_fold([0, 1] * 6, 3, 0)[0].test.tolist() == [2, 6, 9, 11]


@settings(max_examples=case_count(40))
@given(LABELS, st.integers(2, 4), st.integers(2, 4), st.integers(0, 99))
def test_no_row_that_judges_takes_part_in_the_choice(
    y: list[int], folds: int, inner_folds: int, seed: int
) -> None:
    labels = np.concatenate([y, np.repeat(np.unique(y), 2 * folds * inner_folds)])
    nested = nested_folds(labels, folds, inner_folds, seed)
    assert sorted(np.concatenate([fold.test for fold in nested])) == list(range(len(labels)))
    for fold in nested:
        assert len(fold.inner) == inner_folds
        scored = np.concatenate([inner.test for inner in fold.inner])
        assert sorted(scored) == fold.train.tolist()
        assert balanced(labels, [inner.test for inner in fold.inner])
        for inner in fold.inner:
            assert not set(fold.test) & {*inner.train, *inner.test}
            assert not set(inner.train) & set(inner.test)


@given(LABELS, st.floats(0.1, 0.9), st.integers(0, 99), st.booleans())
def test_a_holdout_has_its_share_of_each_class(
    y: list[int], fraction: float, seed: int, stratified: bool
) -> None:
    labels = np.array(y)
    fold = holdout(labels, fraction, seed, stratified)
    assert len(fold.test) == round(len(labels) * fraction)
    assert sorted([*fold.train, *fold.test]) == list(range(len(labels)))
    if stratified:
        share = len(fold.test) / len(labels)
        expected = np.bincount(labels, minlength=4) * share
        assert (np.abs(np.bincount(labels[fold.test], minlength=4) - expected) <= 1.0).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: k_fold([0, 1, 0], 4), "3 rows cannot be cut into 4 folds"),
        (lambda: k_fold([0] * 9 + [1] * 2, 3), "class 1 has 2 rows, too few for 3 folds"),
        (lambda: k_fold([0] * 9 + [1], 3), "class 1 has 1 row, too few for 3 folds"),
        (lambda: nested_folds([0] * 9 + [1] * 3, 3, 3), "class 1 has 2 rows"),
        (lambda: holdout([0, 1], 0.1), "2 rows cannot be split at 0.1"),
    ],
)
def test_too_few_rows(call: Any, words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        call()
    assert len(k_fold([0] * 9 + [1] * 2, 3, stratified=False)) == 3


# -- options --------------------------------------------------------------------------------------


def test_the_splits_of_an_evaluation() -> None:
    y = np.arange(60) % 2
    one = EvaluationOptions(method="holdout", fraction=0.25).cut(y)
    many = EvaluationOptions(method="k_fold", folds=5, repeats=2).cut(y)
    nested = EvaluationOptions(method="nested", folds=4, inner_folds=3, repeats=2)
    assert [len(fold.test) for fold in one] == [15]
    assert len(many) == 10
    splits = nested.cut(y)
    assert all(isinstance(fold, NestedFold) for fold in splits)
    for evaluation, jobs in [
        (nested, 2 * 4 * 4),
        (EvaluationOptions(method="k_fold", repeats=3), 15),
    ]:
        assert len(jobs_of(evaluation.cut(y))) == jobs
    assert len(jobs_of(one)) == 1


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"method": "holdout", "folds": 5}, "folds belongs to k_fold and nested"),
        ({"folds": 5}, 'not to method = "holdout"'),
        ({"method": "k_fold", "inner_folds": 5}, "inner_folds belongs to nested"),
        ({"method": "k_fold", "folds": 1}, "greater than or equal to 2"),
        ({"method": "nested", "fraction": 0.5}, "fraction belongs to holdout"),
        ({"method": "loo"}, "Input should be 'holdout'"),
        ({"fraction": 1.0}, "less than 1"),
        ({"sed": 1}, "Extra inputs"),
    ],
)
def test_bad_options(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluationOptions.model_validate(table)
    assert words in str(caught.value)


# -- what a trial trains --------------------------------------------------------------------------


def test_the_trainings_of_a_trial_are_put_together() -> None:
    jobs = jobs_of(nested_folds(np.arange(60) % 2, 2, 3))
    assert [(job.outer, job.is_test) for job in jobs] == [
        (outer, test) for outer in (0, 1) for test in (False, False, False, True)
    ]
    scores = [0.1, 0.2, 0.3, 0.9, 0.4, 0.5, 0.6, 0.7]
    evaluated = collect(jobs, [{"accuracy": score, "training_time_s": 1.0} for score in scores])
    assert evaluated.metrics == {"accuracy": pytest.approx(0.35), "training_time_s": 8.0}
    assert [result["accuracy"] for result in evaluated.choice] == pytest.approx([0.2, 0.5])
    assert [result["accuracy"] for result in evaluated.test] == [0.9, 0.7]
    plain = jobs_of(k_fold(np.arange(60) % 2, 2))
    evaluated = collect(plain, [{"accuracy": 0.25}, {"accuracy": 0.75}])
    assert evaluated == Evaluated(
        {"accuracy": 0.5}, ({"accuracy": 0.25}, {"accuracy": 0.75}), (), 30
    )


@pytest.mark.parametrize(
    "evaluation",
    [
        EvaluationOptions(),
        EvaluationOptions(method="k_fold", folds=3),
        EvaluationOptions(method="nested", folds=2, inner_folds=2),
    ],
    ids=lambda options: options.method,
)
def test_what_a_trial_gave_comes_back_from_a_ledger(evaluation: EvaluationOptions) -> None:
    jobs = jobs_of(evaluation.cut(np.arange(60) % 2))
    evaluated = collect(jobs, [{"accuracy": number / 20} for number in range(len(jobs))])
    line = json.dumps([evaluated.metrics, evaluated.splits()])
    assert Evaluated.of(*json.loads(line)) == evaluated
    assert evaluated.rows == {"holdout": 12, "k_fold": 20, "nested": 30}[evaluation.method]


@pytest.mark.parametrize("by", [None, "columns", "one scale", "none"])
def test_preparation_learns_nothing_from_rows_that_are_scored(by: str | None) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3)).astype(np.float32)
    x[3, 1] = np.nan
    y = np.arange(40) % 2
    job = jobs_of(k_fold(y, 4))[0]
    train, test = prepared(Dataset(x, y, 2, "made"), job, by)
    changed = x.copy()
    changed[job.test] = 1e6
    train_again, test_again = prepared(Dataset(changed, y, 2, "made"), job, by)
    assert np.array_equal(train.x, train_again.x)
    assert not np.isnan(train.x).any()
    assert not np.array_equal(test.x, test_again.x)
    assert np.allclose(train.x.mean(axis=0), 0, atol=1e-6) == (by in (None, "columns"))
    assert np.isclose(train.x.mean(), 0, atol=1e-6) == (by != "none")
    assert (len(train), len(test)) == (30, 10)


# -- how much is luck -----------------------------------------------------------------------------

ACCURACY = Objective.parse("accuracy")


def coin(generator: Any, splits: int, nested: bool) -> Evaluated:
    """A trial of no skill: each score is the share of heads among 30 coins."""

    def heads() -> dict[str, float]:
        return {"accuracy": sum(generator.random() < 0.5 for _ in range(30)) / 30}

    choice = tuple(heads() for _ in range(splits))
    test = tuple(heads() for _ in range(splits)) if nested else ()
    mean = sum(result["accuracy"] for result in choice) / splits
    return Evaluated({"accuracy": mean}, choice, test)


@pytest.mark.parametrize(("splits", "nested"), [(10, True), (10, False)])
def test_an_estimate_without_the_choice_sees_through_luck(splits: int, nested: bool) -> None:
    naive, honest = [], []
    for seed in range(12):
        generator = Generator(seed)
        bias = SelectionBias(ACCURACY)
        for trial in range(100):
            bias.add(trial, coin(generator, splits, nested))
        report = bias.report()
        assert report is not None
        assert report.honest is not None
        naive.append(report.naive)
        honest.append(report.honest)
    # The best of a hundred coins over 300 throws looks like skill.
    assert np.mean(naive) > 0.56
    if nested:
        assert abs(np.mean(honest) - 0.5) < 0.03
    else:  # the correction of plain folds overdoes it where folds are as noisy as this
        assert np.mean(honest) < 0.53


def test_skill_that_is_there_is_found() -> None:
    bias = SelectionBias(ACCURACY)
    for trial in range(5):
        level = 0.5 + 0.1 * trial
        same = tuple({"accuracy": level} for _ in range(4))
        bias.add(trial, Evaluated({"accuracy": level}, same, same))
    report = bias.report()
    assert report is not None
    assert (report.naive, report.honest, report.bias) == pytest.approx((0.9, 0.9, 0.0))
    assert report.warning == ""
    assert report.lines()[0].startswith("accuracy, nested cross-validation (4 folds): 0.900")
    assert "best of 5 on the rows that chose it" in report.lines()[1]


def test_a_choice_made_on_the_rows_that_score_it_is_warned_of() -> None:
    bias = SelectionBias(ACCURACY)
    bias.add(0, Evaluated({}, ({"accuracy": 0.9},)))
    report = bias.report()
    assert report is not None
    assert report.warning == ""  # there was no choice
    for trial in range(1, 400):
        bias.add(trial, Evaluated({}, ({"accuracy": 0.9 + 0.0001 * trial},), rows=31))
    report = bias.report()
    assert report is not None
    assert report.honest is None
    assert report.lines()[0].startswith("accuracy, best of 400 on the rows that chose it: 0.940")
    assert "on 31 rows, luck alone can give 0.2" in report.warning
    assert 'evaluation.method = "nested"' in report.warning


def test_a_loss_is_better_when_it_is_small() -> None:
    bias = SelectionBias(Objective.parse("loss"))
    for trial, losses in enumerate([(0.5, 0.7), (0.6, 0.4), (0.55, 0.55)]):
        bias.add(trial, Evaluated({}, tuple({"loss": loss} for loss in losses)))
    report = bias.report()
    assert report is not None
    assert report.naive == pytest.approx(0.5)
    # In its folds the best trials have 0.5 and 0.4, the winner 0.6 and 0.4.
    assert report.honest == pytest.approx(0.5 + (0.1 + 0.0) / 2)
    assert report.bias == pytest.approx(0.05)  # it looks too good


def test_a_trial_without_a_score_somewhere_is_left_out() -> None:
    bias = SelectionBias(ACCURACY)
    assert bias.report() is None
    bias.add(0, Evaluated({}, ({"accuracy": math.nan}, {"accuracy": 1.0})))
    assert bias.report() is None


@pytest.mark.parametrize("order", range(3))
def test_the_report_does_not_depend_on_who_was_faster(order: int) -> None:
    generator = Generator(0)
    trials = [(trial, coin(generator, 5, True)) for trial in range(60)]
    reports = []
    for shuffle in (None, order):
        if shuffle is not None:
            Generator(shuffle).shuffle(trials)
        bias = SelectionBias(ACCURACY)
        for trial, evaluated in trials:
            bias.add(trial, evaluated)
        reports.append(bias.report())
    assert reports[0] == reports[1]


@pytest.mark.parametrize(("trials", "rows"), [(10, 30), (400, 31), (100, 200)])
def test_luck_is_what_a_simulation_gives(trials: int, rows: int) -> None:
    generator = np.random.default_rng(0)
    for true in (0.6, 0.8):
        best = generator.binomial(rows, true, size=(1000, trials)).max(axis=1) / rows
        observed = float(best.mean()) + 0.5 / rows
        assert luck(trials, rows, observed) == pytest.approx(observed - true, abs=0.01)
    assert luck(1, rows, 0.9) == 0.0
    # All rows right: the best of so many would have them with much less.
    assert 0.02 < luck(trials, rows, 1.0) < 0.4


# -- the heart data: the honest protocol, in one process ------------------------------------------


def cleveland() -> Dataset:
    folder = os.environ.get("DIEL_DATA")
    if not folder:
        pytest.skip("DIEL_DATA is not set: it names the folder with heart/processed.cleveland.data")
    return load_cleveland(Path(folder) / "heart" / "processed.cleveland.data")


def trained(data: Dataset, splits: list[Any], parameters: dict[str, Any], trial: int) -> Evaluated:
    jobs = jobs_of(splits)
    results = []
    for number, job in enumerate(jobs):
        training, test = prepared(data, job)
        model = NeuralNetwork(
            mlp(training.x.shape[1], parameters["hidden"], 2, "tanh"),
            optimizer=SGD(parameters["learning_rate"], 0.9, 1e-2),
            seed=trial_seed(trial, number),
        )
        model.fit(training.x, training.y, epochs=8, batch_size=32)
        results.append(model.evaluate(test.x, test.y))
    return collect(jobs, results)


def test_nested_accuracy_on_the_heart_data_is_what_it_is_worth() -> None:
    """A grid on 303 rows: what the best is really worth is 0.78 to 0.88."""
    data = cleveland()
    splits = EvaluationOptions(method="nested", folds=5, inner_folds=3).cut(data.y)
    bias = SelectionBias(ACCURACY)
    for trial, hidden in enumerate([[], [16], [16, 16]]):
        parameters = {"hidden": hidden, "learning_rate": 0.01}
        bias.add(trial, trained(data, splits, parameters, trial))
    report = bias.report()
    assert report is not None
    assert report.honest is not None
    assert 0.78 <= report.honest <= 0.88
    assert abs(report.naive - report.honest) < 0.03  # of three there is little to choose from
    assert report.warning == ""


# -- regressions ----------------------------------------------------------------------------------


def test_standard_errors_are_those_of_many_draws() -> None:
    generator = np.random.default_rng(0)
    rows = 200
    errors = generator.normal(size=(4000, rows)) * 3.0
    truth = generator.normal(size=(rows, 1)) * 5.0
    found = standard_errors(truth, truth + errors[0][:, None])
    sizes = np.abs(errors)
    drawn = {
        "rmse": np.sqrt((errors**2).mean(axis=1)).std(),
        "mae": sizes.mean(axis=1).std(),
        "r2": (errors**2).mean(axis=1).std() / truth.var(),
        "median_absolute_error": np.median(sizes, axis=1).std(),
    }
    for name, expected in drawn.items():
        assert found[name] == pytest.approx(expected, rel=0.25), name
    # In the units of the metrics; r2 has none.
    scaled = standard_errors(truth, truth + errors[0][:, None], np.array([10.0]))
    assert scaled["rmse"] == pytest.approx(10 * found["rmse"])
    assert scaled["r2"] == pytest.approx(found["r2"])


@pytest.mark.parametrize("trials", [1, 2, 10, 1000])
def test_the_largest_of_normal_deviates(trials: int) -> None:
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(4000, trials)).max(axis=1).mean()
    assert luck_of_means(trials, 2.0) == pytest.approx(2 * drawn, abs=0.1)


@pytest.mark.parametrize(
    ("objective", "errors", "words"),
    [
        ("rmse", {"rmse": 2.0}, "on 50 rows, luck alone can give 3.08 of its rmse"),
        ("r2", {"rmse": 2.0, "r2": 0.05}, "luck alone can give 0.0769 of its r2"),
        ("rmse", {}, 'that chose it; report evaluation.method = "nested"'),
    ],
)
def test_the_best_of_regressions_is_partly_luck(objective: str, errors: Any, words: str) -> None:
    bias = SelectionBias(Objective.parse(objective))
    for trial, score in enumerate((60.0, 50.0, 55.0, 58.0, 57.0, 59.0, 61.0, 62.0, 63.0, 64.0)):
        metrics = {"rmse": score, "r2": 1 - score / 100}
        splits = Evaluated(metrics, (metrics,), (), 50, errors).splits()
        bias.add(trial, Evaluated.of(metrics, splits))
    report = bias.report()
    assert report is not None
    assert words in report.warning


def test_nested_folds_give_an_honest_rmse() -> None:
    bias = SelectionBias(Objective.parse("rmse"))
    for trial, (inner, outer) in enumerate(([(50, 40), (52, 60)], [(60, 30), (30, 70)])):
        choice = tuple({"rmse": float(value)} for value in inner)
        test = tuple({"rmse": float(value)} for value in outer)
        bias.add(trial, Evaluated({"rmse": 1.0}, choice, test, 20))
    report = bias.report()
    assert report is not None
    assert (report.maximise, report.naive) == (False, 50.0)
    assert report.honest == pytest.approx((52 + 70) / 2)
    small = replace(report, honest=0.00061, naive=0.0005, spread=0.0001234)
    assert small.lines() == [
        "rmse, nested cross-validation (2 folds): 0.00061 +- 0.0001234",
        "rmse, best of 2 on the rows that chose it: 0.0005",
    ]
