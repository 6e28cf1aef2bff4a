"""A Python file with the source of a notebook's function and of all that it uses there.

Nothing is pickled. The globals that the function uses are written as Python: imports, plain
constants, other functions and classes; a global of any other kind is refused, by name.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from diel.errors import SweepCallError

_LONGEST_CONSTANT: Final = 20_000
"""Most characters of a constant's source."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_HEAD: Final = "from __future__ import annotations\n"


def source_of(function: Callable[..., Any]) -> str:
    """Return the text of a Python file that defines a function and all that it uses.

    Parameters
    ----------
    function : callable
        Defined by ``def`` in a notebook or at a prompt.

    Raises
    ------
    SweepCallError
        If it uses a value that cannot be written as source, such as an open file or a large array;
        the message says what to do.
    """
    writer = _Writer()
    writer.add_function(function.__name__, function)
    imports = "".join(f"{line}\n" for line in sorted(writer.imports))
    constants = "".join(f"{line}\n" for line in writer.constants)
    parts = [_HEAD, imports, constants, *(f"\n{part}" for part in writer.definitions)]
    return "\n".join(part for part in parts if part)


class _Writer:
    """Collects imports, constants and definitions for a function, each after those it uses."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.constants: list[str] = []
        self.definitions: list[str] = []
        self._known: dict[str, Any] = {}

    def add_function(self, name: str, function: Any) -> None:
        """Add the source of a notebook's function, and all that it uses."""
        if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
            raise SweepCallError(
                f"{name} is {_kind(function)}: define it by def, so that ranks can be given its "
                "source"
            )
        if function.__closure__:
            inside = ", ".join(function.__code__.co_freevars)
            raise SweepCallError(
                f"{name} uses {inside} of the function around it: define it at the top of the "
                "notebook or file"
            )
        if function.__name__ != name:
            raise SweepCallError(f"{name} is the function {function.__name__}: call it that")
        self._known[name] = function
        source = _source(name, function)
        used = [*_globals_of(function.__code__), *_names_at_definition(source)]
        self._add_used(name, used, function.__globals__)
        self.definitions.append(source)
        self._add_attributes(name, function)

    def _add_attributes(self, name: str, function: FunctionType) -> None:
        """Add what was set on a function, such as ``train.save_model``."""
        for attribute, value in vars(function).items():
            if attribute.startswith("_"):  # of a decorator, which sets it again
                continue
            known = getattr(value, "__name__", attribute)
            if isinstance(value, (FunctionType, type)):
                self._add_used(name, [known], {known: value})
                text: str | None = known
            else:
                text = _constant(value)
            if text is None:
                raise SweepCallError(
                    f"{name}.{attribute} is {_kind(value)}, which cannot be written to a file for "
                    "the ranks: set it to a function or a plain constant"
                )
            self.definitions.append(f"{name}.{attribute} = {text}\n")

    def _add_class(self, name: str, cls: type) -> None:
        self._known[name] = cls
        source = _source(name, cls)
        used = list(_names_at_definition(source))
        scope: dict[str, Any] = {}
        for member in vars(cls).values():
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                scope = function.__globals__
                used += _globals_of(function.__code__)
        self._add_used(name, used, scope or vars(sys.modules[cls.__module__]))
        self.definitions.append(source)

    def _add_used(self, user: str, names: list[str], scope: dict[str, Any]) -> None:
        for name in dict.fromkeys(names):
            if name not in scope or name in self._known:
                continue  # a builtin, a name that is missing when it runs too, or added already
            self._add(user, name, scope[name])

    def _add(self, user: str, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._known[name] = value
            same = value.__name__ == name
            self.imports.add(f"import {value.__name__}" + ("" if same else f" as {name}"))
        elif (place := _place_of(value)) is not None:
            module, attribute = place
            self._known[name] = value
            alias = "" if attribute == name else f" as {name}"
            self.imports.add(f"from {module} import {attribute}{alias}")
        elif isinstance(value, FunctionType):
            self.add_function(name, value)
        elif isinstance(value, type):
            self._add_class(name, value)
        elif (text := _constant(value)) is not None:
            self._known[name] = value
            self.constants.append(f"{name} = {text}")
        else:
            raise SweepCallError(
                f"{user} uses {name}, {_kind(value)}, which cannot be written to a file for the "
                f"ranks: make or load it within {user}, or in a function that it calls; or save it "
                "to a file, and use its path, a plain constant"
            )


def _globals_of(code: CodeType) -> Iterator[str]:
    """Yield the global names that code and the functions within it read."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _names_at_definition(source: str) -> Iterator[str]:
    """Yield the names that a definition reads at once: in decorators, defaults, base classes."""
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            parts = [*node.decorator_list, *(value for value in defaults if value is not None)]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list, *node.bases, *node.keywords]
            parts += [
                stmt.value for stmt in node.body if isinstance(stmt, (ast.Assign, ast.AnnAssign))
            ]
        for part in parts:
            names = ast.walk(part) if part is not None else ()
            yield from (name.id for name in names if isinstance(name, ast.Name))


def _source(name: str, definition: Any) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(definition))
        ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        raise SweepCallError(
            f"the source of {name} is not known: write it to a file, and import it from there"
        ) from None
    return source


def _place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and name to import a value by; None if the notebook defines it."""
    attribute = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(attribute, str) or "." in attribute:
        return None
    of_type = type(value).__module__.partition(".")[0]
    for module in (getattr(value, "__module__", None), of_type):
        if not isinstance(module, str) or module in ("__main__", builtins.__name__):
            continue
        found = sys.modules.get(module)
        # A module without a spec, as a notebook's kernel makes it, cannot be imported by ranks.
        is_module = getattr(found, "__spec__", None) is not None
        if is_module and getattr(found, attribute, None) is value:
            return module, attribute
    return None


def _constant(value: Any) -> str | None:
    """Return the source of a plain value; None if it is not plain, or its source is too long."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    if not _is_plain(value):
        return None
    text = _written(value)
    return text if len(text) <= _LONGEST_CONSTANT else None


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(entry) for key, entry in value.items())
    return False


def _written(value: Any) -> str:
    """Return the source of a plain value: its `repr`, but ``float("nan")`` for NaN, and so on."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(k)}: {_written(v)}" for k, v in value.items()) + "}"
    inside = ", ".join(map(_written, value)) if isinstance(value, (list, tuple)) else ""
    if isinstance(value, list):
        return f"[{inside}]"
    if isinstance(value, tuple):
        return f"({inside}{',' if len(value) == 1 else ''})"
    return repr(value)


def _kind(value: Any) -> str:
    """Describe a value in a few words, for a message: its type, or its type and size."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return f"a {type(value).__name__} of {size:,} bytes"
    if isinstance(value, FunctionType):
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    return f"a {type(value).__qualname__}"
