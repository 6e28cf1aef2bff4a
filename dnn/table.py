"""Tables of numbers in CSV files: one reader and one writer, for tensors and for data."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of, fits, range_of
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, ShapeError, explains_arguments

__all__ = [
    "Row",
    "Table",
    "check_delimiter",
    "check_names",
    "head_of",
    "holds_number",
    "iterate_rows",
    "line_of_cell",
    "missing_marks",
    "number_of",
    "read_csv",
    "rows_of",
    "write_csv",
]

_END_OF_LINE: Final = re.compile(r"\r\n|\r|\n")
_NO_TEXTS: Final = {
    b"PK\x03\x04": "an archive or a workbook: save its table as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook: save its table as CSV",
    b"ARRO": "Feather: save its table as Parquet or CSV",
    b"PAR1": "Parquet: give it a name that ends in .parquet",
}
"""What files are that begin with four bytes."""
_INTEGER: Final = re.compile(r"[+-]?\d{1,400}")
_SHOWN: Final = 60
"""Of a longer cell, messages show the beginning."""

Row: TypeAlias = tuple[int, list[str]]
"""The line in which a row begins, and its cells."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of numbers.

    Attributes
    ----------
    columns : tuple of str
        The names in the first row, or ``"1"``, ``"2"``, ... where it has none.
    values : array, shape (rows, columns)
        NaN where a cell is missing.
    path : str
    lines : array of int, shape (rows,)
        The line of the file in which each row begins, from 1.
    has_names : bool
        Whether the first row held names.
    """

    columns: tuple[str, ...]
    values: Array
    path: str
    lines: Array
    has_names: bool

    def place(self, row: int, column: int) -> str:
        """Return where a cell stands, for messages: file, line and column."""
        return f"{self.path}, line {self.lines[row]}, column {self.columns[column]!r}"


@explains_arguments
def read_csv(
    path: str | PathLike[str],
    *,
    delimiter: str = ",",
    header: bool | None = None,
    missing: Collection[str] = (),
    dtype: npt.DTypeLike = np.float64,
) -> Table:
    """Read a table of numbers.

    Parameters
    ----------
    path : path
        A text file in UTF-8, perhaps compressed by gzip; empty lines are skipped.
    delimiter : str, one character
    header : bool, optional
        The first row holds names, which are distinct. By default it does if none of its cells is a
        number.
    missing : collection of str
        Texts that stand for a missing cell, such as ``["", "?"]``. By default no cell may be
        missing.
    dtype : type of elements
        Of the values. Numbers are rounded to a type of floats; one of integers takes whole numbers.

    Returns
    -------
    Table

    Raises
    ------
    ConfigurationError
        If an argument is none of those above.
    DataError
        If the file cannot be read, has no rows, or a row is too short or too long, or a cell is
        empty, a text, not finite, or no number of the type; it names the line and the column.
    """
    kind = dtype_of("read_csv", dtype)
    check_delimiter(delimiter)
    marks = missing_marks(missing)
    if marks and kind.kind != "f":
        raise ConfigurationError(f"missing cells are NaN, which {kind} has not: leave missing out")
    rows = rows_of(path, delimiter)
    if not rows:
        raise DataError(f"{path}: no rows")
    columns, has_names = _columns_of(path, rows[0], header, marks)
    rows = rows[has_names:]
    if not rows:
        raise DataError(f"{path}: no rows below the names of the columns")
    values = np.empty((len(rows), len(columns)), kind)
    for index, (line, row) in enumerate(rows):
        if len(row) != len(columns):
            raise DataError(f"{path}, line {line}: {len(row)} cells, not {len(columns)}")
        if not _fill(values[index], row, marks):
            values[index] = _checked_cells(path, line, row, columns, marks, kind)
    lines = np.array([line for line, _ in rows])
    return Table(columns, values, str(path), lines, has_names)


def _columns_of(
    path: str | PathLike[str],
    first_row: Row,
    header: bool | None,
    marks: Collection[str],
) -> tuple[tuple[str, ...], bool]:
    """Return the names of the columns, or their numbers, and whether the first row holds names."""
    has_names = header
    if has_names is None:
        has_names = not any(holds_number(cell, marks) for cell in first_row[1])
    if not has_names:
        return tuple(str(number) for number in range(1, len(first_row[1]) + 1)), False
    columns = tuple(name.strip() for name in first_row[1])
    check_names(path, first_row[0], columns)
    return columns, True


def check_names(path: str | PathLike[str], line: int, columns: Sequence[str]) -> None:
    """Raise a `DataError` if two columns have the same name."""
    if len({*columns}) < len(columns):
        name = next(name for name in columns if columns.count(name) > 1)
        at = " and ".join(str(n) for n, each in enumerate(columns, 1) if each == name)
        message = f"columns {at} have the same name {name!r}: give each a name of its own"
        raise DataError(f"{path}, line {line}: {message}")


def _fill(values: Array, row: Sequence[str], marks: Collection[str]) -> bool:
    """Write the numbers of a row; False where a cell may be wrong, or stand for a missing one."""
    kind = values.dtype.kind
    read = float if kind == "f" else int
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is found below
            values[:] = [float("nan") if cell.strip() in marks else read(cell) for cell in row]
    except (ValueError, OverflowError):
        return False
    # A number that bool does not have would be true; with marks, a NaN may be no missing cell.
    is_right = not marks and kind != "b" and np.isfinite(values).all()
    return bool(is_right and "_" not in "".join(row))


def check_delimiter(delimiter: Any) -> None:
    """Raise `ConfigurationError` unless a delimiter is one that a CSV file may have."""
    is_text = isinstance(delimiter, str) and len(delimiter) == 1
    if not is_text or delimiter in '"\r\n\0':
        message = "delimiter must be one character, and neither a quote nor the end of a line"
        raise ConfigurationError(f"{message}, not {delimiter!r}")


def missing_marks(missing: Collection[str]) -> frozenset[str]:
    """Return the texts that stand for missing cells, checked to be such."""
    marks = [missing] if isinstance(missing, str) else missing
    is_several = isinstance(marks, Collection) and not isinstance(marks, bytes | Mapping)
    is_several = is_several and getattr(marks, "ndim", 1) == 1
    if not is_several or not all(isinstance(mark, str) for mark in marks):
        raise ConfigurationError(f"missing must be a list of texts, not {missing!r}")
    return frozenset(marks)


def rows_of(path: str | PathLike[str], delimiter: str) -> list[Row]:
    """Return the rows of a CSV file that are not empty.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    return [*iterate_rows(path, delimiter)]


def iterate_rows(path: str | PathLike[str], delimiter: str) -> Iterator[Row]:
    """Yield the rows that `rows_of` returns, as they are read."""
    line = 0
    try:
        with _opened(path) as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                if len(row) > 1 or (row and row[0].strip()):
                    yield line + 1, row
                line = reader.line_num
    except csv.Error as error:
        raise DataError(f"{path}, line {line + 1}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        remedy = f"it is not in UTF-8: iconv -f WINDOWS-1252 -t UTF-8 {Path(path).name}, for one"
        raise DataError(f"{path}: cannot be read: {error} ({remedy})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _opened(path: str | PathLike[str]) -> IO[str]:
    """Open a text, which may be compressed by gzip, whatever its name is.

    It is in UTF-8, or in UTF-16 where it begins with the mark of that.
    """
    with Path(path).open("rb") as file:
        head = file.read(4)
    file_opener: Callable[..., Any] = open
    if head.startswith(b"\x1f\x8b"):
        file_opener = gzip.open
        with gzip.open(path) as file:
            head = file.read(4)
    if head in _NO_TEXTS:
        raise DataError(f"{path} is no text but {_NO_TEXTS[head]}")
    is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if is_wide else "utf-8-sig"
    opened: IO[str] = file_opener(path, "rt", newline="", encoding=encoding)
    return opened


def head_of(path: str | PathLike[str]) -> list[str]:
    """Return the first 100 lines of a text that are not empty; none if it cannot be read."""
    try:
        with _opened(path) as file:
            return [*islice((line for line in file if line.strip()), 100)]
    except (OSError, UnicodeDecodeError, EOFError, zlib.error):
        return []


def line_of_cell(row: Row, at: int) -> int:
    """Return the line in which a cell of a row begins: cells in quotes may have several."""
    line, cells = row
    return line + sum(len(_END_OF_LINE.findall(cell)) for cell in cells[:at])


def number_of(cell: str) -> float | None:
    """Return the number that a cell of a table holds; None if it holds none.

    ``2024_01`` holds none: it is a name, though Python reads 202401.
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def holds_number(cell: str, marks: Collection[str]) -> bool:
    """Whether a cell holds a number, or one of the marks of a missing one."""
    return number_of(cell) is not None or cell.strip() in marks


def _checked_cells(
    path: str | PathLike[str],
    line: int,
    row: list[str],
    columns: tuple[str, ...],
    marks: Collection[str],
    kind: np.dtype[Any],
) -> list[float]:
    """Return the numbers of a row that begins in a line, or raise an error for the wrong cell."""
    numbers: list[float] = []
    for name, cell in zip(columns, row, strict=True):
        where = f"{path}, line {line}, column {name!r}"
        line += len(_END_OF_LINE.findall(cell))  # within quotes
        text = cell.strip()
        if text in marks:
            numbers.append(float("nan"))
            continue
        if not text:
            raise DataError(f"{where}: the cell is empty")
        shown = repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
        number = number_of(text)
        if number is None:
            raise DataError(f"{where}: {shown} is no number")
        if not math.isfinite(number):
            raise DataError(f"{where}: {shown} is not finite")
        if kind.kind != "f":
            if not number.is_integer():
                raise DataError(f"{where}: {shown} is no whole number, for {kind}")
            # Not through a float, which has fewer digits.
            number = int(text) if _INTEGER.fullmatch(text) else int(number)
        if not fits(number, kind):
            raise DataError(f"{where}: {shown} is beyond {range_of(kind)}")
        numbers.append(number)
    return numbers


def write_csv(path: str | PathLike[str], values: Array, delimiter: str = ",") -> None:
    """Write an array of one or two axes; a vector becomes a column.

    Each number gets the fewest digits that give it back exactly. An array without an axis, or with
    more than two, is a `ShapeError`.
    """
    check_delimiter(delimiter)
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
