"""Samples and their labels from a table of numbers in a CSV file."""

from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from pathlib import Path

import numpy as np

from dnn.data.dataset import Dataset
from dnn.errors import DataError, LabelError
from dnn.table import Table, read_csv

__all__ = ["Table", "load_csv", "read_csv"]


def load_csv(
    path: str | PathLike[str],
    label: str | int = -1,
    *,
    delimiter: str = ",",
    header: bool | None = None,
    missing: Collection[str] = (),
) -> Dataset:
    """Read samples and their labels from a table.

    Parameters
    ----------
    path : path
    label : str or int
        The column of the labels, by name or by number from 0; the last one by default. Labels are
        integers from 0.
    delimiter, header, missing
        As in `read_csv`.

    Returns
    -------
    Dataset
        Named after the file; there are as many classes as the largest label says.

    Raises
    ------
    DataError
        As in `read_csv`, or if there is no such column.
    LabelError
        If a label is no integer from 0.
    """
    table = read_csv(path, delimiter=delimiter, header=header, missing=missing)
    if isinstance(label, str):
        if label not in table.columns:
            known = ", ".join(table.columns)
            raise DataError(f"{path}: there is no column {label!r} (there are: {known})")
        at = table.columns.index(label)
    else:
        if not -len(table.columns) <= label < len(table.columns):
            raise DataError(f"{path}: there is no column {label}: it has {len(table.columns)}")
        at = label % len(table.columns)
    labels = table.values[:, at]
    wrong = np.flatnonzero(~((labels >= 0) & (labels == np.floor(labels))))
    if wrong.size:
        row = int(wrong[0])
        column = table.columns[at]
        message = f"{labels[row]:g} in row {row} of column {column!r} is no integer from 0"
        raise LabelError(f"{path}: label {message}", row)
    y = labels.astype(np.intp)
    x = np.delete(table.values, at, axis=1)
    return Dataset(x, y, int(y.max()) + 1, Path(path).stem)
