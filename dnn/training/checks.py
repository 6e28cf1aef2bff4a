"""What a network asks of the arrays that it is given, checked once a call and never in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.data.weights import class_weights
from dnn.errors import ConfigurationError, DataError, ShapeError
from dnn.graph.node import Shape

__all__ = ["check_count", "check_half", "check_samples", "check_weights"]


def check_count(name: str, value: object) -> int:
    """Return an integer of at least 1.

    Raises
    ------
    ConfigurationError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigurationError(f"{name} must be an integer of at least 1, not {value!r}")
    return int(value)


def check_samples(
    name: str, x: npt.ArrayLike, layer: str, expected: Shape, dtype: np.dtype[Any]
) -> Array:
    """Return samples as a contiguous array of finite numbers.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    x : array_like, shape (n, *expected)
    layer : str
        The name of the layer that takes them.
    expected : tuple of int
        Shape of one sample.
    dtype : numpy.dtype
        Of the network.

    Raises
    ------
    ShapeError, DataError
        If they have another shape, are no numbers, are none, or contain NaN or infinity; the
        message names the first such cell.
    """
    samples = array_of(name, x)
    if samples.dtype.kind not in "fiub":
        raise DataError(f"{name} must be numbers, not {samples.dtype}")
    if samples.shape[1:] != expected or not samples.ndim:
        message = f"{name} has shape {samples.shape}, but the layer takes (n, "
        message += f"{', '.join(map(str, expected))})"
        raise ShapeError(layer, message, samples.shape, expected)
    if not len(samples):
        raise DataError(f"{name} has no rows")
    with np.errstate(over="ignore"):  # what becomes infinite is named below
        samples = np.ascontiguousarray(samples, dtype)
    if not np.isfinite(samples).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(samples))[0])
        column = ", ".join(map(str, at[1:]))
        raise DataError(f"{name} contains {samples[at]} in row {at[0]}, column {column}")
    return samples


HALF_OVERFLOWS = 65520.0
"""What is smaller is rounded to at most 65504, the largest number of float16."""


def check_half(name: str, x: Array) -> None:
    """Raise `DataError` where float16 cannot hold numbers that mixed precision keeps in it.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    x : array, shape (n, ...)
    """
    if x.dtype.kind != "f" or x.ndim < 2 or 1 in x.shape[1:]:
        return  # kept as it is, see `dnn.graph.passes.mixed_precision`
    wrong = np.abs(x) >= HALF_OVERFLOWS
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"{name} has {x[at]:g} in row {at[0]}, column {', '.join(map(str, at[1:]))}"
        message += ": mixed_float16 keeps them in float16, which ends at 65504; scale them, such as"
        raise DataError(f"{message} by dnn.standardise, or take dtype='float32'")


def check_weights(
    sample_weight: npt.ArrayLike | None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    targets: Array,
    classes: int | None,
    dtype: np.dtype[Any],
) -> Array | None:
    """Return what each sample's loss is multiplied by, or None where that is 1 throughout.

    Parameters
    ----------
    sample_weight : array_like, shape (n,), optional
    class_weight : mapping of class to float, or "balanced", optional
        Multiplied with `sample_weight` where both are given; a class that is left out has 1.
    targets : array, shape (n, ...)
        As the loss has checked them.
    classes : int, optional
        None where the loss is no classification's.
    dtype : numpy.dtype
        Of the network.

    Raises
    ------
    ShapeError, DataError, ConfigurationError
        If the weights do not fit the samples, are negative or no numbers, or classes are weighted
        where there are none.
    """
    weights: Array | None = None
    if sample_weight is not None:
        weights = array_of("sample_weight", sample_weight)
        if weights.dtype.kind not in "fiub":
            raise DataError(f"sample_weight must be numbers, not {weights.dtype}")
        if weights.shape != targets.shape[:1]:
            message = f"sample_weight has shape {weights.shape}, but there are {len(targets)}"
            raise ShapeError("fit", f"{message} samples", weights.shape, targets.shape[:1])
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if wrong.size:
            row = wrong[0]
            raise DataError(f"sample_weight is {weights[row]} in row {row}: not 0 or more")
    if class_weight is not None:
        if classes is None:
            raise ConfigurationError("class_weight is for classifications only")
        by_class = class_weights(targets, classes, class_weight)[targets]
        weights = by_class if weights is None else weights * by_class
    return None if weights is None else np.ascontiguousarray(weights, dtype)
