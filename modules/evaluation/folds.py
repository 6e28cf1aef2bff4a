"""Folds of rows: those to train on and those to score, at random, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

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


def holdout(y: npt.ArrayLike, fraction: float, seed: int = 0, stratified: bool = True) -> Fold:
    """Split rows once, at random, into rows to train on and rows to score.

    Parameters
    ----------
    y : array of int, shape (n,)
        Classes.
    fraction : float, between 0 and 1
        Share of the rows to score.
    seed : int, not negative
    stratified : bool
        Whether each class has its share in both parts, to within a row.

    Raises
    ------
    EvaluationError
        If either part would be empty.
    """
    import numpy as np

    labels = np.asarray(y)
    wanted = round(len(labels) * fraction)
    if not 0 < wanted < len(labels):
        raise EvaluationError(f"{len(labels)} rows cannot be split at {fraction}")
    order = _shuffled(labels, generator_of(seed, 0, 0), stratified)
    # Where the rows of a class lie together, every 1 / fraction-th row takes each class's share.
    places = np.floor((np.arange(wanted) + 0.5) * len(labels) / wanted).astype(np.intp)
    return fold_of(np.arange(len(labels)), order[places])


def k_fold(
    y: npt.ArrayLike, folds: int, seed: int = 0, repeats: int = 1, stratified: bool = True
) -> list[Fold]:
    """Split rows so that each is scored once, and again in each repeat.

    Parameters
    ----------
    y : array of int, shape (n,)
        Classes.
    folds : int, at least 2
    seed : int, not negative
    repeats : int
        Each with a shuffle of its own.
    stratified : bool
        Whether each class is spread evenly: its rows in two folds differ by one at most.

    Returns
    -------
    list of Fold
        ``folds * repeats``; sizes within a repeat differ by one at most.

    Raises
    ------
    EvaluationError
        If there are fewer rows, or rows of a class, than folds.
    """
    import numpy as np

    labels = np.asarray(y)
    return _k_fold(labels, np.arange(len(labels)), folds, (seed, 0), repeats, stratified)


def nested_folds(
    y: npt.ArrayLike,
    folds: int,
    inner_folds: int,
    seed: int = 0,
    repeats: int = 1,
    stratified: bool = True,
) -> list[NestedFold]:
    """Split rows as `k_fold` does, and the training rows of each fold again into `inner_folds`.

    An `EvaluationError` if there are too few rows.
    """
    import numpy as np

    labels = np.asarray(y)
    return [
        NestedFold(
            fold.train,
            fold.test,
            tuple(_k_fold(labels, fold.train, inner_folds, (seed, number + 1), 1, stratified)),
        )
        for number, fold in enumerate(k_fold(labels, folds, seed, repeats, stratified))
    ]


def _k_fold(
    labels: npt.NDArray[Any],
    rows: Rows,
    folds: int,
    seed: tuple[int, ...],
    repeats: int,
    stratified: bool,
) -> list[Fold]:
    _check(labels[rows], folds, stratified)
    found = []
    for repeat in range(repeats):
        order = _shuffled(labels[rows], generator_of(*seed, repeat), stratified)
        # Every `folds`-th row of the order goes into the same fold.
        found += [fold_of(rows, rows[order[start::folds]]) for start in range(folds)]
    return found


def _shuffled(labels: npt.NDArray[Any], generator: np.random.Generator, stratified: bool) -> Rows:
    """Return the indices of rows in random order, grouped by class if `stratified`."""
    import numpy as np

    order = generator.permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    return order.astype(np.intp, copy=False)


def fold_of(rows: Rows, test: Rows) -> Fold:
    """Return the split of rows in which some of them are scored."""
    import numpy as np

    return Fold(np.setdiff1d(rows, test, assume_unique=True), np.sort(test))


def _check(labels: npt.NDArray[Any], folds: int, stratified: bool) -> None:
    import numpy as np

    if folds < 2:
        raise EvaluationError(f"{folds} folds: at least 2 are needed to have rows to train on")
    if len(labels) < folds:
        raise EvaluationError(f"{len(labels)} rows cannot be cut into {folds} folds")
    if stratified:
        classes, counts = np.unique(labels, return_counts=True)
        if counts.min() < folds:
            raise RareClassError(int(classes[counts.argmin()]), int(counts.min()), folds)


def generator_of(*seed: int) -> np.random.Generator:
    """Return the generator of a seed in several parts."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
