"""How good a classifier is."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import DataError, ShapeError, unknown_name

__all__ = ["accuracy", "confusion_matrix", "matthews_correlation"]

MORE_IS_BETTER = {"loss": False, "accuracy": True, "mcc": True}
"""The metrics of a network, and whether more of one is better."""
MORE_IS_BETTER |= {f"validation_{name}": more for name, more in MORE_IS_BETTER.items()}


def more_is_better(name: str) -> bool:
    """Return whether more of a metric is better.

    Parameters
    ----------
    name : str
        ``"loss"``, ``"accuracy"`` or ``"mcc"``, with ``"validation_"`` in front or not.

    Raises
    ------
    ConfigurationError
        If there is no such metric.
    """
    if name not in MORE_IS_BETTER:
        raise unknown_name("value to watch", name, MORE_IS_BETTER)
    return MORE_IS_BETTER[name]


def is_better(name: str, value: float, than: float | None, by: float = 0.0) -> bool:
    """Return whether a value of a metric is better than another.

    Parameters
    ----------
    name : str
    value : float
        NaN is never better.
    than : float, optional
        None: any number is better.
    by : float
        How much better it must be.

    Raises
    ------
    ConfigurationError
        If there is no such metric.
    """
    if value != value:
        return False
    if than is None:
        return True
    return value > than + by if more_is_better(name) else value < than - by


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
    return of_counts(_counted(y, predicted))["accuracy"]


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
    return of_counts(_counted(y, predicted))["mcc"]


def _counted(y: npt.ArrayLike, predicted: npt.ArrayLike) -> Array:
    classes = 1 + int(max(np.max(y, initial=0), np.max(predicted, initial=0)))
    return confusion_matrix(y, predicted, classes)


def of_counts(counts: Array) -> dict[str, float]:
    """Return ``"accuracy"`` and ``"mcc"``, as the functions above, from a confusion matrix."""
    return of_many_counts(counts[None])[0]


def of_predictions(y: Array, predicted: Array) -> list[dict[str, float]]:
    """Return ``"accuracy"`` and ``"mcc"`` of each of K classifiers.

    Parameters
    ----------
    y, predicted : array of int64, shape (K, n)
    """
    models = len(y)
    classes = 1 + int(max(y.max(initial=0), predicted.max(initial=0)))
    pairs = y * classes
    pairs += predicted
    # All at once: a classifier's pairs of classes are counted in a range of their own.
    pairs += np.arange(0, models * classes**2, classes**2)[:, None]
    counts = np.bincount(pairs.reshape(-1), minlength=models * classes**2)
    return of_many_counts(counts.reshape(models, classes, classes))


def of_many_counts(counts: Array) -> list[dict[str, float]]:
    """Return what `of_counts` does of each of K confusion matrices (K, classes, classes)."""
    right = np.trace(counts, axis1=1, axis2=2)
    return of_sums(right, counts.sum(axis=2), counts.sum(axis=1))


def of_sums(right: Array, of_class: Array, of_guess: Array) -> list[dict[str, float]]:
    """Return the same from the number of right predictions and the sums of rows and columns.

    Parameters
    ----------
    right : array of int64, shape (K,)
        Right predictions.
    of_class, of_guess : array of int64, shape (K, classes)
        Samples of each class, and predictions of it.

    Returns
    -------
    list of K dict
        ``"accuracy"`` and ``"mcc"``.
    """
    samples = of_class.sum(axis=1)
    sums = (
        samples,
        right,
        right * samples - (of_class * of_guess).sum(axis=1),
        samples**2 - (of_class * of_class).sum(axis=1),
        samples**2 - (of_guess * of_guess).sum(axis=1),
    )
    return [
        # Python integers: the product of both spreads overflows 64 bits at some 50,000 samples.
        {
            "accuracy": right / samples,
            "mcc": covariance / math.sqrt(spread_class * spread_guess)
            if spread_class and spread_guess
            else 0.0,
        }
        for samples, right, covariance, spread_class, spread_guess in zip(
            *(numbers.tolist() for numbers in sums), strict=True
        )
    ]
