"""What a Python file defines at its top level, read off without running a line of it."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diel.workflow.nearest import did_you_mean


class FunctionNotFound(LookupError):
    """A module names a function that is not there.

    Attributes
    ----------
    message : str
        What is wrong.
    remedy : str
        What to do next; may be empty.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


@dataclass(frozen=True)
class Names:
    """What a file defines at its top level.

    ``defined`` says of each name whether it is a ``function``, one that no run can call (a key of
    `_UNFIT`), a ``value`` that cannot be called, or may be ``anything``. In an ``is_open`` file
    there may be more names than can be read off.
    """

    defined: dict[str, str]
    classes: frozenset[str] = frozenset()
    is_open: bool = False


ANYTHING = Names({}, is_open=True)


def names_in(file: Path) -> Names:
    """Return what a file defines.

    Raises
    ------
    FunctionNotFound
        If it cannot be read, or is no Python.
    """
    try:
        with warnings.catch_warnings():
            # Python warns of dubious escapes while parsing; that is between it and the author.
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        place = f"{file}:{error.lineno}" if error.lineno else f"{file}"
        raise FunctionNotFound(
            f"{place}: {error.msg}{text}", "correct the syntax error in this file"
        ) from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise FunctionNotFound(f"cannot read {file}: {error}") from None
    defined: dict[str, str] = {}
    for name, kind in _definitions(tree.body):
        # What is defined in two ways, as in try/except, is what a reader would hope for.
        if name not in defined or kind in ("function", "anything"):
            defined[name] = kind
    classes = {one.name for one in _statements(tree.body) if isinstance(one, ast.ClassDef)}
    return Names(defined, frozenset(classes), bool({"*", "__getattr__"} & set(defined)))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Walk the statements that run at import, into if, try, with and loops."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                inner = getattr(statement, block, None)
                if isinstance(inner, list):
                    yield from _statements(inner)


def _definitions(body: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    for statement in _statements(body):
        if isinstance(statement, ast.ClassDef):
            yield statement.name, "function"
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name, _kind_of_function(statement)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], "anything"
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            kind = "value" if isinstance(statement.value, _VALUES) else "anything"
            for target in targets:
                for inner in ast.walk(target):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        yield inner.id, kind if inner is target else "anything"


_UNFIT = {
    "async": ("is an async function", 'make it a plain function: "def"'),
    "generator": (
        "has a yield in it, and would be called without being run",
        "return what it finds, or put it in the tuple space",
    ),
    "narrow": ("takes no argument", "a module is called with its context: (ctx)"),
    "wide": ("needs more than one argument", "a module is called with its context alone: (ctx)"),
}
"""Functions that no run can call: what they are, and what to do about it."""


def _kind_of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(function, ast.AsyncFunctionDef):
        return "async"
    if function.decorator_list:  # which may make anything of it
        return "function"
    if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in _own_nodes(function)):
        return "generator"
    takes = function.args
    places = len(takes.posonlyargs) + len(takes.args)
    if not places and not takes.vararg:
        return "narrow"
    is_wide = places - len(takes.defaults) > 1 or None in takes.kw_defaults
    return "wide" if is_wide else "function"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Walk what a function does itself, without the functions in it."""
    left = list(ast.iter_child_nodes(function))
    while left:  # no recursion: an expression may be as deep as a file is long
        node = left.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


_VALUES = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.Tuple)


def check_defined(function: str, names: Names, file: Path, *, takes_context: bool = True) -> None:
    """Check that a file defines a function, and that a run can call it.

    Parameters
    ----------
    function : str
    names : Names
    file : Path
    takes_context : bool, optional
        Whether it is to be called with a context alone.

    Raises
    ------
    FunctionNotFound
        Otherwise.
    """
    kind = names.defined.get(function)
    if kind in _UNFIT and (takes_context or kind not in ("narrow", "wide")):
        what, remedy = _UNFIT[kind]
        raise FunctionNotFound(f"{function} in {file} {what}", remedy)
    if kind == "value" and not names.is_open:
        raise FunctionNotFound(
            f"{function} in {file} is a value, not a function", _listing(function, names)
        )
    if kind is None and not names.is_open:
        raise FunctionNotFound(
            f"there is no function {function} in {file}", _listing(function, names)
        )


def _listing(function: str, names: Names) -> str:
    callable_names = [name for name, kind in names.defined.items() if kind != "value"]
    near = did_you_mean(function, callable_names)
    if near:
        return f'did you mean "{near}"?'
    own = [
        name
        for name, kind in names.defined.items()
        if kind == "function" and not name.startswith("_") and not hasattr(builtins, name)
    ]
    return f"it defines {', '.join(own[:6])}" if own else "define it at the top level of the file"
