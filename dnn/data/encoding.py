"""What training rows say of columns: what fills missing cells, and which categories there are.

`impute` and `encode` learn a step each from training samples and apply it to others alike;
`dnn.standardise` is the third such function.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.data.columns import Columns
from dnn.data.dataset import Dataset, with_steps
from dnn.data.preparation import MEDIAN, Codes, Impute, OneHot
from dnn.errors import (
    ConfigurationError,
    DataError,
    explains_arguments,
    is_number,
    unknown_name,
)

__all__ = ["ENCODINGS", "IMPUTATIONS", "encode", "impute"]

INDICATOR: Final = "indicator"
_MEAN: Final = "mean"
_MOST_FREQUENT: Final = "most_frequent"
IMPUTATIONS: Final = (MEDIAN, _MEAN, _MOST_FREQUENT, INDICATOR)
"""In what ways missing cells are filled, besides by a number."""
_OF_QUANTITIES: Final = (MEDIAN, _MEAN)
_QUANTITIES: Final = ("number", "date", "time")
"""Kinds of columns that have a median and a mean."""
_EMBEDDING: Final = "embedding"
ENCODINGS: Final = {OneHot.name: OneHot, _EMBEDDING: Codes}
"""What columns of categories become, and the step that does it."""
_MOST_BYTES: Final = 1 << 31


@explains_arguments
def impute(train: Dataset, *others: Dataset, by: Any = None) -> tuple[Dataset, ...]:
    """Fill missing cells (NaN) with what their attribute has in `train`.

    Parameters
    ----------
    train : Dataset
        The training samples.
    *others : Dataset
        Samples prepared in the same way, such as validation samples.
    by : str, float, or mapping of str to either of them, optional
        ``"median"``, ``"mean"``, ``"most_frequent"`` (of several the smallest), or a number.
        ``"indicator"``: as by default, and each attribute with missing cells, in `train` or in the
        table that it is of, gets a further one at the end, 1 where the cell was missing. By default
        the median; of categories and booleans, which have none, the most frequent one. A mapping
        says it by the names of columns, the others are filled as by default.

    Returns
    -------
    tuple of Dataset
        `train` and the others, without NaN.

    Raises
    ------
    ConfigurationError
        If there is no such way, or no such column, or a column of categories is to have a mean.
    DataError
        If an attribute is missing in all of `train`.
    ShapeError
        If the data sets differ in their number of attributes.
    """
    if train.x.dtype == np.uint8:  # which has no NaN
        return with_steps(lambda x: x, [], train, others)
    ways = _ways(train, by)
    by_column = [
        (MEDIAN if kind in _QUANTITIES else _MOST_FREQUENT) if way in (None, INDICATOR) else way
        for way, kind in zip(ways, train.kinds, strict=True)
    ]
    fill = _fill(train, by_column)
    has_indicator = np.array([way == INDICATOR for way in ways])
    gaps = np.isnan(train.x).any(axis=0)
    if train.columns is not None and train.columns.features:
        # By the table, so that there are as many attributes in all splits.
        gaps = np.isin(train.columns.features, train.columns.incomplete)
    indicators = np.flatnonzero(has_indicator & gaps)
    step = Impute(fill, [str(way) for way in by_column], indicators.tolist())
    return with_steps(step.apply, [step], train, others)


def _ways(train: Dataset, by: Any) -> list[Any]:
    """Return how each attribute is filled; None where nothing is said."""
    if not isinstance(by, Mapping):
        _check_way(by)
        of_all = by in _OF_QUANTITIES or (by is not None and not isinstance(by, str))
        return [None if of_all and kind not in _QUANTITIES else by for kind in train.kinds]
    ways: list[Any] = [None] * train.features
    for name, way in by.items():
        at = _place(train, name, "impute")
        _check_way(way)
        if way in _OF_QUANTITIES and train.kinds[at] not in _QUANTITIES:
            message = f"impute: column {name!r} is a {train.kinds[at]}, which has no {way}"
            raise ConfigurationError(f'{message}: say "most_frequent" or "indicator"')
        ways[at] = way
    return ways


def _check_way(way: Any) -> None:
    if way is None or (is_number(way) and np.isfinite(way)):
        return
    if not isinstance(way, str) or way not in IMPUTATIONS:
        known = [*IMPUTATIONS, "a number"]
        raise unknown_name("way to fill missing cells", way, known)


def _place(train: Dataset, name: Any, option: str) -> int:
    names = train.columns.features if train.columns is not None else ()
    if name not in names:
        raise ConfigurationError(
            f"{option}: {train.name} has no feature {name!r} (there are: {', '.join(names)})"
        )
    return names.index(name)


def _fill(train: Dataset, ways: list[Any]) -> Array:
    """Return what fills missing cells of each attribute."""
    fill = np.empty(train.features)
    for way in dict.fromkeys(ways):
        at = np.array([each == way for each in ways])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: raised below
            if way == MEDIAN:
                fill[at] = np.nanmedian(train.x[:, at], axis=0)
            elif way == _MEAN:
                fill[at] = np.nanmean(train.x[:, at], axis=0, dtype=np.float64)
            elif way == _MOST_FREQUENT:
                fill[at] = [_most_frequent(column) for column in train.x[:, at].T]
            else:
                fill[at] = way
    empty = np.flatnonzero(np.isnan(fill))
    if empty.size:
        message = f"{train.name}: attribute {empty[0]} is missing in all training samples"
        names = train.columns.features if train.columns is not None else ()
        remedy = f": it is column {names[empty[0]]!r}, which drop leaves out" if names else ""
        raise DataError(f"{message}{remedy}")
    return fill


def _most_frequent(column: Array) -> float:
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    return float(values[counts.argmax()]) if values.size else np.nan


@explains_arguments
def encode(
    train: Dataset, *others: Dataset, by: str | Mapping[str, Any] | None = None
) -> tuple[Dataset, ...]:
    """Turn columns of categories into what a network takes, by the categories in `train`.

    Parameters
    ----------
    train : Dataset
        The training samples.
    *others : Dataset
        Samples prepared in the same way, such as validation samples.
    by : {"one_hot", "embedding"}, or mapping of str to either of them, optional
        ``"one_hot"``, the default: a column of 0 and 1 for each category. ``"embedding"``: the
        number of each category from 1, for `dnn.EmbedColumns`. A mapping says it by the names of
        columns. What stands for categories is behind all other attributes; a category that is in no
        row of `train` is 0.

    Returns
    -------
    tuple of Dataset
        `train` and the others; unchanged where there are no categories.

    Raises
    ------
    ConfigurationError
        If there is no such encoding, or no such column of categories.
    DataError
        If columns of 0 and 1 would take more than 2 GiB.
    ShapeError
        If the data sets differ in their number of attributes.
    """
    given = by if isinstance(by, Mapping) else {}
    for name, way in given.items():
        at = _place(train, name, "encode")
        if train.kinds[at] != "category":
            remedy = f'categories = ["{name}"] makes it one'
            message = f"column {name!r} is a {train.kinds[at]}, and no category"
            raise ConfigurationError(f"encode: {message}: {remedy}")
        _check_encoding(way)
    default = OneHot.name if isinstance(by, Mapping) or by is None else by
    _check_encoding(default)
    parts = (train, *others)
    columns = Columns() if train.columns is None else train.columns
    raw = zip(columns.features, columns.kinds, strict=False)
    left = [name for name, kind in raw if kind == "category"]
    for way, kind in ENCODINGS.items():
        places = [at for at, of in enumerate(parts[0].kinds) if of == "category"]
        chosen = {
            at: name
            for at, name in zip(places, left, strict=True)
            if given.get(name, default) == way
        }
        if not chosen:
            continue
        codes = {at: _codes_in(parts[0].x[:, at]) for at in chosen}
        counts = {at: len(columns.categories[name]) for at, name in chosen.items()}
        if way == OneHot.name:
            _check_size(parts[0], {name: counts[at] for at, name in chosen.items()})
        step = kind(parts[0].features, counts, codes)
        parts = with_steps(step.apply, [step], parts[0], parts[1:])
        left = [name for name in left if name not in chosen.values()]
    return parts


def _codes_in(column: Array) -> list[int]:
    codes: list[int] = np.unique(column[~np.isnan(column)]).astype(np.int64).tolist()
    return codes


def _check_encoding(way: Any) -> None:
    if not isinstance(way, str) or way not in ENCODINGS:
        raise unknown_name("encoding", way, ENCODINGS)


def _check_size(train: Dataset, counts: Mapping[str, int]) -> None:
    if 4 * len(train) * sum(counts.values()) > _MOST_BYTES:
        name = max(counts, key=lambda each: counts[each])
        raise DataError(
            f"{train.name}: column {name!r} has {counts[name]:,} categories, too many for a column "
            'of 0 and 1 each: drop it, or say encode = "embedding"'
        )
