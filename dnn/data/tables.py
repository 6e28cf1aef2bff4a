"""Tables as data sets: which columns are features, labels or targets, and what each cell is.

Columns are chosen by their names, as they are once some were renamed; columns of a file without
names are called ``"1"``, ``"2"``, ...
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dnn.arrays import narrowed
from dnn.backend import Array
from dnn.data.column_kinds import TRUTHS_OF_LABELS, Column, Wanted, shown
from dnn.data.columns import TIME, Columns
from dnn.data.dataset import Dataset
from dnn.data.labels import classes_of
from dnn.data.table_readers import Source, open_table
from dnn.data.targets import checked_values, checked_weights
from dnn.errors import ConfigurationError, DataError, LabelError, explains_arguments
from dnn.table import missing_marks

__all__ = ["load_csv", "load_table"]

_log = logging.getLogger("dnn")
_IF_CLASSES = (
    ", as targets are; say label = {name} if these are classes, and give dates as numbers of days"
)
_SHOWN = 20
"""Most names of columns that a message lists."""
_WHOLE = 2**24
"""The largest number up to which float32 has all whole numbers."""
_MISSING = "is missing: leave the row out, or all such rows by skip_unlabelled"


@explains_arguments
def load_table(
    source: Any,
    label: str | int | Sequence[str] = -1,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    missing: Collection[str] = (),
    decimal: str = ".",
    target: str | int | Sequence[str | int] | None = None,
    label_separator: str = "",
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    categories: Sequence[str] = (),
    dates: Sequence[str] | Mapping[str, str] = (),
    weight: str = "",
    skip_unlabelled: bool = False,
    beside: Sequence[str] = (),
) -> Dataset:
    """Read samples, with their labels or targets, from a table.

    Parameters
    ----------
    source : path, frame or mapping
        A file: text (``.csv``, ``.tsv``, either of them perhaps compressed by gzip), ``.parquet``,
        or ``.npz``, whose arrays are columns by their names. A frame of pandas or polars. A mapping
        of names to columns.
    label : str, int or list of str
        The column of the labels, by name or by number from 0; the last one by default. Whole
        numbers from 0 are numbers of classes, texts are names of classes. Several columns of 0 and
        1: samples that may have several labels.
    delimiter : str, optional
        Between cells of a text; by default what the file's name, or its first line, suggests.
    header : bool, optional
        Whether the first row of a text holds names. By default it does if none of its cells is a
        number.
    missing : collection of str
        Texts that stand for a missing cell, such as ``["", "NA"]``. By default no cell of a text
        may be missing; frames and Parquet have marks of their own.
    decimal : {".", ","}
        What stands before the decimals of numbers in a text.
    target : str, int or list of them, optional
        In place of a label: the columns of numbers that are to be predicted.
    label_separator : str
        Samples have several labels, which this text separates in the cells of the label's column.
    features : list of str
        The columns to train on; by default all that have no other use.
    drop : list of str
        Columns that are not read.
    rename : mapping of str to str
        New names of columns, by the names in the table.
    categories : list of str
        Columns whose numbers are names of categories, or of classes, and no quantities. Columns of
        texts are categories, or booleans, if all texts are true or false, or dates.
    dates : list of str, or mapping of str to str
        Columns of dates as ISO 8601 wants them, or in a format of `datetime.strptime` each.
    weight : str
        A column of numbers that say how much each sample weighs in the loss.
    skip_unlabelled : bool
        Whether rows without a label, or without one of the targets, are left out; by default they
        are an error.
    beside : list of str
        Columns that are kept beside the features, such as those that say how to split rows. They
        are features only if `features` names them.

    Returns
    -------
    Dataset
        `columns` has what new rows need to be coded in the same way. A date with times of day is
        two features.

    Raises
    ------
    ConfigurationError
        If arguments do not go together.
    DataError
        If the table cannot be read, there is no such column, or a cell is not of its column's kind;
        it names the line and the column.
    LabelError
        If a label is missing, or a number that is no integer from 0.
    """
    missing_marks(missing)
    marks = (missing,) if isinstance(missing, str) else tuple(missing)
    if features and drop:
        raise ConfigurationError("features and drop: give the columns to train on, or the others")
    if target is not None and (label != -1 or label_separator):
        other = "label_separator" if label == -1 else "label"
        raise ConfigurationError(f"target and {other}: give one of them")
    if decimal not in (".", ","):
        raise ConfigurationError(f"decimal must be a point or a comma, not {decimal!r}")
    table = open_table(source, delimiter=delimiter, header=header, missing=marks, decimal=decimal)
    names = _renamed(table, rename or {})

    def places(columns: str | int | Sequence[str | int]) -> list[int]:
        several = [columns] if isinstance(columns, (str, int)) else columns
        return [_place(table, names, column) for column in several]

    targets = [] if target is None else places(target)
    labels = [] if targets else places(label)
    option, predicted = ("target", targets) if target is not None else ("label", labels)
    if not predicted:
        raise ConfigurationError(f"{option} = []: name a column at least")
    if twice := [names[at] for at in predicted if predicted.count(at) > 1]:
        raise ConfigurationError(f"{option}: {twice[0]!r} is there twice")
    kept, weights, gone = places(beside), places(weight or ()), places(drop)
    chosen = places(features)
    for what, used in (("among the features", chosen), ("the weight of a sample", weights)):
        if both := [names[at] for at in used if at in (*targets, *labels)]:
            raise ConfigurationError(f"{both[0]!r} is to be predicted, and {what}")
    if not features:
        others = {*targets, *labels, *kept, *weights, *gone}
        chosen = [at for at in range(len(names)) if at not in others]
    if not chosen:
        what = f"the {'targets' if targets else 'labels'}, {names[(targets or labels)[0]]!r}"
        remedy = ""
        if len(names) == 1:
            remedy = ": say which delimiter there is, or remove a title above the names of columns"
        raise DataError(f"{table.where}: there is no column beside {what}{remedy}")
    formats = dict(dates) if isinstance(dates, Mapping) else dict.fromkeys(dates, "")
    wanted = {at: Wanted() for at in (*chosen, *kept)}
    wanted |= {at: Wanted("label") for at in labels}
    wanted |= {at: Wanted("number", if_text=", as weights are") for at in weights}
    wanted |= {at: Wanted("number", if_text=_IF_CLASSES) for at in targets}
    special = {at: Wanted("category") for at in places(categories)}
    special |= {_place(table, names, each): Wanted("date", form) for each, form in formats.items()}
    for at, each in special.items():
        if at in (*targets, *weights):
            use = "a target" if at in targets else "the weight of a sample"
            option = "categories" if each.kind == "category" else "dates"
            raise ConfigurationError(f"{names[at]!r} is {use}, a number, and among {option}")
    wanted |= {at: each for at, each in special.items() if at in wanted}
    found = {
        at: replace(column, name=names[at])
        for at, column in zip(wanted, table.read(wanted), strict=True)
    }
    if skip_unlabelled and not label_separator:
        found = _labelled(table, found, targets or labels)
    x, of_features = _features(table, [found[at] for at in chosen], formats)
    is_several = bool(label_separator) or not isinstance(label, (str, int))
    if targets:
        answers = _regression(table, [found[at] for at in targets])
    elif is_several:
        answers = _several_labels(table, [found[at] for at in labels], label_separator)
    else:
        answers = _classes(table, found[labels[0]])
    of_columns = () if label_separator or not (targets or is_several) else (*targets, *labels)
    named = answers.get("class_names") or (answers["targets"] if label_separator else ())
    of_table = replace(
        of_features,
        label=names[labels[0]] if table.has_names and labels and not of_columns else "",
        label_at=-1 if of_columns else labels[0],
        labels={name: number for number, name in enumerate(named)},
        delimiter=table.delimiter,
        missing=marks,
        decimal=decimal,
        renamed=dict(rename or {}),
        targets=tuple(names[at] for at in of_columns) if table.has_names else (),
        targets_at=of_columns,
        separator=label_separator,
    )
    if weights:
        column = found[weights[0]]
        answers["weights"] = checked_weights(
            table.where,
            column.values,
            len(x),
            lambda row: f"{table.place(row)}, column {column.name!r}",
        )
    kept_columns = {names[at]: _beside(found[at]) for at in kept}
    return Dataset(x, name=_name_of(source), columns=of_table, beside=kept_columns, **answers)


@explains_arguments
def load_csv(
    path: str | PathLike[str], label: str | int | Sequence[str] = -1, **options: Any
) -> Dataset:
    """Read samples, with their labels or targets, from a text, perhaps compressed by gzip.

    Parameters
    ----------
    path : path
    label, **options
        As of `load_table`.

    Returns
    -------
    Dataset
        Named after the file; the number of classes is the largest label plus 1, or that of the
        names of classes.

    Raises
    ------
    ConfigurationError, DataError, LabelError
        As in `load_table`.
    """
    return load_table(path, label, **options)


def _renamed(table: Source, renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a table's columns, of which some get others."""
    for old in renamed:
        _place(table, table.names, old)
    names = tuple(renamed.get(name, name) for name in table.names)
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"{table.where}: rename gives two columns the name {twice!r}")
    return names


def _place(table: Source, names: Sequence[str], column: str | int) -> int:
    """Return the place of a column, given by its name or its number from 0."""
    count = len(names)
    if not isinstance(column, str):
        if not -count <= column < count:
            raise DataError(f"{table.where}: there is no column {column}: it has {count}")
        return int(column) % count
    if column not in names:
        near = get_close_matches(column, names, 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        if not hint and not table.has_names:
            hint = "; if the first row holds names, say header = true"
        known = ", ".join(names[:_SHOWN]) + (" ..." if count > _SHOWN else "")
        raise DataError(f"{table.where}: there is no column {column!r}{hint} (there are: {known})")
    return names.index(column)


def _labelled(
    table: Source, found: Mapping[int, Column], answers: Sequence[int]
) -> dict[int, Column]:
    """Return columns without the rows in which what is to be predicted is missing."""
    gone = np.any([np.isnan(found[at].values) for at in answers], axis=0)
    rows = np.flatnonzero(~gone)
    if not rows.size:
        raise DataError(f"{table.where}: no row has a {found[answers[0]].name!r}")
    if gone.any():
        what = " and ".join(repr(found[at].name) for at in answers)
        _log.warning(
            "%s: %d of %d rows have no %s: left out", table.where, gone.sum(), len(gone), what
        )
    table.chosen = rows
    return {
        at: replace(
            column,
            values=column.values[rows],
            seconds=None if column.seconds is None else column.seconds[rows],
        )
        for at, column in found.items()
    }


def _name_of(source: Any) -> str:
    if not isinstance(source, (str, PathLike)):
        return "table"
    path = Path(source)
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def _features(
    table: Source, columns: Sequence[Column], formats: Mapping[str, str]
) -> tuple[Array, Columns]:
    """Return columns as rows of numbers in float32, and what new rows need to be coded so."""
    parts: list[tuple[str, str, Array]] = []
    for column in columns:
        parts.append((column.name, column.kind, column.values))
        if column.seconds is not None:
            parts.append((f"{column.name} (time of day)", TIME, column.seconds))
    x = np.empty((len(columns[0].values), len(parts)), np.float32)
    for at, (name, _, values) in enumerate(parts):
        if np.isinf(values).any():
            row = int(np.argmax(np.isinf(values)))
            raise DataError(f"{table.place(row)}, column {name!r}: {values[row]} is not finite")
        x[:, at] = narrowed(
            values, np.float32, lambda row, name=name: f"{table.place(row)}, column {name!r}"
        )
        if np.nanmax(np.abs(values), initial=0) > _WHOLE:
            before, after = (len(np.unique(each)) for each in (values, x[:, at]))
            if after < before:
                _log.warning(
                    "%s: column %r: its %d different numbers are %d in float32, as networks take "
                    "them: subtract a constant, or drop it, or say it is among categories or dates",
                    *(table.where, name, before, after),
                )
    kinds = tuple(kind for _, kind, _ in parts)
    is_plain = {*kinds} == {"number"}
    names = tuple(name for name, _, _ in parts)
    return x, Columns(
        features=names
        if table.has_names or not is_plain or len(names) + 1 < len(table.names)
        else (),
        kinds=() if is_plain else kinds,
        categories={each.name: each.categories for each in columns if each.kind == "category"},
        incomplete=tuple(name for name, _, values in parts if np.isnan(values).any()),
        dates={
            each.name: formats[each.name]
            for each in columns
            if each.kind == "date" and formats.get(each.name)
        },
        has_names=table.has_names,
    )


def _classes(table: Source, column: Column) -> dict[str, Any]:
    """Return a column of classes as fields of a `Dataset`."""
    labels = column.values
    as_names = f'categories = ["{column.name}"] takes numbers as names of classes'
    as_target = f"for a regression say target = {column.name!r}"
    wrong = np.flatnonzero(~((labels >= 0) & (labels % 1 == 0)))
    if wrong.size:
        row = int(wrong[0])
        what = f"is no integer from 0; {as_names if labels[row] % 1 == 0 else as_target}"
        label = f"label {labels[row]:g}"
        if np.isnan(labels[row]):
            label, what = "label", _MISSING
        message = f"{label} in row {row} of column {column.name!r} {what}"
        raise LabelError(f"{table.place(row)}: {message}", row)
    classes, class_names = len(column.categories), column.categories
    if column.kind != "category":
        place = f"{table.place(int(labels.argmax()))}, column {column.name!r}: "
        classes = classes_of(labels, place, f"; {as_names}, and {as_target}")
    return {"y": labels.astype(np.intp), "classes": classes, "class_names": class_names}


def _regression(table: Source, columns: Sequence[Column]) -> dict[str, Any]:
    """Return columns of numbers as fields of a `Dataset`."""
    y = np.stack([column.values for column in columns], axis=1)
    names = tuple(column.name for column in columns)
    y = checked_values(table.where, y, names, table.place)
    return {"y": y, "classes": 0, "task": "regression", "targets": names}


def _several_labels(table: Source, columns: Sequence[Column], separator: str) -> dict[str, Any]:
    """Return columns of several labels a sample as fields of a `Dataset`."""
    if separator and len(columns) > 1:
        raise ConfigurationError("label_separator goes with one column of labels")
    if not separator:
        y = np.stack([_truths(table, column) for column in columns], axis=1)
        names = tuple(column.name for column in columns)
        return {"y": y, "classes": 0, "task": "multilabel", "targets": names}
    (column,) = columns
    if column.kind == "number":
        what = f"column {column.name!r} holds numbers, and no names of labels"
        raise LabelError(f"{table.where}: {what}")
    parts = [{*map(str.strip, text.split(separator))} - {""} for text in column.categories]
    names = tuple(sorted(set().union(*parts)))
    # One row more, of no label, for cells that are missing.
    by_code = np.array([[name in each for name in names] for each in (*parts, set())], np.uint8)
    y = by_code[column.codes]
    return {"y": y, "classes": 0, "task": "multilabel", "targets": names}


def _truths(table: Source, column: Column) -> Array:
    """Return a column of one label as 0 and 1."""
    values = column.values
    if column.kind == "category":
        found = [TRUTHS_OF_LABELS.get(each.lower(), np.nan) for each in column.categories]
        values = np.array([*found, np.nan])[column.codes]
    wrong = np.flatnonzero(~np.isin(values, (0, 1)))
    if wrong.size:
        row = int(wrong[0])
        said = shown(column.texts[row]) if column.kind == "category" else f"{values[row]:g}"
        what = f"is {said}, not 0 or 1, true or false, yes or no"
        if np.isnan(column.values[row]):
            what = _MISSING
        raise LabelError(f"{table.place(row)}: label {column.name!r} {what}", row)
    return values.astype(np.uint8)


def _beside(column: Column) -> Array:
    """Return a column that is no feature, as numbers or as texts."""
    if column.kind == "category":
        return column.texts
    if column.seconds is not None:
        return column.values + column.seconds / 86400
    return column.values
