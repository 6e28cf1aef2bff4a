"""Metrics of networks by name: of classes, probabilities, labels, values and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError, unknown_name

__all__ = [
    "METRICS",
    "MORE_IS_BETTER",
    "Metric",
    "Predictions",
    "check_metrics",
    "is_better",
    "metrics_of_counts",
    "metrics_of_predictions",
    "more_is_better",
    "scores",
]


class Predictions(NamedTuple):
    """What K networks have predicted, and what is true, with as many leading axes each.

    Attributes
    ----------
    takes : str
        What the targets are, as of `dnn.Loss`.
    truth : array, shape (K, n) of int64, or (K, n, targets)
    predicted : array, shape (K, n) of int64, or (K, n, targets)
        Of quantiles (K, n, targets, quantiles).
    probabilities : array, shape (K, n, classes), optional
    quantiles : tuple of float
    """

    takes: str
    truth: Array
    predicted: Array
    probabilities: Array | None = None
    quantiles: tuple[float, ...] = ()

    def points(self) -> Array:
        """Return one number for each target: of quantiles the one that is next to the median."""
        if not self.quantiles:
            return self.predicted
        middle = min(range(len(self.quantiles)), key=lambda q: abs(self.quantiles[q] - 0.5))
        return self.predicted[..., middle]

    def indicators(self) -> Array:
        """Return for each class or label of each sample whether it is true, (K, n, classes)."""
        if self.takes == "labels":
            return self.truth > 0
        assert self.probabilities is not None
        found: Array = self.truth[..., None] == np.arange(self.probabilities.shape[-1])
        return found


class Metric(NamedTuple):
    """A metric: how it is computed, and what its values say.

    Attributes
    ----------
    function : function of Predictions -> array, shape (K,)
    more_is_better : bool
    of : tuple of str
        The kinds of targets that have it, as of `dnn.Loss.takes`; ``"quantiles"`` are of the loss
        of quantiles alone.
    lowest, highest : float
    is_of_probabilities : bool
    """

    function: Callable[[Predictions], Array]
    more_is_better: bool
    of: tuple[str, ...]
    lowest: float
    highest: float
    is_of_probabilities: bool


METRICS: Final[dict[str, Metric]] = {}
"""All metrics besides the loss, by name."""

_NUMBERS = ("values", "counts")


def metric(
    *of: str,
    more: bool,
    lowest: float = 0.0,
    highest: float = math.inf,
    probabilities: bool = False,
) -> Callable[[Callable[[Predictions], Array]], Callable[[Predictions], Array]]:
    """Enter a function in `METRICS` under its name; used as a decorator."""

    def enter(function: Callable[[Predictions], Array]) -> Callable[[Predictions], Array]:
        METRICS[function.__name__] = Metric(function, more, of, lowest, highest, probabilities)
        return function

    return enter


def confusion(y: Array, predicted: Array) -> Array:
    """Return how many samples of each class (rows) got each prediction (columns), of K networks.

    `y` and `predicted` are of int64 and shape (K, n); the result is (K, classes, classes).
    """
    models = len(y)
    classes = 1 + int(max(y.max(initial=0), predicted.max(initial=0)))
    pairs = y * classes
    pairs += predicted
    # All at once: a classifier's pairs of classes are counted in a range of their own.
    pairs += np.arange(0, models * classes**2, classes**2)[:, None]
    counts = np.bincount(pairs.reshape(-1), minlength=models * classes**2)
    return counts.reshape(models, classes, classes)


def _ratio(above: Array, below: Array, otherwise: float = 0.0) -> Array:
    """Return a quotient, and another number where it is 0 / 0."""
    found: Array = np.where(below == 0, otherwise, above / np.where(below == 0, 1, below))
    return found


@metric("classes", more=True, highest=1.0)
def accuracy(given: Predictions) -> Array:
    """Return the share of right predictions."""
    found: Array = (given.truth == given.predicted).mean(-1)
    return found


@metric("classes", more=True, lowest=-1.0, highest=1.0)
def mcc(given: Predictions) -> Array:
    """Return Matthews' correlation, as `metrics_of_predictions` does."""
    return np.array([each["mcc"] for each in metrics_of_predictions(given.truth, given.predicted)])


@metric("classes", more=True, highest=1.0)
def balanced_accuracy(given: Predictions) -> Array:
    """Return the mean over classes of the share of their samples that is predicted rightly."""
    counts = confusion(given.truth, given.predicted)
    of_class = counts.sum(-1)
    shares = _ratio(np.diagonal(counts, axis1=1, axis2=2), of_class)
    found: Array = shares.sum(-1) / (of_class > 0).sum(-1)
    return found


def _counts(given: Predictions) -> tuple[Array, Array, Array]:
    """Return what is rightly predicted, true, and predicted, of each class or label, (K, C)."""
    if given.takes == "labels":
        truth, predicted = given.truth > 0, given.predicted > 0
        return (truth & predicted).sum(1), truth.sum(1), predicted.sum(1)
    counts = confusion(given.truth, given.predicted)
    return np.diagonal(counts, axis1=1, axis2=2), counts.sum(-1), counts.sum(-2)


@metric("classes", more=True, highest=1.0)
def f1(given: Predictions) -> Array:
    """Return F1 of class 1 where there are no others but 0, else the mean over all classes."""
    right, true, predicted = _counts(given)
    if right.shape[-1] > 2:
        return f1_macro(given)
    if right.shape[-1] == 1:
        return np.zeros(len(right))
    return _ratio(2.0 * right, true + predicted)[:, 1]


@metric("classes", "labels", more=True, highest=1.0)
def f1_macro(given: Predictions) -> Array:
    """Return the mean of F1 over classes that are there or predicted; of labels, over all."""
    right, true, predicted = _counts(given)
    each = _ratio(2.0 * right, true + predicted)
    if given.takes == "labels":
        found: Array = each.mean(-1)
    else:
        found = each.sum(-1) / (true + predicted > 0).sum(-1)
    return found


@metric("classes", "labels", more=True, highest=1.0)
def f1_micro(given: Predictions) -> Array:
    """Return F1 of the counts of all classes or labels together."""
    right, true, predicted = (counts.sum(-1) for counts in _counts(given))
    return _ratio(2.0 * right, true + predicted)


@metric("classes", more=False, probabilities=True)
def log_loss(given: Predictions) -> Array:
    """Return the mean of ``-log p`` of the probability of each sample's class."""
    assert given.probabilities is not None
    chosen = np.take_along_axis(given.probabilities, given.truth[..., None], -1)[..., 0]
    small = np.finfo(chosen.dtype).eps
    found: Array = -np.log(np.maximum(chosen, small), dtype=np.float64).mean(-1)
    return found


@metric("classes", "labels", more=True, highest=1.0, probabilities=True)
def auc(given: Predictions) -> Array:
    """Return the area under the receiver operating characteristic: the mean over classes or labels.

    Each against all others; those that all samples have, or none, are left out. Without any it is
    0.5.
    """
    assert given.probabilities is not None
    truth = given.indicators()
    found = np.full(len(truth), 0.5)
    for k, (of_network, chances) in enumerate(zip(truth, given.probabilities, strict=True)):
        pairs = zip(of_network.T, chances.T, strict=True)
        areas = [_area(true, chance) for true, chance in pairs if 0 < true.sum() < len(true)]
        if areas:
            found[k] = np.mean(areas)
    return found


def _area(true: Array, chance: Array) -> float:
    """Return the share of pairs, one true and one not, in which the true one has more chance."""
    _, places, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # the mean of those that are equal
    positives = int(true.sum())
    above = ranks[true].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(true) - positives)))


@metric("labels", more=True, highest=1.0)
def exact_match(given: Predictions) -> Array:
    """Return the share of samples of which all labels are right."""
    found: Array = (given.truth == given.predicted).all(-1).mean(-1)
    return found


@metric("labels", more=False, highest=1.0)
def hamming(given: Predictions) -> Array:
    """Return the share of labels that are wrong."""
    found: Array = (given.truth != given.predicted).mean((-2, -1))
    return found


@metric("labels", more=True, highest=1.0)
def jaccard(given: Predictions) -> Array:
    """Return the mean over samples of labels both true and predicted, by those that are either.

    1 for a sample that has no labels, of which none is predicted.
    """
    truth, predicted = given.truth > 0, given.predicted > 0
    either = (truth | predicted).sum(-1)
    found: Array = _ratio((truth & predicted).sum(-1), either, 1.0).mean(-1)
    return found


def _errors(given: Predictions) -> Array:
    """Return the differences, (K, n, targets), in float64."""
    points = given.points()
    found: Array = np.subtract(points, given.truth, dtype=np.float64)
    return found.reshape(*points.shape[:2], -1)


@metric(*_NUMBERS, more=False)
def rmse(given: Predictions) -> Array:
    """Return the root of the mean squared error; of several targets, the mean."""
    found: Array = np.sqrt(np.square(_errors(given)).mean(1)).mean(-1)
    return found


@metric(*_NUMBERS, more=False)
def mae(given: Predictions) -> Array:
    """Return the mean absolute error."""
    found: Array = np.abs(_errors(given)).mean((-2, -1))
    return found


@metric(*_NUMBERS, more=False)
def median_absolute_error(given: Predictions) -> Array:
    """Return the median of the absolute errors; of several targets, the mean."""
    found: Array = np.median(np.abs(_errors(given)), 1).mean(-1)
    return found


@metric(*_NUMBERS, more=True, lowest=-math.inf, highest=1.0)
def r2(given: Predictions) -> Array:
    """Return the coefficient of determination; of several targets, the mean.

    Of a target that is always the same it is 1 if all predictions are right, else 0.
    """
    errors = np.square(_errors(given)).sum(1)
    truth = given.truth.reshape(*given.truth.shape[:2], -1).astype(np.float64)
    spread = np.square(truth - truth.mean(1, keepdims=True)).sum(1)
    found: Array = np.where(spread > 0, 1 - _ratio(errors, spread), errors == 0).mean(-1)
    return found


@metric("quantiles", more=False)
def pinball(given: Predictions) -> Array:
    """Return the loss of quantiles; `scores` gives that of each quantile too."""
    found: Array = _pinball(given).mean(-1)
    return found


def _pinball(given: Predictions) -> Array:
    """Return the mean loss of each quantile, (K, quantiles)."""
    errors = np.subtract(given.truth[..., None], given.predicted, dtype=np.float64)
    shares = np.array(given.quantiles)
    found: Array = np.maximum(errors * shares, errors * (shares - 1)).mean((1, 2))
    return found


def check_metrics(names: Sequence[str], takes: str, quantiles: Sequence[float] = ()) -> None:
    """Raise `ConfigurationError` if a metric is unknown, or of other targets than a loss takes."""
    kinds = {takes, *(("quantiles",) if quantiles else ())}
    for name in names:
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS)
        if not kinds.intersection(METRICS[name].of):
            fitting = [each for each, known in METRICS.items() if kinds.intersection(known.of)]
            what = f"metric {name!r} is of {' and '.join(METRICS[name].of)}"
            raise ConfigurationError(
                f"{what}, and the targets are {takes}: take one of {', '.join(fitting)}"
            )


def scores(names: Sequence[str], given: Predictions) -> list[dict[str, float]]:
    """Return metrics of each of K networks.

    Parameters
    ----------
    names : sequence of str
        Keys of `METRICS`. ``"pinball"`` gives ``"pinball_0.1"`` and so on as well.
    given : Predictions

    Returns
    -------
    list of K dict

    Raises
    ------
    ConfigurationError
        As of `check_metrics`.
    """
    check_metrics(names, given.takes, given.quantiles)
    found: list[dict[str, Any]] = [{} for _ in given.predicted]
    for name in names:
        for scored, value in zip(found, METRICS[name].function(given).tolist(), strict=True):
            scored[name] = value
        if name == "pinball":
            for scored, values in zip(found, _pinball(given).tolist(), strict=True):
                pairs = zip(given.quantiles, values, strict=True)
                scored.update({f"pinball_{share:g}": value for share, value in pairs})
    return found


MORE_IS_BETTER = {"loss": False} | {name: each.more_is_better for name, each in METRICS.items()}
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
    counts = confusion(y, predicted)
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
