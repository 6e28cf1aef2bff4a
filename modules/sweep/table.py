"""``results.csv``: a row for each trial, in the order in which they were recorded."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Table:
    """Writes rows of a fixed set of columns, many at a time.

    Parameters
    ----------
    path : Path
        Written anew.
    columns : sequence of str
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._file = path.open("w", encoding="utf-8", errors="replace", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(self.columns)
        self._file.flush()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; they are in the file when this returns. What a row lacks stays empty."""
        columns = self.columns
        self._csv.writerows([[cell(row.get(column)) for column in columns] for row in rows])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cell(value: Any) -> Any:
    """Return what stands in a cell: ``64x32`` or ``none`` for a list, floats to the last digit."""
    if type(value) is float or type(value) is int or type(value) is str:
        return value
    if isinstance(value, float):
        return repr(float(value))  # NumPy's repr names the type
    if isinstance(value, (list, tuple)):
        return "x".join(str(item) for item in value) or "none"  # empty means absent
    return value
