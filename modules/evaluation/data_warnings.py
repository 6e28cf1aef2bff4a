"""What is odd about data and their splits, for people: each thing a line with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from .folds import Rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from dnn import Dataset

_SHOWN: Final = 8
"""Most labels or rows that a remark names."""
_MANY: Final = 20
"""Categories of a column of which each may be in a few rows alone."""
_FEW_ROWS: Final = 30
_FEW_VALUES: Final = 5
_FAR: Final = 10.0
"""Deviations from the median beyond which a target is far away."""


def data_warnings(data: Dataset, splits: Iterable[tuple[Rows, Rows]]) -> Iterator[str]:
    """Yield a line, with its remedy, for each thing that is odd.

    Labels without rows, such as 0 where labels begin with 1; a single class; classes that are
    scored and never trained on; targets that do not vary, are far from all others or look like
    classes; labels that all rows have, or none; texts that differ in almost all rows; columns that
    number the rows; few rows to score; rows to score that equal rows to train on. `splits` are the
    rows to train on and those to score in each training of a trial.
    """
    import numpy as np

    splits = list(splits)

    is_classes = data.task == "classification"
    if is_classes and len(np.unique(data.y)) == 1:
        label = data.class_names[data.y[0]] if data.class_names else data.y[0]
        yield (
            f"{data.name}: all {len(data):,} rows have the label {label}: there is nothing to "
            "learn; look whether the column of the labels is the right one"
        )
        return
    if is_classes:
        yield from _odd_labels(data)
    elif data.task == "regression":
        yield from _odd_targets(data, splits)
    else:
        yield from _odd_label_columns(data)
    yield from _odd_first_row(data)
    yield from _odd_categories(data)
    yield from _odd_spellings(data)
    yield from _odd_numbers(data)
    equal = _numbered(data.x)
    unseen: set[int] = set()
    is_known, is_in_test = (np.zeros(len(data), bool) for _ in range(2))
    for train, test in splits:
        if is_classes:
            unseen.update(np.setdiff1d(data.y[test], data.y[train]).tolist())
        seen = np.zeros(len(data), bool)
        seen[equal[train]] = True
        is_known[test[seen[equal[test]]]] = True
        is_in_test[test] = True
    if unseen:
        names = _listed([data.class_names[at] if data.class_names else at for at in sorted(unseen)])
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


def _odd_labels(data: Dataset) -> Iterator[str]:
    """Yield a line if there are numbers of classes that no row has."""
    import numpy as np

    absent = np.flatnonzero(data.class_counts == 0).tolist()
    if absent == [0]:
        yield (
            f"{data.name}: the labels begin with 1, and networks have an output for a class 0 too: "
            f"number the labels from 0{_names_remedy(data)}"
        )
    elif absent:
        yield (
            f"{data.name}: no row has the label {_listed(absent)}, and networks have an output for "
            f"each label up to {data.classes - 1}: number the labels from 0, without gaps"
            f"{_names_remedy(data)}"
        )


def _names_remedy(data: Dataset) -> str:
    """Return what a table may say where the numbers of its labels are names."""
    if data.columns is None or not data.columns.label:
        return ""
    return f', or say reading.categories = ["{data.columns.label}"], which takes them as names'


def _odd_targets(data: Dataset, splits: Sequence[tuple[Rows, Rows]]) -> Iterator[str]:
    """Yield a line for each thing that is odd about the numbers to predict."""
    import numpy as np

    names = data.targets or tuple(map(str, range(1, data.outputs + 1)))
    for name, values in zip(names, data.y.T, strict=True):
        said, distinct = f"{data.name}: the target {name}", np.unique(values)
        if len(distinct) == 1:
            yield (
                f"{said} is {distinct[0]:g} in all {len(data):,} rows: there is nothing to learn; "
                "look whether it is the right column"
            )
            continue
        if len(distinct) <= _FEW_VALUES < len(data):
            yield (
                f"{said} is one of {_listed([f'{value:g}' for value in distinct])}: if these are "
                f"classes, say label = {name!r}"
            )
            continue
        middle = np.median(values)
        # 1.4826 times the median distance is the deviation of a normal distribution.
        deviation = 1.4826 * float(np.median(np.abs(values - middle)))
        far = np.flatnonzero(np.abs(values - middle) > _FAR * deviation)
        if deviation > 0 and len(far):
            there = _listed([f"{value:g}" for value in values[far]])
            yield (
                f"{said} is further than {_FAR:g} deviations from the median in {len(far):,} of "
                f'{len(data):,} rows, {there}: if that is right, loss = "huber" in the space lets '
                "them count less"
            )
    scored = [len(test) for _, test in splits]
    if len(scored) == 1 and scored[0] < _FEW_ROWS:
        # The relative standard error of the deviation of a normal distribution.
        chance = _percent(1, round((2 * scored[0]) ** 0.5))
        yield (
            f"{data.name}: only {scored[0]} rows are scored, so that by chance alone rmse is some "
            f'{chance} off: evaluation.method = "k_fold" scores all rows'
        )


def _odd_label_columns(data: Dataset) -> Iterator[str]:
    """Yield a line if there are labels that all rows have, or none."""
    names = data.targets or tuple(map(str, range(1, data.outputs + 1)))
    counts = data.class_counts.tolist()
    for what, of in (("no row", 0), ("every row", len(data))):
        alike = [name for name, count in zip(names, counts, strict=True) if count == of]
        if alike:
            yield (
                f"{data.name}: {what} has the label {_listed(alike)}: there is nothing to learn; "
                "leave it out"
            )


def _odd_first_row(data: Dataset) -> Iterator[str]:
    """Yield a line if a table without names may have them in its first row."""
    columns = data.columns
    if columns is None or columns.has_names or len(data) < _FEW_ROWS:
        return
    texts = [data.x[:, columns.features.index(name)] for name in columns.categories]
    if data.class_names:
        texts.append(data.y)
    if texts and all((column == column[0]).sum() == 1 for column in texts):
        yield (
            f"{data.name}: the first row was taken as one of cells, for one of them is a number; "
            "its texts are in no other row: if it holds names, say reading.header = true"
        )


def _odd_categories(data: Dataset) -> Iterator[str]:
    """Yield a line for each column of texts that is another one in almost every row."""
    if data.columns is None:
        return
    for name, categories in data.columns.categories.items():
        if len(categories) > max(_MANY, len(data) / 2):
            yield (
                f"{data.name}: column {name!r} has {len(categories):,} categories in "
                f"{len(data):,} rows, so new rows will have others: leave it out, "
                f'reading.drop = ["{name}"]'
            )


def _odd_spellings(data: Dataset) -> Iterator[str]:
    """Yield a line if names of classes, or categories of a column, differ in capitals alone."""
    columns = {} if data.columns is None else data.columns.categories
    for what, names in {"classes": data.class_names, **columns}.items():
        first: dict[str, str] = {}
        for name in names:
            other = first.setdefault(name.casefold(), name)
            if other != name:
                where = what if names is data.class_names else f"categories of column {what!r}"
                yield f"{data.name}: {where} are {other!r} and {name!r}: write what is one alike"
                break


def _odd_numbers(data: Dataset) -> Iterator[str]:
    """Yield a line for each column that numbers the rows of a table."""
    import numpy as np

    if data.columns is None or len(data) < _FEW_ROWS:
        return
    rows = np.arange(len(data), dtype=data.x.dtype)
    for at, name in enumerate(data.columns.features):
        if data.x[0, at] in (0, 1) and np.array_equal(data.x[:, at] - data.x[0, at], rows):
            yield (
                f"{data.name}: column {name!r} numbers the rows, which says nothing of new ones "
                f'unless it is a time: leave it out, reading.drop = ["{name}"]'
            )


def _numbered(x: npt.NDArray[Any]) -> Rows:
    """Return a number for each row, the same for rows of equal values."""
    import numpy as np

    # + 0 makes a zero of a negative zero. A hash of 64 bits: two rows of a million that differ
    # have the same by a chance of one in ten million.
    hashes = np.array([hash((row + 0).tobytes()) for row in x])
    numbers: Rows = np.unique(hashes, return_inverse=True)[1].astype(np.intp, copy=False)
    return numbers


def _listed(labels: Sequence[Any]) -> str:
    names = [str(label) for label in labels[:_SHOWN]]
    more = len(labels) - len(names)
    return " or ".join([", ".join(names), *([f"{more} more"] if more else [])])


def _percent(count: int, of: int) -> str:
    share = 100 * count / of
    return f"{share:.0f}%" if share >= 1 else f"{share:.1g}%"
