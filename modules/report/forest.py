"""A small forest of regression trees on binned parameters: what the importances are read from.

Trees grow level by level from histograms, so that all nodes of a level are split by a handful of
NumPy calls. Bins make a tree blind to how a parameter is scaled: a logarithmic range needs no
logarithm.

References
----------
.. [1] Breiman, Random Forests, Machine Learning 45, 2001.
.. [2] Chen and Guestrin, XGBoost, KDD 2016, section 3.2: splits from histograms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .markup import NOT_SET, as_number, show

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_DEEPEST: Final = 14
_NO_GAIN: Final = 1e-12
"""Of the variance that is to be explained: less is rounding."""


@dataclass(frozen=True)
class RegressionTree:
    """The leaves of a regression tree, as boxes of bins that fill the space.

    Attributes
    ----------
    low, high : integers, (leaves, parameters)
        Leaf `l` holds the bins ``low[l, j] <= bin < high[l, j]`` of each parameter j.
    value : floats, (leaves,)
        The mean of the rows in each.
    gain : floats, (parameters,)
        How much squared error the splits at each parameter took away.
    """

    low: Integers
    high: Integers
    value: Floats
    gain: Floats


def grow(
    bins: Integers, bins_of: Integers, y: Floats, weight: Floats, smallest_leaf: float
) -> tuple[RegressionTree, Floats]:
    """Grow one tree.

    Parameters
    ----------
    bins : integers, (rows, parameters)
        In which bin each row lies.
    bins_of : integers, (parameters,)
        How many bins each parameter has.
    y, weight : floats, (rows,)
        Rows of weight 0 teach the tree nothing, and are predicted all the same.
    smallest_leaf : float
        The weight that a leaf has at least.

    Returns
    -------
    RegressionTree
    floats, (rows,)
        What the tree predicts for each row.
    """
    rows, parameters = bins.shape
    widest = int(bins_of.max())
    low = np.zeros((1, parameters), np.int64)
    high = bins_of[None, :].copy()
    gain_of = np.zeros(parameters)
    predicted = np.empty(rows)
    boxes: list[tuple[Integers, Integers, Floats]] = []
    active = np.arange(rows)
    node = np.zeros(rows, np.int64)
    least_gain = _NO_GAIN * float(np.sum(weight * (y - np.average(y, weights=weight)) ** 2))
    for level in range(_DEEPEST + 1):
        nodes = len(low)
        mass, sums = _histograms(bins[active], node, y[active], weight[active], nodes, widest)
        total, total_y = mass[:, :1, -1], sums[:, :1, -1]
        mean = (total_y / total)[:, 0]
        gain = _gains(mass, sums, total, total_y, smallest_leaf).reshape(nodes, -1)
        best = gain.argmax(axis=1)
        found = gain[np.arange(nodes), best]
        splits = (found > least_gain) & (level < _DEEPEST)
        boxes.append((low[~splits], high[~splits], mean[~splits]))
        ends = ~splits[node]
        predicted[active[ends]] = mean[node[ends]]
        if not splits.any():
            break
        parameter, cut = np.divmod(best, widest - 1)
        np.add.at(gain_of, parameter[splits], found[splits])
        active, node = active[~ends], node[~ends]
        right = bins[active, parameter[node]] > cut[node]
        first_child = 2 * (np.cumsum(splits) - 1)
        node = first_child[node] + right
        low, high = _children(low[splits], high[splits], parameter[splits], cut[splits] + 1)
    return RegressionTree(*_joined(boxes), gain_of), predicted


def _histograms(
    bins: Integers, node: Integers, y: Floats, weight: Floats, nodes: int, widest: int
) -> tuple[Floats, Floats]:
    """Return weights and weighted sums of y up to each bin, (nodes, parameters, bins)."""
    parameters = bins.shape[1]
    place = ((node[:, None] * parameters + np.arange(parameters)) * widest + bins).ravel()
    size = nodes * parameters * widest
    shape = (nodes, parameters, widest)
    mass = np.bincount(place, np.repeat(weight, parameters), size).reshape(shape)
    sums = np.bincount(place, np.repeat(weight * y, parameters), size).reshape(shape)
    return mass.cumsum(axis=2), sums.cumsum(axis=2)


def _gains(mass: Floats, sums: Floats, total: Floats, total_y: Floats, smallest: float) -> Any:
    """Return by how much a cut behind each bin reduces the squared error."""
    left, left_y = mass[:, :, :-1], sums[:, :, :-1]
    right, right_y = total[:, :, None] - left, total_y[:, :, None] - left_y
    allowed = (left >= smallest) & (right >= smallest)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = left_y**2 / left + right_y**2 / right - (total_y**2 / total)[:, :, None]
    return np.where(allowed, gain, -np.inf)


def _children(
    low: Integers, high: Integers, parameter: Integers, cut: Integers
) -> tuple[Integers, Integers]:
    lows, highs = np.repeat(low, 2, axis=0), np.repeat(high, 2, axis=0)
    splits = np.arange(len(low))
    highs[2 * splits, parameter] = cut
    lows[2 * splits + 1, parameter] = cut
    return lows, highs


def _joined(
    boxes: list[tuple[Integers, Integers, Floats]],
) -> tuple[Integers, Integers, Floats]:
    low, high, value = zip(*boxes, strict=True)
    return np.concatenate(low), np.concatenate(high), np.concatenate(value)


MOST_BINS: Final = 24


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
        return _numbers(np.array([np.nan if number is None else number for number in numbers]))
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
        middles = [
            float(np.median(values[there & (bins == number)])) for number in range(len(cuts) + 1)
        ]
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
        labels = [f"group {group + 1}" for group in range(int(place.max()) + 1)]
    else:
        labels = [str(distinct[index]) for index in order]
    return Binned(place[bins].astype(np.int64), labels)
