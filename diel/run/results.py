"""Rows of results: the CSV file as they arrive, and their ranking."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from diel.errors import RunDirectoryError


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
    """Return rows from best to worst; NaN comes last, ties keep their order.

    Parameters
    ----------
    rows : sequence of mapping
    objective : str
        The column that decides.
    maximise : bool
    """

    def badness(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = float(row[objective])
        if math.isnan(value):
            return True, 0.0
        return False, -value if maximise else value

    return sorted(rows, key=badness)


def _cell(value: Any) -> Any:
    # repr of a float is the shortest text that reads back as the same number.
    if isinstance(value, float):
        return repr(float(value))  # NumPy's repr names the type
    if isinstance(value, (list, tuple)):
        return "x".join(str(item) for item in value)
    return value
