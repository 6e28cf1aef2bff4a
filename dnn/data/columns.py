"""Columns of a table: which of them a network was trained on, found again in new rows.

New rows are a file, a mapping of columns, a frame or an array. Columns with names are matched by
name, in any order; what else a file holds, such as a number of a patient, is left unread. Texts
become the codes that they had in the table of the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from os import PathLike
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.data.column_kinds import KINDS, TRUTHS_OF_LABELS, Column, Wanted, plain_text, recoded
from dnn.data.table_readers import TextSource, open_table
from dnn.errors import DataError
from dnn.table import number_of

__all__ = ["Columns", "NewRows", "read_rows"]

TIME: Final = "time"
"""The kind of a feature that is the time of day of the date before it."""


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
    kinds : tuple of str
        Of each feature: one of `dnn.data.column_kinds.KINDS`, or ``"time"``, the time of day of the
        date before it. Empty if all are numbers.
    categories : mapping of str to tuple of str
        The categories of each feature that has such, in the order of their codes; the code of any
        other text is their number.
    incomplete : tuple of str
        The features that have missing cells in the table.
    dates : mapping of str to str
        The formats of dates that are not as ISO 8601 wants them.
    renamed : mapping of str to str
        The names here of columns that have others in files.
    has_names : bool
        Whether the features have names; else they are the numbers of columns, from 1.
    targets, targets_at : tuple of str, tuple of int
        The columns of the numbers that are predicted, in the place of a label; names are empty
        where they have none.
    decimal : str
        What stands before the decimals of numbers.
    separator : str
        What separates several labels in the cells of their column; `labels` has their places then.
    """

    features: tuple[str, ...] = ()
    label: str = ""
    label_at: int = -1
    delimiter: str = ","
    missing: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()
    dates: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    has_names: bool = True
    targets: tuple[str, ...] = ()
    targets_at: tuple[int, ...] = ()
    separator: str = ""
    decimal: str = "."

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
        known = {
            each.name: _plain_value(each.name, str(each.type), given[each.name])
            for each in fields(cls)
            # Models of tables of numbers alone may be older than the other fields.
            if each.name in given or each.name in _OF_ALL
        }
        found = cls(**known)
        if len(found.delimiter) != 1:
            raise TypeError("delimiter is one character")
        kinds = found.kinds
        if kinds and (not {*kinds} <= {*KINDS, TIME} or len(kinds) != len(found.features)):
            raise ValueError("each feature has one of the known kinds")
        return found

    @property
    def sources(self) -> tuple[str, ...]:
        """The features that are columns of a file: a time of day is in that of its date."""
        if not self.kinds:
            return self.features
        pairs = zip(self.features, self.kinds, strict=True)
        return tuple(name for name, kind in pairs if kind != TIME)

    def labels_in(self, cell: str) -> list[float]:
        """Return 0 or 1 for each label, of which a cell has several; NaN if one is not known."""
        named = {part for part in map(str.strip, cell.split(self.separator)) if part}
        if not named <= self.labels.keys():
            return [np.nan] * len(self.labels)
        return [float(label in named) for label in self.labels]

    def class_of(self, text: str) -> int | None:
        """Return the class of a label as a file has it; None if it is none."""
        number = number_of(text)
        if self.labels:
            known = self.labels.get(plain_text(text.strip()))
            if known is None and number is not None and number % 1 == 0:
                known = self.labels.get(str(int(number)))
            return known
        return int(number) if number is not None and number >= 0 and number % 1 == 0 else None


_OF_ALL: Final = ("features", "label", "label_at", "delimiter", "missing", "labels")


def _plain_value(name: str, kind: str, given: Any) -> Any:
    """Return a value of JSON as a field of an annotated kind has it; a TypeError if it is none."""
    is_table, is_list = kind.startswith("Mapping[str, "), kind.startswith("tuple[")
    wanted = "dict" if is_table else "list" if is_list else kind
    if type(given).__name__ != wanted:
        raise TypeError(f"{name}: a {wanted} is wanted, not a {type(given).__name__}")
    if is_table:
        of = kind[len("Mapping[str, ") : -1]
        return {key: _plain_value(name, of, each) for key, each in given.items()}
    if is_list:
        of = kind[len("tuple[") : -len(", ...]")]
        return tuple(_plain_value(name, of, each) for each in given)
    return given


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
    are_files : bool
        Whether each row is a file, and its cell the name of that.
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
    are_files: bool = False

    def place(self, row: int) -> str:
        """Return where a row stands, for people: its line of a file, or its number."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"


_SHOWN: Final = 8
_LARGEST: Final = float(np.finfo(np.float32).max)


def read_rows(
    source: Any, columns: Columns | None, features: int, delimiter: str | None = None
) -> NewRows:
    """Return the rows of a file, of a mapping of columns or of a data frame.

    `columns` are those that the network was trained on; without, columns are taken by their places.
    `features` are those of a sample; a file has the `delimiter` of the training if that is left
    out, unless its name says otherwise.

    Raises
    ------
    DataError
        If a column is missing, or a cell is not of its kind; it names the file, the line and the
        column.
    """
    known = columns or Columns()
    is_file = isinstance(source, (str, PathLike))
    in_files = {name: old for old, name in known.renamed.items()}
    # A first row of texts alone looks like names, and is none where no table has any.
    are_texts = bool(known.kinds) and not known.has_names and "number" not in known.kinds
    table = open_table(
        source,
        delimiter=delimiter,
        header=False if are_texts else None,
        # A table of another kind marked its missing cells in its own way.
        missing=known.missing or (("",) if known.incomplete else ()),
        decimal=known.decimal,
        usual=known.delimiter,
        names=[in_files.get(name, name) for name in known.sources if known.has_names],
        keeps_rows=True,
    )
    names = tuple(known.renamed.get(name, name) for name in table.names)
    places, answers, notes = _places(table.where, names, known, features, table.has_names)
    wanted = {at: _wanted(known, number) for number, at in enumerate(places)}
    found = dict(zip(wanted, table.read(wanted), strict=True))
    x, unknown = _coded([found[at] for at in places], known)
    notes += [_note_of_unknown(table.where, name, counts) for name, counts in unknown.items()]
    if (np.abs(x) > _LARGEST).any():
        row, at = (int(i) for i in np.argwhere(np.abs(x) > _LARGEST)[0])
        name = known.features[at] if known.features else names[places[at]]
        raise DataError(f"{table.place(row)}, column {name!r}: {x[row, at]:g} is too large")
    given = table.texts(answers)
    rows = NewRows(
        x,
        names=table.names if is_file and table.has_names else (),
        cells=table.rows() if is_file else (),
        lines=table.lines.tolist() if isinstance(table, TextSource) else (),
        notes=notes,
    )
    if not given:
        return rows
    if known.targets_at:
        targets = [[_answer(cell.replace(known.decimal, ".")) for cell in each] for each in given]
        return replace(rows, targets=np.array(targets, np.float64).T)
    if known.separator:
        return replace(rows, targets=np.array([known.labels_in(cell) for cell in given[0]]))
    return replace(rows, labels=given[0])


def _answer(cell: str) -> float:
    """Return the number in a cell of a target, or of a label that is true or false; else NaN."""
    number = TRUTHS_OF_LABELS.get(cell.lower(), number_of(cell))
    return np.nan if number is None else number


def _note_of_unknown(where: str, name: str, counts: Mapping[str, int]) -> str:
    texts = ", ".join(f"{text!r} ({count:,})" for text, count in [*counts.items()][:_SHOWN])
    more = " ..." if len(counts) > _SHOWN else ""
    count = sum(counts.values())
    cells = "a cell holds a category" if count == 1 else f"{count:,} cells hold categories"
    return (
        f"{where}: column {name!r}: {cells} that the table of the training had not, taken as "
        f"unknown: {texts}{more}"
    )


def _wanted(columns: Columns, source: int) -> Wanted:
    """Return as what the column of a source is to be read in new rows."""
    marks = " or ".join(map(repr, columns.missing)).replace("{", "{{").replace("}", "}}")
    hint = " (the network was trained on a table without missing cells)"
    if marks:
        hint = f" (missing cells are written {marks})"
    if not columns.kinds:
        return Wanted("number", "", hint, hint)
    kinds = [kind for kind in columns.kinds if kind != TIME]
    return Wanted(kinds[source], columns.dates.get(columns.sources[source], ""), hint, hint)


def _coded(found: Sequence[Column], columns: Columns) -> tuple[Array, dict[str, Mapping[str, int]]]:
    """Return columns as rows of numbers, and the categories of each that are not known."""
    kinds = columns.kinds or ("number",) * len(found)
    x = np.empty((len(found[0].values), len(kinds)))
    others: dict[str, Mapping[str, int]] = {}
    sources = iter(found)
    column = found[0]
    for at, kind in enumerate(kinds):
        if kind == TIME:
            zero = np.where(np.isnan(column.values), np.nan, 0.0)
            x[:, at] = zero if column.seconds is None else column.seconds
            continue
        column = next(sources)
        x[:, at] = column.values
        if kind == "category":
            name = columns.features[at]
            x[:, at], counts = recoded(column, columns.categories.get(name, ()))
            if counts:
                others[name] = counts
    return x, others


def _places(
    where: str, names: Sequence[str], columns: Columns, features: int, are_names: bool
) -> tuple[list[int], list[int], list[str]]:
    """Return the places of the sources among columns, those of what is predicted, and notes."""
    wanted, (predicted, places) = columns.sources, columns.answers
    count = len(wanted) or features
    if not (wanted and are_names and columns.has_names):
        if len(names) == count:
            return [*range(count)], [], []
        if places and max(places) < len(names) == count + len(places):
            return [at for at in range(len(names)) if at not in places], [*places], []
        # Those of a table without names, of which some were left out, are known by their numbers.
        if not wanted or (are_names and columns.has_names) or not {*wanted} <= {*names}:
            raise DataError(f"{where}: {_count_wanted(names, columns, count, are_names)}")
    missing = [name for name in wanted if name not in names]
    if missing:
        others = [name for name in names if name not in wanted]
        near = get_close_matches(missing[0], others, 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        several = "column" if len(missing) == 1 else f"{len(missing)} columns"
        problem = f"{several} {_few(map(repr, missing))} missing{hint}"
        raise DataError(f"{where}: {problem} (there are: {_few(names)})")
    twice = [name for name in wanted if list(names).count(name) > 1]
    if twice:
        raise DataError(f"{where}: there are two columns {twice[0]!r}")
    order = list(names)
    answers = [order.index(name) for name in predicted] if {*predicted} <= {*names} else []
    left = [n for n in names if n not in wanted and n not in predicted]
    notes = [f"{where}: the network was not trained on {_few(left)}: not read"] if left else []
    return [order.index(name) for name in wanted], answers, notes


def _count_wanted(names: Sequence[str], columns: Columns, count: int, are_names: bool) -> str:
    """Return what is wrong with the number of columns, and what helps."""
    wanted = f"{count} columns are wanted"
    if places := columns.answers[1]:
        what = "targets" if columns.targets_at else "label"
        at = ", ".join(str(place + 1) for place in places)
        wanted += f", or {count + len(places)} with the {what} in column {at}"
    how = "" if are_names else ", without names"
    first = f": begin the file with the names {_few(columns.features)}" if columns.features else ""
    return f"there are {len(names)} columns{how}, and {wanted}{first}"


def _few(names: Iterable[str]) -> str:
    """Return the first of several names, for a message."""
    several = [*names]
    return ", ".join(several[:_SHOWN]) + (" ..." if len(several) > _SHOWN else "")
