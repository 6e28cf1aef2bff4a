"""The real data sets that scikit-learn carries: no download needed."""

from __future__ import annotations

import importlib
from typing import Any

from dnn.data.dataset import Dataset
from dnn.errors import MissingDependencyError

__all__ = ["load_breast_cancer", "load_digits"]


def load_digits() -> Dataset:
    """Return 1,797 handwritten digits of 8 x 8 pixels, brightness in 0 .. 1; 10 classes.

    Returns
    -------
    Dataset
        `x` of shape (1797, 64), `y` of 0 .. 9.

    Raises
    ------
    MissingDependencyError
        If scikit-learn is not installed.
    """
    bunch = _sklearn_datasets("digits").load_digits()
    return Dataset(bunch.data / 16.0, bunch.target, 10, "digits")


def load_breast_cancer() -> Dataset:
    """Return 569 tumours with 30 attributes; class 0 is malignant, 1 benign.

    Returns
    -------
    Dataset
        `x` of shape (569, 30), in the units of each attribute, `y` of 0 and 1.

    Raises
    ------
    MissingDependencyError
        If scikit-learn is not installed.
    """
    bunch = _sklearn_datasets("breast_cancer").load_breast_cancer()
    return Dataset(bunch.data, bunch.target, 2, "breast_cancer")


def _sklearn_datasets(name: str) -> Any:
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingDependencyError(
            f"the data set {name!r} comes with scikit-learn, which is not installed: "
            'pip install "diel[data]"'
        ) from error
