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

import functools
import importlib
import keyword
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from diel.frozen import Frozen
from diel.plugins import MODULES, installed_plugins, module_packages
from diel.text import did_you_mean, near_file_name
from diel.workflow.definitions import ANYTHING, FunctionNotFound, check_defined, names_in

FORMS = 'write "package.module:function", or "./file.py:function" for a file beside this one'


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
    """

    spec: str
    function: str
    file: Path | None
    module_name: str
    root: Path | None
    classes: frozenset[str]
    is_installed: bool = False
    hidden: frozenset[str] = frozenset()


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
    names = names_in(file)
    check_defined(function, names, file, arguments)
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
