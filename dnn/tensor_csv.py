"""Tensors as CSV files of numbers."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import DataError, ShapeError

__all__ = ["read_csv", "write_csv"]


def read_csv(
    path: str | Path, dtype: npt.DTypeLike, delimiter: str = ",", header: bool = False
) -> Array:
    """Read a file of numbers.

    Parameters
    ----------
    path : str or Path
    dtype : type of elements
    delimiter : str
    header : bool
        The first line holds names and is skipped.

    Returns
    -------
    array, shape (rows, columns)

    Raises
    ------
    DataError
        If the file is missing or empty, a row is shorter or longer than the first, or a cell is
        empty, not a number, NaN or infinite; it names line, row and column, rows and columns
        being counted from 0 as in the array.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file, delimiter=delimiter)
            if header:
                next(reader, None)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file: {error}") from error
    if not lines:
        raise DataError(f"{path} has no rows")
    columns = len(lines[0][1])
    values = np.empty((len(lines), columns), dtype)
    for row, (line, cells) in enumerate(lines):
        if len(cells) != columns:
            message = f"{len(cells)} columns, but row 0 has {columns}"
            raise DataError(f"{path}, line {line} (row {row}): {message}")
        for column, cell in enumerate(cells):
            values[row, column] = _number(cell, f"{path}, line {line} (row {row}, column {column})")
    return values


def _number(cell: str, where: str) -> float:
    if not cell.strip():
        raise DataError(f"{where}: the cell is empty")
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{where}: {cell.strip()!r} is not a number") from None
    if not math.isfinite(value):
        raise DataError(f"{where}: {cell.strip()} is not finite")
    return value


def write_csv(path: str | Path, values: Array, delimiter: str = ",") -> None:
    """Write an array of one or two axes; a vector becomes a column.

    Each number has the fewest digits that give it back exactly.

    Raises
    ------
    ShapeError
        If the array has no axis, or more than two.
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
