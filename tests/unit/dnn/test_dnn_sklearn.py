"""The estimators keep scikit-learn's rules, and do what they are for."""

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.utils.estimator_checks import parametrize_with_checks

from dnn.sklearn import DNNClassifier, DNNRegressor

CHECKED = [
    DNNClassifier([16], epochs=30, learning_rate=0.02),
    DNNRegressor([16], epochs=30, learning_rate=0.02),
]


@parametrize_with_checks(CHECKED)
def test_the_rules_of_scikit_learn(estimator, check):
    check(estimator)
