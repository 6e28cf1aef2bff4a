"""Function modules: import of their functions, and checks of their options.

A folder or file beside the workflow file and an installed package of modules may have the same
name, and both be used in one run: the user's is what ``import`` finds, and the installed one is
imported under another name.

A file that defines a function module may also define ``class Options(pydantic.BaseModel)``. Then
the options in the workflow file are validated by it before any rank works, with the same messages
as the rest of the file, and ``ctx.options`` is an instance of it. Its validators find the workflow
file's folder in ``info.context["folder"]``. While the file is being checked they also find the
module that the options belong to in ``info.context["module"]``, all modules by name in
``info.context["modules"]``, the places of their functions in ``info.context["locations"]``, and the
names of all modules, those with problems of their own too, in ``info.context["names"]``. Where a
run is there already, ``info.context["run_dir"]`` is its directory: None before a new run.

Such a file may also define ``missing_here(options, module) -> tuple[str, str] | None``: what this
machine lacks for the module to run on it, and what to do about that. It is no problem of the file,
which may be checked on a machine and run on another: ``diel check`` says it, and ``diel run``
starts no ranks where they would be on this machine.

And it may define ``look_at_data(options, folder, largest_bytes) -> tuple[str, list[str]]``: why the
module could do nothing with its data, and what is odd about them. A larger file is left alone if
``largest_bytes`` is no None.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diel.errors import PluginError, Problem
from diel.loading import files
from diel.plugins import MODULES, import_installed
from diel.workflow.functions import FunctionLocation, FunctionNotFound, locate_function

if TYPE_CHECKING:
    from pydantic import BaseModel

    from diel.workflow.load import Draft
    from diel.workflow.model import Module, Workflow

_Known = TypeVar("_Known")

OPTIONS_CLASS = "Options"
_MISSING_HERE = "missing_here"
_LOOK_AT_DATA = "look_at_data"
_OURS = frozenset({"diel", "dnn"})
_PROGRAM_PACKAGE = "diel_program"
_PROGRAM_FUNCTION = "run"
_IMPORTING = RLock()
"""Tests run modules in threads, which may ask for one file at the same time; and Python 3.11 cannot
parse in two threads at once (its issue 106905)."""


def import_code(location: FunctionLocation, folder: Path) -> ModuleType:
    """Import the Python module that defines a function; exceptions of its code are passed on.

    The folder of the workflow file is put first on ``sys.path``, as Python does for a script, or
    last, see `diel.loading.files`.
    """
    folder = folder.absolute()
    is_workflow_folder = files.is_workflow_folder(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if location.spec.rpartition(":")[0].endswith(".py"):
        assert location.file is not None
        if is_workflow_folder and location.root == folder and _has_plain_name(location):
            return importlib.import_module(location.file.stem)
        return files.import_file(location.file)
    if location.root is not None and str(location.root) not in sys.path:
        # Behind the folder, so that an import finds what `locate` found.
        sys.path.insert(sys.path.index(str(folder)) + 1, str(location.root))
    for name in location.hidden:
        _find_own_first(name, folder)
    name = location.module_name
    if location.root == folder and name.partition(".")[0] not in location.hidden:
        name = files.full_name_in(folder, name) or name
    if location.is_installed and name.partition(".")[0] in location.hidden:
        code = import_installed(name)
    else:
        code = importlib.import_module(name)
    found = getattr(code, "__file__", None)
    if location.file is not None and found is not None and Path(found) != location.file:
        raise ImportError(
            f"{location.spec} means {location.file}, but Python has loaded {found} under that "
            f'name already: rename the file, or write "./{location.file.name}:{location.function}"'
        )
    return code


def import_function(spec: str, folder: Path, kind: str = MODULES) -> Callable[..., Any]:
    """Import the function that a place names, as a workflow file in a folder may write it.

    A place is ``./file.py:function``, ``package.module:function``, or the name of an entry point
    among the plugins of a kind, see `diel.plugins`. A LookupError if there is no such function;
    whatever its file raises at import is passed on.
    """
    folder = Path(folder).absolute()
    with _IMPORTING:
        location = locate_function(spec, folder, kind=kind)
        return find_function(location, import_code(location, folder))


def load_plugin(spec: str, folder: Path, kind: str = MODULES) -> Callable[..., Any]:
    """Import the class or function that an option of a module names; as `import_function`.

    A PluginError if there is no such class or function, or its import fails.
    """
    try:
        return import_function(spec, folder, kind)
    except PluginError:
        raise
    except (FunctionNotFound, SystemExit) as error:
        raise PluginError(f"{spec}: {error}") from None
    except Exception as error:  # a user's code can raise anything at import
        raise PluginError(f"{spec}: {type(error).__name__} at import: {error}") from error


def find_function(location: FunctionLocation, code: ModuleType) -> Callable[[Any], Any]:
    """Return the function of imported code; raise TypeError if it cannot be called as a module."""
    function = getattr(code, location.function)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{location.spec} is not a plain function")
    return cast("Callable[[Any], Any]", function)


def _has_plain_name(location: FunctionLocation) -> bool:
    """Whether a file beside the workflow file is imported by its stem, as other files do it too."""
    file = location.file
    assert file is not None
    name = file.stem
    if not name.isidentifier() or name in sys.stdlib_module_names or name in _OURS:
        return False
    if files.full_name_in(file.parent, name) is not None:
        return False
    taken = sys.modules.get(name)
    is_free = taken is None or getattr(taken, "__file__", None) == str(file)
    return is_free and name not in location.hidden


class _OwnPackageFinder:
    """Finds a user's package before an installed one: a folder, with ``__init__.py``, or a file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        package = self.folder / name
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


def _find_own_first(name: str, folder: Path) -> None:
    for finder in sys.meta_path:
        if isinstance(finder, _OwnPackageFinder) and (finder.name, finder.folder) == (name, folder):
            return
    sys.meta_path.insert(0, _OwnPackageFinder(name, folder))
    # An installed package of that name that was imported before: code that uses it still has it.
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


# -- options ---------------------------------------------------------------------------------------


def check_options(draft: Draft) -> Workflow:
    """Check the options of every module and return the workflow.

    Imports the files that define ``Options``, and no other code of modules. A WorkflowError lists
    every problem of the file, those of the draft included.
    """
    problems = []
    modules = {module.name: module for _, module in draft.modules}
    given = draft.document.get("module")
    entries = given if isinstance(given, list) else []
    # A module whose entry is wrong counts too.
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    within = draft.expansion.names_within(name for name in names if isinstance(name, str))
    for index, module in draft.modules:
        location = draft.locations.get(module.name)
        if location is not None and OPTIONS_CLASS in location.classes:
            where, known = f"module[{index}]", within[module.name]
            context = {
                "folder": draft.file.parent,
                "run_dir": draft.run_dir,
                "module": module,
                "modules": {own: modules[name] for own, name in known.items() if name in modules},
                "names": [*known] if draft.expansion.elements else names,
                "locations": _known_of(draft.locations, known),
            }
            problems += _option_problems(location, module.options, context, where)
    return draft.finish(problems)


def parse_options(
    code: ModuleType,
    location: FunctionLocation,
    options: dict[str, Any],
    folder: Path,
    run_dir: Path | None = None,
    options_of: Mapping[str, Any] | None = None,
    locations: Mapping[str, FunctionLocation] | None = None,
) -> Any:
    """Return ``ctx.options``: an instance of the file's ``Options``, or the plain dictionary.

    `run_dir` is the run's directory, if there is one already; `options_of` are the options of all
    modules by their names, on which defaults may depend, and `locations` the places of their
    functions, where these are known.
    """
    model = options_model(code, location)
    if model is None:
        return options
    context = {
        "folder": folder,
        "run_dir": run_dir,
        "options_of": options_of or {},
        "locations": locations or {},
    }
    return model.model_validate(options, context=context)


def options_model(code: ModuleType, location: FunctionLocation) -> type[BaseModel] | None:
    """Return the ``Options`` that a module's file defines; None if it defines none."""
    if OPTIONS_CLASS not in location.classes:
        return None
    from pydantic import BaseModel

    model = getattr(code, OPTIONS_CLASS, None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _option_problems(
    location: FunctionLocation, options: dict[str, Any], context: dict[str, Any], where: str
) -> list[Problem]:
    from pydantic import ValidationError

    from diel.workflow.problems import problems_from_validation

    try:
        code = import_code(location, context["folder"])
        find_function(location, code)
    except (Exception, SystemExit) as error:  # a user's code can raise anything at import
        message = f"{location.spec}: {type(error).__name__} at import: {error}"
        remedy = "a file that defines Options is imported to check them, also without MPI"
        return [Problem(f"{where}.function", message, remedy)]
    model = options_model(code, location)
    if model is None:
        return []
    try:
        model.model_validate(options, context=context)
    except ValidationError as error:
        return problems_from_validation(error, model, f"{where}.options")
    except (Exception, SystemExit) as error:  # so can a user's validator
        message = f"{type(error).__name__} in {OPTIONS_CLASS} of {location.spec}: {error}"
        return [Problem(f"{where}.options", message)]
    return []


@dataclass(frozen=True)
class ModulePart:
    """A module of a workflow file, the code that defines its options, and its options."""

    module: Module
    code: Any
    options: Any


def parts_with_options(draft: Draft, workflow: Workflow) -> Iterator[ModulePart]:
    """Yield the function modules whose files define ``Options``: these are imported anyway.

    `check_options` has accepted the draft, and made the workflow from it.
    """
    options_of = {each.name: each.options for each in workflow.modules}
    within = draft.expansion.names_within(options_of)
    for module in workflow.modules:
        location = draft.locations.get(module.name)
        if location is None or OPTIONS_CLASS not in location.classes:
            continue
        folder = draft.file.parent
        code = import_code(location, folder)
        every = _known_of(options_of, within[module.name])
        places = _known_of(draft.locations, within[module.name])
        options = parse_options(
            code, location, module.options, folder, draft.run_dir, every, places
        )
        yield ModulePart(module, code, options)


def _known_of(by_name: Mapping[str, _Known], known: Mapping[str, str]) -> dict[str, _Known]:
    """Return what there is of modules, by the names that a module has for them."""
    return {own: by_name[name] for own, name in known.items() if name in by_name}


def look_at_data(
    draft: Draft, workflow: Workflow, largest_bytes: int | None = None
) -> tuple[list[Problem], list[str]]:
    """Let modules look at their data; return the problems, and what is odd without being one."""
    problems, oddities = [], []
    indices = {module.name: index for index, module in draft.modules}
    for part in parts_with_options(draft, workflow):
        look = getattr(part.code, _LOOK_AT_DATA, None)
        if look is None:
            continue
        try:
            problem, odd = look(part.options, draft.file.parent, largest_bytes)
        except (Exception, SystemExit) as error:  # a user's code can raise anything
            problem, odd = f"{type(error).__name__} in {_LOOK_AT_DATA}: {error}", []
        if problem:
            where = f"module[{indices[part.module.name]}].options"
            if keys := ".".join(_option_of(problem, part.module.options)):
                where = f"{where}.{keys}"
                problem = problem.removeprefix(f"{keys}: ") if "." in keys else problem
            problems.append(Problem(where, f"module {part.module.name!r}: {problem}"))
        oddities += odd
    return problems, oddities


def _option_of(text: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the option that a problem is about; empty if that is not certain.

    It begins with the option's keys, or else the first name in quotes is the option's value.
    """
    option = re.search(r"^(?:\w+: )?([\w.]+): ", text)
    keys = tuple(option[1].split(".")) if option else ()
    table: Any = options
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is not None and keys:
        return keys
    quoted = re.search(r"'([^']*)'", text)
    found = list(_places_of(quoted[1], options)) if quoted else []
    return found[0] if len(found) == 1 else ()


def _places_of(name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys of the values of a table, and of tables in it, that name something."""
    for key, value in table.items():
        if value == name or (isinstance(value, (list, tuple)) and name in value):
            yield (key,)
        elif isinstance(value, Mapping):
            if name in value:  # a table by name, as of columns
                yield (key,)
            yield from ((key, *below) for below in _places_of(name, value) if name not in value)


def missing_here(draft: Draft) -> list[Problem]:
    """Return what this machine lacks for the modules of a draft that `check_options` accepts."""
    problems = []
    options_of = {each.name: each.options for _, each in draft.modules}
    within = draft.expansion.names_within(options_of)
    for index, module in draft.modules:
        location = draft.locations.get(module.name)
        if location is None or OPTIONS_CLASS not in location.classes:
            continue
        code = import_code(location, draft.file.parent)
        find_missing = getattr(code, _MISSING_HERE, None)
        if find_missing is None:
            continue
        folder = draft.file.parent
        every = _known_of(options_of, within[module.name])
        options = parse_options(code, location, dict(module.options), folder, draft.run_dir, every)
        try:
            missing = find_missing(options, module)
        except (Exception, SystemExit) as error:  # a user's code can raise anything
            cause = f"{type(error).__name__} in {_MISSING_HERE} of {location.spec}: {error}"
            missing = cause, "mend that function"
        if missing is not None:
            cause, remedy = missing
            message = f"on this machine module {module.name!r} could not run: {cause}"
            problems.append(Problem(f"module[{index}]", message, remedy))
    return problems


# -- functions of a program -----------------------------------------------------------------------


def register_functions(
    functions: Mapping[str, Callable[[Any], Any]],
) -> dict[str, FunctionLocation]:
    """Make functions of a program usable as modules, in place of functions that a file names.

    Each becomes the only function of a Python module of its own that is in no file, so that it is
    found, checked and called as functions of files are. Functions are given and returned by the
    name of the module in the workflow file. If the Python module that defines a function also
    defines ``Options``, its options are validated by that.
    """
    return {name: _register(name, function) for name, function in functions.items()}


def _register(name: str, function: Callable[[Any], Any]) -> FunctionLocation:
    code = ModuleType(f"{_PROGRAM_PACKAGE}.{name}")
    setattr(code, _PROGRAM_FUNCTION, function)
    options = getattr(sys.modules.get(function.__module__), OPTIONS_CLASS, None)
    if isinstance(options, type):
        setattr(code, OPTIONS_CLASS, options)
    sys.modules[code.__name__] = code
    return FunctionLocation(
        spec=f"{function.__module__}:{getattr(function, '__qualname__', name)}",
        function=_PROGRAM_FUNCTION,
        file=None,
        module_name=code.__name__,
        root=None,
        classes=frozenset({OPTIONS_CLASS} if isinstance(options, type) else ()),
    )
