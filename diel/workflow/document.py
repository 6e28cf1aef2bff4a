"""Edit the text of a workflow file, with undo and redo; comments and layout are kept.

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
as a whole or not at all: an edit that the text does not allow, that gives two entries the same name
or that makes groups wait for each other raises EditRefused and changes nothing.
"""

from __future__ import annotations

import contextlib
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
from diel.workflow.references import check_references, groups_around, names_in, tables_in
from diel.workflow.source import Place

_UNDO_STEPS: Final = 1000
_UNDO_LETTERS: Final = 20_000_000  # in all texts that are kept for undo, together


class Document:
    """The text of a workflow file, with methods that edit it, undo and redo.

    Parameters
    ----------
    text : str
    file : Path
        Absolute path that the file has or will have; what the text names is looked for in its
        folder.

    Attributes
    ----------
    text : str
        The current text.
    given : tuple of str
        Settings ``KEY=VALUE`` of a run that is to be started: they belong to the draft, and not to
        the text.
    """

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.given: tuple[str, ...] = ()
        self._text = text
        self._before: list[str] = []
        self._undone: list[str] = []
        self._is_editing = False
        self._draft: Draft | None = None

    @property
    def text(self) -> str:
        """The current text, with all edits."""
        return self._text

    @property
    def draft(self) -> Draft:
        """The current text as a `Draft`: its valid tables, and all its problems."""
        draft = self._draft
        wanted = self._text, self.file, self.given
        if draft is None or (draft.source, draft.file, draft.given) != wanted:
            draft = self._draft = draft_of_text(self._text, self.file, given=self.given)
        return draft

    def prepare(self) -> None:
        """Read the text, which takes a while if it is long: `draft` and edits need not any more."""
        with contextlib.suppress(EditRefused):
            document_in(self._text)
        _ = self.draft

    def problems(self, extra: Iterable[Problem] = ()) -> list[Problem]:
        """Return all problems of the text, with lines and remedies, in the order of the file.

        Parameters
        ----------
        extra : iterable of Problem, optional
            Problems that other checks have found, for example in options.
        """
        return self.draft.in_order(extra)

    # -- undo and redo ----------------------------------------------------------------------------

    @property
    def can_undo(self) -> bool:
        """Whether there is an edit to undo."""
        return bool(self._before)

    @property
    def can_redo(self) -> bool:
        """Whether an edit has been undone, and nothing else edited since."""
        return bool(self._undone)

    def undo(self) -> None:
        """Undo the last edit, if there is one."""
        if self._before:
            self._undone.append(self._text)
            self._text = self._before.pop()

    def redo(self) -> None:
        """Redo the edit that was undone last, if there is one."""
        if self._undone:
            self._before.append(self._text)
            self._text = self._undone.pop()

    def replace_text(self, text: str, *, continues: bool = False) -> None:
        """Replace the whole text; the new text may have problems.

        Parameters
        ----------
        text : str
        continues : bool, optional
            Whether this continues the last edit, so that both are one step of `undo`.
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
        """Join all edits in a block to one step of `undo`; an exception reverts them all."""
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
        """Do the same as `_one_edit`, and refuse a block that adds any of the `_faults`."""
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
        """Set a key to a value: ``set(("module", 0, "options", "seed"), 1)``.

        Parameters
        ----------
        place : tuple of str and int
            A key of an entry that is there, of ``[workflow]`` or of ``[tuple_space]``. Missing
            tables on the way are added.
        value : str, int, float, bool, list or dict

        Raises
        ------
        EditRefused
            If the place cannot be edited by itself, and the text has to be.
        """
        self.replace_text(with_value(self._text, place, value))

    def remove(self, place: Place) -> None:
        """Remove a key or an item of a list; do nothing if it is not there."""
        self.replace_text(without(self._text, place))

    def insert(self, place: Place, value: Any) -> None:
        """Insert an item into a list, before the item at a place, or at the end."""
        self.replace_text(with_item(self._text, place, value))

    def move(self, place: Place, to: int) -> None:
        """Move an item of a list to another index, counted without the item."""
        with self._one_edit():
            value = self.get(place)
            self.remove(place)
            self.insert((*place[:-1], to), value)

    # -- modules ----------------------------------------------------------------------------------

    def index_of(self, kind: str, name: str) -> int:
        """Return the index of the first ``module`` or ``group`` with a name.

        An EditRefused if no entry has the name.
        """
        for index, entry in self._entries(kind):
            if entry.get("name") == name:
                return index
        raise EditRefused(f'there is no {kind} "{name}"', "choose one of the file")

    def names(self, kind: str) -> list[str]:
        """Return the names of all modules, or of all groups; empty if the text is not TOML."""
        entries = self.draft.document.get(kind)
        return [
            entry["name"]
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        ]

    def free_name(self, kind: str, wanted: str) -> str:
        """Return a name that no entry has yet: the wanted name, or that with a number behind it."""
        known = {entry.get("name") for _, entry in self._entries(kind)}
        number, name = 1, wanted
        while name in known:
            number += 1
            name = f"{wanted}{number}"
        return name

    def add_module(self, name: str, keys: Mapping[str, Any], group: str = "") -> None:
        """Add a module behind all others, and to a group if its name is given."""
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
            Places of options whose value, given or by default, is the module's name: they are set
            to the new name.
        """
        with self._without_new_faults():
            self.set(("module", self.index_of("module", name), "name"), new)
            for index, entry in self._entries("group"):
                for position, other in names_in(entry, "modules"):
                    if other == name:
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
        """Remove a module, and its name from all groups."""
        with self._without_new_faults():
            for index, _ in self._entries("group"):
                self._remove_name(index, "modules", name)
            self.replace_text(without_entry(self._text, "module", self.index_of("module", name)))

    def add_to_group(self, module: str, group: str) -> None:
        """Add a module to a group."""
        with self._without_new_faults():
            self._add_name(self.index_of("group", group), "modules", module)

    # -- groups -----------------------------------------------------------------------------------

    def add_group(self, name: str, modules: Sequence[str] = (), inside: str = "") -> None:
        """Add a group behind all others, inside the group ``inside`` if that is given."""
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
                    for position, other in names_in(entry, key):
                        if other == name:
                            self.set(("group", index, key, position), new)

    def remove_group(self, name: str) -> None:
        """Remove a group; the groups inside it take its place, and run in the same order.

        The first groups inside it then depend on what it depended on, and the groups that depended
        on it depend on the last ones inside it; if none are inside, on what it depended on.
        """
        with self._without_new_faults():
            index = self.index_of("group", name)
            parent = self._parents().get(name)
            inside = dict.fromkeys(_names(self.get(("group", index)), "groups"))
            depends = {
                str(entry.get("name")): _names(entry, "depends")
                for _, entry in reversed(self._entries("group"))  # the first entry of a name counts
            }
            needed = [other for other in depends[name] if other != name]
            children = [child for child in inside if child in depends and child != name]
            if parent is not None:
                self._add_names(parent, "groups", children)
            for child in children:
                if not set(depends[child]) & set(children):
                    self._add_names(child, "depends", needed)
            waited_for = {other for child in children for other in depends[child]}
            last = [child for child in children if child not in waited_for]
            for place, entry in self._entries("group"):
                self._remove_name(place, "groups", name)
                if name in _names(entry, "depends"):
                    self._remove_name(place, "depends", name)
                    for before in last or needed:
                        if before != entry.get("name"):
                            self._add_name(place, "depends", before)
            self.replace_text(without_entry(self._text, "group", index))

    def connect(self, before: str, after: str) -> None:
        """Make the group ``after`` depend on the group ``before``."""
        with self._without_new_faults():
            self.index_of("group", before)
            self._add_name(self.index_of("group", after), "depends", before)

    def put_inside(self, child: str, parent: str) -> None:
        """Put a group inside another group, which has no modules of its own.

        Dependencies between it and groups outside become dependencies of the outer group.
        """
        with self._without_new_faults():
            if self.get(("group", self.index_of("group", parent), "modules")):
                raise EditRefused(
                    f'group "{parent}" has modules inside, so it cannot have groups too',
                    "make a group for both, and put them into that",
                )
            self._move([child], parent)

    def put_in_new_group(self, children: Sequence[str], parent: str) -> None:
        """Add a group, where the first of ``children`` is, and put all of these inside it."""
        with self._without_new_faults():
            outer = self._parents().get(children[0]) if children else None
            self.add_group(parent)
            if outer is not None:
                self._add_name(self.index_of("group", outer), "groups", parent)
            self._move(children, parent)

    def take_out(self, child: str) -> None:
        """Move a group out of its outer group, to stand beside that."""
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
        # Only groups that stand beside each other may depend on each other: where one end of a
        # dependency stands elsewhere now, both are replaced by the groups around them that do.
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
        """Return the groups around two groups that stand beside each other.

        If one of the two is inside the other, return the first twice.
        """
        parents = self._parents()
        around = [groups_around(first, parents), groups_around(second, parents)]
        for outer_of_first, outer_of_second in zip(*around, strict=False):
            if outer_of_first != outer_of_second:
                return outer_of_first, outer_of_second
        return first, first

    def _parents(self) -> dict[str, str]:
        return {
            child: str(entry.get("name"))
            for _, entry in self._entries("group")
            for child in _names(entry, "groups")
        }

    # -- lists of names ---------------------------------------------------------------------------

    def _entries(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return tables_in(document_in(self._text), kind)

    def _add_name(self, index: int, key: str, name: str) -> None:
        names = self.get(("group", index, key)) or []
        if name not in names:
            self.set(("group", index, key), [*names, name])

    def _add_names(self, group: str, key: str, names: Iterable[str]) -> None:
        for name in names:
            self._add_name(self.index_of("group", group), key, name)

    def _remove_name(self, index: int, key: str, name: str) -> None:
        entry = dict(self._entries("group"))[index]
        for position, other in reversed(names_in(entry, key)):
            if other != name:
                continue
            self.remove(("group", index, key, position))
            if self.get(("group", index, key)) == []:
                self.remove(("group", index, key))


# -- parts of a text ------------------------------------------------------------------------------


def _latest(texts: list[str]) -> list[str]:
    """Return the newest texts that fit the limits of `undo`, one at least."""
    texts, room = texts[-_UNDO_STEPS:], _UNDO_LETTERS
    for number, text in enumerate(reversed(texts)):
        room -= len(text)
        if room < 0 and number:
            return texts[-number:]
    return texts


def _faults(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the problems of names, dependencies and nesting, which no edit may add."""
    for problem in check_references(document, set()):
        if (
            problem.path.endswith(".name")
            or ".depends" in problem.path
            or (".groups" in problem.path)
        ):
            yield problem.path, problem.message, problem.remedy


def _names(entry: Mapping[str, Any], key: str) -> list[str]:
    return [name for _, name in names_in(entry, key)]
