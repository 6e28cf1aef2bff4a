"""Labels: from one-hot rows to integers, number of classes, and weights of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from dnn.arrays import check_labels, is_numbers
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, LabelError, explains_arguments, is_integer

__all__ = ["class_weights", "from_one_hot", "label_weights"]


def from_one_hot(rows: npt.ArrayLike) -> Array:
    """Return the labels of one-hot rows as integers.

    Parameters
    ----------
    rows : array_like, shape (n, classes)
        Each row has a single 1 and 0 elsewhere.

    Returns
    -------
    array of intp, shape (n,)

    Raises
    ------
    LabelError
        If a row is anything else; it names the first such row.
    """
    given = np.asarray(rows)
    if given.ndim != 2 or given.dtype.kind not in "iubf":
        raise LabelError(f"one-hot labels are rows of numbers, not {given.dtype} {given.shape}")
    ones = given == 1
    wrong = np.flatnonzero((ones.sum(axis=1) != 1) | ~(ones | (given == 0)).all(axis=1))
    if wrong.size:
        row = int(wrong[0])
        raise LabelError(f"row {row} of the labels is not one-hot: {given[row]}", row)
    labels: Array = ones.argmax(axis=1).astype(np.intp, copy=False)
    return labels


_MOST_CLASSES: Final = 1 << 14
"""Largest number of classes of fewer rows: with more, values are probably no labels."""


def classes_of(labels: Array, where: str, remedy: str = "") -> int:
    """Return the number of classes: the largest label plus 1.

    Raises `LabelError`, which begins with `where`, if a label is too large to be a label.
    """
    row = int(labels.argmax())
    most = max(_MOST_CLASSES, len(labels))
    if labels[row] >= most:
        label = f"{labels[row]:.10g}" if labels.dtype.kind == "f" else labels[row]
        message = f"label {label} in row {row} is too large: {len(labels):,} rows"
        raise LabelError(f"{where}{message} have {most:,} classes at most{remedy}", row)
    return int(labels[row]) + 1


@explains_arguments
def class_weights(
    labels: npt.ArrayLike,
    classes: int,
    weights: Mapping[int, float] | Literal["balanced"] = "balanced",
) -> Array:
    """Return the weight of each class, balanced or from a mapping.

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
        If a label is out of range, or there are no labels.
    ConfigurationError
        If a weight is negative or no number, or is given to a class that does not exist.

    References
    ----------
    .. [1] King, Zeng, Logistic Regression in Rare Events Data, Political Analysis 9, 2001.
    """
    truth = np.asarray(labels)
    if not truth.size:
        raise DataError("class_weights: no labels")
    if truth.dtype.kind not in "iu" or truth.ndim != 1:
        message = f"a vector of integers, not {truth.dtype} {truth.shape}"
        raise LabelError(f"class_weights: labels must be {message}")
    check_labels(truth, classes, "class_weights: ")
    if isinstance(weights, str):
        _check_balanced(weights)
        counts = np.bincount(truth, minlength=classes)
        present = np.count_nonzero(counts)
        return np.where(counts > 0, len(truth) / (present * np.maximum(counts, 1)), 0.0)
    return _given_weights(weights, classes)


def label_weights(
    labels: Array, weights: Mapping[int, float] | Literal["balanced"] = "balanced"
) -> Array:
    """Return the weight of each label of each sample, where any number of labels may be true.

    `labels` are 0 or 1, shape (n, count), of the training samples, and so is the result of float64.
    ``"balanced"``: of each label, samples that have it weigh as much as those that do not, and 1 on
    the average; a label that all or none have weighs 1. A mapping has the factors where labels are
    true, 1 for those that are left out. Errors as of `class_weights`.
    """
    if not isinstance(weights, str):
        return np.where(labels > 0, _given_weights(weights, labels.shape[1]), 1.0)
    _check_balanced(weights)
    present = np.count_nonzero(labels, axis=0)
    counts = np.where(labels > 0, present, len(labels) - present)
    return np.where((present > 0) & (present < len(labels)), len(labels) / (2.0 * counts), 1.0)


def _check_balanced(weights: str) -> None:
    if weights != "balanced":
        raise ConfigurationError(f'class weights are "balanced" or a mapping, not {weights!r}')


def _given_weights(weights: Mapping[int, float], classes: int) -> Array:
    """Return the weights of a mapping, checked, of all classes."""
    if not hasattr(weights, "items"):
        example = "such as {0: 1.0, 1: 5.0}"
        message = f'class weights are "balanced" or a mapping of class to weight, {example}'
        raise ConfigurationError(f"{message}, not {weights!r:.100}")
    result = np.ones(classes)
    for label, weight in weights.items():
        if not is_integer(label) or label not in range(classes):
            raise ConfigurationError(f"class weights: there is no class {label!r} of {classes}")
        if np.ndim(weight) or not is_numbers(weight) or not 0 <= weight < np.inf:
            raise ConfigurationError(f"class weights: {weight!r} of class {label} is not 0 or more")
        result[int(label)] = weight
    return result
