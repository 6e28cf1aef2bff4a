"""Which parameters decide the objective: functional ANOVA of a forest of regression trees.

The forest's prediction is split into a constant, what each parameter does alone, what each pair
does together beyond that, and the rest. The variance of each part, over the values that the
trials took, as a share of the variance of the whole prediction, is the importance. The sums over
leaves are exact. Parts are averaged over the trees before their variance is taken, so that what
single trees learn of noise cancels.

Trees grow level by level from histograms, so that all nodes of a level are split by a handful of
NumPy calls. Bins make a tree blind to how a parameter is scaled: a logarithmic range needs no
logarithm. The bootstrap is drawn from a fixed seed: the same trials give the same numbers.

A parameter that exists in some trials only, with certain values of others, is judged over the
trials that have it: the mean over other parameters is over their values there, and the variance
counts by the share of these trials; so do pairs, over the trials that have both. That it exists at
all is the effect of the parameters that decide it: by the law of total variance nothing is counted
twice. For the forest a value that is not there is drawn at random from those that are, so no split
can tell which trials have it. (The program of [1]_ sets the parameter's default instead, and judges
it over all trials; Optuna judges by the trials that have all parameters that are asked for.)

References
----------
.. [1] Hutter, Hoos and Leyton-Brown, An Efficient Approach for Assessing Hyperparameter
   Importance, ICML 2014.
.. [2] Sobol, Global sensitivity indices for nonlinear mathematical models, 2001.
.. [3] Breiman, Random Forests, Machine Learning 45, 2001.
.. [4] Chen and Guestrin, XGBoost, KDD 2016, section 3.2: splits from histograms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .markup import as_number, show

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

FEWEST_TRIALS: Final = 10
TREES: Final = 32
MOST_BINS: Final = 24
_DEEPEST: Final = 14
_NO_GAIN: Final = 1e-12
"""Least gain of a split, as a share of the squared error of all rows: less is rounding."""
_NO_WIDTH: Final = 1e-100
_SEED: Final = 20240801
_IN_PAIRS: Final = 10
"""Number of parameters among which pairs are analysed: those whose splits gain most."""
_BEYOND: Final = 2.0
"""Results are clipped at so many times the distance from the median to the best, below it."""


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter on the objective."""

    name: str
    alone: float
    """Share of the prediction's variance that it explains by itself, from 0 to 1."""
    in_pairs: float
    """Share that it explains together with one other parameter, beyond what both do alone."""
    labels: list[str]
    """Labels of its values, or of ranges of them, in order."""
    mean: list[float]
    """The objective that the forest expects at each label, averaged over other parameters."""


@dataclass(frozen=True)
class Plane:
    """The effect of two parameters together on the objective."""

    first: str
    second: str
    labels: tuple[list[str], list[str]]
    """Labels of the values of both, or of ranges of them, in order."""
    mean: list[list[float]]
    """The objective that the forest expects, (first, second), averaged over other parameters."""
    trials: list[list[int]]
    """How many trials had each pair of values."""


@dataclass(frozen=True)
class Importance:
    """How the variance of the forest's prediction is divided among parameters and their pairs."""

    effects: list[Effect]
    """The most important first."""
    pairs: list[tuple[str, str, float]]
    """Two parameters and the share that only both together explain, the largest first."""
    explained: float
    """R² of the forest on trials that a tree has not seen: 0 or less if nothing was learned."""
    trials: int
    """How many trials the forest has learned from."""
    planes: list[Plane] = field(default_factory=list)
    """The effect of each pair of `pairs`, in their order."""


def importance(
    points: Sequence[Mapping[str, Any]], objective: Sequence[float], maximise: bool
) -> Importance | None:
    """Divide the variance of the predicted objective among parameters.

    Parameters
    ----------
    points : sequence of mapping
        The parameters of each trial; one that a trial does not have is missing or None.
    objective : sequence of float
        Not NaN; infinite values are clipped.
    maximise : bool
        Whether more is better. Results far on the worse side are clipped, so that one network
        that diverged does not make up all of the variance.

    Returns
    -------
    Importance, or None
        None if there are fewer than `FEWEST_TRIALS` trials, or nothing varies.
    """
    names = list(dict.fromkeys(name for point in points for name in point))
    if len(objective) < FEWEST_TRIALS or not names:
        return None
    y = _bounded(np.asarray(objective, float), maximise)
    columns = [bin_values([point.get(name) for point in points], y) for name in names]
    varying = [
        (name, column) for name, column in zip(names, columns, strict=True) if column.count > 1
    ]
    if not varying or np.ptp(y) <= 1e-12 * np.abs(y).max():
        return None
    names = [name for name, _ in varying]
    columns = [column for _, column in varying]
    bins = np.stack([column.imputed() for column in columns], axis=1)
    bins_of = np.array([column.count for column in columns])
    trees, whole, explained = _forest(bins, bins_of, y)
    if not whole:
        return None
    return _Analysis(columns, trees, y).importance(names, whole, explained)


def _bounded(y: Floats, maximise: bool) -> Floats:
    """Return the objective with results far on the worse side clipped."""
    good = y if maximise else -y
    finite = good[np.isfinite(good)]
    if not len(finite):
        return np.zeros_like(y)
    median, best = np.median(finite), finite.max()
    floor = median - _BEYOND * (best - median) if best > median else finite.min()
    good = np.clip(np.nan_to_num(good, nan=floor, neginf=floor, posinf=best), floor, best)
    return good if maximise else -good


def _forest(
    bins: Integers, bins_of: Integers, y: Floats
) -> tuple[list[RegressionTree], float, float]:
    """Grow trees on bootstrap samples; return them, the prediction's variance, and `explained`."""
    rows = len(y)
    random = np.random.default_rng(_SEED)
    smallest_leaf = 1.0 if rows < 200 else 2.0
    centre = y.mean()
    seen, predicted, unseen = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    trees = []
    for _ in range(TREES):
        weight = np.bincount(random.integers(0, rows, rows), minlength=rows).astype(float)
        tree, guess = grow(bins, bins_of, y - centre, weight, smallest_leaf)
        trees.append(tree)
        outside = weight == 0
        predicted += guess / TREES
        unseen[outside] += guess[outside]
        seen += outside
    known = seen > 0
    residual = y[known] - centre - unseen[known] / seen[known]
    whole = float(np.sum((y[known] - y[known].mean()) ** 2))
    explained = 1.0 - float(np.sum(residual**2)) / whole if whole else 0.0
    return trees, float(predicted.var()), explained


class _Analysis:
    """Effects of parameters and pairs, each over the trials that have them."""

    def __init__(self, columns: list[Binned], trees: list[RegressionTree], y: Floats) -> None:
        self._columns, self._trees, self._y = columns, trees, y
        self._of_rows: dict[bytes, list[_Marginals]] = {}
        self._curves: dict[tuple[bytes, int], Floats] = {}

    def importance(self, names: list[str], whole: float, explained: float) -> Importance:
        """Return the shares of a variance, `whole`."""
        columns, centre = self._columns, self._y.mean()
        often = np.argsort(-sum(tree.gain for tree in self._trees), kind="stable")[:_IN_PAIRS]
        in_pairs = np.zeros(len(names))
        pairs, drawn = [], {}
        for first, second in combinations(sorted(int(number) for number in often), 2):
            rows = columns[first].is_set & columns[second].is_set
            if not rows.any():
                continue
            plane = self._mean(rows, lambda of, pair=(first, second): of.of_pair(*pair))  # type: ignore[misc]
            trials = np.zeros(plane.shape, np.int64)
            np.add.at(trials, (columns[first].bins[rows], columns[second].bins[rows]), 1)
            drawn[names[first], names[second]] = Plane(
                names[first],
                names[second],
                (columns[first].labels, columns[second].labels),
                (plane + centre).tolist(),
                [[int(many) for many in row] for row in trials],
            )
            here, there = self._shares(first, rows), self._shares(second, rows)
            beyond = plane - self._curve(first, rows)[:, None] - self._curve(second, rows)[None, :]
            beyond -= here @ beyond @ there
            share = float(here @ beyond**2 @ there) / whole * float(rows.mean())
            pairs.append((names[first], names[second], share))
            in_pairs[[first, second]] += share
        effects = [self._effect(number, name, whole) for number, name in enumerate(names)]
        effects = [
            replace(effect, in_pairs=float(share))
            for effect, share in zip(effects, in_pairs, strict=True)
        ]
        effects.sort(key=lambda effect: -(effect.alone + effect.in_pairs / 2))
        pairs.sort(key=lambda pair: -pair[2])
        planes = [drawn[first, second] for first, second, _ in pairs]
        return Importance(effects, pairs, explained, len(self._y), planes)

    def _effect(self, number: int, name: str, whole: float) -> Effect:
        column = self._columns[number]
        curve, share = self._curve(number, column.is_set), self._shares(number, column.is_set)
        alone = float(share @ (curve - share @ curve) ** 2) / whole * float(column.is_set.mean())
        mean = [float(value) for value in curve + self._y.mean()]
        return Effect(name, alone, 0.0, column.labels, mean)

    def _shares(self, number: int, rows: Any) -> Floats:
        """Return which part of some rows is in each bin of a parameter."""
        column = self._columns[number]
        found: Floats = np.bincount(column.imputed()[rows], minlength=column.count) / rows.sum()
        return found

    def _curve(self, number: int, rows: Any) -> Floats:
        """Return the mean prediction for each bin of a parameter, others as in some rows."""
        key = (rows.tobytes(), number)
        if key not in self._curves:
            self._curves[key] = self._mean(rows, lambda of: of.of_parameter(number))
        return self._curves[key]

    def _mean(self, rows: Any, part: Callable[[_Marginals], Floats]) -> Floats:
        """Return the mean over the trees of a part of their predictions, others as in some rows."""
        key = rows.tobytes()
        if key not in self._of_rows:
            shares = [self._shares(number, rows) for number in range(len(self._columns))]
            self._of_rows[key] = [_Marginals(tree, shares) for tree in self._trees]
        parts = [part(of) / len(self._trees) for of in self._of_rows[key]]
        total = np.zeros_like(parts[0])
        for values in parts:
            total += values
        return total


class _Marginals:
    """A tree's mean prediction with some parameters fixed, the others varying as the trials' did.

    Each leaf adds its value, times its volume in the other parameters, to every bin between its
    ends: a step up and a step down, of which a cumulative sum is taken.
    """

    def __init__(self, tree: RegressionTree, shares: list[Floats]) -> None:
        self._tree = tree
        self._bins = [len(share) for share in shares]
        ends = [np.concatenate([[0.0], np.cumsum(share)]) for share in shares]
        widths = [end[tree.high[:, j]] - end[tree.low[:, j]] for j, end in enumerate(ends)]
        # A leaf in which none of the rows lies is divided by its width too.
        self._width = np.maximum(np.stack(widths, axis=1), _NO_WIDTH)
        self._weighted = self._width.prod(axis=1) * tree.value

    def of_parameter(self, number: int) -> Floats:
        """Return the mean prediction for each bin of a parameter."""
        bins = self._bins[number]
        add = self._weighted / self._width[:, number]
        steps = np.bincount(self._tree.low[:, number], add, bins + 1)
        steps -= np.bincount(self._tree.high[:, number], add, bins + 1)
        return steps.cumsum()[:bins]

    def of_pair(self, first: int, second: int) -> Floats:
        """Return the mean prediction for each pair of bins of two parameters."""
        across = self._bins[second] + 1
        shape = (self._bins[first] + 1, across)
        add = self._weighted / (self._width[:, first] * self._width[:, second])
        steps = np.zeros(shape[0] * across)
        for side, here in ((1.0, self._tree.low), (-1.0, self._tree.high)):
            for turn, there in ((1.0, self._tree.low), (-1.0, self._tree.high)):
                corner = here[:, first] * across + there[:, second]
                steps += np.bincount(corner, side * turn * add, len(steps))
        plane: Floats = steps.reshape(shape).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
        return plane


# -- a regression tree ----------------------------------------------------------------------------


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
    """Grow one regression tree; return it and its predictions.

    Parameters
    ----------
    bins : integers, (rows, parameters)
        The bin of each row.
    bins_of : integers, (parameters,)
        How many bins each parameter has.
    y, weight : floats, (rows,)
        The objective and the weight of each row. Rows of weight 0 do not change the tree, but are
        predicted too.
    smallest_leaf : float
        Least weight of a leaf.

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


# -- parameters in bins ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Binned:
    """A parameter's values in bins.

    Attributes
    ----------
    bins : integers, (rows,)
    labels : list of str
        Label of each bin, in order.
    is_set : bools, (rows,)
        Which rows have the parameter; of others the bin means nothing.
    """

    bins: Integers
    labels: list[str]
    is_set: NDArray[np.bool_]

    def imputed(self) -> Integers:
        """Return the bins, of rows without a value those of others, drawn at random."""
        if self.is_set.all():
            return self.bins
        random = np.random.default_rng(_SEED)
        bins: Integers = self.bins.copy()
        there = self.bins[self.is_set]
        bins[~self.is_set] = there[random.integers(0, len(there), int((~self.is_set).sum()))]
        return bins

    @property
    def count(self) -> int:
        """How many bins there are."""
        return len(self.labels)


def bin_values(values: Sequence[Any], y: Floats) -> Binned:
    """Put the values of a parameter into bins.

    Numbers keep their order: each value its own bin, or about equally many rows in each where
    there are more than `MOST_BINS` values. Other values are ordered by the mean of `y`, which
    loses nothing to a tree's first split [1]_.

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
        return _bin_numbers(np.array([np.nan if number is None else number for number in numbers]))
    there = np.array(is_set, bool)
    words = ["" if value is None else show(value) for value in values]
    found = _bin_words([word for word, is_it in zip(words, is_set, strict=True) if is_it], y[there])
    bins = np.zeros(len(values), np.int64)
    bins[there] = found.bins
    return Binned(bins, found.labels, there)


def _bin_numbers(values: Floats) -> Binned:
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
    return Binned(bins.astype(np.int64), labels, there)


def _bin_words(words: Sequence[str], y: Floats) -> Binned:
    distinct, bins = np.unique(np.asarray(words, dtype=object).astype(str), return_inverse=True)
    mean = np.bincount(bins, y) / np.bincount(bins)
    order = np.argsort(mean, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if len(order) > 4 * MOST_BINS:  # such as names: as many as trials
        place = place * (4 * MOST_BINS) // len(order)
        labels = [f"group {group + 1}" for group in range(int(place.max()) + 1)]
    else:
        labels = [str(distinct[index]) for index in order]
    return Binned(place[bins].astype(np.int64), labels, np.ones(len(words), bool))
