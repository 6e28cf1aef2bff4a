"""Checks of declared inputs and outputs: what nobody makes, what two make, and in which order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from diel.errors import Problem
from diel.run.directory import ELEMENTS
from diel.run.part import GroupLinks
from diel.text import show
from diel.workflow.elements import NO_EXPANSION, Expansion
from diel.workflow.model import Group, Module, links_of
from diel.workflow.programs import placeholders_in

Modules = Sequence["tuple[int, Module]"]
_RUN_DIR = "\0run"
"""Stands for the run directory in paths of elements: a name that no file has."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class _Made:
    """The outputs of modules, found by where they are: an exact path without a look at all."""

    def __init__(self, modules: Modules, folder: Path, expansion: Expansion) -> None:
        self.entries = [
            (index, module, position, text, _place(text, module, folder, expansion))
            for index, module in modules
            for position, text in enumerate(module.outputs)
        ]
        self._at: dict[str, list[int]] = {}  # the output itself, and those below this folder
        self._exact: dict[str, list[int]] = {}
        self._patterns: list[int] = []
        for number, (*_, place) in enumerate(self.entries):
            if glob.has_magic(place):
                self._patterns.append(number)
                continue
            self._exact.setdefault(place, []).append(number)
            for outer in (place, *_folders_around(place)):
                self._at.setdefault(outer, []).append(number)

    def like(self, place: str) -> list[int]:
        """Return which outputs may be a path, in a folder of that path, or a folder around it."""
        if glob.has_magic(place):
            return [
                number for number, each in enumerate(self.entries) if _may_be_same(place, each[-1])
            ]
        found = {*self._at.get(place, ())}
        for outer in _folders_around(place):
            found.update(self._exact.get(outer, ()))
        found.update(each for each in self._patterns if _may_be_same(place, self.entries[each][-1]))
        return sorted(found)


def check_outputs(
    modules: Modules, groups: Iterable[Group], folder: Path, expansion: Expansion = NO_EXPANSION
) -> Iterator[Problem]:
    """Find outputs of several copies or modules, and inputs that are read before they are made."""
    groups = list(groups)
    made = _Made(modules, folder, expansion)
    for number, (index, module, position, text, place) in enumerate(made.entries):
        path = f"module[{index}].outputs[{position}]"
        if module.copies != 1 and "copy" not in placeholders_in(text):
            message = f"all copies would make {show(text)}"
            yield Problem(path, message, "put {copy} into its name")
        if _leaves(text):
            message = f"{show(text)} is outside of the workflow file's folder, or that folder"
            yield Problem(path, message, "name a file or a folder in it, or in {run_dir}")
        others = [each for each in made.like(place) if each < number]
        if others:
            other = made.entries[others[0]][1]
            own = expansion.own_name(module.name)
            if other.name != module.name and expansion.own_name(other.name) == own:
                message = f"several elements would make {show(text)}"
                yield Problem(path, message, "put a value of foreach, or {element}, into its name")
            else:
                message = f"{show(text)} is an output of module {show(other.name)} too"
                yield Problem(path, message, "give each output one module, and one entry")
    links = links_of(groups)
    groups_of: dict[str, list[str]] = {}
    for group in groups:
        for name in group.modules:
            groups_of.setdefault(name, []).append(group.name)
    for index, module in modules:
        for position, text in enumerate(module.inputs):
            for number in made.like(_place(text, module, folder, expansion)):
                maker = made.entries[number][1]
                makers, readers = (groups_of.get(each.name, []) for each in (maker, module))
                why = _not_before(makers, readers, links)
                if why is not None:
                    message = f"module {show(maker.name)} makes {show(text)}, {why[0]}"
                    yield Problem(f"module[{index}].inputs[{position}]", message, why[1])


def missing_inputs(
    modules: Modules, folder: Path, expansion: Expansion = NO_EXPANSION
) -> Iterator[Problem]:
    """Find inputs that are not there, and that none of the modules makes."""
    made = _Made(modules, folder, expansion)
    for index, module in modules:
        for position, text in enumerate(module.inputs):
            pattern = _place(text, module, folder, expansion)
            if glob.glob(pattern, recursive=True):
                continue
            if not {"run_dir", "element_dir"}.isdisjoint(placeholders_in(text)) or made.like(
                pattern
            ):
                continue
            yield Problem(
                f"module[{index}].inputs[{position}]",
                f"input {show(text)} of module {show(module.name)} is missing, and no module "
                "makes it",
                "put it there, or name it in outputs of the module that makes it",
            )


def makers_of(
    names: Iterable[str],
    modules: Sequence[Module],
    folder: Path,
    expansion: Expansion = NO_EXPANSION,
) -> dict[str, set[str]]:
    """Return the modules that make inputs of each of some modules."""
    made = _Made([*enumerate(modules)], folder, expansion)
    by_name = {each.name: each for each in modules}
    return {
        name: {
            made.entries[number][1].name
            for text in by_name[name].inputs
            for number in made.like(_place(text, by_name[name], folder, expansion))
        }
        for name in names
    }


def _not_before(
    makers: Sequence[str], readers: Sequence[str], links: GroupLinks
) -> tuple[str, str] | None:
    """Return what is wrong with the order of groups, and the remedy; None if nothing is."""
    for reader in readers:
        if reader in makers:
            return "and runs at the same time", "put them into groups, one after the other"
        if makers and not any(reader in links.following(name) for name in makers):
            remedy = f'add depends = ["{makers[0]}"] to group "{reader}", or to one around it'
            return f"and group {show(reader)} does not depend on {show(makers[0])}", remedy
    return None


def _leaves(text: str) -> bool:
    """Whether an output is outside of the workflow file's folder, as far as its text says that."""
    inside = re.sub(r"^\{(run_dir|folder|element_dir)\}/*", "./", text)
    place = os.path.normpath(_PLACEHOLDER.sub("x", inside))
    return os.path.isabs(place) or place.split(os.sep)[0] in (".", "..")


def _place(text: str, module: Module, folder: Path, expansion: Expansion) -> str:
    """Return a pattern for the paths that a text stands for, in any copy."""
    known = {"folder": glob.escape(str(folder)), "module": module.name}
    element = expansion.elements.get(("module", module.name))
    if element is not None:
        element_dir = f"{_RUN_DIR}/{ELEMENTS}/{element.name}"
        known |= {"element": element.name, "element_dir": element_dir}
    filled = _PLACEHOLDER.sub(lambda found: known.get(found[1], "*"), text)
    unbraced = filled.replace("{{", "{").replace("}}", "}")
    return os.path.normpath(os.path.join(glob.escape(str(folder)), unbraced))


def _folders_around(place: str) -> list[str]:
    """Return all folders that a path is in."""
    return [str(folder) for folder in Path(place).parents]


def _may_be_same(place: str, other: str) -> bool:
    """Whether a path may fit both patterns, or lie in a folder that fits one of them."""
    pairs = ((place, other), (other, place))
    return any(fnmatchcase(a, b) or fnmatchcase(a, f"{b}/*") for a, b in pairs)
