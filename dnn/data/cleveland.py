"""The heart disease data of the Cleveland Clinic, from the file that UCI distributes."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from dnn.data.dataset import Dataset
from dnn.errors import DataError

__all__ = ["load_cleveland"]

ATTRIBUTES = 13


def load_cleveland(path: str | PathLike[str]) -> Dataset:
    """Read ``processed.cleveland.data``.

    Parameters
    ----------
    path : path
        The file: a row a patient, 13 attributes and a diagnosis 0 .. 4, ``?`` where a cell is
        missing.

    Returns
    -------
    Dataset
        x (303, 13) with NaN for a missing cell; class 1 where the diagnosis is 1 .. 4, as the
        data are commonly scored.

    Raises
    ------
    DataError
        If the file is missing, or a row is malformed; it names the line.

    References
    ----------
    .. [1] Detrano et al., International application of a new probability algorithm for the
       diagnosis of coronary artery disease, American Journal of Cardiology 64, 1989.
    """
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise DataError(f"{path}: no rows")
    table = np.array(rows)
    x, diagnosis = table[:, :-1], table[:, -1]
    return Dataset(x.astype(np.float32), (diagnosis > 0).astype(np.intp), 2, "cleveland")


def _row(path: str | PathLike[str], number: int, line: str) -> list[float]:
    cells = line.split(",")
    if len(cells) != ATTRIBUTES + 1:
        raise DataError(f"{path}, line {number}: {len(cells)} cells, not {ATTRIBUTES + 1}")
    try:
        row = [float("nan") if cell.strip() == "?" else float(cell) for cell in cells]
    except ValueError as error:
        raise DataError(f"{path}, line {number}: {error}") from error
    if row[-1] not in range(5):
        raise DataError(f"{path}, line {number}: the diagnosis {cells[-1]!r} is not 0 .. 4")
    return row
