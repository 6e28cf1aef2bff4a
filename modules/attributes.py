"""Attributes of a user's function or strategy that are read, and misspelt ones that are not.

What a user calls otherwise would be ignored without a word: a model that is never written, a rule
that never stops a trial.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

OF_TRAINERS: Final[Mapping[str, str]] = {
    "save_model": "save_model(parameters, report, path) writes the model of a trial",
    "facts": "a dictionary of facts about its device, for the report",
    "at_once": "how many trials it runs together",
    "train_together": "train_together(trials) runs so many",
}
"""Attributes of a function for trials that a trainer reads, and what each is."""
OF_STRATEGIES: Final = (
    *("ask", "tell", "add", "report", "size", "is_stateless"),
    *("ask_alike", "tell_curve", "parent", "possible_parents", "members", "is_reproducible"),
    *("takes_all_objectives", "finalize"),
)
"""Attributes of a strategy that a master reads."""

_OF_SAVING: Final = frozenset(["checkpoint", "keep", "save", "store", "write"])
"""Words in names that others give to ``save_model``."""
_NEAR: Final = 0.75


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that an unknown one is probably taken for; None if there is none."""
    known = list(known)
    if "save_model" in known and _OF_SAVING & set(name.lower().split("_")):
        return "save_model"
    near = get_close_matches(name.lower(), known, 1, cutoff=_NEAR)
    return near[0] if near else None


def unknown_attributes(train: Any) -> list[str]:
    """Return the attributes that were given to a function, and that nobody reads.

    Of an object with a ``__call__`` only those which are nearly called like one that is read: what
    else it has is its own. What decorators set begins with an underscore.
    """
    given = [name for name in getattr(train, "__dict__", {}) if not name.startswith("_")]
    unknown = [name for name in given if name not in OF_TRAINERS]
    if isinstance(train, (types.FunctionType, functools.partial)):
        return unknown
    return [name for name in unknown if get_close_matches(name, OF_TRAINERS, 1, cutoff=0.9)]


def describe_unknown(function: str, name: str) -> str:
    """Return a text on an attribute of a function that nobody reads."""
    ours = meant_by(name, OF_TRAINERS)
    remedy = f"did you mean {ours}?" if ours else f"it reads {', '.join(OF_TRAINERS)}"
    return f"{function} has an attribute {name!r}, which diel does not read: {remedy}"


def assigned_attributes(file: Path, function: str) -> Iterator[str]:
    """Yield the attributes that a file, when it is imported, gives to a function of its own."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # which is reported elsewhere
        return
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == function
                ):
                    yield target.attr


def unread_of_strategy(strategy: Any) -> Iterator[tuple[str, str]]:
    """Yield what a strategy's class calls nearly like something that is read, and that name."""
    for name in dir(type(strategy)):
        if not name.startswith("_") and name not in OF_STRATEGIES:
            near = get_close_matches(name, OF_STRATEGIES, 1, cutoff=_NEAR)
            if near and not hasattr(strategy, near[0]):
                yield name, near[0]
