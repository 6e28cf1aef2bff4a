"""Targets beyond classes: numbers of a regression with their scale, and labels of several a sample.

A network learns numbers of any unit alike if they are scaled to mean 0 and deviation 1 first. The
scale is learned from training rows, as all preparation is, and is saved with the model, so that
predictions have the unit of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from dnn.arrays import narrowed
from dnn.backend import Array
from dnn.errors import DataError, LabelError, ShapeError

__all__ = ["TASKS", "TargetScale", "checked_labels", "checked_values", "checked_weights"]

TASKS: Final = ("classification", "regression", "multilabel")
"""What a data set is for: one class a sample, numbers, or any of several labels."""


@dataclass(frozen=True, eq=False)
class TargetScale:
    """What the targets of a regression are scaled by: ``(y - mean) / deviation``.

    Attributes
    ----------
    mean, deviation : array of float64, shape (targets,)
        In the units of the file.
    """

    mean: Array
    deviation: Array

    @classmethod
    def learned(cls, y: Array) -> TargetScale:
        """Return the scale of targets (n, targets): their mean and deviation, 1 if constant."""
        mean = y.mean(axis=0, dtype=np.float64)
        deviation = y.std(axis=0, dtype=np.float64)
        # Rounding leaves a constant target with a deviation of about its size times 1e-16.
        return cls(mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0))

    @classmethod
    def of_counts(cls, y: Array) -> TargetScale:
        """Return the scale of counts (n, targets): shifted by nothing, and divided by their mean.

        The loss of counts has its minimum at the same expected numbers whatever they are divided
        by.
        """
        mean = y.mean(axis=0, dtype=np.float64)
        return cls(np.zeros_like(mean), np.where(mean > 0, mean, 1.0))

    def apply(self, y: Array) -> Array:
        """Return targets as a network learns them, in float32."""
        return ((y - self.mean) / self.deviation).astype(np.float32)

    def in_units(self, values: Array) -> Array:
        """Return scaled values in the units of the file, in float64.

        Parameters
        ----------
        values : array, shape (..., targets) or (..., k targets)
            Of k values of each target, those of the first target come first.
        """
        mean, deviation = self.of_outputs(values.shape[-1])
        return values * deviation + mean

    def of_outputs(self, count: int) -> tuple[Array, Array]:
        """Return mean and deviation of each of so many outputs, a multiple of the targets."""
        each = count // len(self.mean)
        return np.repeat(self.mean, each), np.repeat(self.deviation, each)

    def to_json(self) -> dict[str, Any]:
        """Return means and deviations as plain values."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any], targets: int) -> TargetScale:
        """Return the scale that plain values describe.

        KeyError, TypeError or ValueError if they are not one of so many targets.
        """
        mean, deviation = (np.array(given[name], np.float64) for name in ("mean", "deviation"))
        if mean.shape != (targets,) or deviation.shape != (targets,):
            raise ValueError(f"each of {targets} targets has a mean and a deviation")
        if not np.isfinite(mean).all() or not (np.isfinite(deviation) & (deviation > 0)).all():
            raise ValueError("means of targets are finite, and deviations above 0")
        return cls(mean, deviation)

    def __str__(self) -> str:
        if self.mean.size == 1:
            return f"(target - {self.mean.item():g}) / {self.deviation.item():g}"
        return f"each of {self.mean.size} targets to mean 0 and deviation 1"


Place: TypeAlias = "Callable[[int], str] | None"


def checked_values(name: str, y: Array, targets: tuple[str, ...], place: Place = None) -> Array:
    """Return numbers as targets, shape (n, targets), in float32.

    `name` is that of the data, and `place` says where a row stands, for messages.

    Raises
    ------
    ShapeError, DataError
        If they are no numbers, or one is missing; it names the row.
    """
    if y.dtype.kind not in "fiub":
        raise DataError(f"{name}: targets must be numbers, not {y.dtype}")
    values = y.reshape(len(y), -1) if y.ndim == 1 else y
    _check_columns(name, values, targets)
    shown = targets or tuple(str(number) for number in range(values.shape[1]))
    at_row = place or (lambda row: f"{name}: row {row}")
    values = narrowed(values, np.float32, lambda row, at: f"{at_row(row)}, target {shown[at]!r}")
    if not np.isfinite(values).all():
        row, at = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        what = "is missing" if np.isnan(values[row, at]) else f"is {values[row, at]}"
        message = f"{at_row(row)}, target {shown[at]!r} {what}: leave the row out"
        raise DataError(f"{message}, or all such rows by skip_unlabelled" if place else message)
    return values


def checked_labels(name: str, y: Array, labels: tuple[str, ...]) -> Array:
    """Return 0 or 1 for each sample and each label, in uint8; `name` is that of the data.

    Raises
    ------
    ShapeError, LabelError
        If they are anything else.
    """
    _check_columns(name, y, labels)
    wrong = ~((y == 0) | (y == 1)) if y.dtype.kind in "fiub" else np.ones(y.shape, bool)
    if wrong.any():
        row, at = (int(i) for i in np.argwhere(wrong)[0])
        message = f"{name}: row {row}, label {labels[at] if labels else at}: {y[row, at]!r:.60}"
        raise LabelError(f"{message} is neither 0 nor 1", row)
    return np.ascontiguousarray(y, np.uint8)


def _check_columns(name: str, y: Array, names: tuple[str, ...]) -> None:
    if y.ndim != 2 or not y.shape[1] or (names and len(names) != y.shape[1]):
        wanted = f"(n, {len(names)})" if names else "(n, targets)"
        raise ShapeError(name, f"y has shape {y.shape}, and not {wanted}", y.shape)


def checked_weights(name: str, weights: Any, samples: int, place: Place = None) -> Array:
    """Return weights of samples, 0 or more and not all 0, in float32; as in `checked_values`.

    Raises
    ------
    ShapeError, DataError
        If they are anything else; it names the row.
    """
    found = np.asarray(weights)
    if found.shape != (samples,):
        raise ShapeError(name, f"weights {found.shape} of {samples} samples", found.shape)
    if found.dtype.kind not in "fiub":
        raise DataError(f"{name}: weights must be numbers, not {found.dtype}")
    at_row = place or (lambda row: f"{name}: row {row}")
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        row = int(wrong[0])
        what = "is missing" if np.isnan(found[row]) else f"is {found[row]:g}, and not 0 or more"
        raise DataError(f"{at_row(row)}: the weight {what}: say 0, or leave the row out")
    if not found.any():
        raise DataError(f"{name}: all weights of samples are 0")
    return narrowed(found, np.float32, lambda row: f"{at_row(row)}: the weight")
