"""Splits of rows by a column of their table: groups that stay together, time, or a column's word.

Random splits say how good a model is on further rows like those that it knows. Where rows belong
together (several of one patient), or new ones come later, they promise too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .folds import EvaluationError, Fold, NestedFold, Rows, fold_of, generator_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

SPLIT_COLUMNS: Final[Mapping[str, str]] = {
    "groups": "a column of the table: rows in which it is equal, as of one patient, stay together",
    "time": "a column of the table, numbers or dates: rows are trained on that are earlier than "
    "those that are scored",
    "split": "a column of the table that says train, validation or test; test rows score what was "
    "chosen by validation rows",
}
"""Options that name a column by which rows are split, and what each means."""

_PARTS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val"), "validation"),
    "test": "test",
}
"""The words that the cells of a column may have, and what they mean."""


def grouped_holdout(
    strata: Array, groups: Array, name: str, fraction: float, seed: int, stratified: bool
) -> Fold:
    """Split rows once into those to train on and those to score, no group in both.

    Rows of equal `groups` belong together; `name` is that of their column, and `strata` are the
    classes. The fraction of rows to score, and if `stratified` that of each class, is met as nearly
    as groups allow. An `EvaluationError` if there are too few groups, or a row has none.
    """
    import numpy as np

    rows = np.arange(len(strata), dtype=np.intp)
    shares = np.array([fraction, 1 - fraction])
    return _grouped(strata, groups, name, rows, shares, (seed, 0, 0), stratified)[0]


def grouped_folds(
    strata: Array,
    groups: Array,
    name: str,
    rows: Rows,
    folds: int,
    seed: tuple[int, ...],
    repeats: int,
    stratified: bool,
) -> list[Fold]:
    """Split rows into folds, no group in two of them; again in each repeat.

    `rows` are the numbers of those to split; the rest is as for `grouped_holdout`.
    """
    import numpy as np

    shares = np.full(folds, 1 / folds)
    found = []
    for repeat in range(repeats):
        found += _grouped(strata, groups, name, rows, shares, (*seed, repeat), stratified)
    return found


def _grouped(
    strata: Array,
    groups: Array,
    name: str,
    rows: Rows,
    shares: Array,
    seed: tuple[int, ...],
    stratified: bool,
) -> list[Fold]:
    import numpy as np

    _refuse_missing(groups, name)
    known, numbers = np.unique(groups[rows].astype(str), return_inverse=True)
    if len(known) < len(shares):
        there = "is 1 group" if len(known) == 1 else f"are {len(known)} groups"
        raise EvaluationError(f"groups = {name!r}: there {there}, too few for {len(shares)} parts")
    classes = strata[rows] if stratified else np.zeros(len(rows), np.intp)
    kinds, of_row = np.unique(classes, return_inverse=True)
    counts = np.zeros((len(known), len(kinds)))
    np.add.at(counts, (numbers, of_row), 1)
    part = _shared_out(counts, shares, generator_of(*seed))[numbers]
    return [fold_of(rows, rows[part == number]) for number in range(len(shares))]


def _shared_out(counts: Array, shares: Array, generator: np.random.Generator) -> Array:
    """Return a part for each group, such that each part has its share of each class.

    Large groups first, those of about the same size in random order, each goes where the squared
    deviation from the shares grows least.
    """
    import numpy as np

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


def holdout_by_time(times: Array, name: str, fraction: float) -> Fold:
    """Split rows once: the last ones are scored; rows of the same time are not parted.

    `name` is that of their column, and `fraction` the share to score, as nearly as equal times
    allow. An `EvaluationError` if all rows have the same time, or one has none.
    """
    import numpy as np

    rows = np.arange(len(times), dtype=np.intp)
    first, second = _in_time(times, name, rows, np.array([1 - fraction, fraction]))
    return Fold(np.sort(first), np.sort(second))


def folds_by_time(times: Array, name: str, rows: Rows, folds: int) -> list[Fold]:
    """Cut rows into one part more than folds, by time; each scores what comes after its rows.

    The parameters are those of `holdout_by_time`; `rows` are the numbers of those to split.
    """
    import numpy as np

    parts = _in_time(times, name, rows, np.full(folds + 1, 1 / (folds + 1)))
    return [
        Fold(np.sort(np.concatenate(parts[: number + 1])), np.sort(parts[number + 1]))
        for number in range(folds)
    ]


def _in_time(times: Array, name: str, rows: Rows, shares: Array) -> list[Rows]:
    """Cut rows into parts by time; no time is in two of them."""
    import numpy as np

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
        free = begins[
            np.searchsorted(begins, cuts[-1], "right") if cuts else 0 : len(begins) - left
        ]
        cuts.append(int(free[np.argmin(np.abs(free - wanted))]))
    return np.split(order, cuts)


def folds_by_word(words: Array, name: str) -> list[Fold]:
    """Split rows as the cells of a column say: train, validation, test.

    Validation rows choose among trials, and test rows score what was chosen; where either is
    missing, the other rows do both. An `EvaluationError` if a cell says anything else, or no row is
    to train on or to be scored.
    """
    import numpy as np

    given = [str(word).strip().lower() for word in words.tolist()]
    wrong = next((row for row, word in enumerate(given) if word not in _PARTS), None)
    if wrong is not None:
        raise EvaluationError(
            f"split = {name!r}: row {wrong + 1} {_said(words[wrong])}, and is to say train, "
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
        return [Fold(train, validation if validation.size else test)]
    rest = np.flatnonzero(part != "test")
    return [NestedFold(rest, test, (Fold(train, validation),))]


def split_once(
    strata: Array,
    column: Array,
    option: str,
    name: str,
    fraction: float,
    seed: int,
    stratified: bool,
) -> list[Fold]:
    """Split rows once by a column, as an option of `SPLIT_COLUMNS` means it.

    The rest is as for `grouped_holdout`; where cells say validation and test, it is a `NestedFold`.
    """
    if option == "split":
        return folds_by_word(column, name)
    if option == "time":
        return [holdout_by_time(column, name, fraction)]
    return [grouped_holdout(strata, column, name, fraction, seed, stratified)]


def _said(cell: Any) -> str:
    """Return what a cell says, for a message."""
    if cell == "" or cell != cell:
        return "is empty"
    return f"says {f'{cell:g}' if isinstance(cell, float) else str(cell)!r}"


def _refuse_missing(column: Array, name: str) -> None:
    import numpy as np

    gone = np.isnan(column) if column.dtype.kind == "f" else column.astype(str) == ""
    if gone.any():
        raise EvaluationError(
            f"column {name!r} is missing in {int(gone.sum()):,} rows, the first of them row "
            f"{int(gone.argmax()) + 1}: leave these rows out"
        )
