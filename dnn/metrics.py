"""Metrics of networks by task, and which values of each are better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, ShapeError, unknown_name
from dnn.metric_names import METRICS, MORE_IS_BETTER

__all__ = [
    "METRICS",
    "MORE_IS_BETTER",
    "Predictions",
    "check_metrics",
    "is_better",
    "mean_pinball",
    "metrics_of_counts",
    "metrics_of_labels",
    "metrics_of_predictions",
    "metrics_of_sums",
    "metrics_of_targets",
    "metrics_of_values",
    "more_is_better",
    "needs_probabilities",
    "scores",
    "sums_of_values",
]


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


def metrics_of_values(
    y: Array, predicted: Array, deviation: Array | float = 1.0
) -> list[dict[str, float]]:
    """Return the metrics of each of K regressions, from targets and predictions.

    Parameters
    ----------
    y, predicted : array of float, shape (K, n, targets)
    deviation : array_like, of a shape that broadcasts to theirs
        What a difference of 1 is in the units of the metrics, where targets are scaled.

    Returns
    -------
    list of K dict
        ``"rmse"``, the root of the mean squared error; ``"mae"``, the mean absolute error;
        ``"r2"``, the coefficient of determination, as scikit-learn has it where the targets do not
        vary; and ``"median_absolute_error"``. Of several targets, the mean of the metrics of each.
    """
    truth = y.astype(np.float64)
    errors = np.abs((predicted - truth) * deviation)
    spread = (((truth - truth.mean(axis=1, keepdims=True)) * deviation) ** 2).sum(axis=1)
    # A mean of equal numbers may be rounded.
    spread = np.where((y == y[:, :1]).all(axis=1), 0.0, spread)
    found = _of_errors(len(y[0]), errors.sum(axis=1), (errors**2).sum(axis=1), spread)
    found["median_absolute_error"] = np.median(errors, axis=1).mean(axis=-1)
    return _by_network(found)


def metrics_of_targets(
    task: str, y: npt.ArrayLike, predicted: npt.ArrayLike, deviation: npt.ArrayLike = 1.0
) -> dict[str, float]:
    """Return the metrics of predictions that are no classes.

    Parameters
    ----------
    task : {"regression", "multilabel"}
    y, predicted : array_like, shape (n, targets)
        Numbers, or 0 and 1 for each label.
    deviation : array_like, a number or one of each target
        What a difference of 1 is in the units of the metrics, where targets are scaled.

    Returns
    -------
    dict of str to float
        By the names of ``dnn.catalogue("metric")``.

    Raises
    ------
    ConfigurationError
        If the task is another one.
    ShapeError, DataError
        If shapes differ, or something is no numbers.
    """
    given = {"y": y, "predicted": predicted, "deviation": deviation}
    arrays = [array_of(f"metrics: {name}", each) for name, each in given.items()]
    for name, each in zip(given, arrays, strict=True):
        if each.dtype.kind not in "fiub":
            raise DataError(f"metrics: {name} must be numbers, not {each.dtype}")
    truth, guess, units = arrays[0][None], arrays[1][None], arrays[2].astype(np.float64)
    if units.shape not in ((), truth.shape[2:]):
        message = f"deviation {units.shape} is neither a number nor one of each target"
        raise ShapeError("metrics", message, units.shape, truth.shape[2:])
    if truth.shape != guess.shape or truth.ndim != 3 or not truth.size:
        message = f"targets {truth.shape[1:]} and predictions {guess.shape[1:]} do not fit"
        raise ShapeError("metrics", message, truth.shape[1:], guess.shape[1:])
    if task not in ("regression", "multilabel"):
        raise unknown_name("task", task, ("regression", "multilabel"))
    if task == "multilabel":
        return metrics_of_labels(truth, guess)[0]
    with np.errstate(all="ignore"):  # what overflows is infinite
        return metrics_of_values(truth, guess, units)[0]


def mean_pinball(
    y: Array, predicted: Array, quantiles: Array, deviation: Array | float = 1.0
) -> list[dict[str, float]]:
    """Return the mean loss of predicted quantiles, of each of K regressions.

    `predicted` is of shape (K, n, targets, quantiles), and the rest as for `metrics_of_values`. The
    metrics are ``"pinball"``, the mean, and that of each quantile, ``"pinball_0.1"`` for instance.
    """
    left = y[..., None].astype(np.float64) - predicted
    each = np.maximum(left * quantiles, left * (quantiles - 1.0))
    each = each * np.asarray(deviation)[..., None]
    means = each.mean(axis=(1, 2)).tolist()
    names = [f"pinball_{quantile:g}" for quantile in quantiles]
    return [
        {"pinball": float(np.mean(of_model)), **dict(zip(names, of_model, strict=True))}
        for of_model in means
    ]


def sums_of_values(y: Array, predicted: Array, deviation: Array | float = 1.0) -> Array:
    """Return sums that add up over parts of the rows, from which `metrics_of_sums` has metrics.

    Parameters are those of `metrics_of_values`; the sums are of shape (K, 5, targets): of rows,
    absolute and squared errors, targets and squared targets.
    """
    truth = y.astype(np.float64) * deviation
    errors = (predicted - y.astype(np.float64)) * deviation
    count = np.full(truth[:, 0].shape, truth.shape[1], np.float64)
    each = (np.abs(errors), errors**2, truth, truth**2)
    return np.stack([count, *(part.sum(axis=1) for part in each)], axis=1)


def metrics_of_sums(sums: Array) -> list[dict[str, float]]:
    """Return ``"rmse"``, ``"mae"`` and ``"r2"`` of each of K regressions; see `sums_of_values`."""
    count, absolute, squared, total, squares = np.moveaxis(sums, 1, 0)
    spread = squares - total**2 / count
    # What rounding leaves of targets that are all the same.
    spread = np.where(spread > 1e-12 * squares, spread, 0.0)
    return _by_network(_of_errors(count, absolute, squared, spread))


def _by_network(each: Mapping[str, Array]) -> list[dict[str, float]]:
    """Return the metrics of each of K networks, from an array of shape (K,) for each metric."""
    lists = {name: values.tolist() for name, values in each.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _of_errors(
    count: Array | int, absolute: Array, squared: Array, spread: Array
) -> dict[str, Array]:
    """Return metrics from sums of errors and of the targets' squared differences to their mean."""
    r2 = 1.0 - squared / np.where(spread == 0, 1.0, spread)
    # Of targets that do not vary; what is not finite stays NaN.
    r2 = np.where(spread == 0, np.where(squared > 0, 0.0, 1.0 + 0.0 * squared), r2)
    each = {"rmse": np.sqrt(squared / count), "mae": absolute / count, "r2": r2}
    return {name: values.mean(axis=-1) for name, values in each.items()}


def metrics_of_labels(y: Array, predicted: Array) -> list[dict[str, float]]:
    """Return the metrics of each of K networks that say which of several labels a sample has.

    Parameters
    ----------
    y, predicted : array of 0 and 1, shape (K, n, labels)

    Returns
    -------
    list of K dict
        ``"exact_match"``, the share of samples with all labels right; ``"hamming"``, the share of
        labels that are wrong; ``"macro_f1"``, the mean over labels of F1, and ``"micro_f1"``, F1 of
        all labels counted together; F1 is 0 where no label is there or predicted.
    """
    truth, guess = y.astype(bool), predicted.astype(bool)
    wrong = truth != guess
    both = (truth & guess).sum(axis=1)
    either = truth.sum(axis=1) + guess.sum(axis=1)
    each = {
        "exact_match": 1.0 - wrong.any(axis=-1).mean(axis=-1),
        "hamming": wrong.mean(axis=(1, 2)),
        "macro_f1": (2 * both / np.maximum(either, 1)).mean(axis=-1),
        "micro_f1": 2 * both.sum(axis=-1) / np.maximum(either.sum(axis=-1), 1),
    }
    return _by_network(each)


class Predictions(NamedTuple):
    """What K networks have predicted, and what is true.

    Attributes
    ----------
    task : str
        ``"classification"``, or ``"multilabel"``.
    truth, predicted : array of int64, shape (K, n), or of 0 and 1, shape (K, n, labels)
    probabilities : array, shape (K, n, classes or labels), optional
    classes : int
        That there are, of which some may be neither true nor predicted.
    """

    task: str
    truth: Array
    predicted: Array
    probabilities: Array | None = None
    classes: int = 0


def balanced_accuracy(given: Predictions) -> Array:
    """Return the mean over classes of the share of their samples that is predicted rightly."""
    counts = confusion(given.truth, given.predicted)
    right, true = np.diagonal(counts, axis1=1, axis2=2), counts.sum(-1)
    found: Array = (right / np.maximum(true, 1)).sum(-1) / (true > 0).sum(-1)
    return found


def f1(given: Predictions) -> Array:
    """Return F1 of class 1 of two, else the mean of F1 over classes that are there or predicted."""
    counts = confusion(given.truth, given.predicted)
    either = counts.sum(-1) + counts.sum(-2)
    each = 2.0 * np.diagonal(counts, axis1=1, axis2=2) / np.maximum(either, 1)
    if given.classes <= 2:
        return each[:, 1] if each.shape[1] > 1 else np.zeros(len(each))
    found: Array = each.sum(-1) / (either > 0).sum(-1)
    return found


def log_loss(given: Predictions) -> Array:
    """Return the mean of ``-log p`` of the probability of each sample's class."""
    assert given.probabilities is not None
    chosen = np.take_along_axis(given.probabilities, given.truth[..., None], -1)[..., 0]
    small = np.finfo(chosen.dtype).eps
    found: Array = -np.log(np.maximum(chosen, small), dtype=np.float64).mean(-1)
    return found


def auc(given: Predictions) -> Array:
    """Return the area under the receiver operating characteristic: the mean over classes or labels.

    Each against all others; those that all samples have, or none, are left out. Without any it is
    0.5.
    """
    assert given.probabilities is not None
    truth = given.truth > 0
    if given.task == "classification":
        truth = given.truth[..., None] == np.arange(given.probabilities.shape[-1])
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


_ASKED_FOR: Final[dict[str, Callable[[Predictions], Array]]] = {
    each.__name__: each for each in (balanced_accuracy, f1, auc, log_loss)
}


def check_metrics(names: Sequence[str], task: str) -> None:
    """Raise `ConfigurationError` if a metric is unknown, or of other tasks than a network's."""
    if isinstance(names, str):
        raise ConfigurationError(f"metrics are a list of names, as in [{names!r}]")
    fitting = [
        name
        for name, known in METRICS.items()
        if known.task in ("", task) or task in known.on_request
    ]
    for name in names:
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS)
        if name not in fitting:
            what = f"the task is {task}" if task else "the network has no such task"
            raise ConfigurationError(
                f"metric {name!r} is of other networks: {what}: take one of {', '.join(fitting)}"
            )


def needs_probabilities(names: Sequence[str]) -> bool:
    """Say whether a metric needs the probabilities of classes or labels."""
    return not {"auc", "log_loss"}.isdisjoint(names)


def scores(names: Sequence[str], given: Predictions) -> list[dict[str, float]]:
    """Return those of some metrics, of each of K networks, that are measured on request alone."""
    found = _by_network({name: _ASKED_FOR[name](given) for name in names if name in _ASKED_FOR})
    return found or [{} for _ in given.predicted]
