"""Find the names that a Python file defines at its top level, without running the file."""

from __future__ import annotations

import ast
import builtins
import functools
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diel.frozen import Frozen
from diel.text import did_you_mean


class FunctionNotFound(LookupError):
    """The function that a workflow file names does not exist, or cannot be called by a run.

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


class Names(Frozen):
    """The names that a file defines at its top level.

    ``defined`` says of each name whether it is a ``function``, a function that no run can call (a
    key of `_UNFIT`), a ``value`` that cannot be called, or may be ``anything``. ``takes`` says of a
    plain function how many positional arguments it needs, and takes at most. A file that
    ``is_open`` may define more names than can be found without running it.
    """

    defined: dict[str, str]
    classes: frozenset[str] = frozenset()
    is_open: bool = False
    takes: Mapping[str, tuple[float, float]] = {}


ANYTHING = Names({}, is_open=True)


def names_in(file: Path) -> Names:
    """Return the names that a file defines at its top level.

    Raises
    ------
    FunctionNotFound
        If the file cannot be read, or is not valid Python.
    """
    try:
        found = os.stat(file)
    except (OSError, ValueError) as error:
        raise FunctionNotFound(f"cannot read {file}: {error}") from None
    return _names_in(file, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)  # the functions of a thousand modules often lie in one file
def _names_in(file: Path, _mtime_ns: int, _size_bytes: int) -> Names:
    try:
        with warnings.catch_warnings():
            # Python warns of invalid escapes while parsing: no problem of the workflow file.
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
        # A name that is defined twice, as in try/except, counts as callable if one of the two is.
        if name not in defined or kind in ("function", "anything"):
            defined[name] = kind
    statements = list(_statements(tree.body))
    classes = {statement.name for statement in statements if isinstance(statement, ast.ClassDef)}
    takes: dict[str, tuple[float, float]] = {}
    for statement in statements:
        # A decorator may make anything of a function; one that is defined twice may be either.
        if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
            fewest, most = _arguments_of(statement)
            before = takes.get(statement.name, (fewest, most))
            takes[statement.name] = (min(fewest, before[0]), max(most, before[1]))
    is_open = bool({"*", "__getattr__"} & set(defined))
    return Names(defined, frozenset(classes), is_open, takes)


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
}
"""Functions that no run can call: what they are, and what to do about it."""


def _kind_of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(function, ast.AsyncFunctionDef):
        return "async"
    if function.decorator_list:  # a decorator may put any function in its place
        return "function"
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        return "generator"
    return "function"


def _arguments_of(function: ast.FunctionDef) -> tuple[float, float]:
    """Return how many positional arguments a function needs, and takes at most."""
    takes = function.args
    places = len(takes.posonlyargs) + len(takes.args)
    if None in takes.kw_defaults:  # an argument that has to be given by its name
        return math.inf, math.inf
    return places - len(takes.defaults), math.inf if takes.vararg else places


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a function, without those of functions and classes inside it."""
    left = list(ast.iter_child_nodes(function))
    while left:  # no recursion: an expression may be as deep as a file is long
        node = left.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


_VALUES = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.Tuple)


def check_defined(
    function: str, names: Names, file: Path, arguments: Sequence[str] | None = None
) -> None:
    """Check that a file defines a function that a run can call, with these arguments if given.

    Raises
    ------
    FunctionNotFound
        If there is no such function, or a run cannot call it.
    """
    kind = names.defined.get(function)
    if kind in _UNFIT:
        fault, remedy = _UNFIT[kind]
        raise FunctionNotFound(f"{function} in {file} {fault}", remedy)
    if kind == "function" and arguments is not None and function in names.takes:
        _check_arguments(function, names.takes[function], file, arguments)
    if kind == "value" and not names.is_open:
        raise FunctionNotFound(
            f"{function} in {file} is a value, not a function", _listing(function, names, arguments)
        )
    if kind is None and not names.is_open:
        raise FunctionNotFound(
            f"there is no function {function} in {file}", _listing(function, names, arguments)
        )


def _check_arguments(
    function: str, takes: tuple[float, float], file: Path, arguments: Sequence[str]
) -> None:
    fewest, most = takes
    given = len(arguments)
    remedy = f"it is called with {_count(given)}: ({', '.join(arguments)})"
    if most < given:
        raise FunctionNotFound(f"{function} in {file} takes {_count(int(most))}", remedy)
    if fewest > given:
        raise FunctionNotFound(f"{function} in {file} needs more than {_count(given)}", remedy)


def _count(arguments: int) -> str:
    words = ("no", "one", "two", "three")
    number = words[arguments] if arguments < len(words) else str(arguments)
    return f"{number} argument{'s' if arguments > 1 else ''}"


def _listing(function: str, names: Names, arguments: Sequence[str] | None) -> str:
    """Suggest the function that may be meant: preferably one that a run can call as it is."""

    def is_fit(name: str) -> bool:
        fewest, most = names.takes.get(name, (0, math.inf))
        return arguments is None or fewest <= len(arguments) <= most

    own = [
        name
        for name, kind in names.defined.items()
        if kind == "function" and not name.startswith("_") and not hasattr(builtins, name)
    ]
    fit = [name for name in own if is_fit(name)]
    callables = [name for name, kind in names.defined.items() if kind != "value"]
    near = did_you_mean(function, fit) or did_you_mean(function, [] if fit else callables)
    if near:
        return f'did you mean "{near}"?'
    own = fit or own
    return f"it defines {', '.join(own[:6])}" if own else "define it at the top level of the file"
