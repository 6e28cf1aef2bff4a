"""Losses of numbers: squared, absolute and Huber's error, quantiles, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import is_numbers
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant, placeholder
from dnn.losses.loss import ElementwiseLoss, checked_positive, checked_values

__all__ = ["HuberLoss", "MeanAbsoluteError", "MeanSquaredError", "PoissonLoss", "QuantileLoss"]


class MeanSquaredError(ElementwiseLoss):
    """``mean((outputs - targets)^2)``, over samples and outputs."""

    name = "mean_squared_error"

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the square of each difference."""
        return operations.square(outputs - target)


class MeanAbsoluteError(ElementwiseLoss):
    """``mean(|outputs - targets|)``, over samples and outputs: its minimum is the median.

    The derivative where they are equal is taken to be 0.
    """

    name = "mean_absolute_error"

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the size of each difference."""
        return operations.abs(outputs - target)


class HuberLoss(ElementwiseLoss):
    """``d^2 / 2`` of a difference d up to `delta`, ``delta (|d| - delta / 2)`` beyond [1]_.

    Outliers count by their distance, and not by its square; the mean is over samples and outputs.

    Parameters
    ----------
    delta : float, or K of them, above 0
        In the units of the targets.

    Raises
    ------
    ConfigurationError
        If `delta` is not above 0.

    References
    ----------
    .. [1] Huber, Robust estimation of a location parameter, 1964.
    """

    name = "huber"

    @explains_arguments
    def __init__(self, delta: float | Sequence[float] = 1.0) -> None:
        self.hyperparameters = {"delta": checked_positive(f"{type(self).__name__}: delta", delta)}

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the loss of each difference."""
        size = operations.abs(outputs - target)
        near = operations.minimum(size, self.scalar("delta", outputs.dtype))
        return near * (size - near * 0.5)


class QuantileLoss(ElementwiseLoss):
    """``max(q d, (q - 1) d)`` with d = target - output, of several quantiles q at once [1]_.

    A network has an output for each quantile of each target: those of the first target, then those
    of the next. The mean is over samples, targets and quantiles.

    Parameters
    ----------
    quantiles : sequence of float, above 0 and below 1, ascending
        ``0.5`` is the median.

    Raises
    ------
    ConfigurationError
        If `quantiles` are none, out of range, or not in ascending order; when data are checked or
        the network is compiled, if its outputs are no whole number of targets.

    References
    ----------
    .. [1] Koenker, Bassett, Regression quantiles, 1978.
    """

    name = "quantile"

    @explains_arguments
    def __init__(self, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> None:
        values = np.asarray(quantiles, np.float64) if is_numbers(quantiles) else np.zeros(0)
        values = np.atleast_1d(values)
        inside = values.ndim == 1 and values.size and ((values > 0) & (values < 1)).all()
        if not inside or (np.diff(values) <= 0).any():
            message = "quantiles must be numbers above 0 and below 1, in ascending order"
            raise ConfigurationError(f"QuantileLoss: {message}, not {quantiles!r:.100}")
        self.quantiles: tuple[float, ...] = tuple(values.tolist())

    def output_count(self, targets: int) -> int:
        """Return the number of targets times that of quantiles."""
        return targets * len(self.quantiles)

    def output_names(self, targets: Sequence[str]) -> list[str]:
        """Return a name for each quantile of each target, such as ``price_0.1``."""
        return [f"{name}_{share:g}" for name in targets for share in self.quantiles]

    def target_count(self, outputs: Shape) -> int:
        """Return the number of targets, from the shape of the outputs for one sample.

        A `ConfigurationError` unless there is an output for each quantile of each target.
        """
        each = len(self.quantiles)
        if len(outputs) != 1 or outputs[0] % each:
            message = f"{each} quantiles need {each} outputs for each target, not {outputs}"
            raise ConfigurationError(f"QuantileLoss: {message}")
        return outputs[0] // each

    def point(self, outputs: Array) -> Array:
        """Return the quantile of each target that is nearest to the median."""
        nearest = int(np.argmin(np.abs(np.array(self.quantiles) - 0.5)))
        return outputs[..., nearest :: len(self.quantiles)]

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, one for each of the outputs of all quantiles; (samples,) fits one."""
        shape = (samples, self.target_count(outputs))
        what = f"and {len(self.quantiles)} quantiles of {outputs[0]} outputs need"
        return checked_values(self.name, y, shape, dtype, what)

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for targets."""
        shape = (outputs.shape[0], self.target_count(outputs.shape[1:]))
        return placeholder(shape, outputs.dtype, "targets")

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the loss of each sample, target and quantile."""
        shape = (*target.shape, len(self.quantiles))
        error = operations.reshape(target, (*target.shape, 1)) - operations.reshape(outputs, shape)
        share = constant(np.array(self.quantiles), outputs.dtype)
        return operations.maximum(error * share, error * (share - 1.0))


class PoissonLoss(ElementwiseLoss):
    """``exp(output) - target output``, for counts: outputs are logarithms of the expected number.

    The logarithm of a Poisson distribution, without the terms that only depend on the target.
    Predictions are ``exp(output)``.
    """

    name = "poisson"
    takes = "counts"

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, checked to be 0 or more; (samples,) fits one output."""
        counts = super().check(y, samples, outputs, dtype)
        if (counts < 0).any():
            row = int(np.argwhere(counts < 0)[0][0])
            raise DataError(
                f"poisson: counts are 0 or more, not {counts[row].min():g} in row {row}"
            )
        return counts

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the loss of each count."""
        return operations.exp(outputs) - target * outputs

    def predicted(self, outputs: Array) -> Array:
        """Return the expected numbers, ``exp(outputs)``."""
        with np.errstate(over="ignore"):
            return np.exp(outputs)
