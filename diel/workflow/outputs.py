"""Checks of declared inputs and outputs: what nobody makes, what two make, and in which order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from diel.errors import Problem
from diel.run.part import GroupLinks
from diel.text import show
from diel.workflow.model import Group, Module, links_of
from diel.workflow.programs import placeholders_in

Modules = Sequence["tuple[int, Module]"]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def check_outputs(modules: Modules, groups: Iterable[Group], folder: Path) -> Iterator[Problem]:
    """Find outputs of several copies or modules, and inputs that are read before they are made."""
    groups = list(groups)
    made = [
        (index, module, position, text)
        for index, module in modules
        for position, text in enumerate(module.outputs)
    ]
    for number, (index, module, position, text) in enumerate(made):
        path = f"module[{index}].outputs[{position}]"
        if module.copies != 1 and "copy" not in placeholders_in(text):
            message = f"all copies would make {show(text)}"
            yield Problem(path, message, "put {copy} into its name")
        if _leaves(text):
            message = f"{show(text)} is outside of the workflow file's folder, or that folder"
            yield Problem(path, message, "name a file or a folder in it, or in {run_dir}")
        for _, other, _, theirs in made[:number]:
            if _may_be_same(_place(text, module, folder), _place(theirs, other, folder)):
                message = f"{show(text)} is an output of module {show(other.name)} too"
                yield Problem(path, message, "give each output one module, and one entry")
    links = links_of(groups)
    for index, module in modules:
        for position, text in enumerate(module.inputs):
            for _, maker, _, theirs in made:
                if _may_be_same(_place(text, module, folder), _place(theirs, maker, folder)):
                    why = _not_before(maker.name, module.name, groups, links)
                    if why is not None:
                        message = f"module {show(maker.name)} makes {show(text)}, {why[0]}"
                        yield Problem(f"module[{index}].inputs[{position}]", message, why[1])


def missing_inputs(modules: Modules, folder: Path) -> Iterator[Problem]:
    """Find inputs that are not there, and that none of the modules makes."""
    made = [_place(text, module, folder) for _, module in modules for text in module.outputs]
    for index, module in modules:
        for position, text in enumerate(module.inputs):
            pattern = _place(text, module, folder)
            if glob.glob(pattern, recursive=True):
                continue
            if "run_dir" in placeholders_in(text) or any(_may_be_same(pattern, m) for m in made):
                continue
            yield Problem(
                f"module[{index}].inputs[{position}]",
                f"input {show(text)} of module {show(module.name)} is missing, and no module "
                "makes it",
                "put it there, or name it in outputs of the module that makes it",
            )


def makers_of(module: Module, modules: Iterable[Module], folder: Path) -> set[str]:
    """Return the modules that make an input of a module."""
    read = [_place(text, module, folder) for text in module.inputs]
    return {
        maker.name
        for maker in modules
        for text in maker.outputs
        if any(_may_be_same(each, _place(text, maker, folder)) for each in read)
    }


def _not_before(
    maker: str, reader: str, groups: Sequence[Group], links: GroupLinks
) -> tuple[str, str] | None:
    """Return what is wrong with the order of two modules, and the remedy; None if nothing is."""
    for group in groups:
        if reader not in group.modules:
            continue
        if maker in group.modules:
            return "and runs at the same time", "put them into groups, one after the other"
        makers = [each.name for each in groups if maker in each.modules]
        if makers and not any(group.name in links.following(name) for name in makers):
            remedy = f'add depends = ["{makers[0]}"] to group "{group.name}", or to one around it'
            return f"and group {show(group.name)} does not depend on {show(makers[0])}", remedy
    return None


def _leaves(text: str) -> bool:
    """Whether an output is outside of the workflow file's folder, as far as its text says that."""
    inside = re.sub(r"^\{(run_dir|folder)\}/*", "./", text)
    place = os.path.normpath(_PLACEHOLDER.sub("x", inside))
    return os.path.isabs(place) or place.split(os.sep)[0] in (".", "..")


def _place(text: str, module: Module, folder: Path) -> str:
    """Return a pattern for the paths that a text stands for, in any copy."""
    known = {"folder": glob.escape(str(folder)), "module": module.name}
    filled = _PLACEHOLDER.sub(lambda found: known.get(found[1], "*"), text)
    unbraced = filled.replace("{{", "{").replace("}}", "}")
    return os.path.normpath(os.path.join(glob.escape(str(folder)), unbraced))


def _may_be_same(place: str, other: str) -> bool:
    """Whether a path may fit both patterns, or lie in a folder that fits one of them."""
    pairs = ((place, other), (other, place))
    return any(fnmatchcase(a, b) or fnmatchcase(a, f"{b}/*") for a, b in pairs)
