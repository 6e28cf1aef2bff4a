"""Splitting into training and validation samples."""

from __future__ import annotations

import numpy as np

from dnn.data.dataset import Dataset
from dnn.errors import ConfigurationError, DataError
from dnn.seeds import stream

__all__ = ["train_validation_split"]


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

    Notes
    -----
    Each class gives the whole part of its share; the samples still missing come from the classes
    with the largest remainders, so the total is right too.
    """
    if not 0 < fraction < 1:
        raise ConfigurationError(f"fraction must be between 0 and 1, not {fraction!r}")
    wanted = round(len(data) * fraction)
    if not 0 < wanted < len(data):
        raise DataError(f"{data.name}: {len(data)} samples cannot be split at {fraction}")
    generator = stream(seed, "split")
    shares = np.bincount(data.y, minlength=data.classes) * fraction
    counts = np.floor(shares).astype(int)
    largest = np.argsort(-(shares - counts), kind="stable")
    counts[largest[: wanted - counts.sum()]] += 1
    held_out = np.zeros(len(data), bool)
    for label, count in enumerate(counts):
        rows = generator.permutation(np.flatnonzero(data.y == label))
        held_out[rows[:count]] = True
    training = generator.permutation(np.flatnonzero(~held_out))
    validation = generator.permutation(np.flatnonzero(held_out))
    return data.take(training), data.take(validation)
