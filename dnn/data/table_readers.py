"""Readers of tables: text files, Parquet, arrays of NumPy, frames and mappings.

`open_table` returns a source that knows the names of its columns; its `read` codes those that are
asked for, see `dnn.data.column_kinds`. Of a text, blocks of rows are read, and numbers are kept.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.data.column_kinds import Column, TextCells, Wanted, WrongCell, coded_array
from dnn.data.npz import opened_npz
from dnn.errors import DataError, MissingDependencyError
from dnn.table import (
    Row,
    check_delimiter,
    check_names,
    head_of,
    iterate_rows,
    line_of_cell,
    number_of,
)

__all__ = ["DELIMITERS", "Source", "TextSource", "open_table"]

_BLOCK: Final = 4096
"""Rows of text that are held at a time."""
DELIMITERS: Final = ",;\t|"
"""What may separate the cells of a text."""
_QUOTED: Final = re.compile('"[^"]*"')
_DIRECTIVE: Final = re.compile('"?sep=(.)"?', re.IGNORECASE)
"""The first line of a file by which Excel knows its delimiter."""
_HEADER: Final = "; if the first row holds names, say header = true"
_MOST_COMMENTS: Final = 100
"""Rows at the head of a file, all of which begin with #, that may be comments."""
_OF_TABS: Final = (".tsv", ".tab")


@dataclass(eq=False)
class Source:
    """A table whose columns can be read.

    Attributes
    ----------
    where : str
        Its file, or "the frame", for messages.
    names : tuple of str
        Names of the columns, or ``"1"``, ``"2"``, ... where it has none.
    has_names : bool
    delimiter : str
        That of a text file; else a comma.
    chosen : array of int, optional
        The rows that are taken, where some are left out; `place` counts them.
    """

    where: str
    names: tuple[str, ...]
    has_names: bool
    delimiter: str = ","
    chosen: Array | None = None

    def read(self, wanted: Mapping[int, Wanted]) -> list[Column]:
        """Return columns, by their places, each as it is wanted.

        Raises
        ------
        DataError
            If a cell is not of the column's kind, or rows differ in length.
        """
        raise NotImplementedError

    def texts(self, places: Sequence[int]) -> list[list[str]]:
        """Return the cells of columns, by their places, as texts."""
        columns = self.read({at: Wanted("category") for at in places})
        return [column.texts.tolist() for column in columns]

    def rows(self) -> Sequence[Sequence[str]]:
        """Return the cells of all rows as texts."""
        return [*zip(*self.texts(range(len(self.names))), strict=True)]

    def place(self, row: int) -> str:
        """Return where a row stands, for messages."""
        return f"{self.where}, row {row if self.chosen is None else self.chosen[row]}"


class TextSource(Source):
    """A text file; its rows can be read once.

    Attributes
    ----------
    kept : list of list of str
        The cells of all rows below the names, once they are read, if they are to be kept.
    lines : array of int, shape (rows,)
        The line in which each row begins.
    """

    def __init__(
        self,
        path: Path,
        delimiter: str | None,
        header: bool | None,
        missing: Collection[str],
        decimal: str,
        usual: str,
        names: Collection[str],
        keeps_rows: bool,
    ) -> None:
        head = head_of(path)
        is_directive = bool(head) and _DIRECTIVE.fullmatch(head[0].strip()) is not None
        if delimiter is None:
            delimiter = _delimiter_of(path, head, decimal, usual)
        check_delimiter(delimiter)
        rows = _without_comments(islice(iterate_rows(path, delimiter), int(is_directive), None))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path}: no rows")
        cells = tuple(cell.strip() for cell in first[1])
        self._hint = "" if header is False or keeps_rows else _HEADER
        if header is None:
            is_known = bool(names) and {*names} <= {*cells}
            # A table with numbers of rows, as pandas writes it, has no name above them.
            marks = {*missing} - {""} if cells[0] == "" and all(cells[1:]) else missing
            numbers = (number_of(cell.replace(decimal, ".")) for cell in cells)
            has_number = any(number is not None for number in numbers)
            header = is_known or not (has_number or any(cell in marks for cell in cells))
        if header:
            second = [*islice(rows, 1)]
            rows = chain(second, rows)
            # Spreadsheets write columns that are empty, of which the last have no names either.
            count = max((at for at, cell in enumerate(cells, start=1) if cell), default=0)
            if count and not any(cell for _, row in second for cell in row[count:]):
                cells = cells[:count]
            if not keeps_rows:  # of new rows, only some columns are read
                check_names(path, first[0], cells)
        else:
            cells = tuple(str(number) for number in range(1, len(cells) + 1))
        super().__init__(str(path), cells, header, delimiter)
        self._rows = rows if header else chain([first], rows)
        self._missing, self._decimal = missing, decimal
        self._keeps_rows = keeps_rows
        self.kept: list[list[str]] = []
        self.lines: Array = np.empty(0, np.intp)

    def read(self, wanted: Mapping[int, Wanted]) -> list[Column]:
        """Return columns; a file is read once."""
        coders = {
            at: TextCells(self.names[at], each, self._missing, self._decimal)
            for at, each in wanted.items()
        }
        width = len(self.names)
        lines: list[int] = []
        while block := [*islice(self._rows, _BLOCK)]:
            if self._keeps_rows:
                self.kept += [row for _, row in block]
            ragged = None
            for number, (_, row) in enumerate(block):
                if len(row) > width and not any(row[width:]):
                    del row[width:]
                if len(row) != width:
                    ragged = number
                    break
            cells = [*zip(*(row for _, row in block[:ragged]), strict=True)]
            wrong: list[tuple[int, int, str]] = []
            for at, coder in coders.items() if cells else ():
                try:
                    coder.add(cells[at])
                except WrongCell as error:
                    wrong.append((error.row - len(lines), at, error.problem))
            if wrong:
                number, at, problem = min(wrong)
                raise self._error(line_of_cell(block[number], at), at, problem)
            if ragged is not None:
                raise self._ragged(*block[ragged])
            lines += [line for line, _ in block]
        if not lines:
            below = " below the names of the columns" if self.has_names else ""
            raise DataError(f"{self.where}: no rows{below}")
        self.lines = np.array(lines)
        found = []
        for at, coder in coders.items():
            try:
                found.append(coder.finish())
            except WrongCell as error:
                raise self._error(int(self.lines[error.row]), at, error.problem) from None
        return found

    def _error(self, line: int, at: int, problem: str) -> DataError:
        hint = "" if self.has_names or line > 2 else self._hint
        return DataError(f"{self.where}, line {line}, column {self.names[at]!r}: {problem}{hint}")

    def _ragged(self, line: int, row: list[str]) -> DataError:
        count, width = len(row), len(self.names)
        cells = "1 cell" if count == 1 else f"{count} cells"
        remedy = ""
        if count > width:
            remedy = f"; a cell in which there is a {self.delimiter!r} has to be in quotes"
        return DataError(f"{self.where}, line {line}: {cells}, not {width}{remedy}")

    def place(self, row: int) -> str:
        """Return the file and the line in which a row begins."""
        return f"{self.where}, line {self.lines[row if self.chosen is None else self.chosen[row]]}"

    def texts(self, places: Sequence[int]) -> list[list[str]]:
        """Return the cells of columns, by their places."""
        return [[row[at].strip() for row in self.kept] for at in places]

    def rows(self) -> Sequence[Sequence[str]]:
        """Return the cells of all rows, as they are."""
        return self.kept


class _ArraySource(Source):
    """Columns that are arrays, lists or series; `column` returns one by its place."""

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        column: Callable[[int], Any],
        missing: Collection[str],
    ) -> None:
        super().__init__(where, tuple(names), True)
        self._column, self._missing = column, missing

    def read(self, wanted: Mapping[int, Wanted]) -> list[Column]:
        """Return columns of one length."""
        found = []
        for at, each in wanted.items():
            name = self.names[at]
            try:
                found.append(coded_array(name, self._column(at), each, self._missing))
            except WrongCell as error:
                place = f"{self.place(error.row)}, column {name!r}"
                raise DataError(f"{place}: {error.problem}") from None
            except ValueError as error:
                raise DataError(f"{self.where}: {error}") from None
        lengths = {len(column.values) for column in found}
        if len(lengths) > 1:
            shapes = ", ".join(f"{each.name!r} of {len(each.values)}" for each in found[:8])
            raise DataError(
                f"{self.where}: columns are vectors of one length, and there are {shapes}"
            )
        if lengths == {0}:
            raise DataError(f"{self.where}: no rows")
        return found

    def texts(self, places: Sequence[int]) -> list[list[str]]:
        """Return the cells of columns; those that are no single values, such as lists, too."""
        found = []
        for at in places:
            try:
                found += super().texts([at])
            except DataError:
                found.append([*map(str, np.asarray(self._column(at)).tolist())])
        return found


def open_table(
    given: Any,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    missing: Collection[str] = (),
    decimal: str = ".",
    usual: str = "",
    names: Collection[str] = (),
    keeps_rows: bool = False,
) -> Source:
    """Open a table: a file by its suffix, a frame of pandas or polars, or a mapping of columns.

    Parameters
    ----------
    given, delimiter, header, missing, decimal
        As of `dnn.load_table`.
    usual : str
        What separates the cells of a text if no delimiter is given, and its first line has it.
    names : collection of str
        The first row of a text holds names if all of these are there, though they are numbers.
    keeps_rows : bool
        Whether the rows of a text are to be kept as they are.

    Raises
    ------
    DataError
        If a file cannot be read, or has no rows.
    MissingDependencyError
        If pyarrow is needed and not installed.
    """
    if not isinstance(given, (str, PathLike)):
        return _of_frame(given, missing)
    path = Path(given)
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file of rows: a CSV file is wanted")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _of_parquet(path, missing)
    if suffix == ".npz":
        return _of_npz(path, missing)
    return TextSource(path, delimiter, header, missing, decimal, usual, names, keeps_rows)


def _delimiter_of(path: Path, head: Sequence[str], decimal: str, usual: str) -> str:
    """Return what separates the cells of a text, from its name or from its first lines.

    That is the `usual` one if the names of the columns have it, or no other.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if suffixes and suffixes[-1] in _OF_TABS:
        return "\t"
    if head and (directive := _DIRECTIVE.fullmatch(head[0].strip())):
        return directive[1]
    names = next((line for line in head if not line.lstrip().startswith("#")), "".join(head[:1]))
    outside_quotes = _QUOTED.sub("", names)
    known = [usual, *DELIMITERS] if usual else DELIMITERS
    found = [each for each in known if each != decimal]
    if usual and usual in outside_quotes:
        return usual
    return max(found, key=outside_quotes.count)


def _without_comments(rows: Iterator[Row]) -> Iterator[Row]:
    """Return rows without those at the head that begin with # and have no cells as the others do.

    If the last of them has as many cells as the row below, it has the names of the columns.
    """
    above: list[Row] = []
    for row in rows:
        if not row[1][0].lstrip().startswith("#"):
            names = [each for each in above[-1:] if len(each[1]) == len(row[1])]
            return chain(names, [row], rows)
        above.append(row)
        if len(above) > _MOST_COMMENTS:
            break
    return chain(above, rows)


def _of_frame(given: Any, missing: Collection[str]) -> _ArraySource:
    column: Callable[[Any], Any]
    if hasattr(given, "collect_schema") and hasattr(given, "collect"):
        given = given.collect()  # a LazyFrame of polars
    if hasattr(given, "column_names") and hasattr(given, "schema"):  # a table of Arrow
        where, labels = "the table", given.column_names
        column = lambda label: _of_arrow(given[label])  # noqa: E731
    elif isinstance(given, Mapping):
        where, labels, column = "the table", [*given], given.__getitem__
    elif hasattr(given, "columns") and hasattr(given, "__getitem__"):
        where, labels, column = "the frame", [*given.columns], given.__getitem__
    else:
        message = "a table is a path, a frame of pandas or polars, or a mapping of columns"
        raise DataError(f"{message}, not {type(given).__name__}")
    names = [str(label) for label in labels]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{where}: there are two columns {twice!r}")
    return _ArraySource(where, names, lambda at: column(labels[at]), missing)


def _of_parquet(path: Path, missing: Collection[str]) -> _ArraySource:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: Parquet is read by pyarrow, which is not installed: "
            'pip install "diel[tables]"'
        ) from error
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # errors of pyarrow are such
        raise DataError(f"{path}: cannot be read: {error}") from error
    names = file.schema_arrow.names

    def column(at: int) -> Any:
        try:
            return _of_arrow(file.read([names[at]])[names[at]])
        except (OSError, ValueError, NotImplementedError) as error:
            raise DataError(f"{path}, column {names[at]!r}: cannot be read: {error}") from error

    return _ArraySource(str(path), names, column, missing)


def _of_arrow(column: Any) -> Any:
    """Return a column of Arrow as an array, a missing number as NaN and another cell as None."""
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    if str(column.type).startswith(("decimal", "time")) and "stamp" not in str(column.type):
        return np.array([None if c is None else str(c) for c in column.to_pylist()], object)
    return column.to_numpy()


def _of_npz(path: Path, missing: Collection[str]) -> _ArraySource:
    with opened_npz(path) as arrays:
        columns = [arrays.read(name) for name in arrays.names]
    return _ArraySource(str(path), arrays.names, columns.__getitem__, missing)
