"""Metrics against scikit-learn, and at their edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

import dnn
from dnn import metrics
from dnn.distributed import DataParallel, run_on_threads
from dnn.errors import ConfigurationError


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


NAMES_OF = {
    "classes": {
        "accuracy": ("accuracy_score", {}),
        "balanced_accuracy": ("balanced_accuracy_score", {}),
        "mcc": ("matthews_corrcoef", {}),
        "f1_macro": ("f1_score", {"average": "macro", "zero_division": 0}),
        "f1_micro": ("f1_score", {"average": "micro", "zero_division": 0}),
    },
    "labels": {
        "exact_match": ("accuracy_score", {}),
        "hamming": ("hamming_loss", {}),
        "f1_macro": ("f1_score", {"average": "macro", "zero_division": 0}),
        "f1_micro": ("f1_score", {"average": "micro", "zero_division": 0}),
        "jaccard": ("jaccard_score", {"average": "samples", "zero_division": 1}),
    },
    "values": {
        "rmse": ("root_mean_squared_error", {}),
        "mae": ("mean_absolute_error", {}),
        "r2": ("r2_score", {}),
        "median_absolute_error": ("median_absolute_error", {}),
    },
}


def drawn(takes, generator, n):
    """Return what is true, and what two networks predict."""
    if takes == "classes":
        return generator.integers(0, 4, n), generator.integers(0, 4, (2, n))
    if takes == "labels":
        return generator.integers(0, 2, (n, 3)), generator.integers(0, 2, (2, n, 3))
    truth = generator.normal(size=(n, 2)) * [1, 50] + 3
    return truth, truth + generator.normal(size=(2, n, 2))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true:UserWarning")
@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@pytest.mark.filterwarnings("ignore:R.2 score is not well-defined")
@pytest.mark.parametrize("takes", NAMES_OF)
def test_every_metric_against_scikit_learn(takes):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    for n in (2, 7, 40):
        truth, predicted = drawn(takes, np.random.default_rng(n), n)
        both = np.stack([truth, truth])
        given = metrics.Predictions(takes, both, predicted)
        found = metrics.scores([*NAMES_OF[takes]], given)
        for k, scored in enumerate(found):
            for name, (function, options) in NAMES_OF[takes].items():
                expected = getattr(theirs, function)(truth, predicted[k], **options)
                assert scored[name] == pytest.approx(expected, abs=1e-12), name


def test_metrics_of_probabilities_against_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    for classes in (2, 4):
        truth = np.arange(30) % classes
        chances = generator.dirichlet([1.0] * classes, (2, 30)).round(1)
        chances /= chances.sum(-1, keepdims=True)
        given = metrics.Predictions("classes", np.stack([truth] * 2), chances.argmax(-1), chances)
        for k, scored in enumerate(metrics.scores(["auc", "log_loss"], given)):
            of_one = chances[k][:, 1] if classes == 2 else chances[k]
            area = theirs.roc_auc_score(truth, of_one, multi_class="ovr")
            assert scored["auc"] == pytest.approx(area, abs=1e-12)
            assert scored["log_loss"] == pytest.approx(theirs.log_loss(truth, chances[k]))
    labels = generator.integers(0, 2, (30, 3))
    labels[:, 2] = 1  # which has no area
    chances = generator.uniform(size=(1, 30, 3))
    given = metrics.Predictions("labels", labels[None], (chances > 0.5).astype(int), chances)
    expected = theirs.roc_auc_score(labels[:, :2], chances[0, :, :2])
    assert metrics.scores(["auc"], given)[0]["auc"] == pytest.approx(expected)
    alone = metrics.Predictions(
        "labels", labels[None, :, 2:], labels[None, :, 2:], chances[..., 2:]
    )
    assert metrics.scores(["auc"], alone) == [{"auc": 0.5}]


def test_metrics_of_quantiles_against_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    shares = (0.1, 0.4, 0.9)
    truth, predicted = generator.normal(size=(20, 2)), generator.normal(size=(2, 20, 2, 3))
    given = metrics.Predictions("values", np.stack([truth] * 2), predicted, None, shares)
    for k, scored in enumerate(metrics.scores(["pinball", "mae"], given)):
        expected = [
            theirs.mean_pinball_loss(truth, predicted[k, ..., q], alpha=share)
            for q, share in enumerate(shares)
        ]
        assert [scored[f"pinball_{share:g}"] for share in shares] == pytest.approx(expected)
        assert scored["pinball"] == pytest.approx(np.mean(expected))
        assert scored["mae"] == theirs.mean_absolute_error(truth, predicted[k, ..., 1])


def test_metrics_at_their_edges():
    def one(name, takes, truth, predicted):
        given = metrics.Predictions(takes, np.array([truth]), np.array([predicted]))
        return metrics.scores([name], given)[0][name]

    assert one("f1", "classes", [0, 1, 1, 0], [1, 1, 1, 0]) == pytest.approx(0.8)  # of class 1
    assert one("f1", "classes", [0, 0], [0, 0]) == 0
    assert one("f1", "classes", [0, 1, 2], [0, 2, 2]) == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert one("r2", "values", [[2.0], [2.0]], [[2.0], [2.0]]) == 1
    assert one("r2", "values", [[2.0], [2.0]], [[2.0], [3.0]]) == 0
    assert one("jaccard", "labels", [[0, 0], [1, 1]], [[0, 0], [1, 0]]) == 0.75
    assert metrics.more_is_better("validation_r2")
    assert not metrics.more_is_better("rmse")
    assert metrics.is_better("rmse", 1.0, 2.0)
    for names, text in ((["rsme"], "did you mean 'rmse'"), (["rmse"], "take one of accuracy, mcc")):
        with pytest.raises(ConfigurationError, match=text):
            metrics.check_metrics(names, "classes")
    with pytest.raises(ConfigurationError, match="'pinball' is of quantiles, and the targets are"):
        metrics.check_metrics(["pinball"], "values")
    metrics.check_metrics(["pinball"], "values", [0.5])


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("softmax_cross_entropy", ["f1", "balanced_accuracy", "auc", "log_loss"]),
        ("binary_cross_entropy", ["f1", "auc", "log_loss"]),
        ("kullback_leibler", ["accuracy", "auc"]),
        ("multi_label_cross_entropy", ["exact_match", "hamming", "f1_macro", "auc", "jaccard"]),
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
