"""Edits of the text of a workflow file: each changes the lines of one table, and no other lines.

::

    with_value, without, with_item       a key, or an item of a list, by its place
    with_entry, without_entry            a whole [[module]], [[group]] or [[boundary]]

All of them return the edited text. The result is parsed again: if it is not exactly the document
that was wanted, because that place of a TOML file cannot be edited by itself, `EditRefused` is
raised.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from diel.errors import EditRefused
from diel.text import as_tables, as_toml, join_path, show_key
from diel.workflow.source import Place, SourceProblem, headers, parse_document

_ENTRIES: Final = ("module", "group", "boundary")


@lru_cache(maxsize=8)
def document_in(text: str) -> dict[str, Any]:
    """Parse a TOML text, or raise `EditRefused`; the result is cached and must not be changed."""
    try:
        return parse_document(text)[0]
    except SourceProblem as error:
        problem = error.problem
        where = f"line {problem.line}: " if problem.line else ""
        raise EditRefused(f"{where}{problem.message}", problem.remedy) from None


def value_at(document: Any, place: Place) -> Any:
    """Return the value at a place of a document; LookupError or TypeError if there is none."""
    for step in place:
        document = document[step]
    return document


def with_value(text: str, place: Place, value: Any) -> str:
    """Return the text with a key set to a value; missing tables on the way are added."""
    wanted = copy.deepcopy(document_in(text))
    _put(wanted, place, value)
    changed = _change(text, place, lambda table, keys: _put_item(table, keys, value))
    return _expected(changed, wanted, place)


def without(text: str, place: Place) -> str:
    """Return the text without a key or list item; unchanged if that is not there."""
    wanted = copy.deepcopy(document_in(text))
    try:
        del value_at(wanted, place[:-1])[place[-1]]
    except (LookupError, TypeError):
        return text
    return _expected(_change(text, place, _remove_item), wanted, place)


def with_item(text: str, place: Place, value: Any) -> str:
    """Return the text with a list item inserted before the item at a place, or at the end."""
    wanted = copy.deepcopy(document_in(text))
    try:
        value_at(wanted, place[:-1]).insert(place[-1], copy.deepcopy(value))
    except (LookupError, TypeError, AttributeError):
        raise EditRefused(f"{_named(place[:-1])} is no list", "edit the text") from None
    changed = _change(text, place, lambda table, keys: _insert_item(table, keys, value))
    return _expected(changed, wanted, place)


def with_entry(text: str, kind: str, keys: Mapping[str, Any]) -> str:
    """Return the text with a new ``[[kind]]`` entry behind the other entries of its kind."""
    wanted = copy.deepcopy(document_in(text))
    wanted.setdefault(kind, []).append(dict(keys))
    changed = _insert(text, as_tables({kind: [keys]}), _after_entries(text, kind))
    return _expected(changed, wanted, (kind, len(wanted[kind]) - 1))


def without_entry(text: str, kind: str, index: int) -> str:
    """Return the text without an entry and the empty lines below it."""
    wanted = copy.deepcopy(document_in(text))
    del wanted[kind][index]
    if not wanted[kind]:
        del wanted[kind]
    blocks = [block for block in _blocks(text) if block[0] == (kind, index)]
    if len(blocks) != 1:
        raise EditRefused(f"{kind}[{index}] cannot be removed by itself", "edit the text")
    _, start, end = blocks[0]
    lines = text.splitlines(keepends=True)
    is_below_empty = start == 0 or not lines[start - 1].strip()
    while is_below_empty and end < len(lines) and not lines[end].strip():
        end += 1
    return _expected("".join([*lines[:start], *lines[end:]]), wanted, (kind, index))


def _expected(text: str, wanted: Mapping[str, Any], place: Place) -> str:
    """Return an edited text; raise EditRefused unless it parses to the wanted document."""
    try:
        is_there = document_in(text) == wanted
    except EditRefused:
        is_there = False
    if not is_there:
        raise EditRefused(f"{_named(place)} cannot be edited by itself", "edit the text")
    return text


def _change(text: str, place: Place, edit: Callable[[Any, Place], None]) -> str:
    """Apply an edit of tomlkit's document to the lines of the table that holds a place."""
    import tomlkit  # in the extra `gui`
    from tomlkit.exceptions import TOMLKitError

    top: Place = place[:2] if len(place) > 1 and isinstance(place[1], int) else place[:1]
    lines = text.splitlines(keepends=True)
    blocks = [block for block in _blocks(text) if block[0] == top]
    root = _blocks(text)[0]
    if len(blocks) > 1:
        raise EditRefused(f"the parts of {_named(top)} stand apart in the file", "edit the text")
    if not blocks and _is_there(text, top):
        if top[0] in _ENTRIES:
            raise EditRefused(
                f"{_named(top)} stands in a list in brackets",
                f"write [[{top[0]}]] for each, or edit the text",
            )
        blocks = [root]
    if not blocks:
        return _change(_insert(text, f"[{show_key(top[0])}]\n", _after_tables(text)), place, edit)
    _, start, end = blocks[0]
    chunk = "".join(lines[start:end])
    ends_line = chunk.endswith("\n")
    try:
        document = tomlkit.parse(chunk if ends_line else f"{chunk}\n")
        inner = (top[0], 0, *place[2:]) if len(top) > 1 else place
        edit(document, inner)
        changed = tomlkit.dumps(document)
    except (TOMLKitError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise EditRefused(
            f"{_named(place)} cannot be edited by itself: {error}", "edit the text"
        ) from None
    if not changed.endswith("\n"):
        changed += "\n"
    return "".join([*lines[:start], changed, *lines[end:]])


def _is_there(text: str, place: Place) -> bool:
    try:
        return value_at(document_in(text), place) is not None
    except (EditRefused, LookupError, TypeError):
        return False


def _insert(text: str, block: str, line: int) -> str:
    """Insert lines before a line, counted from 0, with an empty line on both sides."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    above = "\n" if line and lines[line - 1].strip() else ""
    below = "\n" if line < len(lines) and lines[line].strip() else ""
    return "".join([*lines[:line], above, block, below, *lines[line:]])


def _named(place: Place) -> str:
    return join_path("", place)


def _put(document: Any, place: Place, value: Any) -> None:
    """Set the value at a place of plain dictionaries and lists."""
    inner = document
    try:
        for step in place[:-1]:
            inner = inner[step] if isinstance(step, int) else inner.setdefault(step, {})
        inner[place[-1]] = copy.deepcopy(value)
    except (LookupError, TypeError, AttributeError):
        raise EditRefused(f"{_named(place)} cannot be edited by itself", "edit the text") from None


# -- lines and tables -----------------------------------------------------------------------------


def _blocks(text: str) -> list[tuple[Place, int, int]]:
    """Return (place, first line, line behind the last) of each entry and table.

    Lines are counted from 0. The first block holds the keys above all headers. A comment right
    below the last key belongs to the block, unless a header follows it at once; comments further
    below belong to the next block.
    """
    lines = text.splitlines()
    found: list[tuple[Place, int, int]] = []
    for header in headers(text):
        place = header.place
        top = place[:2] if len(place) > 1 and isinstance(place[1], int) else place[:1]
        start, end = max(header.line - 1, 0), header.last_line
        while end < len(lines) and lines[end].lstrip().startswith("#") and header.line:
            end += 1
        if end < len(lines) and lines[end].lstrip().startswith("["):
            end = header.last_line
        if found and found[-1][0] == top and top:
            found[-1] = top, found[-1][1], end
        else:
            found.append((top, start, end))
    return found


def _after_tables(text: str) -> int:
    """Return the line before which a new ``[table]`` goes: behind tables, before entries."""
    blocks = _blocks(text)
    ends = [end for place, _, end in blocks if len(place) == 1]
    first = next((start for place, start, _ in blocks if place), len(text.splitlines()))
    return ends[-1] if ends else first


def _after_entries(text: str, kind: str) -> int:
    """Return the line before which a new entry goes: behind entries of its or an earlier kind."""
    blocks = _blocks(text)
    for before in reversed(_ENTRIES[: _ENTRIES.index(kind) + 1]):
        ends = [end for place, _, end in blocks if place[:1] == (before,)]
        if ends:
            return ends[-1]
    if len(blocks) > 1 and not any(len(place) == 1 for place, _, _ in blocks):
        return blocks[1][1]  # before the entries of a later kind
    tables = [end for place, _, end in blocks if len(place) == 1]
    return tables[-1] if tables else len(text.splitlines())


def _put_item(table: Any, place: Place, value: Any) -> None:
    """Set a value in tables of tomlkit; missing tables on the way are added."""
    import tomlkit
    from tomlkit.items import Array, InlineTable

    for step in place[:-1]:
        if isinstance(step, str) and step not in table:
            is_inline = isinstance(table, (InlineTable, Array))
            table[step] = tomlkit.inline_table() if is_inline else tomlkit.table()
        table = table[step]
    table[place[-1]] = tomlkit.value(as_toml(value))


def _insert_item(table: Any, place: Place, value: Any) -> None:
    import tomlkit

    value_at(table, place[:-1]).insert(place[-1], tomlkit.value(as_toml(value)))


def _remove_item(table: Any, place: Place) -> None:
    del value_at(table, place[:-1])[place[-1]]
