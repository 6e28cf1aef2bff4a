"""The estimators keep scikit-learn's rules, and do what they are for."""

import importlib
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dnn import SGD, Activation, FullyConnected, Input
from dnn.errors import ConfigurationError, DataError, DnnError, MissingDependencyError
from dnn.sklearn import DNNClassifier, DNNRegressor

CHECKED = [
    DNNClassifier([16], epochs=30, learning_rate=0.02),
    DNNRegressor([16], epochs=30, learning_rate=0.02),
]


@pytest.mark.sample(10)
@parametrize_with_checks(CHECKED)
def test_the_rules_of_scikit_learn(estimator, check):
    check(estimator)


def test_a_classifier_in_a_pipeline():
    x, y = load_breast_cancer(return_X_y=True)
    names = np.array(["malignant", "benign"])[y]
    estimator = DNNClassifier([16], epochs=10, random_state=0)
    scores = cross_val_score(make_pipeline(StandardScaler(), estimator), x, names, cv=3)
    assert scores.mean() > 0.95
    search = GridSearchCV(
        make_pipeline(StandardScaler(), estimator),
        {"dnnclassifier__hidden": [(4,), (16, 16)], "dnnclassifier__optimizer": ["adamw", "sgd"]},
        cv=2,
    )
    assert search.fit(x[:200], names[:200]).best_score_ > 0.9


def test_a_regressor_with_one_and_with_several_values():
    x, y = load_diabetes(return_X_y=True)
    estimator = DNNRegressor([8], epochs=15, weight_decay=0.01, random_state=0)
    assert cross_val_score(estimator, x, y, cv=3).mean() > 0.4
    both = np.stack([y, 1e-3 * x[:, 2]], axis=1)
    two = DNNRegressor([8], epochs=15, random_state=0).fit(x, both)
    assert two.predict(x).shape == both.shape
    assert two.score(x, both) > 0.5


def test_a_regressor_with_other_losses():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2))
    y = 50 + 20 * x[:, 0] + generator.normal(size=300)
    y[:30] = 1e4  # nonsense in a few rows
    spoilt, robust = (
        DNNRegressor([], loss=loss, epochs=200, learning_rate=0.01, random_state=0).fit(x, y)
        for loss in ("mean_squared_error", {"name": "huber", "delta": 0.01})
    )
    errors = [np.median(np.abs(each.predict(x) - y)[30:]) for each in (spoilt, robust)]
    assert errors[1] < 40 < 400 < errors[0]
    high = DNNRegressor([8], loss={"name": "quantile", "quantiles": [0.9]}, random_state=0)
    assert (high.fit(x, y).predict(x) > y)[30:].mean() > 0.8
    three = DNNRegressor([8], loss="quantile", epochs=20).fit(x, np.stack([y, -y], 1))
    assert three.predict(x).shape == (300, 2)
    counts = generator.poisson(np.exp(1 + 0.5 * x[:, 0]))
    poisson = DNNRegressor([8], loss="poisson", epochs=60, random_state=0).fit(x, counts)
    assert poisson.predict(x) == pytest.approx(np.exp(1 + 0.5 * x[:, 0]), rel=0.6)
    with pytest.raises(DataError, match="counts are 0 or more, not -3 in row 0"):
        poisson.fit(x, counts - 3 - counts[0])


def test_a_classifier_with_other_losses():
    x, y = blobs()
    for loss in ({"name": "focal", "gamma": 3.0}, "binary_cross_entropy", "cross_entropy"):
        found = DNNClassifier([8], loss=loss, epochs=10, random_state=0).fit(x, y)
        assert found.score(x, y) > 0.9
        assert found.predict_proba(x).shape == (200, 2)
    search = GridSearchCV(DNNClassifier(epochs=2), {"loss": ["focal", {"name": "focal"}]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.5
    for kind, loss, words in (
        (DNNClassifier, "huber", "loss must be one of binary_cross_entropy, .*, not 'huber'"),
        (DNNRegressor, "focal", "loss must be one of huber, .*, not 'focal'"),
        (DNNRegressor, "hubber", "did you mean 'huber'"),
        (DNNRegressor, {"name": "huber", "dleta": 1}, "delta"),
        (DNNClassifier, 5, "loss"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            kind(loss=loss).fit(x, y)
    with pytest.raises(DnnError, match=r"classes|label"):
        DNNClassifier(loss="binary_cross_entropy").fit(x[:6], [0, 1, 2] * 2)


def blobs(n=200, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, n)
    return generator.normal(size=(n, 3)) + 3 * y[:, None], y


def test_seeds_of_an_estimator():
    x, y = blobs()

    def proba(random_state):
        return DNNClassifier(epochs=2, random_state=random_state).fit(x, y).predict_proba(x)

    assert proba(3).tobytes() == proba(3).tobytes() != proba(4).tobytes()
    from_state = proba(np.random.RandomState(3))
    assert from_state.tobytes() == proba(np.random.RandomState(3)).tobytes()
    assert proba(None).tobytes() != proba(None).tobytes()


def test_early_stopping_of_an_estimator():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(100, 5)), generator.integers(0, 2, 100)
    estimator = DNNClassifier(early_stopping=True, patience=3, epochs=500, random_state=0)
    estimator.fit(x, y)
    assert estimator.n_iter_ == len(estimator.history_) < 500
    assert "better" in estimator.history_.stopped


def test_layers_and_optimizers_of_ones_own():
    x, y = blobs()

    def layers(inputs, outputs):
        return [Input(inputs), FullyConnected(4), Activation("tanh"), FullyConnected(outputs)]

    estimator = DNNClassifier(layers=layers, optimizer=SGD(0.1, 0.9), epochs=5).fit(x, y)
    assert estimator.score(x, y) > 0.9
    assert estimator.model_.parameters["fully_connected_1.weight"].shape == (3, 4)
    with pytest.raises(ConfigurationError, match="did you mean 'adam'"):
        DNNClassifier(optimizer="adm").fit(x, y)


@pytest.mark.parametrize("kind", [DNNClassifier, DNNRegressor])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("early_stopping", "yes", "early_stopping must be true or false, not 'yes'"),
        ("layers", 5, "layers must be a function .* that returns layers, not 5"),
        ("layers", lambda inputs: [], "layers must be a function of the numbers of inputs and"),
        ("layers", lambda inputs, outputs: 5, "that returns layers, and it returned 5"),
        ("random_state", "x", "random_state must be an integer, a RandomState or None, not 'x'"),
        ("random_state", 10**400, "random_state must be"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_by_fit(kind, name, value, message):
    estimator = kind(epochs=1).set_params(**{name: value})
    with pytest.raises(ConfigurationError, match=message):
        estimator.fit(np.eye(4), [0, 1, 0, 1])


def test_class_weights_by_label():
    x, y = blobs()
    names = np.array(["no", "yes"])[y]
    weighted = DNNClassifier(epochs=5, class_weight={"yes": 0.0}, random_state=0).fit(x, names)
    assert (weighted.predict(x) == "no").all()
    with pytest.raises(ConfigurationError, match="'maybe'"):
        DNNClassifier(class_weight={"maybe": 1.0}).fit(x, names)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "dnn.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "diel\[data\]"'):
        importlib.import_module("dnn.sklearn")
