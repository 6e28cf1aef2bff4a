"""A layer for tables: trained vectors in place of columns that hold categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnn.backend import Array
from dnn.errors import (
    ConfigurationError,
    DataError,
    ShapeError,
    check_count,
    explains_arguments,
)
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.initializers import Initializer, normal
from dnn.layers.layer import Layer

__all__ = ["EmbedColumns"]

_LONGEST = 50


class EmbedColumns(Layer):
    """A trained vector for each category: the last columns of a sample hold their numbers.

    `dnn.encode` makes such columns. The other columns come first in the output, as they are, and
    then the vectors. Number 0, a category that was in no training row, has zeros for a vector.

    Parameters
    ----------
    count : int or sequence of int
        For the last column, or for each of the last columns: its numbers are in ``0 .. count - 1``.
    units : int or sequence of int, optional
        Length of the vectors, for all columns or for each; half of `count` if left out, rounded up,
        and 50 at most.
    initializer : str or Initializer
        Initializer of the vectors; normally distributed if left out.

    Raises
    ------
    ConfigurationError
        If a number is none of those above; when the network is built, `ShapeError` if samples are
        no vectors, or have fewer columns.
    """

    @explains_arguments
    def __init__(
        self,
        count: int | Sequence[int],
        units: int | Sequence[int] | None = None,
        *,
        initializer: str | Initializer | None = None,
    ) -> None:
        super().__init__()
        counts = count if isinstance(count, Sequence) else [count]
        self.count = tuple(check_count("EmbedColumns: count", each, 2) for each in counts)
        if not self.count:
            raise ConfigurationError(
                "EmbedColumns: count has a number for each column of categories"
            )
        if units is None:
            units = [min(_LONGEST, (each + 1) // 2) for each in self.count]
        lengths = units if isinstance(units, Sequence) else [units] * len(self.count)
        self.units = tuple(check_count("EmbedColumns: units", each) for each in lengths)
        if len(self.units) != len(self.count):
            message = f"{len(self.units)} units for {len(self.count)} columns"
            raise ConfigurationError(f"EmbedColumns: {message}")
        self.initializer = initializer

    def build(self, shape: Shape) -> None:
        """Declare the vectors of each column."""
        if len(shape) != 1 or shape[0] < len(self.count):
            message = f"{self.name} takes vectors of at least {len(self.count)} numbers"
            raise ShapeError(self.name, f"{message}, not samples of shape {shape}", shape)
        self._first = shape[0] - len(self.count)
        initializer = normal(0.0, 1.0) if self.initializer is None else self.initializer
        self.weights = [
            self.parameter(f"weight_{number}", (count, units), initializer)
            for number, (count, units) in enumerate(zip(self.count, self.units, strict=True), 1)
        ]

    @property
    def first(self) -> int:
        """The place of the first column of categories, once the layer is built."""
        return self._first

    def check_samples(self, name: str, samples: Array) -> Array:
        """Raise `DataError` if a number of a category is none, or has no vector."""
        codes = samples[:, samples.shape[1] - len(self.count) :]
        wrong = (codes < 0) | (codes >= self.count) | (codes % 1 != 0)
        if wrong.any():
            row, at = (int(i) for i in np.argwhere(wrong)[0])
            column = samples.shape[1] - len(self.count) + at
            message = f"{name} has {codes[row, at]:g} in row {row}, column {column}"
            message += f", but there are vectors for 0 .. {self.count[at] - 1}"
            raise DataError(f"{self.name}: {message}")
        return samples

    def forward(self, x: Node) -> Node:
        """Return the other columns, and behind them the vectors."""
        parts = [x[:, : self._first]] if self._first else []
        for at, weight in enumerate(self.weights):
            codes = operations.cast(x[:, self._first + at], np.intp)
            known = 1.0 - operations.cast(operations.equal(codes, 0), self.dtype)
            vectors = operations.take_rows(weight, codes)
            parts.append(vectors * operations.expand_dims(known, -1))
        return operations.concat(parts, 1)
