"""Which parameters decide the objective: functional ANOVA of a forest of regression trees.

The forest's prediction is split into a constant, what each parameter does alone, what each pair
does together beyond that, and the rest. The variance of each part, over the values that the
trials took, as a share of the variance of the whole prediction, is the importance. The sums over
leaves are exact. Parts are averaged over the trees before their variance is taken, so that what
single trees learn of noise cancels.

The measure needs NumPy alone, has no clock, and draws its bootstrap from a fixed seed: the same
trials give the same numbers.

References
----------
.. [1] Hutter, Hoos and Leyton-Brown, An Efficient Approach for Assessing Hyperparameter
   Importance, ICML 2014.
.. [2] Sobol, Global sensitivity indices for nonlinear mathematical models, 2001.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from .forest import Binned, Floats, Integers, RegressionTree, bin_values, grow

FEWEST_TRIALS: Final = 10
TREES: Final = 32
_SEED: Final = 20240801
_IN_PAIRS: Final = 10
"""Pairs are looked at among so many parameters: those at which the forest splits most."""
_BEYOND: Final = 2.0
"""Results that are worse than the median by more than so many times the better half's spread."""


@dataclass(frozen=True)
class Effect:
    """What one parameter does.

    Attributes
    ----------
    name : str
    alone : float
        Share of the prediction's variance that it explains by itself, from 0 to 1.
    in_pairs : float
        Share that it explains together with one other parameter, beyond what both do alone.
    labels : list of str
        Of its values, or of ranges of them, in order.
    mean : list of float
        The objective that the forest expects with each, whatever the other parameters are.
    """

    name: str
    alone: float
    in_pairs: float
    labels: list[str]
    mean: list[float]


@dataclass(frozen=True)
class Importance:
    """How the variance of the forest's prediction is divided.

    Attributes
    ----------
    effects : list of Effect
        The most important first.
    pairs : list of (str, str, float)
        Shares that two parameters explain together only, the largest first.
    explained : float
        R² of the forest on trials that a tree has not seen: at 0 or below it knows nothing.
    trials : int
        How many it has learned from.
    """

    effects: list[Effect]
    pairs: list[tuple[str, str, float]]
    explained: float
    trials: int


def importance(
    points: Sequence[Mapping[str, Any]], objective: Sequence[float], maximise: bool
) -> Importance | None:
    """Divide the variance of the predicted objective among parameters.

    Parameters
    ----------
    points : sequence of mapping
        The parameters of each trial; one that a trial does not have is missing or None.
    objective : sequence of float
        Not NaN; infinite values count as the worst there is.
    maximise : bool
        Results far on the worse side count as less far: one network that diverged must not be
        all that there is to explain.

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
    bins = np.stack([column.bins for column in columns], axis=1)
    bins_of = np.array([column.count for column in columns])
    trees, whole, explained = _forest(bins, bins_of, y)
    if not whole:
        return None
    return _analyse(names, columns, bins_of, trees, whole, explained, y)


def _bounded(y: Floats, maximise: bool) -> Floats:
    """Return the objective with what is far on the worse side brought nearer."""
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
    """Grow trees on bootstrap samples; return them, the prediction's variance, and R² unseen."""
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
    left = y[known] - centre - unseen[known] / seen[known]
    whole = float(np.sum((y[known] - y[known].mean()) ** 2))
    explained = 1.0 - float(np.sum(left**2)) / whole if whole else 0.0
    return trees, float(predicted.var()), explained


def _analyse(
    names: list[str],
    columns: list[Binned],
    bins_of: Integers,
    trees: list[RegressionTree],
    whole: float,
    explained: float,
    y: Floats,
) -> Importance:
    shares = [np.bincount(column.bins, minlength=column.count) / len(y) for column in columns]
    often = np.argsort(-sum(tree.gain for tree in trees), kind="stable")[:_IN_PAIRS]
    curves = [np.zeros(count) for count in bins_of]
    planes = {
        (one, other): np.zeros((bins_of[one], bins_of[other]))
        for one, other in combinations(sorted(int(one) for one in often), 2)
    }
    for tree in trees:
        marginals = _Marginals(tree, shares)
        for one, curve in enumerate(curves):
            curve += marginals.of_one(one) / len(trees)
        for pair, plane in planes.items():
            plane += marginals.of_two(*pair) / len(trees)
    alone = [
        float(share @ (curve - share @ curve) ** 2) / whole
        for curve, share in zip(curves, shares, strict=True)
    ]
    in_pairs = np.zeros(len(names))
    pairs = []
    for (one, other), plane in planes.items():
        beyond = plane - curves[one][:, None] - curves[other][None, :]
        beyond -= shares[one] @ beyond @ shares[other]
        share = float(shares[one] @ beyond**2 @ shares[other]) / whole
        pairs.append((names[one], names[other], share))
        in_pairs[[one, other]] += share
    effects = [
        Effect(
            name,
            alone[one],
            float(in_pairs[one]),
            columns[one].labels,
            [float(value) for value in curves[one] + y.mean()],
        )
        for one, name in enumerate(names)
    ]
    effects.sort(key=lambda effect: -(effect.alone + effect.in_pairs / 2))
    pairs.sort(key=lambda pair: -pair[2])
    return Importance(effects, pairs, explained, len(y))


class _Marginals:
    """A tree's mean prediction with some parameters fixed, the others varying as the trials' did.

    A leaf counts with its volume in the other parameters, in each bin between its ends: so each
    leaf is a step up and a step down, and a cumulative sum does the rest.
    """

    def __init__(self, tree: RegressionTree, shares: list[Floats]) -> None:
        self._tree = tree
        self._bins = [len(share) for share in shares]
        ends = [np.concatenate([[0.0], np.cumsum(share)]) for share in shares]
        self._width = np.stack(
            [end[tree.high[:, j]] - end[tree.low[:, j]] for j, end in enumerate(ends)], axis=1
        )
        self._weighted = self._width.prod(axis=1) * tree.value

    def of_one(self, one: int) -> Floats:
        """Return it for each bin of a parameter."""
        bins = self._bins[one]
        add = self._weighted / self._width[:, one]
        steps = np.bincount(self._tree.low[:, one], add, bins + 1)
        steps -= np.bincount(self._tree.high[:, one], add, bins + 1)
        return steps.cumsum()[:bins]

    def of_two(self, one: int, other: int) -> Floats:
        """Return it for each pair of bins of two parameters."""
        across = self._bins[other] + 1
        shape = (self._bins[one] + 1, across)
        add = self._weighted / (self._width[:, one] * self._width[:, other])
        steps = np.zeros(shape[0] * across)
        for side, here in ((1.0, self._tree.low), (-1.0, self._tree.high)):
            for turn, there in ((1.0, self._tree.low), (-1.0, self._tree.high)):
                corner = here[:, one] * across + there[:, other]
                steps += np.bincount(corner, side * turn * add, len(steps))
        plane: Floats = steps.reshape(shape).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
        return plane
