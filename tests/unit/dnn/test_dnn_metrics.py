"""Metrics against scikit-learn, and at their edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn import metrics
from dnn.errors import DataError, ShapeError


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
def test_against_scikit_learn(pairs):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    y, predicted = np.array(pairs).T
    assert metrics.accuracy(y, predicted) == pytest.approx(theirs.accuracy_score(y, predicted))
    assert metrics.matthews_correlation(y, predicted) == pytest.approx(
        theirs.matthews_corrcoef(y, predicted), abs=1e-12
    )


def test_by_hand():
    y, predicted = [0, 0, 1, 1], [0, 1, 1, 1]
    assert metrics.accuracy(y, predicted) == 0.75
    assert metrics.matthews_correlation(y, predicted) == pytest.approx(2 / np.sqrt(12))
    assert metrics.matthews_correlation(y, y) == 1
    assert metrics.matthews_correlation([0, 1], [1, 0]) == -1
    assert metrics.matthews_correlation([0, 1], [1, 1]) == 0
    np.testing.assert_array_equal(metrics.confusion_matrix(y, predicted, 2), [[1, 1], [0, 2]])


def test_bad_input():
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        metrics.accuracy([0, 1], [0, 1, 1])
    with pytest.raises(DataError, match="no sample"):
        metrics.matthews_correlation([], [])
