"""The text of a workflow file as something to edit, in which comments and layout stay.

::

    Document(text, file)
      set, remove                          any key, by its place
      insert, move                         items of lists
      add_module, rename_module, remove_module
      add_group, rename_group, remove_group
      connect                              what a group depends on
      put_inside, take_out                 groups inside groups
      add_to_group                         modules of a group
      undo, redo
      draft, problems                      what is wrong in it, as `diel check` finds it

An edit changes the lines of one table and leaves the rest of the text alone (`edits`). It is done
whole or not at all: one that a text cannot take, that gives two things the same name, or that makes
groups wait for each other raises EditRefused and changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from diel.errors import EditRefused, Problem
from diel.workflow.edits import (
    document_in,
    value_at,
    with_entry,
    with_item,
    with_value,
    without,
    without_entry,
)
from diel.workflow.load import Draft, draft_of_text
from diel.workflow.references import check_references
from diel.workflow.source import Place

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
        known = set(_faults(document_in(self._text)))
        with self._one_edit():
            yield
            for path, message, remedy in _faults(document_in(self._text)):
                if (path, message, remedy) not in known and message not in {
                    words for _, words, _ in known
                }:
                    raise EditRefused(message, remedy)

    # -- keys -------------------------------------------------------------------------------------

    def get(self, place: Place) -> Any:
        """Return the value at a place, None if there is none or the text is not TOML."""
        try:
            return copy.deepcopy(value_at(document_in(self._text), place))
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
        self.replace_text(with_value(self._text, place, value))

    def remove(self, place: Place) -> None:
        """Remove a key or an item of a list; nothing happens where it is not there."""
        self.replace_text(without(self._text, place))

    def insert(self, place: Place, value: Any) -> None:
        """Put an item into a list, before the one that stands at a place, or behind the last."""
        self.replace_text(with_item(self._text, place, value))

    def move(self, place: Place, to: int) -> None:
        """Move an item of a list to another place of it, counted without the item."""
        with self._one_edit():
            value = self.get(place)
            self.remove(place)
            self.insert((*place[:-1], to), value)

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
            self.replace_text(with_entry(self._text, "module", {"name": name, **keys}))
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
            self.replace_text(without_entry(self._text, "module", self.index_of("module", name)))

    def add_to_group(self, module: str, group: str) -> None:
        """Add a module to those of a group."""
        with self._without_new_faults():
            self._add_name(self.index_of("group", group), "modules", module)

    # -- groups -----------------------------------------------------------------------------------

    def add_group(self, name: str, modules: Sequence[str] = (), inside: str = "") -> None:
        """Add a group behind the others, inside of one of them if it is named."""
        with self._without_new_faults():
            keys = {"name": name, **({"modules": [*modules]} if modules else {})}
            self.replace_text(with_entry(self._text, "group", keys))
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
            self.replace_text(without_entry(self._text, "group", index))

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
        value = document_in(self._text).get(kind)
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
