"""Kinds of columns of a table, and how their cells become numbers.

| kind | cells | as numbers |
|---|---|---|
| number | numbers | as they are |
| category | texts, or numbers that are no quantities | the place in a sorted list of categories |
| boolean | true and false | 1 and 0 |
| date | days, ISO 8601 or in a format, perhaps with a time | days since 1970, by UTC |

A date's time of day is a number of its own, in seconds: float32 does not hold both. A missing cell
is NaN. Nothing is learned here that depends on which rows are trained on.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.table import number_of

__all__ = [
    "KINDS",
    "TRUTHS_OF_LABELS",
    "Column",
    "TextCells",
    "Wanted",
    "WrongCell",
    "coded_array",
    "plain_text",
    "recoded",
    "shown",
]

KINDS: Final = ("number", "category", "boolean", "date")

_SHOWN: Final = 60
"""Of a longer cell, messages show the beginning."""
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
TRUTHS: Final = {**_TRUTHS, "1": 1.0, "0": 0.0}
"""What the cells of a column of booleans say, in small letters."""
TRUTHS_OF_LABELS: Final = {
    **TRUTHS,
    **dict.fromkeys(("yes", "y", "t"), 1.0),
    **dict.fromkeys(("no", "n", "f"), 0.0),
}
"""What the cells of a column of one label say: features of such texts are categories."""
_DATE: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
)
_FRACTION: Final = re.compile(r"\.(\d{1,6})\d*")
_OTHER_DATE: Final = re.compile(r"(\d{1,4})([./-])\d{1,2}\2(\d{1,4})(?:[T ].*)?")
_WHOLE: Final = re.compile(r"([+-]?\d+)\.0*")
_BARE_KEY: Final = re.compile("[A-Za-z0-9_-]+")  # of TOML: others are in quotes
_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS: Final = re.compile(
    r"[+-]?\d{1,3}([.,'\u2019 \u00a0\u202f])\d{3}(?:\1\d{3})*(?:[.,]\d+)?"
)
_WITH_UNIT: Final = re.compile(r"[$€£¥]\s?[+-]?\d[\d.,]*|[+-]?\d[\d.,]*\s?[%$€£¥]")
_COMMA_TO_POINT: Final = str.maketrans({",": ".", ".": "_"})


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table, coded as numbers.

    Attributes
    ----------
    name : str
    kind : {"number", "category", "boolean", "date"}
    values : array of float64, shape (n,)
        NaN where a cell is missing.
    categories : tuple of str
        Of a category; `values` are places in it.
    seconds : array of float64, shape (n,), optional
        The time of day of each date, if any has one.
    """

    name: str
    kind: str
    values: Array
    categories: tuple[str, ...] = ()
    seconds: Array | None = None

    @property
    def codes(self) -> Array:
        """The places of categories as integers; their number where one is missing."""
        return np.where(np.isnan(self.values), len(self.categories), self.values).astype(np.intp)

    @property
    def texts(self) -> Array:
        """The categories of the rows as texts, "" where one is missing."""
        return np.array([*self.categories, ""], object)[self.codes]


class WrongCell(Exception):
    """A cell that is none of its column's.

    Attributes
    ----------
    row : int
        Its place among the rows that were read.
    problem : str
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(row, problem)
        self.row, self.problem = row, problem


def shown(cell: str) -> str:
    """Return a cell in quotes, a long one shortened."""
    return repr(_short(cell))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def plain_text(cell: str) -> str:
    """Return a category as lists of them have it: ``"1"`` for ``"1.0"``, and ``"01"`` as it is."""
    found = _WHOLE.fullmatch(cell)
    return found[1] if found else cell


def _order(category: str) -> tuple[bool, float, str]:
    number = number_of(category)
    return number is None, 0.0 if number is None else number, category


def _problem_of_number(name: str, cell: str, wanted: Wanted) -> str:
    """Return why a cell of a column of numbers is none, with a remedy; empty if it is one."""
    number = number_of(cell)
    if number is not None and math.isfinite(number):
        return ""
    if not cell or (number is not None and math.isnan(number)):
        what = "the cell is empty" if not cell else f"{shown(cell)} is not finite"
        remedy = wanted.if_missing
    elif number is None:
        what, remedy = f"{shown(cell)} is no number", wanted.if_text
    else:
        return f"{shown(cell)} is not finite"
    return what + remedy.format(cell=_quoted(cell), name=_quoted(name))


def _quoted(text: str) -> str:
    return f'"{_short(text)}"'


def _dates_of(name: str, texts: Sequence[str]) -> str:
    """Return the option that says the format of dates, as these texts suggest it."""
    key = name if _BARE_KEY.fullmatch(name) else _quoted(name)
    found = [each for text in texts if (each := _OTHER_DATE.fullmatch(text))]
    form = "%d.%m.%Y"
    if found:
        first, sign, last = found[0].groups()
        order = ["%d", "%m", "%Y" if len(last) == 4 else "%y"]
        if len(first) == 4:
            order = ["%Y", "%m", "%d"]
        elif sign == "/" and all(int(each[1]) <= 12 for each in found):
            order[:2] = "%m", "%d"
        form = sign.join(order)
    return f'dates = {{ {key} = "{form}" }}'


@dataclass(frozen=True)
class Wanted:
    """As what a column is to be read.

    Attributes
    ----------
    kind : str, optional
        By default numbers are numbers, other texts what they can be read as: booleans, dates or
        else categories. ``"label"``: numbers are numbers, and all other texts categories.
    date_format : str
        As of `datetime.strptime`; ISO 8601 if empty.
    if_missing, if_text : str
        What messages add where a number is wanted and a cell is empty, or no number; ``{cell}`` and
        ``{name}``, of the column, are replaced.
    """

    kind: str | None = None
    date_format: str = ""
    if_missing: str = "; if such cells are missing, say missing = [{cell}]"
    if_text: str = (
        "; say missing = [{cell}] if it stands for a missing cell, or categories = [{name}] if the "
        "column holds categories"
    )


class TextCells:
    """Codes the cells of a column that are texts, block by block.

    Parameters
    ----------
    name : str
    wanted : Wanted
    missing : collection of str
        Texts that stand for a missing cell.
    decimal : str
        What stands before the decimals of numbers.
    """

    def __init__(
        self, name: str, wanted: Wanted, missing: Collection[str] = (), decimal: str = "."
    ) -> None:
        self.name = name
        self._decimal = decimal
        self._missing = frozenset(missing)
        self._marks = _numbers_among(self._missing)
        self._kind, self._wanted = wanted.kind, wanted
        # None until a cell that is not missing has been seen.
        self._are_texts = None if self._kind in (None, "label") else self._kind != "number"
        self._codes: dict[str, int] = {}
        self._parts: list[Array] = []
        self._rows = 0

    def add(self, cells: Sequence[str]) -> None:
        """Code the next cells; a `WrongCell` if one is not of the column's kind."""
        part = None if self._are_texts else self._numbers(cells)
        if part is not None:
            if self._are_texts is None and not np.isnan(part).all():
                self._are_texts = False
        else:
            texts = [cell.strip() for cell in cells]
            if self._are_texts is None:
                self._are_texts = not any(
                    self._number(text) is not None for text in texts if text not in self._missing
                )
            if not self._are_texts:
                raise self._wrong_number(texts)
            part = self._coded(texts)
        self._parts.append(part)
        self._rows += len(cells)

    def _numbers(self, cells: Sequence[str]) -> Array | None:
        """Return cells as numbers; None if a cell is none, and does not stand for a missing one."""
        if not self._marks and (values := self._floats(cells)) is not None:
            return values
        if not self._missing:
            return None
        is_missing = np.array([cell.strip() in self._missing for cell in cells], bool)
        values = self._floats(
            ["0" if gone else cell for gone, cell in zip(is_missing, cells, strict=True)]
        )
        if values is not None:
            values[is_missing | np.isin(values, self._marks)] = np.nan
        return values

    def _floats(self, cells: Sequence[str]) -> Array | None:
        """Return cells that all are finite numbers; None if one is not."""
        plain = cells if self._decimal == "." else [*map(self._with_point, cells)]
        if "_" in "".join(plain):  # 1_000 is no number, though Python reads one
            return None
        try:
            values = np.fromiter(map(float, plain), np.float64, len(cells))
        except ValueError:
            return None
        return values if np.isfinite(values).all() else None

    def _number(self, text: str) -> float | None:
        return number_of(self._with_point(text))

    def _with_point(self, cell: str) -> str:
        """Return a cell as Python reads numbers; where a comma is wanted, a point makes it none."""
        return cell if self._decimal == "." else cell.translate(_COMMA_TO_POINT)

    def _wrong_number(self, texts: Sequence[str]) -> WrongCell:
        for row, text in enumerate(texts):
            number = self._number(text)
            if text in self._missing or (number is not None and math.isfinite(number)):
                continue
            if _THOUSANDS.fullmatch(text):
                problem = f"{shown(text)} is no number: write it without separators of thousands"
            elif number is None and self._decimal != "." and number_of(text) is not None:
                problem = f'{shown(text)} has a point, and decimal = "," was said'
            else:
                problem = _problem_of_number(self.name, text, self._wanted)
            return WrongCell(self._rows + row, problem)
        raise AssertionError(f"no cell of {self.name!r} is wrong")

    def _coded(self, texts: Sequence[str]) -> Array:
        codes, first = self._codes, len(self._codes)
        part = np.array([codes.setdefault(text, len(codes)) for text in texts], np.float64)
        for text in [*codes][first:]:
            problem = ""
            if not text:
                problem = _problem_of_number(self.name, text, self._wanted)
            elif self._kind in (None, "label") and self._number(text) is not None:
                problem = (
                    f"{shown(text)} is a number among texts; say missing = [{_quoted(text)}] if it "
                    f"stands for a missing cell, or categories = [{_quoted(self.name)}]"
                )
            if problem and text not in self._missing:
                raise WrongCell(self._rows + int(np.argmax(part == codes[text])), problem)
        for text in self._missing & codes.keys():
            part[part == codes[text]] = np.nan
        return part

    def finish(self) -> Column:
        """Return the column; a `WrongCell` if a cell is not what its kind wants."""
        values = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts = []
        if not self._are_texts:
            return Column(self.name, "number", values)
        texts = [text for text in self._codes if text not in self._missing]
        kind = self._kind or self._kind_of(texts, values)
        if kind == "boolean":
            wanted = "neither true nor false"
            coded = self._looked_up(values, lambda text: TRUTHS[text.lower()], wanted)
            return Column(self.name, kind, coded)
        if kind == "date":
            form = self._wanted.date_format
            wanted = f"no date in the format {form!r}"
            if not form:
                other = _dates_of(self.name, texts)
                wanted = f"no date such as 2024-05-31; for another format say {other}"
            moments = self._looked_up(values, lambda text: _moment(text, form), wanted, _NO_MOMENT)
            return _dated(self.name, moments)
        categories = sorted({plain_text(text) for text in texts}, key=_order)
        places = {category: float(place) for place, category in enumerate(categories)}
        coded = self._looked_up(values, lambda text: places[plain_text(text)])
        return Column(self.name, "category", coded, tuple(categories))

    def _kind_of(self, texts: Sequence[str], values: Array) -> str:
        if all(text.lower() in _TRUTHS for text in texts):
            return "boolean"
        if all(_DATE.fullmatch(text) for text in texts):
            return "date"
        remedies = []
        if all(_OTHER_DATE.fullmatch(text) for text in texts):
            remedies.append(f"say {_dates_of(self.name, texts)}, or whatever the format is")
        if self._decimal == "." and all(_DECIMAL_COMMA.fullmatch(text) for text in texts):
            remedies.append('say decimal = "," if the comma stands before decimals')
        if all(_THOUSANDS.fullmatch(text) for text in texts):
            remedies.append("write numbers without separators of thousands")
        if all(_WITH_UNIT.fullmatch(text) for text in texts):
            remedies.append("write numbers without their unit")
        if remedies:
            row = int(np.argmax(~np.isnan(values)))
            remedies.append(f"or categories = [{_quoted(self.name)}] if these are categories")
            raise WrongCell(row, f"{shown(texts[0])} is no number; {', '.join(remedies)}")
        return "category"

    def _looked_up(
        self, codes: Array, value: Callable[[str], Any], wanted: str = "", absent: Any = np.nan
    ) -> Array:
        """Return what a function gives for the text of each code, `absent` for a missing cell.

        A `WrongCell` that says what is wanted where it raises an error.
        """
        found = np.full(len(self._codes) + 1, absent)
        for text, code in self._codes.items():
            if text in self._missing:
                continue
            try:
                found[code] = value(text)
            except (KeyError, ValueError, OverflowError):
                row = int(np.argmax(codes == code))
                raise WrongCell(row, f"{shown(text)} is {wanted}") from None
        return found[np.where(np.isnan(codes), len(self._codes), codes).astype(np.intp)]


_NO_MOMENT: Final = np.datetime64("NaT", "us")


def _moment(text: str, date_format: str) -> np.datetime64:
    """Return the moment of a date, by UTC where it has an offset; ValueError if it is none."""
    if date_format:
        moment = datetime.datetime.strptime(text, date_format)
    else:
        if not _DATE.fullmatch(text):
            raise ValueError(text)
        if len(text) > 16:  # forms that Python reads from 3.11 on
            text = text.replace("Z", "+00:00")
            text = _FRACTION.sub(lambda match: f".{match[1]:0<6s}", text)
            if text[-5] in "+-":
                text = f"{text[:-2]}:{text[-2:]}"
        moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return np.datetime64(moment, "us")


def _dated(name: str, moments: Array) -> Column:
    """Return a column of dates, with seconds if any date has a time of day."""
    moments = moments.astype("datetime64[us]")
    days = moments.astype("datetime64[D]")
    gone = np.isnat(moments)
    values = np.where(gone, np.nan, days.astype(np.int64).astype(np.float64))
    seconds = np.where(gone, np.nan, (moments - days).astype(np.int64) / 1e6)
    return Column(name, "date", values, seconds=seconds if np.nansum(seconds) else None)


def _numbers_among(marks: Collection[str]) -> list[float]:
    """Return the marks of missing cells that are numbers: -999.0 is missing where -999 is."""
    return [number for mark in marks if (number := number_of(mark)) is not None]


_ABSENT: Final = "\0absent"
"""In place of a cell that a frame or an array marks as missing."""


def coded_array(name: str, given: Any, wanted: Wanted, missing: Collection[str] = ()) -> Column:
    """Return a column of a frame or of a mapping: an array, a list or a series.

    The parameters are those of `TextCells`. A `WrongCell` if a cell is not of the column's kind, a
    ValueError if the column is no vector.
    """
    kind = wanted.kind
    if kind is None and hasattr(getattr(given, "dtype", None), "categories"):  # of pandas
        kind = "category"
        wanted = replace(wanted, kind=kind)
    array = np.asarray(given)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} has the shape {array.shape}, and is to be a vector")
    of = array.dtype.kind
    if of == "m":
        raise ValueError(f"column {name!r} holds durations: give them as numbers, such as seconds")
    if of == "M" and kind in (None, "date"):
        return _dated(name, array)
    if of in "iuf" and kind in (None, "label", "number"):
        values = array.astype(np.float64)
        values[np.isin(values, _numbers_among(missing))] = np.nan
        return Column(name, "number", values)
    if of == "b" and kind in (None, "number", "boolean"):
        # As a number only where the network was trained on a column of numbers.
        return Column(name, kind or "boolean", array.astype(np.float64))
    if of in "iuf" and kind == "boolean" and np.isin(array[~_is_nan(array)], (0, 1)).all():
        return Column(name, kind, array.astype(np.float64))
    cells = [_text_of(name, row, cell) for row, cell in enumerate(array.tolist())]
    coder = TextCells(name, wanted, {*missing, _ABSENT})
    coder.add(cells)
    return coder.finish()


def _is_nan(array: Array) -> Array:
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), bool)


def _text_of(name: str, row: int, cell: Any) -> str:
    """Return a cell of any type as a file would have it."""
    if isinstance(cell, str):
        return cell
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return _ABSENT
    if isinstance(cell, (bool, np.bool_)):
        return str(bool(cell))
    if isinstance(cell, (datetime.date, datetime.datetime)):
        return cell.isoformat()
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        raise WrongCell(row, f"{cell!r:.100} is no number, and no text, boolean or date") from None
    if math.isnan(number):
        return _ABSENT
    return str(int(number)) if number % 1 == 0 and abs(number) < 2**63 else repr(number)


def recoded(column: Column, categories: Sequence[str]) -> tuple[Array, Mapping[str, int]]:
    """Return the codes of a column by another list of categories, and how often others occur.

    What the list has not is the number of its categories, so one more than its last code.
    """
    places = {category: float(place) for place, category in enumerate(categories)}
    unknown = float(len(categories))
    by_code = np.array([*(places.get(each, unknown) for each in column.categories), np.nan])
    counts = np.bincount(column.codes, minlength=len(column.categories) + 1)
    others = {
        category: int(counts[code])
        for code, category in enumerate(column.categories)
        if category not in places and counts[code]
    }
    return by_code[column.codes], others
