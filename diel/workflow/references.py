"""Check how entries of a workflow file refer to each other: names, dependencies, groups in groups.

Entries are checked as TOML reads them, since entries that their model refuses count as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from diel.errors import PROBLEMS_SHOWN, Problem, limited
from diel.frozen import Frozen
from diel.text import did_you_mean, some_of
from diel.workflow.graph import find_cycle

DEEPEST = 32  # groups within each other, the outermost one included

Entries = Sequence["tuple[int, dict[str, Any]]"]


class _Entries(Frozen):
    """The entries of one kind: ``module`` or ``group``."""

    kind: str
    entries: list[tuple[int, dict[str, Any]]]  # all entries that are tables, with their indices
    are_all_named: bool  # if not, an unknown name may be that of an unnamed entry

    @cached_property
    def names(self) -> dict[str, int]:
        """Each name, with the index of the first entry that has it."""
        names: dict[str, int] = {}
        for index, entry in self.entries:
            if isinstance(entry.get("name"), str):
                names.setdefault(entry["name"], index)
        return names


def check_references(document: dict[str, Any], unsure: set[str]) -> list[Problem]:
    """Find wrong references between entries of a document: unknown or repeated names, cycles.

    ``unsure`` holds ``module`` or ``group`` if that table is misspelt or has a wrong shape.
    """
    modules = _entries(document, "module", unsure)
    groups = _entries(document, "group", unsure)
    checks = (
        _none_at_all(document, modules, unsure),
        _none_at_all(document, groups, unsure),
        _duplicates(modules),
        _duplicates(groups),
        _unknown(groups, "modules", modules),
        _unknown(groups, "groups", groups),
        _unknown(groups, "depends", groups),
        _self_depends(groups),
        _cycles(groups),
        _check_nesting(groups.names, groups.entries),
        _in_no_group(modules, groups, unsure),
    )
    return [problem for found in checks for problem in limited(found)]


def tables_in(document: Mapping[str, Any], kind: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries of ``[[module]]`` or ``[[group]]`` that are tables, with their indices."""
    value = document.get(kind)
    entries = value if isinstance(value, list) else []
    return [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, dict)]


def names_in(entry: Mapping[str, Any], key: str) -> list[tuple[int, str]]:
    """Return the strings in a list of an entry, each with its position."""
    value = entry.get(key)
    items = value if isinstance(value, list) else []
    return [(position, item) for position, item in enumerate(items) if isinstance(item, str)]


def _entries(document: dict[str, Any], kind: str, unsure: set[str]) -> _Entries:
    entries = tables_in(document, kind)
    named = all(isinstance(entry.get("name"), str) for _, entry in entries)
    return _Entries(kind, entries, bool(entries) and named and kind not in unsure)


def _none_at_all(
    document: dict[str, Any], entries: _Entries, unsure: set[str]
) -> Iterator[Problem]:
    if not document.get(entries.kind) and entries.kind not in unsure:
        hint = {
            "module": 'add [[module]] with a name and a function = "package.module:function"',
            "group": "add [[group]] with a name and the modules that run together",
        }
        yield Problem(entries.kind, f"the file has no {entries.kind}", hint[entries.kind])


def _duplicates(entries: _Entries) -> Iterator[Problem]:
    for index, entry in entries.entries:
        name = entry.get("name")
        if isinstance(name, str) and (first := entries.names[name]) != index:
            yield Problem(
                f"{entries.kind}[{index}].name",
                f'{entries.kind}[{first}] is called "{name}" too',
                "give each its own name",
            )


def _unknown(groups: _Entries, key: str, known: _Entries) -> Iterator[Problem]:
    if not known.are_all_named:
        return
    for index, group in groups.entries:
        for position, name in names_in(group, key):
            if name not in known.names:
                yield Problem(
                    f"group[{index}].{key}[{position}]",
                    f'there is no {known.kind} "{name}"',
                    _near(name, group, key, known),
                )


def _near(name: str, group: dict[str, Any], key: str, known: _Entries) -> str:
    # A group neither waits for itself nor holds itself, and names nothing twice.
    excluded = {named for _, named in names_in(group, key)}
    if key in ("depends", "groups"):
        excluded.add(str(group.get("name")))
    near = did_you_mean(name, [name for name in known.names if name not in excluded])
    return f'did you mean "{near}"?' if near else f"the file has {some_of(known.names)}"


def _self_depends(groups: _Entries) -> Iterator[Problem]:
    for index, group in groups.entries:
        for position, name in names_in(group, "depends"):
            if name == group.get("name"):
                yield Problem(
                    f"group[{index}].depends[{position}]",
                    f'group "{name}" depends on itself',
                    "remove it",
                )


def _cycles(groups: _Entries) -> Iterator[Problem]:
    depends: dict[str, list[str]] = {}
    for _, group in groups.entries:
        name = group.get("name")
        if isinstance(name, str):
            other_groups = [needed for _, needed in names_in(group, "depends") if needed != name]
            depends.setdefault(name, []).extend(other_groups)
    while cycle := find_cycle(depends):
        yield Problem(
            f"group[{groups.names[cycle[0]]}].depends",
            f"groups wait for each other: {' -> '.join(cycle)}",
            "remove one of these dependencies",
        )
        for name in cycle[:-1]:
            del depends[name]


def _in_no_group(modules: _Entries, groups: _Entries, unsure: set[str]) -> Iterator[Problem]:
    # Where a group's list cannot be read, or names what is probably a misspelt module, the
    # module may be meant to be there.
    lists = [group.get("modules", [] if "groups" in group else None) for _, group in groups.entries]
    are_readable = all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists
    )
    if not groups.entries or not are_readable or "group" in unsure:
        return
    used = dict.fromkeys(
        name for _, group in groups.entries for _, name in names_in(group, "modules")
    )
    unknown = (name for name in used if name not in modules.names)
    meant = {did_you_mean(name, modules.names) for name in islice(unknown, PROBLEMS_SHOWN)}
    for name, index in modules.names.items():
        if name not in used and name not in meant:
            yield Problem(
                f"module[{index}]",
                f'module "{name}" is in no group, so it would never run',
                "add it to the modules of a [[group]], or remove it",
            )


# -- groups in groups ------------------------------------------------------------------------------


def _check_nesting(names: Mapping[str, int], entries: Entries) -> Iterator[Problem]:
    """Find what is wrong with groups inside groups."""
    parents: dict[str, str] = {}
    for index, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or names[name] != index:
            continue
        for position, child in names_in(entry, "groups"):
            place = f"group[{index}].groups[{position}]"
            if child == name:
                yield Problem(place, f'group "{name}" is inside itself', "remove it")
            elif child in names and parents.setdefault(child, name) != name:
                yield Problem(
                    place,
                    f'group "{child}" is in group "{parents[child]}" already',
                    "a group stands in one place: add another group of the same modules",
                )
    cycles = list(_cycles_inside(names, parents))
    yield from (_cycle_problem(names, cycle) for cycle in cycles)
    if cycles:
        return  # with cycles it is not known which groups stand beside each other
    for name, index in names.items():
        if len(groups_around(name, parents)) == DEEPEST + 1:
            yield Problem(
                f"group[{index}]",
                f'group "{name}" is inside more than {DEEPEST - 1} others',
                "put groups side by side",
            )
    for index, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str):
            continue
        for position, needed in names_in(entry, "depends"):
            if needed in names and needed != name and parents.get(needed) != parents.get(name):
                yield Problem(
                    f"group[{index}].depends[{position}]",
                    f'group "{needed}" does not stand beside group "{name}": '
                    f"{_where(needed, parents)}, {_where(name, parents)}",
                    dependency_to_add(groups_around(name, parents), groups_around(needed, parents)),
                )


def _cycles_inside(names: Mapping[str, int], parents: Mapping[str, str]) -> Iterator[list[str]]:
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


def groups_around(name: str, parents: Mapping[str, str]) -> list[str]:
    """Return the groups around a group, outermost first, and the group itself last."""
    path = {name: None}
    while name in parents and parents[name] not in path:
        name = parents[name]
        path[name] = None
    return [*path][::-1]


def _where(name: str, parents: Mapping[str, str]) -> str:
    return f'"{name}" is in group "{parents[name]}"' if name in parents else f'"{name}" is in none'


def dependency_to_add(path: Sequence[str], needed_path: Sequence[str]) -> str:
    """Say which groups can depend on each other instead."""
    for group, needed in zip(path, needed_path, strict=False):
        if group != needed:
            return f'let group "{group}" depend on "{needed}"'
    if len(path) > len(needed_path):
        return "a group starts only when the one around it does: remove it"
    return "a group has finished only when those inside have: remove it"
