"""Read a workflow file as TOML, and find the line of each key."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel.errors import Problem
from diel.frozen import Frozen
from diel.text import near_file_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_FILE_BYTES: Final = 8 * 2**20
DEEPEST: Final = 64
"""The deepest nesting of tables and lists, in parts of a path: ``module[0].options.a`` has four."""

Place: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead from the document to a value."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class SourceProblem(Exception):
    """The file cannot be read or parsed; ``problem`` says why."""

    def __init__(self, message: str, remedy: str = "", line: int | None = None) -> None:
        super().__init__(message, remedy)
        self.problem = Problem("", message, remedy, line)


def read_source(file: Path) -> str:
    """Return the text of a TOML file.

    A SourceProblem if it cannot be read, or is not UTF-8.
    """
    data = _read(file)
    try:
        # Some editors put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceProblem(
            "not UTF-8 text", "save the file with the encoding UTF-8", line
        ) from None


def parse_document(text: str) -> tuple[dict[str, Any], dict[Place, int]]:
    """Parse the text of a TOML file.

    Returns
    -------
    dict
        The document.
    dict from Place to int
        The line of each key and entry, from 1, in the order of the file.

    Raises
    ------
    SourceProblem
        If it is not TOML.
    """
    # Checked before the parser runs: it would report thousands of brackets without a line, and
    # would not come to an end with a key of thousands of parts.
    lines: dict[Place, int] = {}
    for place, line in _places(text):
        if len(place) > DEEPEST:
            raise SourceProblem(
                f"nested more than {DEEPEST} deep", "use fewer tables or lists in each other", line
            )
        lines.setdefault(place, line)
    try:
        return tomllib.loads(text), lines
    except RecursionError:  # of a value whose depth its brackets do not show
        raise SourceProblem("nested too deeply", "close the brackets") from None
    except ValueError as error:
        raise _syntax_problem(str(error), text) from None


def near_file(file: Path) -> str:
    """Suggest a file whose name is near to that of a missing file; empty if there is none."""
    try:
        names = sorted(path.name for path in file.parent.iterdir() if path.is_file())
    except OSError:
        return f"there is no folder {file.parent} either"
    near = near_file_name(file.name, names)
    return f'did you mean "{near}"?' if near else ""


def _read(file: Path) -> bytes:
    try:
        # Opening a pipe would wait for a writer, and reading a device might never end.
        found = file.stat()
        if stat.S_ISDIR(found.st_mode):
            raise SourceProblem("is a folder, not a workflow file", _files_in(file))
        kind = _KINDS.get(stat.S_IFMT(found.st_mode))
        if kind is not None:
            raise SourceProblem(
                f"is {kind}, not a workflow file", "save the workflow in a file, and name that"
            )
        with file.open("rb") as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SourceProblem("there is no such file", near_file(file)) from None
    except (OSError, ValueError) as error:
        raise SourceProblem(
            f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(data) > LARGEST_FILE_BYTES:
        size = max(found.st_size, len(data))
        raise SourceProblem(
            f"is no workflow file: it has {size / 2**20:,.1f} MiB, at most "
            f"{LARGEST_FILE_BYTES >> 20} are read",
            "keep data in files of its own, and name these in the options",
        )
    return data


def _files_in(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.toml"))[:6]
    return f"name a file in it: {', '.join(names)}" if names else "name a TOML file"


# -- lines ----------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r'(?P<text>"""(?:[^"\\]|\\.|"(?!""))*"{3,5}|' + r"'''(?:[^']|'(?!''))*'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*')|(?P<comment>\#[^\n]*)|(?P<end>\n)|(?P<sign>[][{}=.,])"
    r"|(?P<word>[^][{}=.,\"'\#\s]+)",
    re.DOTALL,
)


@dataclass
class _Open:
    """A bracket that is open in a value: a list, whose items are counted, or an inline table."""

    place: Place
    is_list: bool
    index: int = 0


class _Places:
    """Follows the tokens of a TOML file, and finds the place of each key.

    The places mean nothing if the file is not valid TOML.
    """

    def __init__(self) -> None:
        self._table: Place = ()
        self._lengths: dict[Place, int] = {}  # of the lists that [[...]] make
        self._key: list[str] = []
        self._place: Place = ()  # of the value that is being read
        self._item: Place | None = None  # of a list item that is about to begin
        self._open: list[_Open] = []
        self._in_value = False
        self._brackets = 0  # of a header

    @property
    def table(self) -> Place:
        """The table whose keys are being read."""
        return self._table

    @property
    def is_in_header(self) -> bool:
        """Whether a header has begun and its line has not ended."""
        return self._brackets > 0

    def take(self, kind: str, token: str) -> Iterator[Place]:
        """Take the next token; yield the places that begin with it."""
        if self._item is not None and kind in ("text", "word", "sign"):
            if token not in "],":
                yield self._item
            self._item = None
        if kind == "end":
            if self._brackets:
                yield from self._header()
            elif not self._open:
                self._in_value, self._key = False, []
        elif kind in ("text", "word") and not self._in_value:
            self._key.append(_bare(token) if kind == "text" else token)
            if len(self._key) > DEEPEST:
                yield (*self._table, *self._key)
        elif kind != "sign":
            return
        elif self._in_value:
            self._take_sign_of_value(token)
        elif token == "=":
            above = self._open[-1].place if self._open else self._table
            for length in range(1, len(self._key) + 1):
                yield (*above, *self._key[:length])
            self._place, self._key, self._in_value = (*above, *self._key), [], True
        elif token == "[" and not self._open:
            self._brackets += 1
        elif token == "}" and self._open:
            self._close()

    def _take_sign_of_value(self, token: str) -> None:
        if token in "[{":
            self._open.append(_Open(self._place, token == "["))
            self._in_value = token == "["
            if token == "[":
                self._place = self._item = (*self._place, 0)
        elif token in "]}" and self._open:
            self._close()
        elif token == "," and self._open:
            inner = self._open[-1]
            self._in_value = inner.is_list
            if inner.is_list:
                inner.index += 1
                self._place = self._item = (*inner.place, inner.index)

    def _close(self) -> None:
        self._place, self._key, self._in_value = self._open.pop().place, [], True

    def _header(self) -> Iterator[Place]:
        place: Place = ()
        is_list = self._brackets > 1
        for number, part in enumerate(self._key, 1):
            place = (*place, part)
            yield place
            is_new = is_list and number == len(self._key)
            if is_new or place in self._lengths:
                self._lengths[place] = self._lengths.get(place, 0) + is_new
                place = (*place, self._lengths[place] - 1)
                yield place
        self._table, self._key, self._brackets = place, [], 0


def _places(text: str) -> Iterator[tuple[Place, int]]:
    """Yield each key, and each item of a list, with its line."""
    follower, line = _Places(), 1
    for found in _TOKEN.finditer(text + "\n"):
        kind, token = str(found.lastgroup), found[0]
        for place in follower.take(kind, token):
            yield place, line
        line += token.count("\n")


class Header(Frozen):
    """A line such as ``[[module]]`` or ``[module.options]``, and the keys below it."""

    place: Place
    line: int  # from 1
    last_line: int  # of the keys and values below it; comments behind these are not counted


def headers(text: str) -> list[Header]:
    """Return the headers of a TOML text, in order; the first stands for the keys above all headers.

    It has the place ``()`` and the line 0.
    """
    follower, line = _Places(), 1
    found: list[Header] = []
    place: Place = ()
    start = last = 0
    for token in _TOKEN.finditer(text + "\n"):
        kind = str(token.lastgroup)
        is_header = kind == "end" and follower.is_in_header
        for _ in follower.take(kind, token[0]):
            pass
        if is_header:
            found.append(Header(place, start, last))
            place, start, last = follower.table, line, line
        line += token[0].count("\n")
        if kind in ("text", "sign", "word") and not follower.is_in_header:
            last = line
    return [*found, Header(place, start, last)]


def _bare(quoted: str) -> str:
    try:
        return str(tomllib.loads(f"a = {quoted}")["a"])
    except ValueError:  # the parser is going to report it
        return quoted


# -- syntax ---------------------------------------------------------------------------------------

_NEW_LINE_WITHIN: Final = 'close the text with " in its line; several lines stand in """ ... """'
_ONE_A_LINE: Final = "one key = value in a line"
# Patterns of the parser's message and of the text at its place, and the remedy: the first row that
# matches counts.
_REMEDIES: Final = (
    ("Invalid value", r"(?i)true|false", "write true or false, all small"),
    ("Invalid value", r"(?i)(none|null|nil)\b", "TOML has no such value: leave the key out"),
    ("Invalid value", r"[+-]?\.\d", "write a digit before the point, as in 0.5"),
    ("Invalid value", r"\(", "write a list in square brackets, as in [1, 2]"),
    ("Invalid value", r"[“”„‟‘’«»`]", 'text needs straight quotes, as in name = "study"'),
    ("Invalid value", r"\s*(#|$)", "write a value behind the =, or remove the line"),
    ("Invalid value", r"\$", 'text needs quotes, variables too, as in path = "$HOME/data"'),
    ("Invalid value", r"", 'text needs quotes, as in name = "study"'),
    (r"Illegal character '\\n'", r"", _NEW_LINE_WITHIN),
    ("Illegal character", r"", "remove it, or write it as an escape, as in \\t or \\u0007"),
    ("Found invalid character", r"", "remove it"),
    ("Unterminated string|Expected \"'''\"", r"", "close the text with three quotes"),
    ("Expected \"'\"", r"", "close the text with ' in its line"),
    ("Unescaped '", r"", r"write \\ for \, or put the text in single quotes"),
    ("Expected '=' after a key", r"\s*:", "write = in place of :"),
    ("Expected '=' after a key", r"[^\x00-\x7f]", "put a key of other letters in quotes"),
    ("Expected '=' after a key", r"\w", "put a key with spaces in quotes, or write _ for them"),
    ("Expected '=' after a key", r"", f"write {_ONE_A_LINE}"),
    ("Expected ']", r"", "close the header of the table: [name], or [[name]] for one of several"),
    ("Expected newline", r"(?<=\d)\.(?!\d)", "write a digit behind the point, as in 5.0"),
    ("Expected newline", r"(?<=\b0)\d", "a number does not begin with 0"),
    ("Expected newline", r"(?<=\d)[-:]", "there is no such date or time: put it in quotes"),
    ("Expected newline", r"(?<=['\"]).", "write a text with a quote in it in quotes of the other "
     f"kind, a comment behind #, and {_ONE_A_LINE}"),
    ("Expected newline", r"", f"write {_ONE_A_LINE}, and text in quotes"),
    ("Invalid statement", r"//|--|;|/\*|%", "a comment begins with #"),
    ("Invalid statement", r"", f"write {_ONE_A_LINE}, or a header such as [[module]]"),
    ("Invalid initial character for a key", r"\s*([}#]|$)", "{ ... } stands in one line, "
     "and has no comma at its end; a longer table has a header of its own"),
    ("Invalid initial character for a key", r"", "put the key in quotes"),
    ("Unclosed array", r"", "put a comma between two items, and ] at the end"),
    ("Unclosed inline table", r"", "put a comma between two keys, and } at the end"),
    ("Cannot overwrite a value|Duplicate inline", r"(?s:.*)", "it stands there twice: remove one, "
     "or write [[...]] for each of several tables"),
    ("Cannot", r"", "write [[...]] for each of several tables, and each table once"),
    ("Invalid (date|time|hex|character)|Unescaped|.*scalar value", r"", "write what there is, or "
     "put it in quotes"),
    ("Exceeds the limit", r"", "no number has that many digits: put it in quotes"),
)  # fmt: skip


def _syntax_problem(message: str, text: str) -> SourceProblem:
    place = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    words = message[: place.start()] if place else message
    line, column = text.count("\n") + 1, 0
    where = ""
    if place and place[1]:
        line, column = int(place[1]), int(place[2])
        where = f" at column {column}"
    elif place:
        where = " at the end of the file"
    elif found := re.search(r"\d{4000,}", text.replace("_", "")):
        # The parser gives no place for a number that is too long.
        line = text.replace("_", "").count("\n", 0, found.start()) + 1
    rows = text.split("\n")
    row = rows[line - 1]
    start = column - 1 if column else len(row)
    remedy = next(
        (
            remedy
            for said, there, remedy in _REMEDIES
            if re.match(said, words) and re.compile(there).match(row, start)
        ),
        "",
    )
    return SourceProblem(f"not valid TOML{where}: {words[:1].lower()}{words[1:]}", remedy, line)
