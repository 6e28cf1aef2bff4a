"""Columns of a table: which of them a network was trained on, found again in new rows.

New rows are a file, a mapping of columns, a frame or an array. Columns with names are matched by
name, in any order; what else a file holds, such as a number of a patient, is left unread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.errors import DataError
from dnn.table import check_delimiter, holds_number, number_of, rows_of

__all__ = ["Columns", "NewRows", "read_rows"]


@dataclass(frozen=True)
class Columns:
    """The columns of the table that samples were read from, and how it was written.

    Attributes
    ----------
    features : tuple of str
        In the order of a sample; empty where the table had no names.
    label : str
        The column of the labels; empty where it has no name.
    label_at : int
        Its place among all columns, from 0.
    delimiter : str
    missing : tuple of str
        What stands for a missing cell.
    labels : mapping of str to int
        The class of each label, where that is not the label itself.
    targets, targets_at : tuple of str, tuple of int
        The columns of the numbers that are predicted, in the place of a label; names are empty
        where they have none.
    """

    features: tuple[str, ...] = ()
    label: str = ""
    label_at: int = -1
    delimiter: str = ","
    missing: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    targets_at: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values; those of targets only if there are some."""
        found = asdict(self)
        if not self.targets_at:
            del found["targets"], found["targets_at"]
        return found

    @property
    def answers(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and places of the columns that are predicted."""
        if self.targets_at:
            return self.targets, self.targets_at
        return (self.label,) * bool(self.label), (self.label_at,) * (self.label_at >= 0)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Columns:
        """Return columns from plain values; KeyError, TypeError or ValueError if they are wrong."""
        texts = {name: given[name] for name in ("label", "delimiter")}
        lists = {name: given[name] for name in ("features", "missing")}
        lists["targets"] = given.get("targets", [])
        targets_at = given.get("targets_at", [])
        label_at, labels = given["label_at"], given["labels"]
        if (
            not all(isinstance(each, str) for each in texts.values())
            or len(given["delimiter"]) != 1
        ):
            raise TypeError("label and delimiter are texts, the latter of one character")
        for name, each in lists.items():
            if not isinstance(each, list) or not all(isinstance(text, str) for text in each):
                raise TypeError(f"{name} is a list of texts")
        if type(label_at) is not int or not isinstance(labels, dict):
            raise TypeError("label_at is a number, and labels a table")
        if not isinstance(targets_at, list) or not all(type(at) is int for at in targets_at):
            raise TypeError("targets_at are numbers")
        if not all(type(each) is int for each in labels.values()):
            raise TypeError("labels are numbers of classes")
        return cls(
            features=tuple(given["features"]),
            label=given["label"],
            label_at=label_at,
            delimiter=given["delimiter"],
            missing=tuple(given["missing"]),
            labels=labels,
            targets=tuple(lists["targets"]),
            targets_at=tuple(targets_at),
        )

    def class_of(self, text: str) -> int | None:
        """Return the class of a label as a file has it; None if it is none."""
        if self.labels:
            return self.labels.get(_plain(text.strip()))
        number = _number(text)
        return int(number) if number is not None and number >= 0 and number % 1 == 0 else None


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows to be predicted.

    Attributes
    ----------
    x : array, shape (n, features)
        As they were given; NaN where a cell is missing.
    labels : list of str, optional
        The cells of the column of the labels, if it is there.
    targets : array of float64, shape (n, targets), optional
        The cells of the columns of the targets, if they are there; NaN where one is no number.
    names : tuple of str
        All columns of a file; empty if it names none.
    cells : list of list of str
        All cells of a file.
    lines : list of int
        Where each row stands in a file.
    notes : list of str
        What was left unread, for people.
    """

    x: Array
    labels: list[str] | None = None
    names: tuple[str, ...] = ()
    cells: Sequence[Sequence[str]] = ()
    lines: Sequence[int] = ()
    notes: Sequence[str] = ()
    targets: Array | None = None

    def place(self, row: int) -> str:
        """Return where a row stands, for people: its line of a file, or its number."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"


_SHOWN: Final = 8
_DELIMITERS: Final = ",;\t|"
_LARGEST: Final = float(np.finfo(np.float32).max)


def read_rows(
    source: Any, columns: Columns | None, features: int, delimiter: str | None = None
) -> NewRows:
    """Return the rows of a file, of a mapping of columns or of a data frame.

    `columns` are those that the network was trained on; without, columns are taken by their places.
    `features` are those of a sample; a file has the `delimiter` of the training if that is left
    out.

    Raises
    ------
    DataError
        If a column is missing, or a cell is no number; it names the file, the line and the column.
    """
    known = columns or Columns()
    if isinstance(source, (str, PathLike)):
        chosen = known.delimiter if delimiter is None else delimiter
        return _of_file(Path(source), known, features, chosen)
    names = [str(name) for name in (source if isinstance(source, Mapping) else source.columns)]
    where = f"the {'table' if isinstance(source, Mapping) else 'frame'}"
    by_name = dict(
        zip(names, source if isinstance(source, Mapping) else source.columns, strict=True)
    )
    places, answers, notes = _places(where, names, known, features)
    arrays = [np.asarray(source[by_name[names[at]]]) for at in places]
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        shapes = sorted({array.shape for array in arrays})
        raise DataError(f"{where}: columns are vectors of one length, and these are {shapes}")
    x = np.empty((len(arrays[0]), len(arrays)))
    for at, (place, array) in enumerate(zip(places, arrays, strict=True)):
        x[:, at] = _numbers_of(where, names[place], array, known.missing)
    cells = [np.asarray(source[by_name[names[at]]]).tolist() for at in answers]
    if known.targets_at:
        return NewRows(x, notes=notes, targets=_targets_of(cells))
    labels = [str(_plain(each)) for each in cells[0]] if cells else None
    return NewRows(x, labels, notes=notes)


def _targets_of(columns: Sequence[Sequence[Any]]) -> Array | None:
    """Return the numbers in the columns of targets, NaN where a cell is none."""
    if not columns:
        return None
    numbers = [[_number(cell) for cell in column] for column in columns]
    found: Array = np.array(numbers, np.float64).T  # of None it makes NaN
    return found


def _numbers_of(where: str, name: str, array: Array, missing: Collection[str]) -> Array:
    if array.dtype.kind in "fiub":
        return array
    found = np.empty(len(array))
    for row, cell in enumerate(array.tolist()):
        is_missing = cell is None or (isinstance(cell, str) and cell.strip() in missing)
        number = np.nan if is_missing else _number(cell)
        if number is None:
            raise DataError(f"{where}, row {row}, column {name!r}: {cell!r:.100} is no number")
        found[row] = number
    return found


def _of_file(path: Path, columns: Columns, features: int, delimiter: str) -> NewRows:
    first, rows, is_named = _rows_below_names(path, columns, delimiter)
    width = len(first)
    names = tuple(name.strip() for name in first) if is_named else ()
    shown = names or tuple(str(number) for number in range(1, width + 1))
    try:
        places, answers, notes = _places(str(path), shown, columns, features, is_named)
    except DataError as error:
        raise DataError(f"{error}{_hint_of_delimiter(first, delimiter)}") from None
    x = np.empty((len(rows), len(places)))
    for at, (line, row) in enumerate(rows):
        if len(row) != width:
            raise DataError(f"{path}, line {line}: {len(row)} cells, not {width}")
        for column, place in enumerate(places):
            x[at, column], problem = _finite(row[place].strip(), columns.missing)
            if problem:
                raise DataError(f"{path}, line {line}, column {shown[place]!r}: {problem}")
    given = [[row[at].strip() for _, row in rows] for at in answers]
    cells, lines = [row for _, row in rows], [line for line, _ in rows]
    if columns.targets_at:
        return NewRows(x, None, names, cells, lines, notes, _targets_of(given))
    return NewRows(x, given[0] if given else None, names, cells, lines, notes)


def _rows_below_names(
    path: Path, columns: Columns, delimiter: str
) -> tuple[list[str], list[tuple[int, list[str]]], bool]:
    """Return a file's first row, the rows of numbers, and whether the first holds names."""
    check_delimiter(delimiter)
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file of rows: a CSV file is wanted")
    rows = rows_of(path, delimiter)
    if not rows:
        raise DataError(f"{path}: no rows")
    first = rows[0][1]
    # Names of columns may be numbers, as those of pixels: then they are known.
    is_known = bool(columns.features) and set(columns.features) <= {name.strip() for name in first}
    is_named = is_known or not any(holds_number(cell, columns.missing) for cell in first)
    if is_named and len(rows) == 1:
        raise DataError(f"{path}: no rows below the names of the columns")
    return first, rows[is_named:], is_named


def _finite(cell: str, marks: Sequence[str]) -> tuple[float, str]:
    """Return the number of a cell, NaN if it is missing, and what is wrong with it, or ""."""
    if cell in marks:
        return np.nan, ""
    number = _number(cell)
    if number is None or not np.isfinite(number):
        problem = f"{cell!r} is no finite number" if cell else "the cell is empty"
        return np.nan, f"{problem}{_hint(marks)}"
    return number, f"{cell} is too large" if abs(number) > _LARGEST else ""


def _hint(marks: Sequence[str]) -> str:
    if marks:
        return f" (missing cells are written {' or '.join(map(repr, marks))})"
    return " (the network was trained on a table without missing cells)"


def _hint_of_delimiter(first: Sequence[str], delimiter: str) -> str:
    """Return a text on another delimiter, if the first line of a file is one cell with such."""
    if len(first) > 1:
        return ""
    others = [other for other in _DELIMITERS if other != delimiter and other in first[0]]
    return (
        f"; its cells are separated by {others[0]!r}? say delimiter {others[0]!r}" if others else ""
    )


def _places(
    where: str, names: Sequence[str], columns: Columns, features: int, are_names: bool = True
) -> tuple[list[int], list[int], list[str]]:
    """Return the places of the features among columns, those of what is predicted, and notes."""
    if not columns.features or not are_names:
        return _by_place(where, names, columns, features, are_names)
    missing = [name for name in columns.features if name not in names]
    if missing:
        others = [name for name in names if name not in columns.features]
        near = get_close_matches(missing[0], others, 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        count = "column" if len(missing) == 1 else f"{len(missing)} columns"
        problem = f"{count} {_few(map(repr, missing))} missing{hint}"
        raise DataError(f"{where}: {problem} (there are: {_few(names)})")
    twice = [name for name in columns.features if list(names).count(name) > 1]
    if twice:
        raise DataError(f"{where}: there are two columns {twice[0]!r}")
    wanted, order = columns.answers[0], list(names)
    answers = [order.index(name) for name in wanted] if {*wanted} <= {*names} else []
    left = [n for n in names if n not in columns.features and n not in wanted]
    notes = [f"{where}: the network was not trained on {_few(left)}: not read"] if left else []
    return [order.index(name) for name in columns.features], answers, notes


def _few(names: Iterable[str]) -> str:
    """Return the first of several names, for a message."""
    several = [*names]
    return ", ".join(several[:_SHOWN]) + (" ..." if len(several) > _SHOWN else "")


def _by_place(
    where: str, names: Sequence[str], columns: Columns, features: int, are_names: bool
) -> tuple[list[int], list[int], list[str]]:
    count, answers = len(names), columns.answers[1]
    if count == features:
        return list(range(count)), [], []
    if answers and count == features + len(answers) and max(answers) < count:
        return [place for place in range(count) if place not in answers], [*answers], []
    wanted = f"{features} columns are wanted"
    if answers:
        what = "targets" if columns.targets_at else "label"
        at = ", ".join(str(place + 1) for place in answers)
        wanted += f", or {features + len(answers)} with the {what} in column {at}"
    how = "" if are_names else ", without names"
    names_first = f": begin the file with the names {_few(columns.features)}"
    remedy = names_first if columns.features else ""
    raise DataError(f"{where}: there are {count} columns{how}, and {wanted}{remedy}")


def _number(cell: Any) -> float | None:
    if isinstance(cell, str):
        return number_of(cell)
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(label: Any) -> Any:
    """Return a label as `Columns.labels` has it: ``1`` for 1.0 and ``"1.0"``."""
    number = _number(label)
    return str(int(number)) if number is not None and number % 1 == 0 else label
