"""Preparing data: what is learned about them is learned from training samples only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnn.backend import Array
from dnn.data.dataset import Dataset
from dnn.errors import DataError, ShapeError, unknown_name

__all__ = ["impute", "standardise"]

STANDARDISATIONS = ("columns", "one scale", "none")


def impute(train: Dataset, *others: Dataset) -> tuple[Dataset, ...]:
    """Replace missing cells (NaN) by the median of their attribute over `train`.

    Parameters
    ----------
    train : Dataset
        The training samples.
    *others : Dataset
        Samples prepared likewise, such as those for validation.

    Returns
    -------
    tuple of Dataset
        `train` and the others, without NaN.

    Raises
    ------
    DataError
        If an attribute is missing in all of `train`.
    ShapeError
        If the data sets differ in their number of attributes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of NaN: raised below
        medians = np.nanmedian(train.x, axis=0)
    empty = np.flatnonzero(np.isnan(medians))
    if empty.size:
        raise DataError(f"{train.name}: attribute {empty[0]} is missing in all training samples")
    return _each(lambda x: np.where(np.isnan(x), medians, x), train, others)


def standardise(train: Dataset, *others: Dataset, by: str | None = None) -> tuple[Dataset, ...]:
    """Shift and scale samples to mean 0 and variance 1 over `train`.

    Parameters
    ----------
    train : Dataset
        The training samples.
    *others : Dataset
        Samples prepared likewise, such as those for validation.
    by : {"columns", "one scale", "none"}, optional
        ``"columns"``: each attribute by its own mean and deviation, for tables. ``"one scale"``:
        all values by one mean and one deviation, for images: a pixel at the border that hardly
        varies would be blown up by its own. ``"none"``: as they are. By default what `train` says
        of itself, see `Dataset`.

    Returns
    -------
    tuple of Dataset
        `train` and the others. An attribute that is constant in `train` is only shifted.

    Raises
    ------
    ConfigurationError
        If `by` is none of these.
    DataError
        If a cell of `train` is missing: `impute` comes first.
    ShapeError
        If the data sets differ in their number of attributes.
    """
    by = train.standardise_by if by is None else by
    if by not in STANDARDISATIONS:
        raise unknown_name("standardisation", by, STANDARDISATIONS)
    if by == "none":
        return (train, *others)
    if np.isnan(train.x).any():
        row, column = (int(i) for i in np.argwhere(np.isnan(train.x))[0])
        place = f"row {row}, attribute {column}"
        raise DataError(f"{train.name}: {place} is missing (dnn.impute fills such cells)")
    axis = 0 if by == "columns" else None
    # As arrays, shape (1, d) or (1, 1), they keep float64 whatever NumPy does with scalars.
    centre = train.x.mean(axis=axis, dtype=np.float64, keepdims=True)
    spread = train.x.std(axis=axis, dtype=np.float64, keepdims=True)
    # Rounding leaves a constant column with a spread of about its size times 1e-16.
    spread[spread <= 1e-12 * np.abs(centre)] = 1.0
    return _each(lambda x: (x - centre) / spread, train, others)


def _each(
    function: Callable[[Array], Array], train: Dataset, others: tuple[Dataset, ...]
) -> tuple[Dataset, ...]:
    for data in others:
        if data.x.shape[1] != train.x.shape[1]:
            message = f"{data.x.shape[1]} attributes, but the training samples have"
            message = f"{message} {train.x.shape[1]}"
            raise ShapeError(data.name, message, data.x.shape, train.x.shape)
    return tuple(replace(data, x=function(data.x)) for data in (train, *others))
