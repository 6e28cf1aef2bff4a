"""A user's own class or function by its name, for strategies and objectives."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from diel.errors import PluginError

FORMS = '"package.module:name", or "./file.py:name" for a file beside the workflow file'


def load_own(spec: str, folder: Path) -> Callable[..., Any]:
    """Import a class or a function.

    Parameters
    ----------
    spec : str
        ``package.module:name`` or ``./file.py:name``.
    folder : Path
        Of the workflow file: modules beside it are found first.

    Raises
    ------
    PluginError
        If there is nothing of that name that could be called, or its import fails.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name.isidentifier():
        raise PluginError(f"{spec!r} names neither a class nor a function; write {FORMS}")
    try:
        code = _from_file(folder / where) if where.endswith(".py") else _from_path(where, folder)
    except PluginError:
        raise
    except Exception as error:  # a user's code can raise anything at import
        raise PluginError(f"{spec}: {type(error).__name__} at import: {error}") from error
    found = getattr(code, name, None)
    if not callable(found):
        near = get_close_matches(name, [one for one in vars(code) if not one.startswith("_")], 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"{spec}: there is no class or function {name} in {where}{meant}")
    return cast("Callable[..., Any]", found)


def _from_path(where: str, folder: Path) -> ModuleType:
    with _first_on_path(folder):
        importlib.invalidate_caches()
        return importlib.import_module(where)


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise PluginError(f"there is no file {file}")
    # Under a name that no other file has, the same in every process: instances can be pickled.
    name = f"diel_plugin_{file.stem}_{sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    try:
        with _first_on_path(file.parent):
            spec.loader.exec_module(code)
    except BaseException:
        del sys.modules[name]
        raise
    return code


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    place = str(folder.absolute())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
