"""Weights of classes that are not equally frequent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, LabelError

__all__ = ["class_weights"]


def class_weights(
    labels: npt.ArrayLike,
    classes: int,
    weights: Mapping[int, float] | Literal["balanced"] = "balanced",
) -> Array:
    """Return a weight for each class.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Of the training samples, in ``0 .. classes - 1``.
    classes : int
    weights : mapping of class to float, or "balanced"
        ``"balanced"``: ``n / (classes present * samples of the class)``, so that each class weighs
        the same and a sample weighs 1 on the average [1]_. In a mapping, a class that is left out
        has weight 1.

    Returns
    -------
    array of float64, shape (classes,)
        0 for a class without samples, if balanced.

    Raises
    ------
    LabelError, DataError
        If a label is out of range, or there is none.
    ConfigurationError
        If a weight is negative or no number, or is given to a class that does not exist.

    References
    ----------
    .. [1] King, Zeng, Logistic Regression in Rare Events Data, Political Analysis 9, 2001.
    """
    truth = np.asarray(labels)
    if not truth.size:
        raise DataError("class_weights: no labels")
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= classes:
        raise LabelError(f"class_weights: labels must be integers in 0 .. {classes - 1}")
    if isinstance(weights, str):
        if weights != "balanced":
            raise ConfigurationError(f'class weights are "balanced" or a mapping, not {weights!r}')
        counts = np.bincount(truth, minlength=classes)
        present = np.count_nonzero(counts)
        return np.where(counts > 0, len(truth) / (present * np.maximum(counts, 1)), 0.0)
    result = np.ones(classes)
    for label, weight in weights.items():
        if label not in range(classes):
            raise ConfigurationError(f"class weights: there is no class {label!r} of {classes}")
        if not 0 <= weight < np.inf:
            raise ConfigurationError(f"class weights: {weight!r} of class {label} is not 0 or more")
        result[int(label)] = weight
    return result
