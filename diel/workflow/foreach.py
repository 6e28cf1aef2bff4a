"""``foreach`` of a group: the group once for each row of a table, or each combination of lists.

::

    foreach = "cases.csv"                               rows; the header names their values
    foreach = { dt = [0.1, 0.2], cells = [32, 64] }     combinations, the last list fastest

A document is expanded before it is checked. A group ``cases`` becomes one of groups ``cases-0``,
``cases-1``, ..., its elements; each has modules and inner groups of its own, whose names end in the
same number, and ``${dt}`` in their entries stands for the element's value.
"""

from __future__ import annotations

import copy
import csv
import io
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from diel.errors import Problem
from diel.frozen import Frozen
from diel.run.files import open_regular
from diel.text import from_toml, join_path, show, show_key, show_with_type
from diel.workflow.elements import NO_EXPANSION, Array, Element, Expansion
from diel.workflow.parameters import NAME, fill, names_in_references
from diel.workflow.programs import PlaceholderProblem, placeholders_in
from diel.workflow.references import names_in, tables_in
from diel.workflow.source import near_file

MOST_ELEMENTS: Final = 10_000
PLACEHOLDERS_OF_ELEMENTS: Final = ("element", "element_dir")
_OF_ARRAY: Final = ("name", "depends", "foreach", "at_once", "max_failures")
_STRUCTURE: Final = (*_OF_ARRAY, "modules", "groups")
_DELIMITERS: Final = {".tsv": "\t"}


def has_arrays(document: Mapping[str, Any]) -> bool:
    """Whether a group of a document has ``foreach``."""
    return any("foreach" in entry for _, entry in tables_in(document, "group"))


def expand(
    document: dict[str, Any], values: Mapping[str, Any], folder: Path, *, fills: bool
) -> tuple[Expansion, list[Problem]]:
    """Put the elements of its groups into a document, and the values of parameters.

    Parameters
    ----------
    document : dict
        References between its groups and modules are right. It is changed.
    values : mapping of str to value
        Those of parameters.
    folder : Path
        Of the workflow file.
    fills : bool
        Whether ``${name}`` stands for a parameter outside of elements as well.

    Returns
    -------
    Expansion
        An empty one, and the document is not expanded, if there are problems.
    list of Problem
    """
    members = {
        index: _members(entry, document)
        for index, entry in tables_in(document, "group")
        if "foreach" in entry and isinstance(entry.get("name"), str)
    }
    problems = list(_check_members(document, members))
    if fills:
        _fill_outside(document, members, values, problems)
    arrays: dict[int, Array] = {}
    for index in () if problems else members:
        array = _array_of(document["group"][index], index, values, folder, problems)
        if array is not None:
            arrays[index] = array
    if not problems:
        problems += _check_elsewhere(document, members, arrays)
    if problems:
        return NO_EXPANSION, problems
    return _Expander(document, members, arrays, values, fills).expand(problems), problems


class _Members(Frozen):
    """The entries that an array repeats, by their names with their indices in the file."""

    groups: Mapping[str, int]
    modules: Mapping[str, int]


def _members(entry: Mapping[str, Any], document: Mapping[str, Any]) -> _Members:
    """Return the groups inside a group, and all modules of these and of itself."""
    groups = {str(each.get("name")): (index, each) for index, each in tables_in(document, "group")}
    every = {str(each.get("name")): index for index, each in tables_in(document, "module")}
    inside: dict[str, int] = {}
    modules: dict[str, int] = {}
    left = [entry]
    while left:
        each = left.pop()
        modules |= {name: every[name] for _, name in names_in(each, "modules") if name in every}
        for _, name in names_in(each, "groups"):
            if name in groups and name not in inside:
                inside[name], inner = groups[name]
                left.append(inner)
    return _Members(inside, modules)


def _check_members(
    document: Mapping[str, Any], members: Mapping[int, _Members]
) -> Iterator[Problem]:
    """Find groups with ``foreach`` in each other, and modules of boundaries in them."""
    groups = document.get("group", [])
    for index, inside in members.items():
        for name, inner in inside.groups.items():
            if "foreach" in groups[inner]:
                yield Problem(
                    f"group[{inner}].foreach",
                    f"group {show(name)} is inside {show(groups[index].get('name'))}, which has "
                    "foreach too",
                    "write all combinations as one: foreach = { dt = [...], cells = [...] }",
                )
        for number, boundary in tables_in(document, "boundary"):
            named = {*_texts(boundary)}
            for name in inside.modules:
                if name in named:
                    yield Problem(
                        f"boundary[{number}]",
                        f"module {show(name)} is in a group with foreach, and each element has one "
                        "of its own: none has this boundary",
                        "take the group with the boundary out of it, or start a run for each",
                    )


def _fill_outside(
    document: dict[str, Any],
    members: Mapping[int, _Members],
    values: Mapping[str, Any],
    problems: list[Problem],
) -> None:
    """Put the values of parameters into what is the same for all elements."""
    of_elements: dict[str, set[int]] = {"group": set(members), "module": set()}
    for each in members.values():
        of_elements["group"] |= {*each.groups.values()}
        of_elements["module"] |= {*each.modules.values()}
    for kind, value in document.items():
        if kind not in of_elements or not isinstance(value, list):
            if kind != "parameters":
                document[kind] = fill(value, [kind], values, problems)
            continue
        for index, entry in enumerate(value):
            if index not in of_elements[kind]:
                value[index] = fill(entry, [kind, index], values, problems)
            elif isinstance(entry, dict):
                for key in _STRUCTURE:
                    if key in entry:
                        entry[key] = fill(entry[key], [kind, index, key], values, problems)


# -- elements -------------------------------------------------------------------------------------


def _array_of(
    entry: Mapping[str, Any],
    index: int,
    values: Mapping[str, Any],
    folder: Path,
    problems: list[Problem],
) -> Array | None:
    """Return the elements of a group; None where its ``foreach`` is wrong."""
    given, path, group = entry["foreach"], f"group[{index}].foreach", str(entry.get("name"))
    try:
        if isinstance(given, str):
            columns, rows = _rows_of_table(given, folder)
        else:
            columns, rows = _combinations(given)
        for name in columns:
            if name in values:
                raise _Wrong(f"{show(name)} is a parameter too", "give one of them another name")
        if not rows:
            raise _Wrong("there is no element", "give each list a value, and a table a row")
        if len(rows) > MOST_ELEMENTS:
            remedy = "run an executable for more with tasks, or start several runs"
            raise _Wrong(f"{len(rows):,} elements, at most {MOST_ELEMENTS:,} fit", remedy)
    except _Wrong as error:
        where = join_path(path, [error.key] if error.key else [])
        problems.append(Problem(where, error.message, error.remedy))
        return None
    elements = [
        Element(
            f"{group}-{number}",
            number,
            dict(zip(columns, row, strict=True)),
            dict(zip(columns, texts, strict=False)),
        )
        for number, (row, texts) in enumerate(rows)
    ]
    return Array(group, columns, tuple(elements))


_Rows = tuple[tuple[str, ...], "list[tuple[Sequence[Any], Sequence[str]]]"]
"""Names, and for each element its values and their texts."""


class _Wrong(Exception):
    """What is wrong with a ``foreach``, and the remedy."""

    def __init__(self, message: str, remedy: str, key: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy, self.key = message, remedy, key


def _combinations(given: Any) -> _Rows:
    example = 'write foreach = { dt = [0.1, 0.2] }, or the name of a table such as "cases.csv"'
    if not isinstance(given, dict) or not given:
        raise _Wrong(f"expected lists by name or a file, got {show_with_type(given)}", example)
    for name, each in given.items():
        _check_name(name)
        if not isinstance(each, list) or not each:
            raise _Wrong(f"expected a list of values, got {show_with_type(each)}", "", name)
        for value in each:
            if type(value) not in (bool, int, float, str):
                words = f"expected numbers, texts, true or false, got {show_with_type(value)}"
                raise _Wrong(words, "", name)
    count = 1
    for each in given.values():
        count *= len(each)
    if count > MOST_ELEMENTS:  # before they are made
        raise _Wrong(f"{count:,} combinations, at most {MOST_ELEMENTS:,} fit", "shorten the lists")
    return tuple(given), [(row, ()) for row in itertools.product(*given.values())]


def _rows_of_table(name: str, folder: Path) -> _Rows:
    file = folder / name
    if file.suffix not in (".csv", ".tsv"):
        raise _Wrong(f"{show(name)} is no table", "name a file that ends in .csv or .tsv")
    try:
        with open_regular(file) as stream:
            text = stream.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise _Wrong(f"there is no file {file}", near_file(file)) from None
    except UnicodeDecodeError:
        raise _Wrong(f"{name} is not UTF-8 text", "save it with the encoding UTF-8") from None
    except OSError as error:
        raise _Wrong(f"{name} cannot be read: {error.strerror}", "") from None
    delimiter = _DELIMITERS.get(file.suffix, ",")
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise _Wrong(f"{name}, line {reader.line_num}: {error}", "") from None
    if not lines:
        raise _Wrong(f"{name} is empty", "its first line names the values")
    header = tuple(cell.strip() for cell in lines[0][1])
    for column in header:
        _check_name(column, f"{name}, line {lines[0][0]}: ")
    if len({*header}) < len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise _Wrong(f"{name}: two columns are called {show(twice)}", "rename one of them")
    for line, row in lines[1:]:
        if len(row) != len(header):
            words = f"{len(row)} values, and the header names {len(header)}"
            raise _Wrong(f"{name}, line {line}: {words}", "")
    cells = [tuple(cell.strip() for cell in row) for _, row in lines[1:]]
    columns = [_typed([row[number] for row in cells]) for number in range(len(header))]
    return header, list(zip(zip(*columns, strict=True), cells, strict=True))


def _check_name(name: str, where: str = "") -> None:
    if not NAME.fullmatch(name):
        words = 'a name has letters, digits, "_" and "-", a letter first'
        raise _Wrong(f"{where}{show(name)} is no name of a value", words)


def _typed(cells: Sequence[str]) -> Sequence[Any]:
    """Return the values of a column: numbers or truths where all of its texts are such."""
    values = [from_toml(cell) if _LITERAL.fullmatch(cell) else cell for cell in cells]
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return [float(value) for value in values]
    return values if len(kinds) == 1 else cells


_LITERAL: Final = re.compile(r"true|false|[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


# -- the expanded document ------------------------------------------------------------------------


def _check_elsewhere(
    document: Mapping[str, Any], members: Mapping[int, _Members], arrays: Mapping[int, Array]
) -> Iterator[Problem]:
    """Find what can only stand in elements and stands outside of them, and names that are taken."""
    in_elements = {name for each in members.values() for name in each.modules}
    shared = _used_outside(document, members)
    for index, entry in tables_in(document, "module"):
        name = str(entry.get("name"))
        columns = {
            column
            for number, array in arrays.items()
            if name in members[number].modules
            for column in array.columns
        }
        if name in shared and columns.intersection(names_in_references(entry)):
            yield Problem(
                f"module[{index}]",
                f"module {show(name)} is in a group without foreach too, where it has no values",
                "add another [[module]] for that group",
            )
        if name not in in_elements or name in shared:
            yield from _check_placeholders(entry, index)
    for kind in ("module", "group"):
        names = {str(each.get("name")) for _, each in tables_in(document, kind)}
        for number, array in arrays.items():
            made = [*getattr(members[number], f"{kind}s"), *([array.group] * (kind == "group"))]
            for name in made:
                new = f"{name}-{len(array.elements) - 1}"
                for other in sorted({f"{name}-{each.index}" for each in array.elements} & names):
                    message = f"{kind} {show(other)} would be there twice: an element has it"
                    remedy = f"{name}-0 to {new} are names of elements: choose another name"
                    yield Problem(f"group[{number}].foreach", message, remedy)
    counts: dict[str, str] = {}
    for number, array in arrays.items():
        for name in members[number].modules:
            if counts.setdefault(name, array.group) != array.group:
                yield Problem(
                    f"group[{number}].modules",
                    f"module {show(name)} is in two groups with foreach, {counts[name]} and "
                    f"{array.group}, whose elements have a module of their own each",
                    "add another [[module]] for one of them",
                )


def _check_placeholders(entry: Mapping[str, Any], index: int) -> Iterator[Problem]:
    for key, value in entry.items():
        for text in _texts(value) if key != "options" else ():
            try:
                found = {*placeholders_in(text)}.intersection(PLACEHOLDERS_OF_ELEMENTS)
            except PlaceholderProblem:
                continue  # its model says so
            if found:
                yield Problem(
                    f"module[{index}].{show_key(key)}",
                    f"{{{min(found)}}} is of elements, and no group with foreach has this module",
                    'add foreach = { name = [...] } or foreach = "cases.csv" to its group',
                )


def check_no_elements(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Find placeholders of elements in a document that has none."""
    for index, entry in tables_in(document, "module"):
        yield from _check_placeholders(entry, index)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _used_outside(document: Mapping[str, Any], members: Mapping[int, _Members]) -> set[str]:
    """Return the modules of groups that no array repeats."""
    repeated = {*members} | {index for each in members.values() for index in each.groups.values()}
    return {
        name
        for index, entry in tables_in(document, "group")
        if index not in repeated
        for _, name in names_in(entry, "modules")
    }


class _Expander:
    """Makes the entries of all elements."""

    def __init__(
        self,
        document: dict[str, Any],
        members: Mapping[int, _Members],
        arrays: Mapping[int, Array],
        values: Mapping[str, Any],
        fills: bool,
    ) -> None:
        self._fills = fills
        self._document = document
        self._members = members
        self._arrays = arrays
        self._values = values
        self._shared = _used_outside(document, members)
        self._origins: dict[tuple[str, int], int] = {}
        self._elements: dict[tuple[str, str], Element] = {}
        self._templates: dict[tuple[str, str], str] = {}
        self._problems: list[Problem] = []

    def expand(self, problems: list[Problem]) -> Expansion:
        """Expand the document, unless its texts have problems, which are added to a list."""
        entries = {kind: self._entries(kind) for kind in ("module", "group")}
        if self._problems:
            problems += dict.fromkeys(self._problems)  # each element has the same
            return NO_EXPANSION
        self._document.update(entries)
        return Expansion(
            {array.group: array for array in self._arrays.values()},
            self._origins,
            self._elements,
            self._templates,
        )

    def _entries(self, kind: str) -> list[Any]:
        repeated_by = {
            index: number
            for number, each in self._members.items()
            for index in getattr(each, f"{kind}s").values()
        }
        found: list[Any] = []
        for index, entry in enumerate(self._document.get(kind, [])):
            new = [entry]
            if kind == "group" and index in self._arrays:
                new = self._array(index, entry)
            elif index in repeated_by:
                number = repeated_by[index]
                new = [
                    self._repeated(kind, index, entry, each, self._members[number])
                    for each in self._arrays[number].elements
                ]
                if kind == "module" and entry["name"] in self._shared:
                    new.insert(0, self._outside(index, entry))
            for each in new:
                self._origins[kind, len(found)] = index
                found.append(each)
        return found

    def _outside(self, index: int, entry: dict[str, Any]) -> Any:
        """Return a module as it stands in groups without elements."""
        if not self._fills:
            return entry
        return fill(copy.deepcopy(entry), ["module", index], self._values, self._problems)

    def _array(self, index: int, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the group of all elements, and the group of each."""
        array, members = self._arrays[index], self._members[index]
        outer: dict[str, Any] = {key: entry[key] for key in _OF_ARRAY if key in entry}
        outer["groups"] = [element.name for element in array.elements]
        inner = {key: value for key, value in entry.items() if key not in _OF_ARRAY}
        inner["name"] = entry["name"]
        if "when" in entry and not {*array.columns}.intersection(_words(entry["when"])):
            outer["when"] = inner.pop("when")
            if self._fills:
                place = ("group", index, "when")
                outer["when"] = fill(outer["when"], place, self._values, self._problems)
        return [
            outer,
            *(self._repeated("group", index, inner, each, members) for each in array.elements),
        ]

    def _repeated(
        self, kind: str, index: int, entry: dict[str, Any], element: Element, members: _Members
    ) -> dict[str, Any]:
        """Return an entry for one element."""
        values = {**self._values, **element.values}
        new: dict[str, Any] = fill(
            copy.deepcopy(entry), [kind, index], values, self._problems, element.texts
        )
        end = f"-{element.index}"
        if kind == "group":
            repeated = {"modules": members.modules, "groups": members.groups}
            for key, names in {**repeated, "depends": members.groups}.items():
                if isinstance(new.get(key), list):
                    new[key] = [
                        f"{name}{end}" if isinstance(name, str) and name in names else name
                        for name in new[key]
                    ]
            if isinstance(new.get("when"), str):
                new["when"] = _OUTCOME.sub(
                    lambda found: _renamed(found, members.groups, end), new["when"]
                )
        new["name"] = f"{entry['name']}{end}"
        self._elements[kind, new["name"]] = element
        self._templates[kind, new["name"]] = entry["name"]
        return new


_OUTCOME: Final = re.compile(r"""(\boutcome\(\s*)(['"])([^'"]*)\2""")


def _renamed(found: re.Match[str], groups: Collection[str], end: str) -> str:
    name = f"{found[3]}{end}" if found[3] in groups else found[3]
    return f"{found[1]}{found[2]}{name}{found[2]}"


def _words(expression: object) -> list[str]:
    return re.findall(r"[^\W\d]\w*", str(expression))
