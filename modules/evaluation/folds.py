"""Folds of rows: which to train on and which to score; errors of rows that cannot be split so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Rows: TypeAlias = "npt.NDArray[np.intp]"


class EvaluationError(ValueError):
    """Rows cannot be split as the options ask."""


class RareClassError(EvaluationError):
    """A class has fewer rows than there are folds.

    Attributes
    ----------
    label : int or str
        The number of the class, or its name.
    """

    def __init__(self, label: int | str, count: int, folds: int) -> None:
        super().__init__(label, count, folds)
        self.label, self._count, self._folds = label, count, folds

    def __str__(self) -> str:
        rows = "1 row" if self._count == 1 else f"{self._count} rows"
        return (
            f"class {self.label} has {rows}, too few for {self._folds} folds each of which has its "
            "share; use fewer folds, or stratified = false"
        )

    def named(self, names: Sequence[str]) -> RareClassError:
        """Return the error with the name of the class, where classes have names."""
        if not names or isinstance(self.label, str):
            return self
        return RareClassError(repr(names[self.label]), self._count, self._folds)


@dataclass(frozen=True)
class Fold:
    """A split of rows into those to train on and those to score."""

    train: Rows
    test: Rows
    """Row numbers in rising order; the two are disjoint, and together all rows that were split,
    unless time splits them."""


@dataclass(frozen=True)
class NestedFold(Fold):
    """A split whose training rows are split again, for the choice."""

    inner: tuple[Fold, ...]
    """Splits of `train`; none of them has a row of `test`."""
