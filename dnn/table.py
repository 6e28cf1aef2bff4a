"""Tables of numbers in CSV files: one reader and one writer, for tensors and for data."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from dnn.backend import Array
from dnn.errors import DataError, ShapeError

__all__ = ["Table", "read_csv", "write_csv"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table of numbers.

    Attributes
    ----------
    columns : tuple of str
        The names in the first row, or ``"1"``, ``"2"``, ... where it has none.
    values : array of float64, shape (rows, columns)
        NaN where a cell is missing.
    has_names : bool
        Whether the first row held names.
    """

    columns: tuple[str, ...]
    values: Array
    has_names: bool = False


def read_csv(
    path: str | PathLike[str],
    *,
    delimiter: str = ",",
    header: bool | None = None,
    missing: Collection[str] = (),
) -> Table:
    """Read a table of numbers.

    Parameters
    ----------
    path : path
        A text file in UTF-8; empty lines are skipped.
    delimiter : str, one character
    header : bool, optional
        The first row holds names. By default it does if none of its cells is a number.
    missing : collection of str
        Texts that stand for a missing cell, such as ``["", "?"]``. By default no cell may be
        missing.

    Returns
    -------
    Table

    Raises
    ------
    DataError
        If the file cannot be read, has no rows, or a row is too short or too long, or a cell is
        empty, a text, or not finite; it names the line and the column.
    """
    marks = frozenset([missing] if isinstance(missing, str) else missing)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path}: no rows")
    first = rows[0][1]
    has_names = header
    if has_names is None:
        has_names = not any(_is_number(cell, marks) for cell in first)
    if has_names:
        columns = tuple(name.strip() for name in first)
        rows = rows[1:]
        if not rows:
            raise DataError(f"{path}: no rows below the names of the columns")
    else:
        columns = tuple(str(number) for number in range(1, len(first) + 1))
    values = np.empty((len(rows), len(columns)))
    for index, (line, row) in enumerate(rows):
        if len(row) != len(columns):
            raise DataError(f"{path}, line {line}: {len(row)} cells, not {len(columns)}")
        try:
            values[index] = [float("nan") if cell.strip() in marks else float(cell) for cell in row]
            right = not marks and np.isfinite(values[index]).all()
        except ValueError:
            right = False
        if not right:  # names the wrong cell; with marks, a NaN may stand for a missing cell
            _check_cells(f"{path}, line {line}", row, columns, marks)
    return Table(columns, values, has_names)


def _is_number(cell: str, marks: Collection[str]) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip() in marks
    return True


def _check_cells(
    where: str, row: list[str], columns: tuple[str, ...], marks: Collection[str]
) -> None:
    for name, cell in zip(columns, row, strict=True):
        text = cell.strip()
        if text in marks:
            continue
        if not text:
            raise DataError(f"{where}, column {name!r}: the cell is empty")
        if not _is_number(text, ()):
            raise DataError(f"{where}, column {name!r}: {text!r} is no number")
        if not np.isfinite(float(text)):
            raise DataError(f"{where}, column {name!r}: {text!r} is not finite")


def write_csv(path: str | PathLike[str], values: Array, delimiter: str = ",") -> None:
    """Write an array of one or two axes; a vector becomes a column.

    Each number gets the fewest digits that give it back exactly. An array without an axis, or with
    more than two, is a `ShapeError`.
    """
    if values.ndim not in (1, 2):
        message = f"CSV has rows and columns, and the tensor is {values.shape}: reshape it"
        raise ShapeError("to_csv", message, values.shape)
    rows = values.reshape(len(values), -1)
    if rows.dtype.kind == "b":
        rows = rows.astype(np.uint8)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(
            [str(cell) for cell in row] for row in rows
        )
