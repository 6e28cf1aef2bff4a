"""Function modules: import the function, call it.

A user's own folder or file ``modules`` beside the workflow file and the package ``modules`` that
comes with diel can both be used in one run: the user's is what ``import modules`` finds, and ours
is then loaded under `_ALIAS`. Ours may be loaded under any name since it imports its own files
relatively.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from diel.workflow.functions import locate_function

if TYPE_CHECKING:
    from diel.workflow.functions import FunctionLocation

_SHIPPED = "modules"
_OURS = frozenset({"diel", "dnn", _SHIPPED})
_ALIAS = "diel_shipped_modules"
_IMPORTING = RLock()
"""Tests run modules in threads, which may ask for one file at the same time; and Python 3.11 cannot
parse in two threads at once (its issue 106905)."""


def import_code(location: FunctionLocation, folder: Path) -> ModuleType:
    """Import the Python module in which a function is defined.

    Parameters
    ----------
    location : FunctionLocation
    folder : Path
        Of the workflow file; put first on ``sys.path``, as Python does for a script.

    Raises
    ------
    Exception
        Whatever the code raises.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if location.root is not None and str(location.root) not in sys.path:
        # Behind the folder, so that an import finds what `locate` found.
        sys.path.insert(sys.path.index(str(folder)) + 1, str(location.root))
    if location.spec.rpartition(":")[0].endswith(".py"):
        return _import_file(location, folder)
    name = location.module_name
    if _has_modules_of_its_own(folder):
        _serve_users_modules(folder)
        if location.shipped:
            _load_shipped_as_alias()
            name = _ALIAS + name[len(_SHIPPED) :]
    code = importlib.import_module(name)
    found = getattr(code, "__file__", None)
    if location.file is not None and found is not None and Path(found) != location.file:
        raise ImportError(
            f"{location.spec} means {location.file}, but Python has loaded {found} under that "
            f'name already: rename the file, or write "./{location.file.name}:{location.function}"'
        )
    return code


def import_function(spec: str, folder: Path) -> Callable[..., Any]:
    """Return the function that a workflow file in a folder means by a place.

    Parameters
    ----------
    spec : str
        ``./file.py:function`` or ``package.module:function``.
    folder : Path

    Raises
    ------
    LookupError
        If it is not there.
    Exception
        Whatever its file raises at import.
    """
    folder = Path(folder).absolute()
    with _IMPORTING:
        location = locate_function(spec, folder)
        return find_function(location, import_code(location, folder))


def import_shipped(name: str) -> ModuleType:
    """Import a module of the package ``modules`` that comes with diel, whatever the user's is.

    Parameters
    ----------
    name : str
        Within the package: ``report``.
    """
    _load_shipped_as_alias()
    return importlib.import_module(f"{_ALIAS}.{name}")


def find_function(location: FunctionLocation, code: ModuleType) -> Callable[[Any], Any]:
    """Return the function of imported code.

    Raises
    ------
    TypeError
        If it is not something to call with a context.
    """
    function = getattr(code, location.function)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{location.spec} is not a plain function")
    return cast("Callable[[Any], Any]", function)


def _import_file(location: FunctionLocation, folder: Path) -> ModuleType:
    file = location.file
    assert file is not None
    if location.root == folder and _is_free(file):
        # Under its own name where that is possible, so that other modules may import it too and
        # instances of its classes can travel between them.
        return importlib.import_module(file.stem)
    # The hash tells two files of one name apart, the stem makes tracebacks readable; the name
    # is the same on every rank, so that instances of its classes can be pickled.
    name = f"diel_file_{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    try:
        spec.loader.exec_module(code)
    except BaseException:
        del sys.modules[name]
        raise
    return code


def _is_free(file: Path) -> bool:
    """Whether a file beside the workflow file can be imported by its stem."""
    name = file.stem
    if not name.isidentifier() or name in sys.stdlib_module_names or name in _OURS:
        return False
    taken = sys.modules.get(name)
    return taken is None or getattr(taken, "__file__", None) == str(file)


def _shipped_folder() -> Path:
    return Path(__file__).parent.parent.parent / _SHIPPED


def _has_modules_of_its_own(folder: Path) -> bool:
    package = folder / _SHIPPED
    if package.is_dir():
        return package.resolve() != _shipped_folder().resolve()
    return package.with_suffix(".py").is_file()


class _UsersModulesFinder:
    """Finds the user's ``modules`` before ours: a folder, with ``__init__.py`` or not, or a file.

    Parameters
    ----------
    folder : Path
        Of the workflow file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _SHIPPED:
            return None
        package = self.folder / _SHIPPED
        if not package.is_dir():
            return importlib.util.spec_from_file_location(name, package.with_suffix(".py"))
        init = package / "__init__.py"
        places = [str(package)]
        if init.exists():
            return importlib.util.spec_from_file_location(
                name, init, submodule_search_locations=places
            )
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = places
        return spec


def _serve_users_modules(folder: Path) -> None:
    for finder in sys.meta_path:
        if isinstance(finder, _UsersModulesFinder) and finder.folder == folder:
            return
    sys.meta_path.insert(0, _UsersModulesFinder(folder))
    # Ours, if something imported it before: what holds it keeps it.
    for name in [name for name in sys.modules if name.split(".")[0] == _SHIPPED]:
        del sys.modules[name]


def _load_shipped_as_alias() -> None:
    if _ALIAS in sys.modules:
        return
    folder = _shipped_folder()
    spec = importlib.util.spec_from_file_location(
        _ALIAS, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_ALIAS] = package
    spec.loader.exec_module(package)
