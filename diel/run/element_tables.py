"""Results of the elements of a group with ``foreach``, as one table: a row for each element.

::

    elements/cases.csv     element, <values>, outcome, seconds, <what its modules have returned>

A module that returns a dictionary has a column for each of its numbers and texts; any other such
value has a column ``returned``. Where several modules or copies of an element return something, or
a value of the element has the same name, the columns begin with their names: ``solver.residual``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from diel.run.directory import RunDirectory
from diel.run.files import replace_file
from diel.run.journal import JournalReader
from diel.run.view import GroupView, RunView


class ElementTables:
    """Writes the tables of a run, each time that a group with ``foreach`` has ended."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._journal = JournalReader(directory.journal)
        self._view = RunView()

    def ended(self, groups: Iterable[str]) -> list[str]:
        """Return which of these groups have ended, in this session of the run or an earlier one."""
        self._read()
        return [name for name in groups if self._view.groups[name].state == "finished"]

    def write(self, group: str) -> None:
        """Write the table of a group; an OSError if it cannot be written."""
        self._read()
        file = self._directory.table_of_elements(group)
        file.parent.mkdir(exist_ok=True)
        replace_file(file, as_csv(element_rows(self._view, group)))

    def _read(self) -> None:
        for record in self._journal.new_records():
            self._view.apply(record)


def element_rows(view: RunView, array: str) -> list[dict[str, Any]]:
    """Return the table of a group with ``foreach``; a row has the columns that it has values for.

    Parameters
    ----------
    view : RunView
    array : str
        The name of the group.
    """
    columns, rows = view.arrays[array].columns, view.arrays[array].rows
    returned: dict[str, dict[str, Any]] = {}
    sources: set[str] = set()
    for (inner, copy), value in view.returned_in.items():
        element = view.element_of(inner)
        if element is not None and element.inside == array:
            module, _, index = copy.rpartition(".")
            own = view.name_in_file(inner, module)
            source = own if index == "0" else f"{own}.{index}"
            sources.add(source)
            returned.setdefault(element.name, {})[source] = value
    found = []
    for name, values in rows.items():
        group = view.groups[name]
        row: dict[str, Any] = {"element": name}
        row |= zip(columns, values, strict=False)
        row |= {"outcome": _outcome(group), "seconds": _seconds(group)}
        for source, value in returned.get(name, {}).items():
            for key, cell in _cells(value):
                is_taken = len(sources) > 1 or key in ("element", *columns, "outcome", "seconds")
                row[f"{source}.{key}" if is_taken else key] = cell
        found.append(row)
    return found


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Return a table as the text of a CSV file, with a header."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _outcome(group: GroupView) -> str:
    if group.state == "finished":
        return "failed" if group.has_failed else "finished"
    return group.state


def _seconds(group: GroupView) -> float | None:
    if group.state != "finished" or not group.started_s:
        return None
    return round(max(0.0, group.finished_s - group.started_s), 3)


def _cells(value: Any) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else [("returned", value)]
    for key, item in items:
        if isinstance(item, (bool, int, float, str)):
            yield str(key), item
