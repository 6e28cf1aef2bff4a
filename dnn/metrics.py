"""Metrics of classifiers, accuracy and Matthews correlation, and which values are better."""

from __future__ import annotations

import math

import numpy as np

from dnn.backend import Array
from dnn.errors import unknown_name

__all__ = [
    "MORE_IS_BETTER",
    "is_better",
    "metrics_of_counts",
    "metrics_of_predictions",
    "more_is_better",
]

MORE_IS_BETTER = {"loss": False, "accuracy": True, "mcc": True}
"""Metrics of a network by name, and whether a larger value is better."""
MORE_IS_BETTER |= {f"validation_{name}": more for name, more in MORE_IS_BETTER.items()}


def more_is_better(name: str) -> bool:
    """Say whether a larger value of a metric is better; `ConfigurationError` if it is unknown."""
    if name not in MORE_IS_BETTER:
        raise unknown_name("value to watch", name, MORE_IS_BETTER)
    return MORE_IS_BETTER[name]


def is_better(name: str, value: float, than: float | None, by: float = 0.0) -> bool:
    """Say whether a value of a metric is better than another by more than `by`.

    NaN is never better, and any number is better than None.
    """
    if value != value:
        return False
    if than is None:
        return True
    return value > than + by if more_is_better(name) else value < than - by


def metrics_of_predictions(y: Array, predicted: Array) -> list[dict[str, float]]:
    """Return ``"accuracy"`` and ``"mcc"`` of each of K classifiers, from labels and predictions.

    Parameters
    ----------
    y, predicted : array of int64, shape (K, n)
        Classes from 0.

    Returns
    -------
    list of K dict
        ``"accuracy"``, the share of right predictions, and ``"mcc"``, the Matthews correlation
        coefficient for any number of classes [1]_, in -1 .. 1: 0 where it is not defined, because
        all labels or all predictions are one class.

    References
    ----------
    .. [1] Gorodkin, Comparing two K-category assignments by a K-category correlation
       coefficient, Computational Biology and Chemistry 28, 2004, equation 8.
    """
    models = len(y)
    classes = 1 + int(max(y.max(initial=0), predicted.max(initial=0)))
    pairs = y * classes
    pairs += predicted
    # All at once: a classifier's pairs of classes are counted in a range of their own.
    pairs += np.arange(0, models * classes**2, classes**2)[:, None]
    counts = np.bincount(pairs.reshape(-1), minlength=models * classes**2)
    counts = counts.reshape(models, classes, classes)  # rows: class, columns: prediction
    right = np.trace(counts, axis1=1, axis2=2)
    return metrics_of_counts(right, counts.sum(axis=2), counts.sum(axis=1))


def metrics_of_counts(right: Array, of_class: Array, of_guess: Array) -> list[dict[str, float]]:
    """Return ``"accuracy"`` and ``"mcc"`` of each of K classifiers, from counts of samples.

    Parameters
    ----------
    right : array of int64, shape (K,)
        Right predictions.
    of_class, of_guess : array of int64, shape (K, classes)
        Samples of each class, and predictions of it.
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
