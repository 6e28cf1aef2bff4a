"""Metrics against scikit-learn, and at their edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from dnn import metrics


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
