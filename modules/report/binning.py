"""Values of a parameter in a few ordered bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .forest import Floats, Integers
from .wording import as_number, show

MOST_BINS: Final = 24
NOT_SET: Final = "not set"


@dataclass(frozen=True)
class Binned:
    """A parameter's values in bins.

    Attributes
    ----------
    bins : integers, (rows,)
    labels : list of str
        Of each bin, in order.
    """

    bins: Integers
    labels: list[str]

    @property
    def count(self) -> int:
        """How many bins there are."""
        return len(self.labels)


def bin_values(values: Sequence[Any], y: Floats) -> Binned:
    """Put values into bins.

    Numbers keep their order: each value its own bin, or about equally many rows in each where
    there are more than `MOST_BINS` values. Other values are ordered by the mean of `y`, which
    loses nothing to a tree's first split [1]_. Values that are not set have a bin of their own.

    Parameters
    ----------
    values : sequence
        One for each row; None where it is not set.
    y : floats, (rows,)

    References
    ----------
    .. [1] Fisher, On grouping for maximum homogeneity, 1958.
    """
    numbers = [as_number(value) for value in values]
    is_set = [value is not None for value in values]
    if all(number is not None for number, there in zip(numbers, is_set, strict=True) if there):
        return _numbers(np.array([np.nan if one is None else one for one in numbers]))
    return _words([NOT_SET if value is None else show(value) for value in values], y)


def _numbers(values: Floats) -> Binned:
    there = ~np.isnan(values)
    distinct = np.unique(values[there])
    if len(distinct) <= MOST_BINS:
        bins = np.searchsorted(distinct, np.where(there, values, 0.0))
        labels = [show(float(value)) for value in distinct]
    else:
        inner = np.linspace(0, 1, MOST_BINS + 1)[1:-1]
        cuts = np.unique(np.quantile(values[there], inner, method="nearest"))
        cuts = cuts[cuts < distinct[-1]]
        bins = np.searchsorted(cuts, np.where(there, values, 0.0), side="left")
        middles = [float(np.median(values[there & (bins == one)])) for one in range(len(cuts) + 1)]
        labels = [show(float(f"{middle:.2g}")) for middle in middles]
    if not there.all():
        bins = np.where(there, bins, len(labels))
        labels = [*labels, NOT_SET]
    return Binned(bins.astype(np.int64), labels)


def _words(words: Sequence[str], y: Floats) -> Binned:
    distinct, bins = np.unique(np.asarray(words, dtype=object).astype(str), return_inverse=True)
    mean = np.bincount(bins, y) / np.bincount(bins)
    order = np.argsort(mean, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if len(order) > 4 * MOST_BINS:  # names, say: as many as trials
        place = place * (4 * MOST_BINS) // len(order)
        labels = [f"group {one + 1}" for one in range(int(place.max()) + 1)]
    else:
        labels = [str(distinct[one]) for one in order]
    return Binned(place[bins].astype(np.int64), labels)
