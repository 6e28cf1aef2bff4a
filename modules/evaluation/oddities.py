"""What is odd about labelled rows and their splits, so that the scores of trials mean little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy.typing as npt

    from dnn import Dataset

    from .splits import Rows

_SHOWN: Final = 8


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
