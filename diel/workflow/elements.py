"""Elements of groups with ``foreach``: their names and values, and which entries belong to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from diel.frozen import Frozen
from diel.text import show


class Element(Frozen):
    """One run of a group with ``foreach``.

    Attributes
    ----------
    name : str
        Of the group that runs it, such as ``cases-3``.
    index : int
        From 0.
    values : mapping of str to value
    texts : mapping of str to str
        The values of a table as they are written there, for longer texts.
    """

    name: str
    index: int
    values: Mapping[str, Any]
    texts: Mapping[str, str] = {}

    @property
    def in_words(self) -> str:
        """The values, such as ``dt = 0.1, cells = 64``."""
        return ", ".join(f"{name} = {show(value)}" for name, value in self.values.items())


class Array(Frozen):
    """A group with ``foreach``: its elements, and the names that they have values for."""

    group: str
    columns: tuple[str, ...]
    elements: tuple[Element, ...]

    @property
    def rows(self) -> list[list[Any]]:
        """The values of all elements, in the order of the names."""
        return [[*element.values.values()] for element in self.elements]


class Expansion(Frozen):
    """What has become of the groups with ``foreach`` of a document.

    Attributes
    ----------
    arrays : mapping of str to Array
        By the name of the group.
    origins : mapping of (str, int) to int
        Of ``("module", 7)`` in the expanded document, the index in the file.
    elements : mapping of (str, str) to Element
        Of ``("module", name)`` and ``("group", name)`` there.
    templates : mapping of (str, str) to str
        Of the same, the name in the file.
    """

    arrays: Mapping[str, Array] = {}
    origins: Mapping[tuple[str, int], int] = {}
    elements: Mapping[tuple[str, str], Element] = {}
    templates: Mapping[tuple[str, str], str] = {}

    def array_of(self, element: Element) -> Array:
        """Return the array of an element."""
        return self.arrays[element.name.rpartition("-")[0]]

    def own_name(self, module: str) -> str:
        """Return the name that a module has in the file, and in the code of its group."""
        return self.templates.get(("module", module), module)

    def values_of(self, kind: str, name: str) -> Mapping[str, Any]:
        """Return the values of the element of a ``module`` or ``group``; none outside of them."""
        element = self.elements.get((kind, name))
        return {} if element is None else element.values

    def names_within(self, modules: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return by module the names that it has for modules: of its element those of the file."""
        outside: dict[str, str] = {}
        of_element: dict[str, dict[str, str]] = {}
        modules = list(modules)
        for name in modules:
            element = self.elements.get(("module", name))
            names = outside if element is None else of_element.setdefault(element.name, {})
            names[self.own_name(name)] = name
        known = {each: {**outside, **names} for each, names in of_element.items()}
        return {
            name: outside
            if (element := self.elements.get(("module", name))) is None
            else known[element.name]
            for name in modules
        }


NO_EXPANSION: Final = Expansion()
