"""Rows to train on and rows to score, as index arrays from a seed, and what is odd about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dnn import Dataset

Rows: TypeAlias = "npt.NDArray[np.intp]"
_SHOWN: Final = 8
"""Most labels that a remark names."""


class EvaluationError(ValueError):
    """Rows cannot be split as the options ask."""


@dataclass(frozen=True)
class Fold:
    """A split of rows into those to train on and those to score."""

    train: Rows
    test: Rows
    """Row numbers in rising order; the two are disjoint, and together all rows that were split."""


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
    order = _shuffled(labels, _generator(seed, 0, 0), stratified)
    # Where the rows of a class lie together, every 1 / fraction-th row takes each class's share.
    places = np.floor((np.arange(wanted) + 0.5) * len(labels) / wanted).astype(np.intp)
    return _fold(np.arange(len(labels)), order[places])


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
        order = _shuffled(labels[rows], _generator(*seed, repeat), stratified)
        # Every `folds`-th row of the order goes into the same fold.
        found += [_fold(rows, rows[order[start::folds]]) for start in range(folds)]
    return found


def _shuffled(labels: npt.NDArray[Any], generator: np.random.Generator, stratified: bool) -> Rows:
    """Return the indices of rows in random order, grouped by class if `stratified`."""
    import numpy as np

    order = generator.permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    return order.astype(np.intp, copy=False)


def _fold(rows: Rows, test: Rows) -> Fold:
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
            rare = classes[counts.argmin()]
            raise EvaluationError(
                f"class {rare} has {counts.min()} rows, too few for {folds} folds each of which "
                "has its share; use fewer folds, or stratified = false"
            )


def _generator(*seed: int) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


_ONLY = {
    "fraction": ("holdout",),
    "folds": ("k_fold", "nested"),
    "inner_folds": ("nested",),
    "repeats": ("k_fold", "nested"),
}


class EvaluationOptions(BaseModel):
    """Which rows a trial trains on, and which it is scored on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: Literal["holdout", "k_fold", "nested"] = "holdout"
    fraction: float = Field(0.2, gt=0, lt=1, description="rows to score; holdout only")
    folds: int = Field(5, ge=2, description="for nested: the outer ones, which score the choice")
    inner_folds: int = Field(4, ge=2, description="in which nested makes its choice")
    repeats: int = Field(1, ge=1, description="of all folds, with another shuffle")
    stratified: bool = Field(True, description="whether each class has its share in every fold")
    seed: int = Field(0, ge=0, description="of the splits; the same for every trial")

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        if isinstance(table, dict):
            method = table.get("method", "holdout")
            for key, methods in _ONLY.items():
                if key in table and isinstance(method, str) and method not in methods:
                    raise PydanticCustomError(
                        "key_of_another_method",
                        "{key} belongs to {methods}, not to method = {method}",
                        {
                            "key": key,
                            "methods": " and ".join(methods),
                            "method": f'"{method}"',
                            "remedy": f'remove it, or write method = "{methods[0]}"',
                        },
                    )
        return table

    def split(self, y: npt.ArrayLike) -> list[Fold]:
        """Return the splits of rows with these classes, `NestedFold` for nested ones.

        An `EvaluationError` if there are too few rows.
        """
        if self.method == "holdout":
            return [holdout(y, self.fraction, self.seed, self.stratified)]
        if self.method == "k_fold":
            return k_fold(y, self.folds, self.seed, self.repeats, self.stratified)
        nested: list[NestedFold] = nested_folds(
            y, self.folds, self.inner_folds, self.seed, self.repeats, self.stratified
        )
        return list(nested)


def oddities(data: Dataset, splits: Iterable[tuple[Rows, Rows]]) -> Iterator[str]:
    """Yield a line, with its remedy, for each thing that is odd.

    Parameters
    ----------
    data : dnn.Dataset
    splits : iterable of (rows to train on, rows to score)
        Index arrays of each training of a trial.

    Yields
    ------
    str
        Labels without rows, such as 0 where labels begin with 1; a single class; classes that are
        scored and never trained on; rows to score that equal rows to train on.
    """
    import numpy as np

    there = np.flatnonzero(data.class_counts)
    if len(there) == 1:
        yield (
            f"{data.name}: all {len(data):,} rows have the label {there[0]}: there is nothing to "
            "learn; look whether the column of the labels is the right one"
        )
        return
    absent = np.flatnonzero(data.class_counts == 0)
    if absent.tolist() == [0]:
        yield (
            f"{data.name}: the labels begin with 1, and networks have an output for a class 0 too: "
            "number the labels from 0"
        )
    elif len(absent):
        yield (
            f"{data.name}: no row has the label {_listed(absent)}, and networks have an output for "
            f"each label up to {data.classes - 1}: number the labels from 0, without gaps"
        )
    equal = _numbered(data.x)
    is_unseen = np.zeros(data.classes, bool)
    is_known, is_in_test = (np.zeros(len(data), bool) for _ in range(2))
    for train, test in splits:
        is_unseen[np.setdiff1d(data.y[test], data.y[train])] = True
        seen = np.zeros(len(data), bool)
        seen[equal[train]] = True
        is_known[test[seen[equal[test]]]] = True
        is_in_test[test] = True
    if is_unseen.any():
        names = _listed(np.flatnonzero(is_unseen))
        yield (
            f"{data.name}: rows of class {names} are scored by networks that were trained on none: "
            "add rows, or leave that class out"
        )
    if is_known.any():
        count, of = int(is_known.sum()), int(is_in_test.sum())
        yield (
            f"{data.name}: {count:,} of {of:,} rows that are scored ({_percent(count, of)}) equal "
            "rows that were trained on, so scores are better than on new rows: keep equal rows once"
        )


def _numbered(x: npt.NDArray[Any]) -> Rows:
    """Return a number for each row, the same for rows of equal values."""
    import numpy as np

    # + 0 makes a zero of a negative zero. A hash of 64 bits: two rows of a million that differ
    # have the same by a chance of one in ten million.
    hashes = np.array([hash((row + 0).tobytes()) for row in x])
    numbers: Rows = np.unique(hashes, return_inverse=True)[1].astype(np.intp, copy=False)
    return numbers


def _listed(labels: npt.NDArray[Any]) -> str:
    names = [str(label) for label in labels[:_SHOWN]]
    more = len(labels) - len(names)
    return " or ".join([", ".join(names), *([f"{more} more"] if more else [])])


def _percent(count: int, of: int) -> str:
    share = 100 * count / of
    return f"{share:.0f}%" if share >= 1 else f"{share:.1g}%"
