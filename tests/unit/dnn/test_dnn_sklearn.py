"""The estimators keep scikit-learn's rules, and do what they are for."""

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
from dnn.errors import ConfigurationError, MissingDependencyError
from dnn.sklearn import DNNClassifier, DNNRegressor

CHECKED = [
    DNNClassifier([16], epochs=30, learning_rate=0.02),
    DNNRegressor([16], epochs=30, learning_rate=0.02),
]


@parametrize_with_checks(CHECKED)
def test_the_rules_of_scikit_learn(estimator, check):
    check(estimator)
