"""Where a module's function is, found without running a line of anybody's code.

::

    ./file.py:function            relative to the workflow file's folder
    package.module:function       beside the workflow file first, then along sys.path

`diel check` runs on a login node, where importing a module of the user may fail (no MPI, no GPU)
or take long. So packages are followed with the import system's own finder, one part of the dotted
name at a time, and the file that it ends at is parsed, never executed.

The distribution ships a package called ``modules``, a name that users choose too. A folder
``modules`` beside the workflow file therefore hides of ours only what it really has:
``modules.x:run`` is the user's if ``modules/x.py`` is there, and ours otherwise.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from diel.workflow.nearest import did_you_mean

SHIPPED = "modules"
SHIPPED_ROOT = Path(__file__).absolute().parents[2]

FORMS = 'write "package.module:function", or "./file.py:function" for a file beside this one'


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
class FunctionLocation:
    """Where a function is.

    Attributes
    ----------
    spec : str
        As the workflow file says it.
    function : str
        Its name in the module.
    file : Path or None
        The file that defines or imports it; None for a module built into the interpreter.
    module_name : str
        The dotted name of its module; for a file, the file's stem.
    root : Path or None
        The folder that must be on ``sys.path`` to import the module by its name: the entry where
        the top-level package was found; for a file, its own folder, as Python does for a script.
    shipped : bool
        Whether it is in the package ``modules`` that comes with diel.
    classes : frozenset of str
        Names of the top-level classes in the file.
    """

    spec: str
    function: str
    file: Path | None
    module_name: str
    root: Path | None
    shipped: bool
    classes: frozenset[str]


def locate(spec: str, folder: Path) -> FunctionLocation:
    """Find a function without importing its module.

    Parameters
    ----------
    spec : str
        ``package.module:function`` or ``./file.py:function``.
    folder : Path
        The folder of the workflow file.

    Raises
    ------
    FunctionNotFound
        If the spec is malformed, or the module or the function is not there.
    """
    folder = Path(folder).absolute()
    where, _, function = spec.rpartition(":")
    if not where or not _is_name(function) or "\0" in spec:
        raise FunctionNotFound(f'"{spec}" does not name a function', FORMS)
    if where.endswith(".py"):
        return _locate_in_file(spec, where, function, folder)
    parts = where.split(".")
    if not all(_is_name(part) for part in parts):
        raise FunctionNotFound(f'"{spec}" does not name a function', FORMS)
    return _locate_in_module(spec, parts, function, folder)


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _locate_in_file(spec: str, where: str, function: str, folder: Path) -> FunctionLocation:
    file = folder / where
    if not file.is_file():
        raise FunctionNotFound(f"there is no file {file}", _near_file(file))
    names = _names_in(file)
    _check_defined(function, names, file)
    return FunctionLocation(
        spec=spec,
        function=function,
        file=file,
        module_name=file.stem,
        root=file.parent,
        shipped=_is_shipped(file),
        classes=frozenset(names.classes),
    )


def _near_file(file: Path) -> str:
    if not file.parent.is_dir():
        return f"there is no folder {file.parent} either"
    near = did_you_mean(file.name, sorted(one.name for one in file.parent.glob("*.py")))
    return f'did you mean "{near}"?' if near else "paths are relative to the workflow file's folder"


def _locate_in_module(
    spec: str, parts: Sequence[str], function: str, folder: Path
) -> FunctionLocation:
    found = _find_module(parts, folder)
    file = Path(found.origin).absolute() if found.has_location and found.origin else None
    names = _names_in(file) if file and file.suffix == ".py" and file.is_file() else _ANYTHING
    if file is not None:
        _check_defined(function, names, file)
    depth = len(parts) + (file is not None and file.stem == "__init__")
    return FunctionLocation(
        spec=spec,
        function=function,
        file=file,
        module_name=".".join(parts),
        root=file.parents[depth - 1] if file and depth <= len(file.parents) else None,
        shipped=file is not None and parts[0] == SHIPPED and _is_shipped(file),
        classes=frozenset(names.classes),
    )


def _is_shipped(file: Path) -> bool:
    return file.resolve().is_relative_to((SHIPPED_ROOT / SHIPPED).resolve())


def _find_module(parts: Sequence[str], folder: Path) -> ModuleSpec:
    # A file written a moment ago may be missing from the finders' listings.
    importlib.invalidate_caches()
    searches = [[str(folder), *sys.path]]
    if parts[0] == SHIPPED:
        searches = [[str(folder)], [str(SHIPPED_ROOT)], sys.path]
    for path in searches:
        found = _follow(parts, path)
        if found is not None and found.loader is not None:
            return found
    raise _module_not_found(parts, folder, searches)


def _follow(parts: Sequence[str], path: Sequence[str]) -> ModuleSpec | None:
    """Follow a dotted name down from a search path; None if it leads nowhere."""
    found = _find_top(parts[0], path)
    for part in parts[1:]:
        if found is None or found.submodule_search_locations is None:
            return None
        # By its last part only: a namespace package below a package that is not imported
        # cannot compute its own path.
        found = PathFinder.find_spec(part, list(found.submodule_search_locations))
    return found


def _find_top(name: str, path: Sequence[str]) -> ModuleSpec | None:
    if name in sys.builtin_module_names:
        return BuiltinImporter.find_spec(name)
    found = PathFinder.find_spec(name, path)
    if found is not None or name == SHIPPED:
        return found
    # Editable installs may come with finders of their own.
    for finder in sys.meta_path:
        if finder in (BuiltinImporter, FrozenImporter, PathFinder):
            continue
        found = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if found is not None:
            return found
    return None


def _module_not_found(
    parts: Sequence[str], folder: Path, searches: Sequence[Sequence[str]]
) -> FunctionNotFound:
    name = ".".join(parts)
    for path in searches:
        if (found := _follow(parts, path)) is not None:
            places = ", ".join(found.submodule_search_locations or ())
            return FunctionNotFound(
                f"{name} is a folder without __init__.py, it holds no functions",
                f"name a module in {places}",
            )
    # The longest start of the name that exists says what went wrong behind it.
    for length in range(len(parts) - 1, 0, -1):
        parents = [one for path in searches if (one := _follow(parts[:length], path))]
        if parents:
            return _not_in_package(parts, length, parents)
    near = did_you_mean(parts[0], sorted({*_module_names([str(folder)]), SHIPPED}))
    hint = f'did you mean "{near}"?' if near else "put it there, or install it"
    return FunctionNotFound(
        f"there is no module {name}, neither in {folder} nor on Python's search path", hint
    )


def _not_in_package(
    parts: Sequence[str], length: int, parents: Sequence[ModuleSpec]
) -> FunctionNotFound:
    start, missing = ".".join(parts[:length]), parts[length]
    places = [one for parent in parents for one in parent.submodule_search_locations or ()]
    if not places:
        return FunctionNotFound(
            f"there is no module {'.'.join(parts)}: {start} is a single file, not a package",
            f'write "{start}:function"',
        )
    places = list(dict.fromkeys(places))
    near = did_you_mean(missing, sorted(_module_names(places)))
    hint = f'did you mean "{start}.{near}"?' if near else ""
    return FunctionNotFound(f'there is no "{missing}" in {", ".join(places)}', hint)


def _module_names(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if Path(place).is_dir():
            for one in Path(place).iterdir():
                if one.stem.isidentifier() and (one.suffix == ".py" or one.is_dir()):
                    yield one.stem


@dataclass(frozen=True)
class _Names:
    """What a file defines at its top level.

    ``defined`` says of each name whether it is a ``function``, ``async``, a ``value`` that cannot
    be called, or may be ``anything``. In an ``is_open`` file there may be more names than can be
    read off.
    """

    defined: dict[str, str]
    classes: frozenset[str] = frozenset()
    is_open: bool = False


_ANYTHING = _Names({}, is_open=True)


def _names_in(file: Path) -> _Names:
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
    return _Names(defined, frozenset(classes), bool({"*", "__getattr__"} & set(defined)))


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
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name, "function"
        elif isinstance(statement, ast.AsyncFunctionDef):
            yield statement.name, "async"
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


_VALUES = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.Tuple)


def _check_defined(function: str, names: _Names, file: Path) -> None:
    kind = names.defined.get(function)
    if kind == "async":
        raise FunctionNotFound(
            f"{function} in {file} is an async function", 'make it a plain function: "def"'
        )
    if kind == "value" and not names.is_open:
        raise FunctionNotFound(
            f"{function} in {file} is a value, not a function", _listing(function, names)
        )
    if kind is None and not names.is_open:
        raise FunctionNotFound(
            f"there is no function {function} in {file}", _listing(function, names)
        )


def _listing(function: str, names: _Names) -> str:
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
