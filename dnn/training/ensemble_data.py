"""What K networks are trained on: each on rows of its own, of its own version of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, ShapeError
from dnn.training.checks import check_samples
from dnn.training.network import Network

__all__ = ["EnsembleData", "Rows", "for_each"]

Rows = npt.NDArray[np.intp]


def for_each(name: str, values: Any, models: int) -> npt.NDArray[Any]:
    """Return one value for each of K networks.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : scalar or sequence of K scalars
    models : int

    Raises
    ------
    ConfigurationError
        If there is another number of values.
    """
    array = np.asarray(values)
    if array.ndim > 1 or array.shape not in ((), (models,)):
        message = f"{name} must be one value or {models}, one for each network"
        raise ConfigurationError(f"{message}, not {array.size}")
    return np.broadcast_to(array, (models,))


@dataclass(frozen=True)
class EnsembleData:
    """Samples and targets, all versions of them one behind the other.

    Attributes
    ----------
    samples, targets : array, length (versions * count)
        On the networks' device.
    count : int
        Rows of one version.
    offsets : array of intp, shape (K,)
        Where each network's version begins.
    """

    samples: Array
    targets: Array
    count: int
    offsets: Rows

    @classmethod
    def of(
        cls,
        network: Network,
        models: int,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        versions: Sequence[int] | None,
    ) -> EnsembleData:
        """Check what a user gave; parameters and errors as in `Ensemble.fit`."""
        given = array_of("x", x)
        copies = 1
        if versions is not None and given.ndim == len(network.input_shape) + 2:
            copies = len(given)
            given = given.reshape(-1, *given.shape[2:])
        layer = network.layers[0].name
        samples = check_samples("x", given, layer, network.input_shape, network.dtype)
        count = len(samples) // copies
        targets = network.loss.check(y, count, network.output_shape, network.dtype)
        offsets = np.zeros(models, np.intp)
        if versions is not None:
            each = for_each("versions", versions, models)
            wrong = [version for version in each if not 0 <= version < copies]
            if wrong:
                message = f"versions must be in 0 .. {copies - 1}, not {wrong[0]}"
                raise ConfigurationError(message)
            offsets = each.astype(np.intp) * count
        if copies > 1:
            targets = np.concatenate([targets] * copies)
        return cls(network.ops.asarray(samples), network.ops.asarray(targets), count, offsets)

    def rows(self, name: str, rows: Sequence[npt.ArrayLike] | None) -> Rows:
        """Return which rows of `samples` each network is given, of shape (K, m).

        Raises
        ------
        ShapeError, DataError
            If `rows` are not K vectors of one length, of integers that are there.
        """
        models = len(self.offsets)
        if rows is None:
            return self.offsets[:, None] + np.arange(self.count)
        shapes = [np.shape(each) for each in rows]
        if len(shapes) != models or len(set(shapes)) != 1 or len(shapes[0]) != 1:
            message = f"{name} must be {models} vectors of one length, not {shapes}"
            raise ShapeError("ensemble", message, *shapes)
        array = np.asarray(rows)
        if array.dtype.kind not in "iu" or not array.size:
            raise DataError(f"{name} must be integers, at least one for each network")
        if array.min() < 0 or array.max() >= self.count:
            raise DataError(f"{name} must be in 0 .. {self.count - 1}")
        return self.offsets[:, None] + array.astype(np.intp)
