"""A labelled set of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dnn.backend import Array
from dnn.errors import DataError, LabelError, ShapeError

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their labels.

    Attributes
    ----------
    x : array of float32, shape (n, d)
        NaN where a cell is missing.
    y : array of intp, shape (n,)
        In ``0 .. classes - 1``.
    classes : int
    name : str
    standardise_by : {"columns", "one scale", "none"}
        What `dnn.standardise` does unless it is told otherwise: columns of a table measure
        different things, those of an image the same one.

    Raises
    ------
    ShapeError, LabelError, DataError
        If they do not fit together, or there is no sample.
    """

    x: Array
    y: Array
    classes: int
    name: str
    standardise_by: str = "columns"

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != self.x.shape[:1]:
            message = f"x {self.x.shape} and y {self.y.shape} do not fit"
            raise ShapeError(self.name, message, self.x.shape, self.y.shape)
        if not len(self.y):
            raise DataError(f"{self.name}: no samples")
        if self.y.dtype.kind not in "iu":
            raise LabelError(f"{self.name}: labels must be integers, not {self.y.dtype}")
        wrong = np.flatnonzero((self.y < 0) | (self.y >= self.classes))
        if wrong.size:
            row = int(wrong[0])
            message = f"label {self.y[row]} in row {row} is not in 0 .. {self.classes - 1}"
            raise LabelError(f"{self.name}: {message}", row)
        # The class is frozen; only here may its fields still be cast.
        object.__setattr__(self, "x", np.ascontiguousarray(self.x, np.float32))
        object.__setattr__(self, "y", np.ascontiguousarray(self.y, np.intp))

    @property
    def features(self) -> int:
        """Number of attributes of a sample."""
        return int(self.x.shape[1])

    @property
    def class_counts(self) -> Array:
        """Number of samples of each class, shape (classes,)."""
        return np.bincount(self.y, minlength=self.classes)

    def __repr__(self) -> str:
        samples = f"{len(self):,d} samples of {self.features} features"
        return f"Dataset({self.name!r}: {samples}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Array) -> Dataset:
        """Return the samples in some rows, as a new data set.

        Parameters
        ----------
        rows : array of int or bool, or slice
            As NumPy takes them.

        Returns
        -------
        Dataset, of the same classes and name
        """
        return replace(self, x=self.x[rows], y=self.y[rows])
