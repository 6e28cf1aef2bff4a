"""Cuts of rows into those to train on and those to score: at random, or by a column of theirs.

Random splits say how good a model is on further rows like those that it knows. Where rows belong
together (several of one patient), or new ones come later, they promise too much.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .folds import EvaluationError, Fold, NestedFold, RareClassError, Rows

Array = npt.NDArray[Any]

_PARTS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val"), "validation"),
    "test": "test",
}
"""The words that the cells of a column may have, and what they mean."""


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
    labels = np.asarray(y)
    wanted = round(len(labels) * fraction)
    if not 0 < wanted < len(labels):
        raise EvaluationError(f"{len(labels)} rows cannot be split at {fraction}")
    order = _shuffled(labels, (seed, 0, 0), stratified)
    # Where the rows of a class lie together, every 1 / fraction-th row takes each class's share.
    places = np.floor((np.arange(wanted) + 0.5) * len(labels) / wanted).astype(np.intp)
    return _fold_of(np.arange(len(labels)), order[places])


def at_random(
    labels: Array, rows: Rows, folds: int, seed: tuple[int, ...], stratified: bool
) -> list[Fold]:
    """Split some of the rows so that each is scored once; sizes differ by one at most.

    If `stratified`, so do the rows of each class in two folds. An `EvaluationError` if there are
    fewer rows, or rows of a class, than folds.
    """
    if len(rows) < folds:
        raise EvaluationError(f"{len(rows)} rows cannot be cut into {folds} folds")
    if stratified:
        classes, counts = np.unique(labels[rows], return_counts=True)
        if counts.min() < folds:
            raise RareClassError(int(classes[counts.argmin()]), int(counts.min()), folds)
    order = _shuffled(labels[rows], seed, stratified)
    # Every `folds`-th row of the order goes into the same fold.
    return [_fold_of(rows, rows[order[start::folds]]) for start in range(folds)]


def _shuffled(labels: Array, seed: tuple[int, ...], stratified: bool) -> Rows:
    """Return the indices of rows in random order, grouped by class if `stratified`."""
    order = _generator(seed).permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    return order.astype(np.intp, copy=False)


def _fold_of(rows: Rows, test: Rows) -> Fold:
    """Return the split of rows in which some of them are scored."""
    return Fold(np.setdiff1d(rows, test, assume_unique=True), np.sort(test))


def _generator(seed: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


def by_group(
    strata: Array, groups: Array, name: str, rows: Rows, shares: Array, seed: tuple[int, ...]
) -> list[Fold]:
    """Split rows into one fold for each share of them to score, no group in two of them.

    Rows of equal `groups` belong together; `name` is that of their column. The shares, and those of
    each of the classes `strata`, are met as nearly as groups allow. An `EvaluationError` if there
    are too few groups, or a row has none.
    """
    _refuse_missing(groups, name)
    known, numbers = np.unique(groups[rows].astype(str), return_inverse=True)
    if len(known) < len(shares):
        there = "is 1 group" if len(known) == 1 else f"are {len(known)} groups"
        raise EvaluationError(f"groups = {name!r}: there {there}, too few for {len(shares)} parts")
    kinds, of_row = np.unique(strata[rows], return_inverse=True)
    counts = np.zeros((len(known), len(kinds)))
    np.add.at(counts, (numbers, of_row), 1)
    part = _shared_out(counts, shares, _generator(seed))[numbers]
    return [_fold_of(rows, rows[part == number]) for number in range(len(shares))]


def _shared_out(counts: Array, shares: Array, generator: np.random.Generator) -> Array:
    """Return a part for each group, such that each part has its share of each class.

    Large groups first, those of about the same size in random order, each goes where the squared
    deviation from the shares grows least.
    """
    order = generator.permutation(len(counts))
    sizes = np.floor(np.log2(counts[order].sum(axis=1)))
    order = order[np.argsort(-sizes, kind="stable")]
    relative = counts / counts.sum(axis=0)
    filled = np.zeros((len(shares), counts.shape[1]))
    part = np.empty(len(counts), np.intp)
    for number, group in enumerate(order):
        grown = (2 * filled @ relative[group] + relative[group] @ relative[group]) / shares
        is_empty = ~filled.any(axis=1)
        if is_empty.sum() == len(order) - number:  # as many groups are left
            grown[~is_empty] = np.inf
        part[group] = chosen = int(np.argmin(grown))
        filled[chosen] += relative[group]
    return part


def by_time(times: Array, name: str, rows: Rows, shares: Array) -> list[Fold]:
    """Cut rows into parts by time; each but the first is scored by what comes before it.

    `shares` are those of the parts, as nearly as equal times allow, which are not parted; `name` is
    that of the column. An `EvaluationError` if there are too few times, or a row has none.
    """
    if times.dtype.kind not in "fiu":
        key = name if re.fullmatch("[A-Za-z0-9_-]+", name) else f'"{name}"'  # as TOML has it
        raise EvaluationError(
            f"time = {name!r}: its cells are texts; dates are such as 2024-05-31, and reading may "
            f'say dates = {{ {key} = "%d.%m.%Y" }}'
        )
    _refuse_missing(times, name)
    order = rows[np.argsort(times[rows], kind="stable")]
    # Where a new time begins, the first row aside.
    begins = np.flatnonzero(np.diff(times[order])) + 1
    if len(begins) < len(shares) - 1:
        raise EvaluationError(
            f"time = {name!r}: {len(begins) + 1} different times are too few for "
            f"{len(shares)} parts"
        )
    cuts: list[int] = []
    for wanted in np.cumsum(shares)[:-1] * len(order):
        left = len(shares) - 2 - len(cuts)
        first = np.searchsorted(begins, cuts[-1], "right") if cuts else 0
        free = begins[first : len(begins) - left]
        cuts.append(int(free[np.argmin(np.abs(free - wanted))]))
    ends = [*cuts[1:], len(order)]
    return [
        Fold(np.sort(order[:cut]), np.sort(order[cut:end]))
        for cut, end in zip(cuts, ends, strict=True)
    ]


def by_word(words: Array, name: str) -> Fold:
    """Split rows as the cells of a column say: train, validation, test.

    Validation rows choose among trials, and test rows score what was chosen, in a `NestedFold`;
    where either is missing, the other rows do both. An `EvaluationError` if a cell says anything
    else, or no row is to train on or to be scored.
    """
    given = [str(word).strip().lower() for word in words.tolist()]
    wrong = next((row for row, word in enumerate(given) if word not in _PARTS), None)
    if wrong is not None:
        cell = words[wrong]
        said = f"says {f'{cell:g}' if isinstance(cell, float) else str(cell)!r}"
        raise EvaluationError(
            f"split = {name!r}: row {wrong + 1} "
            f"{'is empty' if cell == '' or cell != cell else said}, and is to say train, "
            "validation or test"
        )
    part = np.array([_PARTS[word] for word in given])
    train, validation, test = (
        np.flatnonzero(part == kind) for kind in ("train", "validation", "test")
    )
    if not train.size or not validation.size + test.size:
        lack = "validation or test" if train.size else "train"
        raise EvaluationError(f"split = {name!r}: no row says {lack}")
    if not validation.size or not test.size:
        return Fold(train, validation if validation.size else test)
    return NestedFold(np.flatnonzero(part != "test"), test, (Fold(train, validation),))


def _refuse_missing(column: Array, name: str) -> None:
    gone = np.isnan(column) if column.dtype.kind == "f" else column.astype(str) == ""
    if gone.any():
        raise EvaluationError(
            f"column {name!r} is missing in {int(gone.sum()):,} rows, the first of them row "
            f"{int(gone.argmax()) + 1}: leave these rows out"
        )
