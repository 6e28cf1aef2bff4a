"""Placeholders such as ``{copy}`` in what a workflow file says of an executable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PLACEHOLDERS: Final = {
    "copy": "which copy of the module this is, from 0",
    "copies": "how many copies there are",
    "task": "which of the module's tasks this is, from 0",
    "tasks": "how many tasks there are; 1 where the module has none",
    "iteration": 'which iteration of its groups, outermost first, from 0, such as "2.0"',
    "run_dir": "the run directory",
    "folder": "the workflow file's folder",
    "processes": "the module's processes: the ranks in one copy",
    "threads": "the module's threads",
    "module": "the module's name",
    "group": "its group's name",
}
"""What each one stands for."""

# In this order: two braces are one that stands for itself.
_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ONE_BRACE: Final = {"{{": "{", "}}": "}"}


class PlaceholderProblem(ValueError):
    """A text has braces that are no placeholder; ``remedy`` says what to write."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def names_in(text: str) -> list[str]:
    """Return the placeholders of a text, in their order.

    Raises
    ------
    PlaceholderProblem
        If one is not known, or a brace stands alone.
    """
    names = []
    for found in _PIECES.finditer(text):
        name = found[1]
        if found[0] in _ONE_BRACE:
            continue
        if name is None:
            raise PlaceholderProblem(
                f'"{found[0]}" opens or closes no placeholder', f"for a brace, {_TWICE}"
            )
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
            raise PlaceholderProblem(
                f"there is no placeholder {{{name}}}", f"known: {known}; for a brace, {_TWICE}"
            )
        names.append(name)
    return names


_TWICE: Final = "write it twice: {{ or }}"


def fill(text: str, values: Mapping[str, object]) -> str:
    """Put values in the place of the placeholders of a text.

    Parameters
    ----------
    text : str
        One that `names_in` accepts.
    values : mapping
        For each placeholder that is in it.
    """

    def replacement(found: re.Match[str]) -> str:
        return _ONE_BRACE[found[0]] if found[0] in _ONE_BRACE else str(values[found[1]])

    return _PIECES.sub(replacement, text)
