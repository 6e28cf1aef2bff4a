"""The text of a workflow file as something to edit, in which comments and layout stay.

::

    Document(text, file)
      set, remove                          any key, by its place
      insert, move                         items of lists
      add_module, rename_module, remove_module
      add_group, rename_group, remove_group
      connect                              what a group depends on
      put_inside, take_out                       groups inside groups
      add_to_group                         modules of a group
      undo, redo
      draft, problems                      what is wrong in it, as `diel check` finds it

An edit changes the lines of one table and leaves the rest of the text alone. It is done whole or
not at all: one that a text cannot take, that gives two things the same name, or that makes groups
wait for each other raises EditRefused and changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from diel.errors import EditRefused, Problem
from diel.text import as_tables, as_toml, join_path, show_key
from diel.workflow.load import Draft, draft_of_text
from diel.workflow.references import check_references
from diel.workflow.source import Place, SourceProblem, headers, parse_document

_ENTRIES: Final = ("module", "group", "boundary")
_UNDO_STEPS: Final = 1000
_UNDO_LETTERS: Final = 20_000_000  # in all texts that can be gone back to


class Document:
    """A workflow file while it is edited.

    Parameters
    ----------
    text : str
    file : Path
        Absolute; where it lies, or will lie: what it names is looked for in that folder.

    Attributes
    ----------
    text : str
        As it stands now.
    """

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self._text = text
        self._before: list[str] = []
        self._undone: list[str] = []
        self._is_editing = False
        self._draft: Draft | None = None
        self._parsed: tuple[str, dict[str, Any]] | None = None  # a text, and what it says

    @property
    def text(self) -> str:
        """The text as it stands now."""
        return self._text

    @property
    def draft(self) -> Draft:
        """The text as far as it can be read, with what is wrong in it."""
        draft = self._draft
        if draft is None or (draft.source, draft.file) != (self._text, self.file):
            draft = self._draft = draft_of_text(self._text, self.file)
        return draft

    def problems(self, extra: Iterable[Problem] = ()) -> list[Problem]:
        """Return everything that is wrong, each with its line and remedy, in order of the file.

        Parameters
        ----------
        extra : iterable of Problem, optional
            What others have found, of options, say.
        """
        return self.draft.in_order(extra)

    # -- steps back and forth ---------------------------------------------------------------------

    @property
    def can_undo(self) -> bool:
        """Whether there is an edit to take back."""
        return bool(self._before)

    @property
    def can_redo(self) -> bool:
        """Whether an edit has been taken back, and nothing else edited since."""
        return bool(self._undone)

    def undo(self) -> None:
        """Take back the last edit, if there is one."""
        if self._before:
            self._undone.append(self._text)
            self._text = self._before.pop()

    def redo(self) -> None:
        """Make the edit again that was taken back last, if there is one."""
        if self._undone:
            self._before.append(self._text)
            self._text = self._undone.pop()

    def replace_text(self, text: str, *, continues: bool = False) -> None:
        """Take another text, right or wrong.

        Parameters
        ----------
        text : str
        continues : bool, optional
            Whether it goes on with the last edit, so that both are one step of `undo`.
        """
        if continues and self._before and not self._is_editing:
            if text != self._text:
                self._text = text
                self._undone.clear()
            return
        with self._one_edit():
            self._text = text

    @contextmanager
    def _one_edit(self) -> Iterator[None]:
        """Make what happens inside one step of `undo`, or nothing where it raises."""
        if self._is_editing:
            yield
            return
        before = self._text
        self._is_editing = True
        try:
            yield
        except BaseException:
            self._text = before
            raise
        finally:
            self._is_editing = False
        if self._text != before:
            self._before = _latest([*self._before, before])
            self._undone.clear()

    @contextmanager
    def _without_new_faults(self) -> Iterator[None]:
        """One edit that may not bring two of one name, nor groups that wait for each other."""
        known = set(_faults(self._document()))
        with self._one_edit():
            yield
            for path, message, remedy in _faults(self._document()):
                if (path, message, remedy) not in known and message not in {
                    words for _, words, _ in known
                }:
                    raise EditRefused(message, remedy)

    # -- keys -------------------------------------------------------------------------------------

    def get(self, place: Place) -> Any:
        """Return the value at a place, None if there is none or the text is not TOML."""
        try:
            return copy.deepcopy(_value_at(self._document(), place))
        except (EditRefused, LookupError, TypeError):
            return None

    def set(self, place: Place, value: Any) -> None:
        """Give a key a value: ``set(("module", 0, "options", "seed"), 1)``.

        Parameters
        ----------
        place : tuple of str and int
            A key of an entry that is there, of ``[workflow]`` or of ``[tuple_space]``. Tables on
            the way are made.
        value : str, int, float, bool, list or dict

        Raises
        ------
        EditRefused
            If the place cannot be edited by itself, and the text has to be.
        """
        with self._one_edit():
            wanted = copy.deepcopy(self._document())
            _put(wanted, place, value)
            self._change(place, lambda table, keys: _put_item(table, keys, value))
            self._expect(wanted, place)

    def remove(self, place: Place) -> None:
        """Remove a key or an item of a list; nothing happens where it is not there."""
        with self._one_edit():
            wanted = copy.deepcopy(self._document())
            try:
                del _value_at(wanted, place[:-1])[place[-1]]
            except (LookupError, TypeError):
                return
            self._change(place, _remove_item)
            self._expect(wanted, place)

    def insert(self, place: Place, value: Any) -> None:
        """Put an item into a list, before the one that stands at a place, or behind the last."""
        with self._one_edit():
            wanted = copy.deepcopy(self._document())
            try:
                _value_at(wanted, place[:-1]).insert(place[-1], copy.deepcopy(value))
            except (LookupError, TypeError, AttributeError):
                raise EditRefused(f"{_named(place[:-1])} is no list", "edit the text") from None
            self._change(place, lambda table, keys: _insert_item(table, keys, value))
            self._expect(wanted, place)

    def move(self, place: Place, to: int) -> None:
        """Move an item of a list to another place of it, counted without the item."""
        with self._one_edit():
            value = self.get(place)
            self.remove(place)
            self.insert((*place[:-1], to), value)

    def _document(self) -> dict[str, Any]:
        """Return what the text says, which nobody may change."""
        if self._parsed is not None and self._parsed[0] == self._text:
            return self._parsed[1]
        try:
            self._parsed = self._text, parse_document(self._text)[0]
            return self._parsed[1]
        except SourceProblem as error:
            problem = error.problem
            where = f"line {problem.line}: " if problem.line else ""
            raise EditRefused(f"{where}{problem.message}", problem.remedy) from None

    def _expect(self, wanted: Mapping[str, Any], place: Place) -> None:
        """Refuse an edit whose text does not say what was wanted."""
        try:
            is_there = self._document() == wanted
        except EditRefused:
            is_there = False
        if not is_there:
            raise EditRefused(f"{_named(place)} cannot be edited by itself", "edit the text")

    def _change(self, place: Place, edit: Callable[[Any, Place], None]) -> None:
        """Edit the lines of the table that a place is in."""
        import tomlkit  # in the extra `gui`
        from tomlkit.exceptions import TOMLKitError

        top: Place = place[:2] if len(place) > 1 and isinstance(place[1], int) else place[:1]
        lines = self._text.splitlines(keepends=True)
        blocks = [block for block in _blocks(self._text) if block[0] == top]
        root = _blocks(self._text)[0]
        if len(blocks) > 1:
            raise EditRefused(
                f"the parts of {_named(top)} stand apart in the file", "edit the text"
            )
        if not blocks and self.get(top) is not None:
            if top[0] in _ENTRIES:
                raise EditRefused(
                    f"{_named(top)} stands in a list in brackets",
                    f"write [[{top[0]}]] for each, or edit the text",
                )
            blocks = [root]
        if not blocks:
            self._insert(f"[{show_key(top[0])}]\n", _after_tables(self._text))
            self._change(place, edit)
            return
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
        self._text = "".join([*lines[:start], changed, *lines[end:]])

    def _insert(self, block: str, line: int) -> None:
        """Insert lines before a line, counted from 0, with an empty line on both sides."""
        lines = self._text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        above = "\n" if line and lines[line - 1].strip() else ""
        below = "\n" if line < len(lines) and lines[line].strip() else ""
        self._text = "".join([*lines[:line], above, block, below, *lines[line:]])

    def _remove_entry(self, kind: str, index: int) -> None:
        wanted = copy.deepcopy(self._document())
        del wanted[kind][index]
        if not wanted[kind]:
            del wanted[kind]
        blocks = [block for block in _blocks(self._text) if block[0] == (kind, index)]
        if len(blocks) != 1:
            raise EditRefused(f"{kind}[{index}] cannot be removed by itself", "edit the text")
        _, start, end = blocks[0]
        lines = self._text.splitlines(keepends=True)
        is_below_empty = start == 0 or not lines[start - 1].strip()
        while is_below_empty and end < len(lines) and not lines[end].strip():
            end += 1
        self._text = "".join([*lines[:start], *lines[end:]])
        self._expect(wanted, (kind, index))

    def _add_entry(self, kind: str, keys: Mapping[str, Any]) -> None:
        wanted = copy.deepcopy(self._document())
        wanted.setdefault(kind, []).append(dict(keys))
        self._insert(as_tables({kind: [keys]}), _after_entries(self._text, kind))
        self._expect(wanted, (kind, len(wanted[kind]) - 1))

    # -- modules ----------------------------------------------------------------------------------

    def index_of(self, kind: str, name: str) -> int:
        """Return the index of the first ``module`` or ``group`` of a name.

        Raises
        ------
        EditRefused
            If there is none.
        """
        for index, entry in self._entries(kind):
            if entry.get("name") == name:
                return index
        raise EditRefused(f'there is no {kind} "{name}"', "choose one of the file")

    def free_name(self, kind: str, wanted: str) -> str:
        """Return a name that no entry has yet: the wanted one, or with a number behind it."""
        known = {entry.get("name") for _, entry in self._entries(kind)}
        number, name = 1, wanted
        while name in known:
            number += 1
            name = f"{wanted}{number}"
        return name

    def add_module(self, name: str, keys: Mapping[str, Any], group: str = "") -> None:
        """Add a module behind the others, and to a group if one is named."""
        with self._without_new_faults():
            self._add_entry("module", {"name": name, **keys})
            if group:
                self.add_to_group(name, group)

    def rename_module(self, name: str, new: str, options: Sequence[Place] = ()) -> None:
        """Rename a module, wherever the file names it.

        Parameters
        ----------
        name, new : str
        options : sequence of Place, optional
            Options of modules that name it, or mean it by their default: they are set to the new
            name.
        """
        with self._without_new_faults():
            self.set(("module", self.index_of("module", name), "name"), new)
            for index, entry in self._entries("group"):
                for position, _ in _places_in(entry, "modules", name):
                    self.set(("group", index, "modules", position), new)
            for index, entry in self._entries("boundary"):
                for key in ("owners", "readers"):
                    parts = entry.get(key)
                    for position, part in enumerate(parts if isinstance(parts, list) else []):
                        if isinstance(part, dict) and part.get("module") == name:
                            self.set(("boundary", index, key, position, "module"), new)
            for place in options:
                self.set(place, new)

    def remove_module(self, name: str) -> None:
        """Remove a module, from the groups too."""
        with self._without_new_faults():
            for index, _ in self._entries("group"):
                self._remove_name(index, "modules", name)
            self._remove_entry("module", self.index_of("module", name))

    def add_to_group(self, module: str, group: str) -> None:
        """Add a module to those of a group."""
        with self._without_new_faults():
            self._add_name(self.index_of("group", group), "modules", module)

    # -- groups -----------------------------------------------------------------------------------

    def add_group(self, name: str, modules: Sequence[str] = (), inside: str = "") -> None:
        """Add a group behind the others, inside of one of them if it is named."""
        with self._without_new_faults():
            self._add_entry("group", {"name": name, **({"modules": [*modules]} if modules else {})})
            if inside:
                self.put_inside(name, inside)

    def rename_group(self, name: str, new: str) -> None:
        """Rename a group, wherever the file names it."""
        with self._without_new_faults():
            self.set(("group", self.index_of("group", name), "name"), new)
            for index, entry in self._entries("group"):
                for key in ("groups", "depends"):
                    for position, _ in _places_in(entry, key, name):
                        self.set(("group", index, key, position), new)

    def remove_group(self, name: str) -> None:
        """Remove a group; what is inside of it goes to where it was, and the order stays.

        What it depended on is handed on to the groups inside of it, or else to what depended on it.
        """
        with self._without_new_faults():
            index = self.index_of("group", name)
            parent = self._parents().get(name)
            inside = dict.fromkeys(_names(self.get(("group", index)), "groups"))
            depends = {
                str(entry.get("name")): _names(entry, "depends")
                for _, entry in reversed(self._entries("group"))  # of one name the first one counts
            }
            needed = [other for other in depends[name] if other != name]
            children = [child for child in inside if child in depends and child != name]
            first = [child for child in children if not set(depends[child]) & set(children)]
            waited_for = {other for child in children for other in depends[child]}
            last = [child for child in children if child not in waited_for]
            if parent is not None:
                for child in children:
                    self._add_name(self.index_of("group", parent), "groups", child)
            for child in first:
                for other in needed:
                    self._add_name(self.index_of("group", child), "depends", other)
            for place, entry in self._entries("group"):
                self._remove_name(place, "groups", name)
                if name in _names(entry, "depends"):
                    self._remove_name(place, "depends", name)
                    for before in last or needed:
                        if before != entry.get("name"):
                            self._add_name(place, "depends", before)
            self._remove_entry("group", index)

    def connect(self, before: str, after: str) -> None:
        """Let a group depend on another one: it starts when that has finished."""
        with self._without_new_faults():
            self.index_of("group", before)
            self._add_name(self.index_of("group", after), "depends", before)

    def put_inside(self, child: str, parent: str) -> None:
        """Put a group inside of another one, which has no modules of its own.

        What it depended on outside, and what depended on it, is handed on to the outer group.
        """
        with self._without_new_faults():
            if self.get(("group", self.index_of("group", parent), "modules")):
                raise EditRefused(
                    f'group "{parent}" has modules inside, so it cannot have groups too',
                    "make a group for both, and put them into that",
                )
            self._move([child], parent)

    def put_in_new_group(self, children: Sequence[str], parent: str) -> None:
        """Make a new group that has these inside, where the first of them was."""
        with self._without_new_faults():
            outer = self._parents().get(children[0]) if children else None
            self.add_group(parent)
            if outer is not None:
                self._add_name(self.index_of("group", outer), "groups", parent)
            self._move(children, parent)

    def take_out(self, child: str) -> None:
        """Move a group out of the one that it is in, to beside that."""
        with self._without_new_faults():
            parents = self._parents()
            if child in parents:
                self._move([child], parents.get(parents[child]))

    def _move(self, children: Sequence[str], parent: str | None) -> None:
        parents = self._parents()
        for child in children:
            if child in parents:
                self._remove_name(self.index_of("group", parents[child]), "groups", child)
            if parent is not None:
                self._add_name(self.index_of("group", parent), "groups", child)
        # Dependencies are between groups that stand beside each other: what stands elsewhere now
        # is replaced by the group around it that stands beside the other end.
        for index, entry in self._entries("group"):
            name = str(entry.get("name"))
            for needed in _names(entry, "depends"):
                if name not in children and needed not in children:
                    continue
                after, before = self._beside(name, needed)
                if (after, before) == (name, needed):
                    continue
                self._remove_name(index, "depends", needed)
                if after != before:
                    self._add_name(self.index_of("group", after), "depends", before)

    def _beside(self, first: str, second: str) -> tuple[str, str]:
        """Return the groups around two that stand beside each other, or twice the same."""
        parents = self._parents()
        around = [_around(first, parents), _around(second, parents)]
        for one, other in zip(*around, strict=False):
            if one != other:
                return one, other
        return first, first

    def _parents(self) -> dict[str, str]:
        return {
            child: str(entry.get("name"))
            for _, entry in self._entries("group")
            for child in _names(entry, "groups")
        }

    # -- lists of names ---------------------------------------------------------------------------

    def _entries(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        value = self._document().get(kind)
        entries = value if isinstance(value, list) else []
        return [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, dict)]

    def _add_name(self, index: int, key: str, name: str) -> None:
        names = self.get(("group", index, key)) or []
        if name not in names:
            self.set(("group", index, key), [*names, name])

    def _remove_name(self, index: int, key: str, name: str) -> None:
        entry = dict(self._entries("group"))[index]
        for position, _ in reversed(_places_in(entry, key, name)):
            self.remove(("group", index, key, position))
            if self.get(("group", index, key)) == []:
                self.remove(("group", index, key))


# -- what the text says ---------------------------------------------------------------------------


def _latest(texts: list[str]) -> list[str]:
    """Return the last texts, as many as `undo` keeps; one at least."""
    texts, room = texts[-_UNDO_STEPS:], _UNDO_LETTERS
    for number, text in enumerate(reversed(texts)):
        room -= len(text)
        if room < 0 and number:
            return texts[-number:]
    return texts


def _faults(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what no edit may bring: two of one name, circles, dependencies across groups."""
    for problem in check_references(document, set()):
        if (
            problem.path.endswith(".name")
            or ".depends" in problem.path
            or (".groups" in problem.path)
        ):
            yield problem.path, problem.message, problem.remedy


def _names(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key)
    names = value if isinstance(value, list) else []
    return [name for name in names if isinstance(name, str)]


def _places_in(entry: Mapping[str, Any], key: str, name: str) -> list[tuple[int, str]]:
    value = entry.get(key)
    items = value if isinstance(value, list) else []
    return [(position, item) for position, item in enumerate(items) if item == name]


def _around(name: str, parents: Mapping[str, str]) -> list[str]:
    """Return the groups from the outermost one around this one down to itself."""
    found = [name]
    while found[-1] in parents and parents[found[-1]] not in found:
        found.append(parents[found[-1]])
    return found[::-1]


def _named(place: Place) -> str:
    return join_path("", place)


def _value_at(document: Any, place: Place) -> Any:
    for step in place:
        document = document[step]
    return document


def _put(document: Any, place: Place, value: Any) -> None:
    """Set a value in plain dictionaries and lists."""
    inner = document
    try:
        for step in place[:-1]:
            inner = inner[step] if isinstance(step, int) else inner.setdefault(step, {})
        inner[place[-1]] = copy.deepcopy(value)
    except (LookupError, TypeError, AttributeError):
        raise EditRefused(f"{_named(place)} cannot be edited by itself", "edit the text") from None


# -- lines and tables -----------------------------------------------------------------------------


def _blocks(text: str) -> list[tuple[Place, int, int]]:
    """Return the lines of each entry and table: its place, the first line and the one behind it.

    Lines are counted from 0. The first block is what stands above all headers. A comment right
    below the last key belongs to the block, unless a header follows it at once; comments further
    below belong to what follows.
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
    """Return the line before which a new ``[table]`` goes: behind others, before entries."""
    blocks = _blocks(text)
    ends = [end for place, _, end in blocks if len(place) == 1]
    first = next((start for place, start, _ in blocks if place), len(text.splitlines()))
    return ends[-1] if ends else first


def _after_entries(text: str, kind: str) -> int:
    """Return the line before which a new entry goes: behind those of its kind or an earlier one."""
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
    """Set a value in tables of tomlkit; those on the way are made."""
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

    _value_at(table, place[:-1]).insert(place[-1], tomlkit.value(as_toml(value)))


def _remove_item(table: Any, place: Place) -> None:
    del _value_at(table, place[:-1])[place[-1]]
