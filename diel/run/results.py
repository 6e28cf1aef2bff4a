"""Rows of results: the CSV file as they arrive, and their ranking."""

from __future__ import annotations

import csv
import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from diel.errors import RunDirectoryError

TableName: TypeAlias = "tuple[str, frozenset[str]]"
"""A table of results: the module that fills it, and its columns."""


def table_name(module: str, columns: Iterable[str]) -> TableName:
    """Return which table a module's rows with these columns belong to."""
    return module, frozenset(columns)


class ResultsWriter:
    """Writes ``results.csv``, flushed row by row.

    Parameters
    ----------
    path : path
    columns : sequence of str
        In the order in which they are written.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._file = open(path, "a", encoding="utf-8", errors="replace", newline="")  # noqa: SIM115
        self._csv = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._csv.writerow(self._columns)
            self._file.flush()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row.

        Raises
        ------
        RunDirectoryError
            If its keys are not the columns.
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

    Of equals the one with the smaller first column comes first, where that is a number: a table
    whose rows are numbered is ranked the same in whatever order they arrived.

    Parameters
    ----------
    rows : sequence of mapping
    objective : str
        The column that decides.
    maximise : bool
    """
    return sorted(rows, key=_badness(objective, maximise))


def _badness(
    objective: str, maximise: bool
) -> Callable[[Mapping[str, Any]], tuple[bool, float, float]]:
    def badness(row: Mapping[str, Any]) -> tuple[bool, float, float]:
        first = next(iter(row.values()))
        tie = float(first) if isinstance(first, (int, float)) else 0.0
        value = float(row[objective])
        if math.isnan(value):
            return True, 0.0, tie
        return False, -value if maximise else value, tie

    return badness


def best_row(
    rows: Sequence[Mapping[str, Any]], objective: str, maximise: bool
) -> Mapping[str, Any]:
    """Return a row that none is better than; `rows` is not empty."""
    numbers = [float(row[objective]) for row in rows]
    sign = -1 if maximise else 1
    return rows[min(range(len(rows)), key=lambda i: (math.isnan(numbers[i]), sign * numbers[i]))]


def best_of_table(
    path: str | os.PathLike[str], objective: str, maximise: bool, count: int
) -> list[dict[str, Any]]:
    """Return the best rows of a file, best first; of rows without the objective, none.

    Parameters
    ----------
    path : path
    objective : str
        The column that decides.
    maximise : bool
    count : int
        How many rows at most.
    """

    def numbered() -> Iterator[dict[str, Any]]:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                # Of sweeps, trials that were stopped or diverged have one too, and no rank.
                if row.get(objective) and row.get("state") in (None, "", "finished"):
                    yield {name: _number_or_text(text) for name, text in row.items()}

    return heapq.nsmallest(count, numbered(), key=_badness(objective, maximise))


def _number_or_text(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _cell(value: Any) -> Any:
    # repr of a float is the shortest text that reads back as the same number.
    if isinstance(value, float):
        return repr(float(value))  # NumPy's repr names the type
    if isinstance(value, (list, tuple)):
        return "x".join(str(item) for item in value)
    return value
