"""Find a module's function without importing or running any code of the user.

::

    ./file.py:function            relative to the workflow file's folder
    package.module:function       beside the workflow file first, then along sys.path
    name                          what an installed package offers under that name

`diel check` runs on a login node, where importing a module of the user may fail (no MPI, no GPU)
or take long. So packages are followed with the import system's own finder, one part of the dotted
name at a time, and the file that it ends at is parsed, never executed.

Installed packages offer modules too (`diel.plugins`): one function under a name, or a package of
them. If a folder beside the workflow file has the name of such a package, the folder hides only
those parts of the package that it has itself: ``P.x:run`` is the user's if ``P/x.py`` is there.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import keyword
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from diel.frozen import Frozen
from diel.plugins import MODULES, installed_plugins, module_packages
from diel.text import did_you_mean, near_file_name

FORMS = 'write "package.module:function", or "./file.py:function" for a file beside this one'


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


class FunctionLocation(Frozen):
    """A function that a workflow file names: its file, its module and how to import that.

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
    classes : frozenset of str
        Names of the top-level classes in the file.
    is_installed : bool
        Whether it is in an installed package of modules.
    hidden : frozenset of str
        The installed packages of modules that have the name of a folder, or of a file, beside the
        workflow file.
    is_library : bool
        Whether the file is a shared object, see `diel.workflow.libraries`.
    mpi : str
        The MPI that this was compiled with, such as ``Open MPI 5.0``; empty if it uses none.
    """

    spec: str
    function: str
    file: Path | None
    module_name: str
    root: Path | None
    classes: frozenset[str]
    is_installed: bool = False
    hidden: frozenset[str] = frozenset()
    is_library: bool = False
    mpi: str = ""


def locate(
    spec: str,
    folder: Path,
    arguments: Sequence[str] | None = ("ctx",),
    kind: str = MODULES,
) -> FunctionLocation:
    """Find a function without importing its module.

    Parameters
    ----------
    spec : str
        ``package.module:function``, ``./file.py:function``, or the name of an entry point.
    folder : Path
        The folder of the workflow file.
    arguments : sequence of str or None, optional
        Names of the arguments that the function is called with, in order; by default a context
        alone, as for modules. None if the function may take any arguments.
    kind : str, optional
        Kind of the plugins among which a name is looked up, see `diel.plugins`.

    Raises
    ------
    FunctionNotFound
        If the spec is malformed, or the module or the function is not there.
    PluginError
        If the entry points of installed packages cannot be read.
    """
    folder = Path(folder).absolute()
    if _is_name(spec):
        spec = _value_of_plugin(spec, kind)
    where, _, function = spec.rpartition(":")
    if not where or not _is_name(function) or "\0" in spec:
        raise FunctionNotFound(f'"{spec}" does not name a function', FORMS)
    if where.endswith(".py"):
        return _locate_in_file(spec, where, function, folder, arguments)
    parts = where.split(".")
    if not all(_is_name(part) for part in parts):
        raise FunctionNotFound(f'"{spec}" does not name a function', FORMS)
    return _locate_in_module(spec, parts, function, folder, arguments)


def locate_function(
    spec: str, folder: Path, arguments: Sequence[str] | None = None, kind: str = MODULES
) -> FunctionLocation:
    """Find a function that is not a module; like `locate`, but by default with any arguments."""
    return locate(spec, folder, arguments, kind)


def _value_of_plugin(name: str, kind: str) -> str:
    plugins = {
        plugin.name: plugin for plugin in installed_plugins(kind).values() if ":" in plugin.value
    }
    if name not in plugins:
        near = did_you_mean(name, sorted(plugins))
        raise FunctionNotFound(
            f'"{name}" does not name a function',
            f'did you mean "{near}"?' if near else FORMS,
        )
    return plugins[name].value


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _locate_in_file(
    spec: str, where: str, function: str, folder: Path, arguments: Sequence[str] | None
) -> FunctionLocation:
    file = folder / where
    if not os.path.isfile(file):  # also where its name is too long for any file
        raise FunctionNotFound(f"there is no file {file}", _near_file(file))
    names = _names_in(file)
    _check_defined(function, names, file, arguments)
    return FunctionLocation(
        spec=spec,
        function=function,
        file=file,
        module_name=file.stem,
        root=file.parent,
        classes=frozenset(names.classes),
        is_installed=_is_installed(file),
        hidden=_hidden_by(folder),
    )


def _near_file(file: Path) -> str:
    if not os.path.isdir(file.parent):
        return f"there is no folder {file.parent} either"
    near = near_file_name(file.name, sorted(path.name for path in file.parent.glob("*.py")))
    return f'did you mean "{near}"?' if near else "paths are relative to the workflow file's folder"


def _locate_in_module(
    spec: str, parts: Sequence[str], function: str, folder: Path, arguments: Sequence[str] | None
) -> FunctionLocation:
    found = _find_module(parts, folder)
    file = Path(found.origin).absolute() if found.has_location and found.origin else None
    names = _names_in(file) if file and file.suffix == ".py" and file.is_file() else _ANYTHING
    if file is not None:
        _check_defined(function, names, file, arguments)
    depth = len(parts) + (file is not None and file.stem == "__init__")
    return FunctionLocation(
        spec=spec,
        function=function,
        file=file,
        module_name=".".join(parts),
        root=file.parents[depth - 1] if file and depth <= len(file.parents) else None,
        classes=frozenset(names.classes),
        is_installed=file is not None and parts[0] in module_packages() and _is_installed(file),
        hidden=_hidden_by(folder),
    )


def _is_installed(file: Path) -> bool:
    return any(_real(file).is_relative_to(_real(package)) for package in module_packages().values())


@functools.lru_cache(maxsize=256)
def _real(path: Path) -> Path:
    return path.resolve()


def _hidden_by(folder: Path) -> frozenset[str]:
    return frozenset(
        name for name, package in module_packages().items() if _hides(folder / name, package)
    )


def _hides(own: Path, package: Path) -> bool:
    return own.resolve() != _real(package) if own.is_dir() else own.with_suffix(".py").is_file()


def _find_module(parts: Sequence[str], folder: Path) -> ModuleSpec:
    # A file written a moment ago may be missing from the finders' cached listings.
    importlib.invalidate_caches()
    searches = [[str(folder), *sys.path]]
    if parts[0] in (packages := module_packages()):
        searches = [[str(folder)], [str(packages[parts[0]].parent)], sys.path]
    for path in searches:
        found = _follow(parts, path)
        if found is not None and found.loader is not None:
            return found
    raise _module_not_found(parts, folder, searches)


def _follow(parts: Sequence[str], path: Sequence[str]) -> ModuleSpec | None:
    """Return the import spec of a dotted name, looked up from a search path; None if not found."""
    found = _find_top(parts[0], path)
    for part in parts[1:]:
        if found is None or found.submodule_search_locations is None:
            return None
        # Looked up by its last part only: a namespace package below a package that is not
        # imported cannot compute its own path.
        found = PathFinder.find_spec(part, list(found.submodule_search_locations))
    return found


def _find_top(name: str, path: Sequence[str]) -> ModuleSpec | None:
    if name in sys.builtin_module_names:
        return BuiltinImporter.find_spec(name)
    found = PathFinder.find_spec(name, path)
    if found is not None or name in module_packages():
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
    # The longest prefix of the name that exists shows which part is missing.
    for length in range(len(parts) - 1, 0, -1):
        parents = [package for path in searches if (package := _follow(parts[:length], path))]
        if parents:
            return _not_in_package(parts, length, parents)
    near = did_you_mean(parts[0], sorted({*_module_names([str(folder)]), *module_packages()}))
    hint = f'did you mean "{near}"?' if near else "put it there, or install it"
    return FunctionNotFound(
        f"there is no module {name}, neither in {folder} nor on Python's search path", hint
    )


def _not_in_package(
    parts: Sequence[str], length: int, parents: Sequence[ModuleSpec]
) -> FunctionNotFound:
    start, missing = ".".join(parts[:length]), parts[length]
    places = [place for parent in parents for place in parent.submodule_search_locations or ()]
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
            for path in Path(place).iterdir():
                if path.stem.isidentifier() and (path.suffix == ".py" or path.is_dir()):
                    yield path.stem


# -- what a file defines --------------------------------------------------------------------------


class _Names(Frozen):
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


_ANYTHING = _Names({}, is_open=True)


def _names_in(file: Path) -> _Names:
    """Return the names that a file defines at its top level.

    A FunctionNotFound if the file cannot be read, or is not valid Python.
    """
    try:
        found = os.stat(file)
    except (OSError, ValueError) as error:
        raise FunctionNotFound(f"cannot read {file}: {error}") from None
    return _names_of_version(file, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)  # the functions of a thousand modules often lie in one file
def _names_of_version(file: Path, _mtime_ns: int, _size_bytes: int) -> _Names:
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
    return _Names(defined, frozenset(classes), is_open, takes)


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


def _check_defined(
    function: str, names: _Names, file: Path, arguments: Sequence[str] | None = None
) -> None:
    """Check that a file defines a function that a run can call, with these arguments if given.

    A FunctionNotFound if there is no such function, or a run cannot call it.
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


def _listing(function: str, names: _Names, arguments: Sequence[str] | None) -> str:
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
