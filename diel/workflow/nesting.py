"""Groups inside groups: each in one place, and ``depends`` among neighbours only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diel.errors import Problem
from diel.workflow.graph import find_cycle

DEEPEST = 32

Entries = Sequence["tuple[int, dict[str, Any]]"]


def listed(entry: Mapping[str, Any], key: str) -> list[tuple[int, str]]:
    """Return the strings in a list of an entry, each with its position."""
    value = entry.get(key)
    items = value if isinstance(value, list) else []
    return [(position, one) for position, one in enumerate(items) if isinstance(one, str)]


def check_nesting(names: Mapping[str, int], entries: Entries) -> Iterator[Problem]:
    """Find what is wrong with groups inside groups.

    Parameters
    ----------
    names : mapping of str to int
        Each group's name, with the index of the first entry that has it.
    entries : sequence of (int, dict)
        The groups as TOML reads them, each with its index.
    """
    parents: dict[str, str] = {}
    for index, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or names[name] != index:
            continue
        for position, child in listed(entry, "groups"):
            place = f"group[{index}].groups[{position}]"
            if child == name:
                yield Problem(place, f'group "{name}" is inside itself', "remove it")
            elif child in names and parents.setdefault(child, name) != name:
                yield Problem(
                    place,
                    f'group "{child}" is in group "{parents[child]}" already',
                    "a group stands in one place: add another group of the same modules",
                )
    cycles = list(_cycles(names, parents))
    yield from (_cycle_problem(names, cycle) for cycle in cycles)
    if cycles:
        return  # who is beside whom is not known then
    for name, index in names.items():
        if len(_path(name, parents)) == DEEPEST + 1:
            yield Problem(
                f"group[{index}]",
                f'group "{name}" is inside more than {DEEPEST - 1} others',
                "make the nest flatter",
            )
    for index, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str):
            continue
        for position, needed in listed(entry, "depends"):
            if needed in names and needed != name and parents.get(needed) != parents.get(name):
                yield Problem(
                    f"group[{index}].depends[{position}]",
                    f'group "{needed}" does not stand beside group "{name}": '
                    f"{_where(needed, parents)}, {_where(name, parents)}",
                    _remedy(_path(name, parents), _path(needed, parents)),
                )


def _cycles(names: Mapping[str, int], parents: Mapping[str, str]) -> Iterator[list[str]]:
    inside: dict[str, list[str]] = {name: [] for name in names}
    for child, parent in parents.items():
        inside[parent].append(child)
    while cycle := find_cycle(inside):
        yield cycle
        for name in cycle[:-1]:
            del inside[name]


def _cycle_problem(names: Mapping[str, int], cycle: Sequence[str]) -> Problem:
    return Problem(
        f"group[{names[cycle[0]]}].groups",
        f"groups are inside each other: {' -> '.join(cycle)}",
        "remove one of them",
    )


def _path(name: str, parents: Mapping[str, str]) -> list[str]:
    """Return the groups from the outermost one down to this one."""
    path = [name]
    while path[-1] in parents:
        path.append(parents[path[-1]])
    return path[::-1]


def _where(name: str, parents: Mapping[str, str]) -> str:
    return f'"{name}" is in group "{parents[name]}"' if name in parents else f'"{name}" is in none'


def _remedy(path: Sequence[str], needed_path: Sequence[str]) -> str:
    """Say which groups can depend on each other instead."""
    for one, needed in zip(path, needed_path, strict=False):
        if one != needed:
            return f'let group "{one}" depend on "{needed}"'
    if len(path) > len(needed_path):
        return "a group starts only when the one around it does: remove it"
    return "a group has finished only when those inside have: remove it"
