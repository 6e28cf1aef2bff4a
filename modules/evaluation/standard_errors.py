"""Standard errors of metrics: how far they are off by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy.typing as npt

_GROUPS: Final = 20


def errors_of_groups(
    names: Sequence[str],
    rows: int,
    scores: Callable[[npt.NDArray[Any]], Sequence[Mapping[str, float]]],
) -> Iterator[dict[str, float]]:
    """Yield the standard errors of some metrics of each of K networks, whatever the metrics are.

    `scores` returns the metrics of each network over some of the rows that score it.

    Notes
    -----
    Rows are left out in turn, a group of them at a time: the jackknife [1]_.

    References
    ----------
    .. [1] Efron, Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11.
    """
    import numpy as np

    groups = min(_GROUPS, rows)
    every = np.arange(rows)
    # Of a single row nothing can be left out.
    left = [scores(every[(every % groups != group) | (rows == 1)]) for group in range(groups)]
    for of_network in zip(*left, strict=True):
        errors = {name: float(np.std([each[name] for each in of_network])) for name in names}
        scaled = {name: math.sqrt(groups - 1) * error for name, error in errors.items()}
        yield {name: error for name, error in scaled.items() if math.isfinite(error)}


def standard_errors(
    y: npt.NDArray[Any], predicted: npt.NDArray[Any], deviation: Any = 1.0
) -> dict[str, float]:
    """Return the standard errors of the metrics of a regression, over the rows that score it.

    Parameters
    ----------
    y, predicted : array of float, shape (n, targets)
    deviation : float or array, shape (targets,)
        What a difference of 1 is in the units of the metrics, where targets are scaled.

    Returns
    -------
    dict of str to float
        Of ``"rmse"``, ``"mae"``, ``"r2"`` and ``"median_absolute_error"``. Of several targets the
        mean of those of each: their metrics are taken to err together, where luck can do most.

    Notes
    -----
    That of a mean is the deviation of its terms over the root of n; those of functions of it follow
    by their derivatives [1]_. That of the median is half the distance of the order statistics that
    are the root of n apart around it [2]_. r2 is taken for the given variance of the targets.

    References
    ----------
    .. [1] Efron, Tibshirani, An Introduction to the Bootstrap, 1993, chapters 5 and 21.
    .. [2] David, Nagaraja, Order Statistics, 3rd edition, 2003, section 7.1.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        truth = y.astype(np.float64) * deviation
        errors = np.sort(np.abs(predicted * np.asarray(deviation) - truth), axis=0)
        count, root = len(errors), math.sqrt(len(errors))
        squares = errors**2
        of_mse = squares.std(axis=0) / root
        rmse = np.sqrt(squares.mean(axis=0))
        variance = truth.var(axis=0)
        low, high = (round((count - 1) / 2 + sign * root / 2) for sign in (-1, 1))
        middle = (errors[min(high, count - 1)] - errors[max(low, 0)]) / 2
        found = {
            "rmse": of_mse / np.where(rmse > 0, 2 * rmse, 1.0),
            "mae": errors.std(axis=0) / root,
            "r2": of_mse / np.where(variance > 0, variance, 1.0),
            "median_absolute_error": middle,
        }
    means = {name: float(values.mean()) for name, values in found.items()}
    return {name: value for name, value in means.items() if math.isfinite(value)}
