"""Names and imports of module files, and of what they import from their own folders.

Two folders of a workflow may have files of the same name, as ``a/helper.py`` and ``b/helper.py``.
What a module file imports from its own folder belongs to the module files of that folder alone, so
that it has a name of its own in the process:

::

    diel.loading.files.<folder>.<name>     of a/helper.py  diel.loading.files.a.helper

The folder is relative to that of the workflow file, or absolute if it is outside of that, and
percent-encoded, so that it is one part of a name. Any process with diel can import such names, also
a rank that has not loaded the file, and a child process: the rank tells its children the folders in
`FOLDERS_VARIABLE`. A name leads to files in these folders only, whoever has sent it.

Files beside the workflow file have plain names: their folder is the first on ``sys.path`` of all
ranks. If the standard library, or an installed package, has the name of one of them, all have full
names, and the folder is the last on ``sys.path``: code of the workflow's folder gets its files, and
all other code gets the library, whichever a rank imports first, and in child processes too. A file
with the name of a library that imports this name gets the library.

``import helper`` stands for another file in each folder, so that ``sys.modules`` cannot say which:
the first module file in a folder of its own, or such a name, replaces ``__import__`` and
``importlib.import_module``, which look from where they are called.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

FOLDERS_VARIABLE: Final = "DIEL_MODULE_FOLDERS"
"""The workflow file's folder, and folders of module files outside of it, as a list in JSON."""

__path__: list[str] = []  # that of a package, whose parts `_Finder` finds
_PREFIX: Final = f"{__name__}."
_WORKFLOW_KEY: Final = "%2E"
"""The part of a name that stands for the workflow file's folder."""
_OURS: Final = frozenset({"diel", "dnn"})


# -- folders that this process knows --------------------------------------------------------------


class _Known:
    """The workflow file's folder, and folders of module files outside of it."""

    def __init__(self) -> None:
        self.workflow = ""
        self.others: list[str] = []
        self.beside: frozenset[str] = frozenset()
        """Names of files beside the workflow file, if Python finds one of them elsewhere too."""

    def set_workflow(self, folder: str) -> None:
        """Set the workflow file's folder, and look for names of its files that libraries have."""
        self.workflow = folder
        names = _names_in(folder)
        self.beside = names if any(map(_is_library, names)) else frozenset()
        if self.beside:
            _folders[_WORKFLOW_KEY] = _Folder(_PREFIX + _WORKFLOW_KEY, folder)
            _replace_imports()

    def tell_children(self) -> None:
        """Set the variable in which child processes find the folders."""
        told = json.dumps([self.workflow, *self.others])
        if os.environ.get(FOLDERS_VARIABLE) != told:  # it is restored when a module ends
            os.environ[FOLDERS_VARIABLE] = told

    def ask_parent(self) -> None:
        """Take over the folders of which the parent process has told this one."""
        with contextlib.suppress(ValueError, TypeError):
            workflow, *self.others = map(str, json.loads(os.environ[FOLDERS_VARIABLE]))
            self.set_workflow(workflow)


_known = _Known()


def use_folder(folder: Path, module_files: Sequence[Path] = ()) -> None:
    """Set the workflow file's folder for this process and its children, and put it on ``sys.path``.

    The folder is absolute. It is the first there, or the last if libraries have names of its files.
    Files of its modules and of their options that are outside of the folder can be imported by
    their names too.
    """
    if not _known.workflow and FOLDERS_VARIABLE in os.environ:  # it may know more of this workflow
        _known.ask_parent()
    if _known.workflow not in ("", str(folder)):  # a program that runs several workflow files
        for name in [name for name in sys.modules if name.startswith(_PREFIX)]:
            del sys.modules[name]
        _folders.clear()
        _known.others.clear()
    if _known.workflow != str(folder):
        _known.set_workflow(str(folder))
    for file in module_files:
        if package_of(file.parent) != _PREFIX + _WORKFLOW_KEY:
            _replace_imports()  # now: what is replaced while a module runs is set back after it
    _known.tell_children()
    if _known.beside:  # Python may have put it first, as the current directory
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _known.workflow]
        sys.path.append(_known.workflow)
    elif _known.workflow not in sys.path:
        sys.path.insert(0, _known.workflow)


def is_workflow_folder(folder: Path) -> bool:
    """Whether a folder is the one whose files have plain names; the first of a process becomes it.

    To a process that checks or tests several workflow files, the other folders are as those of
    module files elsewhere.
    """
    if not _known.workflow:
        use_folder(folder)
    return str(folder) == _known.workflow


def full_name_in(folder: Path, name: str) -> str | None:
    """Return the full name of a module in a workflow file's folder; None if it has a plain name."""
    if str(folder) == _known.workflow and name.partition(".")[0] not in _known.beside:
        return None
    return f"{package_of(folder)}.{name}"


def _names_in(folder: str) -> frozenset[str]:
    """Return the names of files and packages in a folder that code may import by them."""
    names = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name, ending = os.path.splitext(entry.name)
            is_package = not ending and os.path.isfile(os.path.join(entry.path, "__init__.py"))
            if name.isidentifier() and name not in _OURS and (ending == ".py" or is_package):
                names.add(name)
    if any(map(_is_library, names)):
        from diel.plugins import module_packages  # such names are found in another way

        names -= module_packages().keys()
    return frozenset(names)


def _is_library(name: str) -> bool:
    """Whether Python finds a name outside of the workflow file's folder."""
    workflow = os.path.abspath(_known.workflow)
    others = [entry for entry in sys.path if os.path.abspath(entry) != workflow]
    found = None if name in sys.stdlib_module_names else PathFinder.find_spec(name, others)
    return name in sys.stdlib_module_names or (found is not None and found.loader is not None)


def package_of(folder: Path) -> str:
    """Return the name of the package of a folder, which this process and its children then know."""
    path = str(folder.resolve() if ".." in folder.parts else folder)
    key = _key_of(path, _known.workflow)
    if os.path.isabs(_path_in(key)) and path not in _known.others:
        _known.others.append(path)
    _known.tell_children()
    return _PREFIX + key


def _key_of(path: str, workflow: str) -> str:
    """Return the part of a name that stands for a folder."""
    from urllib.parse import quote

    inside = Path(path).is_relative_to(workflow) if workflow else False
    told = os.path.relpath(path, workflow) if inside else path
    return quote(told, safe="", errors="surrogateescape").replace(".", "%2E")


def _path_in(key: str) -> str:
    from urllib.parse import unquote

    return unquote(key, errors="surrogateescape")


def _folder_named(key: str) -> str:
    """Return the folder for a part of a name; raise ModuleNotFoundError for one of no run here."""
    if not _known.workflow and FOLDERS_VARIABLE in os.environ:
        _known.ask_parent()
    workflow = _known.workflow
    path = os.path.normpath(os.path.join(workflow, _path_in(key)))
    is_known = path in _known.others or (workflow and Path(path).is_relative_to(workflow))
    if not is_known or _key_of(path, workflow) != key or not os.path.isdir(path):
        where = f"the workflow in {workflow}" if workflow else "this process"
        name = _PREFIX + key
        raise ModuleNotFoundError(
            f"no module named {name!r}: {where} has no modules in a folder {_path_in(key)!r}",
            name=name,
        )
    return path


# -- the files of one folder ----------------------------------------------------------------------


def import_file(file: Path) -> ModuleType:
    """Import a file, by its absolute path, as a part of its folder's package.

    Exceptions of its code are passed on.
    """
    package = package_of(file.parent)
    if package in sys.modules:  # else its spec sees to it
        _replace_imports()
    name = file.stem
    if _origin_in(file.parent, name) != str(file):
        importlib.invalidate_caches()  # the file may have been written a moment ago
        if _origin_in(file.parent, name) != str(file):
            # A package of that name beside it, or a name with dots.
            name = _key_of(file.name, "")
    return importlib.import_module(f"{package}.{name}")


def _origin_in(folder: Path, name: str) -> str | None:
    found = None if "." in name else PathFinder.find_spec(name, [str(folder)])
    return None if found is None else found.origin


class _Folder:
    """A folder of module files: which names are its own, when code in it imports them."""

    def __init__(self, package: str, path: str) -> None:
        self._package = package
        self._path = path
        self._places = {path: package}  # folders in which its code looks, and their packages
        self._own: dict[str, str] = {}  # the full name of each name that was found in them
        self._foreign: set[str] = set()

    def full_name(self, name: str) -> str | None:
        """Return the full name of a module of this folder; None if there is none of that name."""
        top, dot, rest = name.partition(".")
        if top in self._foreign:
            return None
        found = self._own.get(top) or self._find(top)
        if found is not None:
            self._own[top] = found
            return found + dot + rest
        if top in sys.modules:
            self._foreign.add(top)
        return None

    def raise_plainly(self, error: ModuleNotFoundError) -> NoReturn:
        """Raise an error with the missing module's name as the code that imports it writes it."""
        prefix = f"{self._package}."
        if error.name is None or not error.name.startswith(prefix):
            raise error
        message, name = str(error).replace(prefix, ""), error.name.removeprefix(prefix)
        raise ModuleNotFoundError(message, name=name, path=error.path) from None

    def _find(self, top: str) -> str | None:
        self._note_search_path()
        without_init = None
        for place, package in list(self._places.items()):  # another thread may add one
            found = PathFinder.find_spec(top, [place])
            if found is not None and found.loader is not None:
                return f"{package}.{top}"
            if found is not None:
                without_init = without_init or f"{package}.{top}"
        # A folder without __init__.py is a package only if no other is found, as for Python: it may
        # hold anything.
        return None if without_init is None or _is_elsewhere(top) else without_init

    def _note_search_path(self) -> None:
        """Look in folders below too that code of this one has put on ``sys.path``."""
        for entry in sys.path:
            place = os.path.normpath(entry)
            if place in self._places or not place.startswith(self._path + os.sep):
                continue
            below = os.path.relpath(place, self._path)
            if "." not in below and not _is_of_everybody(place):
                self._places[place] = f"{self._package}.{below.replace(os.sep, '.')}"


def _is_of_everybody(place: str) -> bool:
    """Whether a folder is on ``sys.path`` of all code: of an environment, or from PYTHONPATH."""
    told = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return place in map(os.path.normpath, told) or Path(place).is_relative_to(sys.prefix)


def _is_elsewhere(top: str) -> bool:
    if top in sys.modules:
        return True
    others = (finder for finder in sys.meta_path if finder is not _FINDER)
    return any(finder.find_spec(top, None) is not None for finder in others)


# -- imports --------------------------------------------------------------------------------------

_folders: dict[str, _Folder] = {}
"""Folders of packages that have been imported, by their keys."""
_aliases: set[str] = set()
"""Plain names in ``sys.modules`` under which a library has asked for a module of a folder."""


def forget_plain_names() -> None:
    """Forget which modules libraries have found by plain names: the next copy may have others."""
    while _aliases:
        sys.modules.pop(_aliases.pop(), None)


def _folder_of(module_name: object) -> _Folder | None:
    """Return the folder of the code of a module; None if it is none of a folder."""
    if not isinstance(module_name, str) or not module_name.startswith(_PREFIX):
        return None
    return _folders.get(module_name[len(_PREFIX) :].partition(".")[0])


def _find_own(name: str, scope: Mapping[str, Any]) -> tuple[_Folder, str] | None:
    """Find what code with these globals imports in its folder, or beside the workflow file.

    Returns the folder that has it, and its full name.
    """
    caller = scope.get("__name__")
    folder = _folder_of(caller)
    full_name = None if folder is None else folder.full_name(name)
    top = name.partition(".")[0]
    if full_name is None and top in _known.beside and _is_of_workflow(scope):
        folder = _folders[_WORKFLOW_KEY]
        full_name = folder.full_name(name)
    if folder is None or full_name is None:
        return None
    if full_name == caller and "__path__" not in scope and _is_library(top):
        return None
    return folder, full_name


def _is_of_workflow(scope: Mapping[str, Any]) -> bool:
    file = scope.get("__file__")
    if not isinstance(file, str) or not file.startswith(_known.workflow + os.sep):
        return False
    return not _is_of_everybody(file)


class _Finder:
    """Finds modules of folders by their full names, and those that libraries import for them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.startswith(_PREFIX):
            return _spec_of(name)
        top, _, rest = name.partition(".")
        if top in _aliases:
            return _alias(name, f"{sys.modules[top].__name__}.{rest}")
        if path is None and any(folder.full_name(name) for folder in _folders.values()):
            full_name = _asked_for(name, sys._getframe(1))
            if full_name is not None:
                return _alias(name, full_name)
        return None


_FINDER: Final = _Finder()
sys.meta_path.insert(0, _FINDER)


def _spec_of(name: str) -> ModuleSpec | None:
    key, _, rest = name[len(_PREFIX) :].partition(".")
    path = _folder_named(key)
    if not rest:
        if path != _known.workflow and key not in _folders:
            _folders[key] = _Folder(name, path)
            _replace_imports()
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [path]
        return spec
    if "%" in rest and "." not in rest and os.sep not in _path_in(rest):
        return importlib.util.spec_from_file_location(name, os.path.join(path, _path_in(rest)))
    return None  # the path of its package says where it is


def _alias(name: str, full_name: str) -> ModuleSpec:
    return ModuleSpec(name, cast("Loader", _Alias(full_name)))


class _Alias:
    """A loader that puts an imported module into ``sys.modules`` under another name."""

    def __init__(self, full_name: str) -> None:
        self._full_name = full_name

    def create_module(self, spec: ModuleSpec) -> None:
        """Have Python make a module, in whose place the other one is put."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._full_name)
        _aliases.add(module.__name__)


def _asked_for(name: str, frame: FrameType | None) -> str | None:
    """Return the full name of what code of a folder has asked a library to import."""
    for caller in _callers(frame):
        found = _find_own(name, caller.f_globals)
        if found is not None:
            return found[1]
        # A statement at the top of a library's file means what the library needs itself.
        if caller.f_code.co_name == "<module>":
            return None
    return None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _replace_imports() -> None:
    """Have imports in modules of folders look there first; has no effect the second time."""
    if getattr(builtins.__import__, "looks_in_folders", False):
        return
    import_name, import_module = builtins.__import__, importlib.import_module

    @functools.wraps(import_name)
    def import_from(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        scope = sys._getframe(1).f_globals if globals is None else globals
        own = None if level else _find_own(name, scope)
        if own is None:
            return import_name(name, globals, locals, fromlist, level)
        folder, full_name = own
        if isinstance(fromlist, list):  # from C code, which then looks into sys.modules
            return import_name(name)
        try:
            found = import_name(full_name, globals, locals, fromlist or ("__name__",), 0)
        except ModuleNotFoundError as error:
            folder.raise_plainly(error)
        return found if fromlist else sys.modules[full_name[: len(full_name) - _below(name)]]

    @functools.wraps(import_module)
    def import_module_from(name: str, package: str | None = None) -> ModuleType:
        own = _find_own(name, sys._getframe(1).f_globals)
        if own is None:
            return import_module(name, package)
        folder, full_name = own
        try:
            return import_module(full_name)
        except ModuleNotFoundError as error:
            folder.raise_plainly(error)

    import_from.looks_in_folders = True  # type: ignore[attr-defined]
    builtins.__import__ = import_from
    importlib.import_module = import_module_from


def _below(name: str) -> int:
    """Return how many characters of a dotted name follow its first part."""
    return len(name) - len(name.partition(".")[0])
