"""Splitting into training, validation and test samples."""

from __future__ import annotations

import numpy as np

from dnn.backend import Array
from dnn.data.dataset import Dataset
from dnn.errors import ConfigurationError, DataError
from dnn.seeds import stream

__all__ = ["split_rows", "train_validation_split", "train_validation_test_split"]


def train_validation_split(
    data: Dataset, fraction: float = 0.2, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """Split a data set so that each class has its share in both parts.

    Parameters
    ----------
    data : Dataset
    fraction : float, between 0 and 1
        Share of the validation samples.
    seed : int, not negative

    Returns
    -------
    (Dataset, Dataset)
        Training and validation samples, each in random order.

    Raises
    ------
    ConfigurationError
        If the fraction is out of its range.
    DataError
        If either part would be empty.
    """
    kept, held_out = split_rows(len(data), data.y, fraction, seed, data.name)
    return data.take(kept), data.take(held_out)


def train_validation_test_split(
    data: Dataset, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> tuple[Dataset, Dataset, Dataset]:
    """Split a data set into three parts, each class with its share in each.

    Parameters
    ----------
    data : Dataset
    validation, test : float, between 0 and 1
        Shares of all samples; what remains is for training.
    seed : int, not negative

    Returns
    -------
    (Dataset, Dataset, Dataset)
        Training, validation and test samples, each in random order. The test samples are those
        that `train_validation_split` would hold out: they do not depend on `validation`.

    Raises
    ------
    ConfigurationError
        If a share is out of its range, or nothing remains for training.
    DataError
        If a part would be empty.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 < share < 1:
            raise ConfigurationError(f"{name} must be between 0 and 1, not {share!r}")
    if validation + test >= 1:
        message = f"validation {validation!r} and test {test!r} leave nothing for training"
        raise ConfigurationError(message)
    rest, held_out = train_validation_split(data, test, seed)
    # Of the rest, so many that they are the wanted share of the whole.
    train, middle = train_validation_split(rest, validation * len(data) / len(rest), seed)
    return train, middle, held_out


def split_rows(
    samples: int, labels: Array | None, fraction: float, seed: int, name: str = "split"
) -> tuple[Array, Array]:
    """Choose rows to hold out.

    Parameters
    ----------
    samples : int
    labels : array of int, shape (samples,), optional
        Each class gives its share; without labels all rows are one class.
    fraction : float, between 0 and 1
    seed : int, not negative
    name : str
        Of the data, for messages.

    Returns
    -------
    (array of intp, array of intp)
        Rows to keep and rows held out, each in random order.

    Raises
    ------
    ConfigurationError
        If the fraction is out of its range.
    DataError
        If either part would be empty.

    Notes
    -----
    Each class gives the whole part of its share; the samples still missing come from the classes
    with the largest remainders, so the total is right too.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, float | int) or not 0 < fraction < 1:
        raise ConfigurationError(f"fraction must be between 0 and 1, not {fraction!r}")
    wanted = round(samples * fraction)
    if not 0 < wanted < samples:
        raise DataError(f"{name}: {samples} samples cannot be split at {fraction}")
    y = np.zeros(samples, np.intp) if labels is None else labels
    generator = stream(seed, "split")
    shares = np.bincount(y) * fraction
    counts = np.floor(shares).astype(int)
    largest = np.argsort(-(shares - counts), kind="stable")
    counts[largest[: wanted - counts.sum()]] += 1
    held_out = np.zeros(samples, bool)
    for label, count in enumerate(counts):
        rows = generator.permutation(np.flatnonzero(y == label))
        held_out[rows[:count]] = True
    kept = generator.permutation(np.flatnonzero(~held_out))
    return kept, generator.permutation(np.flatnonzero(held_out))
