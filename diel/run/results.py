"""Rows of results: writing them to a CSV file as they arrive, reading and ranking them."""

from __future__ import annotations

import csv
import heapq
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from diel.errors import RunDirectoryError
from diel.run.files import file_opener, open_regular

_LONGEST_FIELD: Final = 16 * 2**20
_NO_NUMBERS: Final = ("nan", "inf", "-inf")
"""Texts in the journal for numbers that JSON lacks."""


def is_score(value: Any) -> bool:
    """Whether rows can be ranked by a value: a number, or the text for one that JSON lacks."""
    if isinstance(value, str):
        return value in _NO_NUMBERS
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


class ResultsWriter:
    """Writes ``results.csv``, flushed row by row, with columns in this order."""

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._file = open(  # noqa: SIM115
            path, "a", encoding="utf-8", errors="replace", newline="", opener=file_opener
        )
        self._csv = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._csv.writerow(self._columns)
            self._file.flush()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row.

        A RunDirectoryError if its keys are not the columns.
        """
        if set(row) != set(self._columns):
            raise RunDirectoryError(
                f"a result has the columns {', '.join(sorted(row))}, "
                f"the table has {', '.join(sorted(self._columns))}"
            )
        self._csv.writerow([_cell(row[column]) for column in self._columns])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def rank_rows(
    rows: Sequence[Mapping[str, Any]], objective: str, maximise: bool
) -> list[Mapping[str, Any]]:
    """Return rows from best to worst; NaN comes last.

    Of equal rows that with the smaller first column comes first, where that is a number: a table
    whose rows are numbered is ranked the same in whatever order they arrived.
    """
    return sorted(rows, key=_rank_key(objective, maximise))


def _rank_key(
    objective: str, maximise: bool
) -> Callable[[Mapping[str, Any]], tuple[bool, float, float]]:
    def rank_key(row: Mapping[str, Any]) -> tuple[bool, float, float]:
        first = next(iter(row.values()))
        tie = float(first) if isinstance(first, (int, float)) and is_score(first) else 0.0
        value = float(row[objective])
        if math.isnan(value):
            return True, 0.0, tie
        return False, -value if maximise else value, tie

    return rank_key


def best_row(
    rows: Sequence[Mapping[str, Any]], objective: str, maximise: bool
) -> Mapping[str, Any]:
    """Return the best row, the first of several; `rows` must not be empty."""
    numbers = [float(row[objective]) for row in rows]
    sign = -1 if maximise else 1
    return rows[min(range(len(rows)), key=lambda i: (math.isnan(numbers[i]), sign * numbers[i]))]


def best_of_table(
    path: str | os.PathLike[str], objective: str, maximise: bool, count: int
) -> list[dict[str, Any]]:
    """Return so many best rows of a file, best first; rows without the objective are left out.

    A RunDirectoryError if the file cannot be read as a table.
    """
    scored = (
        row
        for row in read_rows(path)
        # Trials of sweeps that were stopped or diverged have an objective too, but are not ranked.
        if is_score(row.get(objective)) and row.get("state") in (None, "finished")
    )
    return heapq.nsmallest(count, scored, key=_rank_key(objective, maximise))


def read_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of results from its file, one by one.

    A cell is a number where it reads as one, and None where it is empty or missing. A
    RunDirectoryError if the file cannot be read as a table.
    """
    csv.field_size_limit(max(_LONGEST_FIELD, csv.field_size_limit()))
    try:
        with io.TextIOWrapper(
            open_regular(path), encoding="utf-8", errors="replace", newline=""
        ) as file:
            # A line may be without an end: no more of it is read at once than fields may have.
            lines = iter(lambda: file.readline(2 * _LONGEST_FIELD), "")
            rows = csv.reader(line.replace("\0", "") for line in lines)
            columns = next(rows, [])
            for row in rows:
                if row:
                    yield {
                        **dict.fromkeys(columns),
                        **dict(zip(columns, map(_value, row), strict=False)),
                    }
    except csv.Error as error:
        raise RunDirectoryError(f"{path}, line {rows.line_num}: no table: {error}") from error
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror or error}") from error


def _value(cell: str) -> Any:
    """Return the value of a cell: a number where it reads as one, None if it is empty."""
    if not cell:
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _cell(value: Any) -> Any:
    # repr of a float is the shortest text that reads back as the same number.
    if isinstance(value, float):
        return repr(float(value))  # NumPy's repr names the type
    if isinstance(value, (list, tuple)):
        return "x".join(str(item) for item in value)
    return value
