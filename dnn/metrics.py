"""How good a classifier is."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import DataError, ShapeError

__all__ = ["accuracy", "confusion_matrix", "matthews_correlation"]


def confusion_matrix(y: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> Array:
    """Count samples by class and predicted class.

    Parameters
    ----------
    y, predicted : array_like of int, shape (n,)
        In ``0 .. classes - 1``.
    classes : int

    Returns
    -------
    array of int64, shape (classes, classes)
        Row: the class; column: the predicted one.

    Raises
    ------
    ShapeError
        If the shapes differ.
    DataError
        If there is no sample.
    """
    truth, guess = np.asarray(y), np.asarray(predicted)
    if truth.shape != guess.shape or truth.ndim != 1:
        message = f"labels {truth.shape} and predictions {guess.shape} do not fit"
        raise ShapeError("metrics", message, truth.shape, guess.shape)
    if not truth.size:
        raise DataError("metrics: no sample")
    pairs = truth.astype(np.int64) * classes + guess
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def accuracy(y: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Return the share of right predictions.

    Parameters
    ----------
    y, predicted : array_like of int, shape (n,)

    Returns
    -------
    float, in 0 .. 1

    Raises
    ------
    ShapeError
        If the shapes differ.
    DataError
        If there is no sample.
    """
    classes = 1 + int(max(np.max(y, initial=0), np.max(predicted, initial=0)))
    counts = confusion_matrix(y, predicted, classes)
    return float(np.trace(counts) / counts.sum())


def matthews_correlation(y: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Return the Matthews correlation coefficient, for any number of classes.

    Parameters
    ----------
    y, predicted : array_like of int, shape (n,)

    Returns
    -------
    float, in -1 .. 1
        0 where it is not defined: all labels or all predictions are one class.

    References
    ----------
    .. [1] Gorodkin, Comparing two K-category assignments by a K-category correlation
       coefficient, Computational Biology and Chemistry 28, 2004, equation 8.
    """
    classes = 1 + int(max(np.max(y, initial=0), np.max(predicted, initial=0)))
    # Python integers: the products below overflow 64 bits at some three billion samples.
    counts = confusion_matrix(y, predicted, classes)
    samples, right = int(counts.sum()), int(np.trace(counts))
    of_class = [int(count) for count in counts.sum(axis=1)]
    of_guess = [int(count) for count in counts.sum(axis=0)]
    covariance = right * samples - sum(t * p for t, p in zip(of_class, of_guess, strict=True))
    spread_class = samples**2 - sum(t * t for t in of_class)
    spread_guess = samples**2 - sum(p * p for p in of_guess)
    if spread_class == 0 or spread_guess == 0:
        return 0.0
    return covariance / math.sqrt(spread_class * spread_guess)
