"""Metrics against scikit-learn, and at their edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

import dnn
from dnn import metrics
from dnn.distributed import DataParallel, run_on_threads
from dnn.errors import ConfigurationError, DataError, ShapeError


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
@settings(max_examples=case_count(60), deadline=None)
@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
def test_against_scikit_learn(pairs):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    y, predicted = np.array(pairs).T
    expected = {
        "accuracy": theirs.accuracy_score(y, predicted),
        "mcc": theirs.matthews_corrcoef(y, predicted),
    }
    # Two classifiers: one right, one as drawn.
    right, drawn = metrics.metrics_of_predictions(np.array([y, y]), np.array([y, predicted]))
    assert drawn == pytest.approx(expected, abs=1e-12)
    assert right == {"accuracy": 1, "mcc": 1 if len(set(y)) > 1 else 0}


def test_by_hand():
    y = np.array([[0, 0, 1, 1]] * 3)
    predicted = np.array([[0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    some, none, constant = metrics.metrics_of_predictions(y, predicted)
    assert some == {"accuracy": 0.75, "mcc": pytest.approx(2 / np.sqrt(12))}
    assert none == {"accuracy": 0, "mcc": -1}
    assert constant == {"accuracy": 0.5, "mcc": 0}


MACRO, MICRO = ({"average": name, "zero_division": 0} for name in ("macro", "micro"))
NAMES_OF = {
    "classification": {
        "balanced_accuracy": ("balanced_accuracy_score", {}),
        "f1": ("f1_score", MACRO),
    },
    "multilabel": {
        "exact_match": ("accuracy_score", {}),
        "hamming": ("hamming_loss", {}),
        "macro_f1": ("f1_score", MACRO),
        "micro_f1": ("f1_score", MICRO),
    },
    "regression": {
        "rmse": ("root_mean_squared_error", {}),
        "mae": ("mean_absolute_error", {}),
        "r2": ("r2_score", {}),
        "median_absolute_error": ("median_absolute_error", {}),
    },
}


def drawn(task, generator, n):
    """Return what is true, and what two networks predict."""
    if task == "classification":
        return generator.integers(0, 4, n), generator.integers(0, 4, (2, n))
    if task == "multilabel":
        return generator.integers(0, 2, (n, 3)), generator.integers(0, 2, (2, n, 3))
    truth = generator.normal(size=(n, 2)) * [1, 50] + 3
    return truth, truth + generator.normal(size=(2, n, 2))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true:UserWarning")
@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@pytest.mark.parametrize("task", NAMES_OF)
def test_every_metric_against_scikit_learn(task):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    for n in (2, 7, 40):
        truth, predicted = drawn(task, np.random.default_rng(n), n)
        both = np.stack([truth, truth])
        given = metrics.Predictions(task, both, predicted, classes=4)
        found = metrics.scores([*NAMES_OF[task]], given)
        if task != "classification":
            usual = {
                "multilabel": metrics.metrics_of_labels,
                "regression": metrics.metrics_of_values,
            }
            pairs = zip(found, usual[task](both, predicted), strict=True)
            found = [{**one, **other} for one, other in pairs]
        for k, scored in enumerate(found):
            for name, (function, options) in NAMES_OF[task].items():
                expected = getattr(theirs, function)(truth, predicted[k], **options)
                assert scored[name] == pytest.approx(expected, abs=1e-12), name


def test_metrics_of_probabilities_against_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    for classes in (2, 4):
        truth = np.arange(30) % classes
        chances = generator.dirichlet([1.0] * classes, (2, 30)).round(1)
        chances /= chances.sum(-1, keepdims=True)
        both = np.stack([truth] * 2)
        given = metrics.Predictions("classification", both, chances.argmax(-1), chances)
        for k, scored in enumerate(metrics.scores(["auc", "log_loss"], given)):
            of_one = chances[k][:, 1] if classes == 2 else chances[k]
            area = theirs.roc_auc_score(truth, of_one, multi_class="ovr")
            assert scored["auc"] == pytest.approx(area, abs=1e-12)
            assert scored["log_loss"] == pytest.approx(theirs.log_loss(truth, chances[k]))
    labels = generator.integers(0, 2, (30, 3))
    labels[:, 2] = 1  # which has no area
    chances = generator.uniform(size=(1, 30, 3))
    given = metrics.Predictions("multilabel", labels[None], labels[None], chances)
    expected = theirs.roc_auc_score(labels[:, :2], chances[0, :, :2])
    assert metrics.scores(["auc"], given)[0]["auc"] == pytest.approx(expected)
    only = labels[None, :, 2:]
    alone = metrics.Predictions("multilabel", only, only, chances[..., 2:])
    assert metrics.scores(["auc"], alone) == [{"auc": 0.5}]


def test_metrics_of_quantiles_against_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    shares, deviation = np.array([0.1, 0.4, 0.9]), np.array([2.0, 5.0])
    truth, predicted = generator.normal(size=(20, 2)), generator.normal(size=(2, 20, 2, 3))
    both = np.stack([truth] * 2)
    for k, scored in enumerate(metrics.mean_pinball(both, predicted, shares, deviation)):
        expected = [
            theirs.mean_pinball_loss(truth * deviation, predicted[k, ..., q] * deviation, alpha=x)
            for q, x in enumerate(shares)
        ]
        assert [scored[f"pinball_{share:g}"] for share in shares] == pytest.approx(expected)
        assert scored["pinball"] == pytest.approx(np.mean(expected))


def test_metrics_at_their_edges():
    def one(name, task, truth, predicted):
        classes = 1 + np.max(truth)
        given = metrics.Predictions(task, np.array([truth]), np.array([predicted]), None, classes)
        return metrics.scores([name], given)[0][name]

    assert one("f1", "classification", [0, 1, 1, 0], [1, 1, 1, 0]) == pytest.approx(0.8)
    assert one("f1", "classification", [0, 0], [0, 0]) == 0
    of_three = one("f1", "classification", [0, 1, 2], [0, 2, 2])
    assert of_three == pytest.approx((1 + 0 + 2 / 3) / 3)
    # How many classes there are does not depend on what the networks beside it predict.
    both = metrics.Predictions("classification", np.array([[0, 1]] * 2), np.array([[0, 1], [2, 1]]))
    assert metrics.scores(["f1"], both._replace(classes=3))[0]["f1"] == 1
    assert metrics.scores(["f1"], both._replace(classes=3))[1]["f1"] == pytest.approx(1 / 3)
    assert metrics.more_is_better("validation_r2")
    assert not metrics.more_is_better("rmse")
    assert metrics.is_better("rmse", 1.0, 2.0)
    for name, text in (
        ("rsme", "did you mean 'rmse'"),
        ("rmse", "the task is classification: take one of accuracy, loss, mcc, balanced"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            metrics.check_metrics([name], "classification")
    with pytest.raises(ConfigurationError, match=r"a list of names, as in \['auc'\]"):
        metrics.check_metrics("auc", "classification")
    metrics.check_metrics(["auc", "accuracy", "f1", "loss"], "classification")
    assert {each for each in metrics.METRICS if metrics.METRICS[each].on_request} >= {
        *metrics._ASKED_FOR
    }


def test_targets_that_do_not_vary_and_what_is_no_number():
    for truth, predicted, r2 in (
        ([[1.0]], [[1.0]], 1.0),
        ([[1.0], [1.0]], [[1.0], [2.0]], 0.0),
        ([[1.0], [1.0]], [[1.0], [np.nan]], np.nan),
        ([[1.0], [np.nan]], [[1.0], [2.0]], np.nan),
        ([[1.0], [2.0]], [[1.0], [np.inf]], -np.inf),
        ([[1.0], [2.0]], [[1e308], [-1e308]], -np.inf),
    ):
        found = dnn.metrics_of_targets("regression", truth, predicted)
        assert found["r2"] == pytest.approx(r2, nan_ok=True)
        both, guess = np.array([truth]), np.array([predicted])
        with np.errstate(all="ignore"):
            (by_sums,) = metrics.metrics_of_sums(metrics.sums_of_values(both, guess))
        assert by_sums["r2"] == pytest.approx(r2, nan_ok=True) or np.isnan(both).any()
    for wrong, error, text in (
        ({"y": [["a"]]}, DataError, "metrics: y must be numbers, not <U1"),
        ({"predicted": [[1], [2, 3]]}, DataError, "predicted"),
        ({"deviation": [1, 2]}, ShapeError, "neither a number nor one of each target"),
        ({"predicted": [[1], [2]]}, ShapeError, "do not fit"),
        ({"task": "ranking"}, ConfigurationError, "unknown task 'ranking'"),
    ):
        given = {"task": "regression", "y": [[1.0]], "predicted": [[1.0]], **wrong}
        with pytest.raises(error, match=text):
            dnn.metrics_of_targets(**given)


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("softmax_cross_entropy", ["f1", "balanced_accuracy", "auc", "log_loss"]),
        ("binary_cross_entropy", ["f1", "auc", "log_loss"]),
        ("kullback_leibler", ["loss"]),
        ("multi_label_cross_entropy", ["exact_match", "auc"]),
        ("huber", ["rmse", "mae", "r2", "median_absolute_error"]),
        ("poisson", ["rmse", "r2"]),
        ("quantile", ["pinball", "mae"]),
    ],
)
def test_networks_measure_metrics_together_as_alone(loss, names):
    generator = np.random.default_rng(0)
    x, classes = generator.normal(size=(50, 3)).astype("f4"), np.arange(50) % 2
    outputs = {"binary_cross_entropy": 1, "quantile": 6}.get(loss, 2)
    y = np.eye(2)[classes]
    if loss in ("softmax_cross_entropy", "binary_cross_entropy"):
        y = classes
    layers = dnn.mlp(3, [4], outputs, "tanh")
    rows = [np.arange(30), np.arange(20, 50)]
    options = {"epochs": 2, "validation_metrics": names}
    together = dnn.Ensemble(layers, loss, dnn.SGD(0.1), seeds=[1, 2])
    histories = together.fit(x, y, rows=rows, validation_rows=rows[::-1], **options)
    measured = together.evaluate(x, y, rows=rows, metrics=names)
    for k, here in enumerate(rows):
        there = rows[1 - k]
        alone = dnn.NeuralNetwork(dnn.mlp(3, [4], outputs, "tanh"), loss, dnn.SGD(0.1), seed=k + 1)
        history = alone.fit(x[here], y[here], validation=(x[there], y[there]), **options)
        assert history.validation == histories[k].validation
        assert alone.evaluate(x[here], y[here], names) == measured[k]
        assert measured[k].keys() >= {"loss", *names}
    watched = dnn.EarlyStopping(f"validation_{names[0]}", patience=1)
    alone.fit(x, y, validation=(x, y), callbacks=[watched], epochs=4, validation_metrics=names[:1])
    with pytest.raises(ConfigurationError, match="unknown metric 'speed'"):
        alone.fit(x, y, validation=0.5, validation_metrics=["speed"])


def test_ranks_measure_further_metrics_of_all_samples():
    x = np.random.default_rng(0).normal(size=(30, 3)).astype("f4")
    y = x.sum(axis=1)

    def train(comm, **options):
        parallel = DataParallel(comm, **options)
        model = dnn.NeuralNetwork(dnn.mlp(3, [], 1), "huber", seed=1, parallel=parallel)
        wanted = {"validation": (x, y), "validation_metrics": ["median_absolute_error"]}
        (found,) = model.fit(x, y, **wanted).validation
        return found == model.evaluate(x, y, ["median_absolute_error"])

    assert all(run_on_threads(2, train))
    with pytest.raises(ConfigurationError, match="each rank has its own"):
        run_on_threads(2, lambda comm: train(comm, rows="own"))
