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

import functools
import importlib
import keyword
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from diel.workflow.definitions import ANYTHING, FunctionNotFound, check_defined, names_in
from diel.workflow.text import did_you_mean, near_file_name

SHIPPED = "modules"
SHIPPED_ROOT = Path(__file__).absolute().parents[2]

FORMS = 'write "package.module:function", or "./file.py:function" for a file beside this one'


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


def locate(spec: str, folder: Path, arguments: Sequence[str] | None = ("ctx",)) -> FunctionLocation:
    """Find a function without importing its module.

    Parameters
    ----------
    spec : str
        ``package.module:function`` or ``./file.py:function``.
    folder : Path
        The folder of the workflow file.
    arguments : sequence of str or None, optional
        What it is to be called with, in order: a context alone, as modules are, if left out; None
        for whatever it takes.

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
        return _locate_in_file(spec, where, function, folder, arguments)
    parts = where.split(".")
    if not all(_is_name(part) for part in parts):
        raise FunctionNotFound(f'"{spec}" does not name a function', FORMS)
    return _locate_in_module(spec, parts, function, folder, arguments)


def locate_function(
    spec: str, folder: Path, arguments: Sequence[str] | None = None
) -> FunctionLocation:
    """Find a function that is no module's, called with these arguments; otherwise as `locate`."""
    return locate(spec, folder, arguments)


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _locate_in_file(
    spec: str, where: str, function: str, folder: Path, arguments: Sequence[str] | None
) -> FunctionLocation:
    file = folder / where
    if not file.is_file():
        raise FunctionNotFound(f"there is no file {file}", _near_file(file))
    names = names_in(file)
    check_defined(function, names, file, arguments)
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
    near = near_file_name(file.name, sorted(one.name for one in file.parent.glob("*.py")))
    return f'did you mean "{near}"?' if near else "paths are relative to the workflow file's folder"


def _locate_in_module(
    spec: str, parts: Sequence[str], function: str, folder: Path, arguments: Sequence[str] | None
) -> FunctionLocation:
    found = _find_module(parts, folder)
    file = Path(found.origin).absolute() if found.has_location and found.origin else None
    names = names_in(file) if file and file.suffix == ".py" and file.is_file() else ANYTHING
    if file is not None:
        check_defined(function, names, file, arguments)
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


@functools.lru_cache(maxsize=256)
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
