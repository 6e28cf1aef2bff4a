"""Check the resources that modules of a workflow file take against those that [workflow] has.

Entries are checked as TOML reads them, since entries that their model refuses count as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from diel.errors import Problem, limited
from diel.text import did_you_mean, join_path, show, show_key, some_of
from diel.workflow.references import names_in, tables_in


def check_resources(document: Mapping[str, Any]) -> list[Problem]:
    """Find resources that are not there, and groups that take more than there are."""
    settings = document.get("workflow")
    there = _counts(settings) if isinstance(settings, dict) else {}
    if there is None:
        return []  # the model says what is wrong with them
    unknown = list(limited(_unknown(document, there)))
    return unknown or list(limited(_too_few(document, there)))


def _unknown(document: Mapping[str, Any], there: Mapping[str, int]) -> Iterator[Problem]:
    for index, module in tables_in(document, "module"):
        for name, amount in (_counts(module) or {}).items():
            if name not in there:
                near = did_you_mean(name, there)
                remedy = f'did you mean "{near}"?' if near else _remedy(name, amount, there)
                path = join_path(f"module[{index}]", ("resources", name))
                yield Problem(path, f"[workflow] has no resource {show(name)}", remedy)


def _remedy(name: str, amount: int, there: Mapping[str, int]) -> str:
    has = f"it has {some_of(there)}; " if there else ""
    return (
        f"{has}say how many there are: resources = {{ {show_key(name)} = {amount} }} in [workflow]"
    )


def _too_few(document: Mapping[str, Any], there: Mapping[str, int]) -> Iterator[Problem]:
    uses: dict[str, Counter[str]] = {}
    for _, module in tables_in(document, "module"):
        copies = module.get("copies", 1)
        count = copies if type(copies) is int else 1  # a fill has one copy at least
        if isinstance(name := module.get("name"), str):
            taken = _counts(module) or {}
            uses.setdefault(name, Counter({each: count * taken[each] for each in taken}))
    for index, group in tables_in(document, "group"):
        takes: Counter[str] = Counter()
        for _, name in names_in(group, "modules"):
            takes.update(uses.get(name, {}))
        for name, amount in takes.items():
            if amount > there[name]:
                key = show_key(name)
                yield Problem(
                    f"group[{index}].modules",
                    f"its copies take {amount} {key} together, and there are {there[name]}: "
                    "it could never start",
                    f"raise resources.{key} in [workflow], or let fewer copies run together",
                )


def _counts(table: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the resources of a table; None if they are no table of numbers from 1."""
    found = table.get("resources", {})
    if not isinstance(found, dict):
        return None
    if any(type(each) is not int or each < 1 for each in found.values()):
        return None
    return found
