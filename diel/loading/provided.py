"""Functions that a program brings along as modules, in place of those that a file names.

Each becomes the one function of a Python module of its own that is in no file, so that whatever
finds, checks and calls the functions of files does the same with these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from diel.workflow.functions import FunctionLocation

_PACKAGE: Final = "diel_provided"
_FUNCTION: Final = "run"
_OPTIONS: Final = "Options"


def provide(functions: Mapping[str, Callable[[Any], Any]]) -> dict[str, FunctionLocation]:
    """Make functions known in this process; return where they are, by module.

    Parameters
    ----------
    functions : mapping of str to callable
        By the name of the module in the workflow file. If the Python module that defines one
        also defines ``Options``, its options are validated by that.
    """
    return {name: _provide(name, function) for name, function in functions.items()}


def _provide(name: str, function: Callable[[Any], Any]) -> FunctionLocation:
    code = ModuleType(f"{_PACKAGE}.{name}")
    setattr(code, _FUNCTION, function)
    options = getattr(sys.modules.get(function.__module__), _OPTIONS, None)
    if isinstance(options, type):
        setattr(code, _OPTIONS, options)
    sys.modules[code.__name__] = code
    return FunctionLocation(
        spec=f"{function.__module__}:{getattr(function, '__qualname__', name)}",
        function=_FUNCTION,
        file=None,
        module_name=code.__name__,
        root=None,
        classes=frozenset({_OPTIONS} if isinstance(options, type) else ()),
    )
