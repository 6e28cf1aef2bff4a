"""A density over the points of a space: kernels around some of them, and a uniform one.

::

    Coordinates     points as rows of numbers, and back; which parameters exist in a row
    Mixture         a density over rows: it is drawn from, and computed at rows

A row has a column for each parameter: the share of an ordered one, the index of a choice, NaN where
the parameter is absent. A kernel is a product over the parameters of its point: a normal
distribution cut off at the ends of the range, a discrete one for few values, a chance to change for
choices. In a parameter that its point does not have it is uniform. So one mixture covers all of a
conditional space: points share what they know of common parameters, and a branch is judged by the
points in it.

It needs NumPy, so nothing imports it before a strategy is made that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .dimensions import Choices, Finite, LogIntegers
from .space import Parameters, Space

Floats = NDArray[np.float64]

_FEW: Final = 32
"""Values of a parameter up to which the sum over a kernel is computed, and not its integral."""
_NARROWEST: Final = 0.01
"""The least width of a kernel, as a part of the range."""
_LEAST_STEP: Final = 0.5
"""Likewise, in steps from one value to the next."""
_ROOT_2_PI: Final = math.sqrt(2 * math.pi)
_SERIES: Final = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
_BELOW_ONE: Final = 1 - 2.0**-53


class Coordinates:
    """Turns points of a space into rows of numbers, and back.

    Attributes
    ----------
    names : list of str
        The parameter of each column: all of the space, each after its parents.
    numbers, choices : array of int, list of int
        Columns of ordered parameters, and of choices; those with one value are neither.
    counts : array of int
        Of each column of `numbers` how many values there are, 0 where they are not counted.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self.names = space.parents_first
        self.dimensions = [space.dimensions[name] for name in self.names]
        sizes = [len(each) if isinstance(each, Finite) else 0 for each in self.dimensions]
        varying = [column for column, size in enumerate(sizes) if size != 1]
        ordered = [each.is_ordered for each in self.dimensions]
        self.numbers = np.array([column for column in varying if ordered[column]], np.intp)
        self.choices = [column for column in varying if not ordered[column]]
        self.sizes = sizes
        self.counts = np.array([sizes[column] for column in self.numbers], np.intp)
        few = np.where(self.counts > 0, _LEAST_STEP / np.maximum(self.counts, 1), 0.0)
        self.least_widths = np.maximum(few, _NARROWEST)
        self._columns = {name: column for column, name in enumerate(self.names)}
        self._conditions = [
            (self._columns[name], self._columns[parent], condition)
            for name in self.names
            for parent, condition in space.conditions[name].items()
        ]

    def row(self, parameters: Mapping[str, Any]) -> Floats:
        """Return the row of a point; a ValueError if a value is none of its parameter's."""
        row = np.full(len(self.names), np.nan)
        for column, (name, dimension) in enumerate(zip(self.names, self.dimensions, strict=True)):
            if name in parameters:
                value = parameters[name]
                if isinstance(dimension, Choices):
                    row[column] = dimension.index_of(value)
                else:
                    row[column] = dimension.share(value)
        return row

    def point(self, row: Floats) -> Parameters:
        """Return the point of a row."""
        numbers = row.tolist()  # Python's floats
        return self._space.build(
            lambda name: self._value(self._columns[name], numbers[self._columns[name]])
        )

    def _value(self, column: int, number: float) -> Any:
        dimension = self.dimensions[column]
        return dimension[int(number)] if isinstance(dimension, Choices) else dimension.at(number)

    def settle(self, rows: Floats) -> Floats:
        """Move numbers to the nearest values, in place; NaN where a parameter does not exist.

        Shares outside of 0 to 1 are reflected.
        """
        shares = np.abs(rows[:, self.numbers])
        shares = np.clip(1 - np.abs(1 - shares), 0.0, _BELOW_ONE)
        counts = np.maximum(self.counts, 1)
        middles = (np.floor(shares * counts) + 0.5) / counts
        rows[:, self.numbers] = np.where(self.counts > 0, middles, shares)
        for column, dimension in enumerate(self.dimensions):
            if isinstance(dimension, LogIntegers):
                low, high = sorted((dimension.start, dimension.stop))
                bottom, top = math.log(low - 0.5), math.log(high + 0.5)
                values = np.round(np.exp(bottom + rows[:, column] * (top - bottom)))
                rows[:, column] = (np.log(np.clip(values, low, high)) - bottom) / (top - bottom)
            elif self.sizes[column] == 1:
                rows[:, column] = 0.5 if dimension.is_ordered else 0.0
        for column, parent, condition in self._conditions:
            exists = [
                number == number and condition.holds(self._value(parent, number))
                for number in rows[:, parent]
            ]
            rows[~np.array(exists), column] = np.nan
        return rows

    def uniform(self, shares: Floats, like: Floats | None = None) -> Floats:
        """Return the rows of uniformly drawn shares.

        They agree with the numbers in `like` where these are not NaN.
        """
        rows = self.numbered(shares)
        return self.settle(rows if like is None else np.where(np.isnan(like), rows, like))

    def numbered(self, shares: Floats) -> Floats:
        """Turn the shares of choices into their indices, in place: rows that are to be settled."""
        for column in self.choices:
            shares[:, column] = np.floor(shares[:, column] * self.sizes[column])
        return shares

    def features(self, rows: Floats) -> Floats:
        """Return the numbers of rows that the logarithms of kernels are linear in."""
        numbers = rows[:, self.numbers]
        exists = ~np.isnan(numbers)
        numbers = np.where(exists, numbers, 0.0)
        parts = [numbers * numbers, numbers, exists.astype(np.float64)]
        for column in self.choices:
            chosen = rows[:, column, None]
            parts += [chosen == np.arange(self.sizes[column]), ~np.isnan(chosen)]
        return np.concatenate(parts, axis=1, dtype=np.float64)


class Mixture:
    """A density over rows, relative to the uniform one: kernels around rows, and a uniform kernel.

    Parameters
    ----------
    coordinates : Coordinates
    rows : array, (kernels, columns)
    weights : sequence of float
    prior : float
        The weight of the uniform kernel.

    Notes
    -----
    All kernels have the same width in a column, by Scott's rule [1]_: the deviation of their rows
    times ``kernels ** (-1 / (columns + 4))``, where the uniform kernel counts as one row. So they
    are wide while there are few. The chance that a choice changes falls with their number too [2]_.
    The logarithm of a kernel is a product of `features` of the row by numbers of the kernel, so
    that all kernels at all rows are one product of matrices.

    References
    ----------
    .. [1] Scott, Multivariate density estimation, 1992, section 6.3.
    .. [2] Watanabe, Tree-structured Parzen estimator: understanding its algorithm components and
       their roles for better empirical performance, 2023, arXiv:2304.11127.
    """

    def __init__(
        self, coordinates: Coordinates, rows: Floats, weights: Sequence[float], prior: float
    ) -> None:
        self._of, self._rows = coordinates, rows
        kernels = len(rows) + 1
        self._chances = {
            column: coordinates.sizes[column] / (kernels + coordinates.sizes[column])
            for column in coordinates.choices
        }
        self._weights = np.array([*weights, prior])
        self._weights /= self._weights.sum()
        numbers = rows[:, coordinates.numbers]
        self._widths = self._widths_of(numbers)
        self._kernels = np.concatenate([*self._number_parts(numbers), *self._choice_parts()], 1)

    def _widths_of(self, numbers: Floats) -> Floats:
        exists = ~np.isnan(numbers)
        counts = exists.sum(axis=0)
        weights = exists * self._weights[:-1, None]
        prior = 1 / (counts + 1)
        weights *= (1 - prior) / np.maximum(weights.sum(axis=0), 1e-300)
        far = np.where(exists, numbers, 0.5) - 0.5
        mean = (weights * far).sum(axis=0)
        variance = (weights * far * far).sum(axis=0) + prior / 12 - mean * mean
        columns = len(self._of.numbers) + len(self._of.choices)
        widths = np.sqrt(variance) * np.maximum(counts, 1) ** (-1 / (columns + 4))
        limited: Floats = np.maximum(widths, self._of.least_widths)
        return limited

    def _number_parts(self, numbers: Floats) -> Iterator[Floats]:
        exists = ~np.isnan(numbers)
        middles, widths = np.where(exists, numbers, 0.5), self._widths
        mass = widths * _ROOT_2_PI * (_normal((1 - middles) / widths) - _normal(-middles / widths))
        for column, count in enumerate(self._of.counts):
            if 0 < count <= _FEW:
                values = (np.arange(count) + 0.5) / count
                far = (values - middles[:, column, None]) / widths[column]
                mass[:, column] = np.exp(-0.5 * far * far).mean(axis=1)
        precision = exists / (widths * widths)
        yield -0.5 * precision
        yield middles * precision
        yield -0.5 * middles * middles * precision - np.where(exists, np.log(mass), 0.0)

    def _choice_parts(self) -> Iterator[Floats]:
        for column, chance in self._chances.items():
            size, chosen = self._of.sizes[column], self._rows[:, column, None]
            same = (1 - chance) * size + chance
            yield (chosen == np.arange(size)) * math.log(same / chance)
            yield ~np.isnan(chosen) * math.log(chance)

    def logarithms(self, features: Floats) -> Floats:
        """Return the logarithm of each kernel times its weight: (rows, kernels + 1)."""
        uniform = np.zeros((len(features), 1))
        each = np.append(features @ self._kernels.T, uniform, axis=1)
        weighted: Floats = each + np.log(self._weights)
        return weighted

    def log_density(self, features: Floats) -> Floats:
        """Return the logarithm of the density at rows, by their features."""
        each = self.logarithms(features)
        largest = each.max(axis=1)
        sums: Floats = largest + np.log(np.exp(each - largest[:, None]).sum(axis=1))
        return sums

    def sample(self, generator: np.random.Generator, count: int, like: Floats | None) -> Floats:
        """Draw rows; those that agree with the numbers in `like` where these are not NaN."""
        of, weights = self._of, self._weights
        if like is not None:
            each = self.logarithms(of.features(like[None]))[0]
            weights = np.exp(each - each.max())
            weights /= weights.sum()
        kernels = np.searchsorted(np.cumsum(weights), generator.random(count), side="right")
        kernels = np.minimum(kernels, len(self._rows))
        uniform = of.numbered(generator.random((count, len(of.names))))
        rows = np.append(self._rows, np.full((1, len(of.names)), np.nan), axis=0)[kernels]
        rows[:, of.numbers] += self._widths * generator.standard_normal((count, len(of.numbers)))
        changes = generator.random(rows.shape)
        for column, chance in self._chances.items():
            rows[changes[:, column] < chance, column] = np.nan
        rows = np.where(np.isnan(rows), uniform, rows)
        if like is not None:
            rows = np.where(np.isnan(like), rows, like)
        return of.settle(rows)


def _normal(x: Floats) -> Floats:
    """Return the normal distribution function, to 1e-7 [1]_.

    References
    ----------
    .. [1] Abramowitz, Stegun, Handbook of mathematical functions, 1964, 26.2.17.
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    power = np.full_like(t, _SERIES[-1])
    for factor in _SERIES[-2::-1]:
        power = power * t + factor
    tail = np.exp(-0.5 * x * x) / _ROOT_2_PI * t * power
    return np.where(x < 0, tail, 1 - tail)
