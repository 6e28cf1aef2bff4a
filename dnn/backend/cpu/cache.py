"""Where generated source and compiled kernels are kept between processes.

A folder of the user's, or the one that ``DNN_KERNEL_CACHE`` names. A source file is named by a hash
of all that it depends on, so files never change, and processes may write the same one at the same
time. Where nothing can be written the kernels are compiled anew in each process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import numba

__all__ = ["CACHE_VARIABLE", "cache_folder", "compiled_here", "module_of"]

CACHE_VARIABLE = "DNN_KERNEL_CACHE"


def cache_folder() -> Path:
    """Return the folder of generated kernels."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dnn" / "kernels"


@lru_cache(maxsize=1)
def _foundations() -> bytes:
    """Return what every kernel depends on besides its own source."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    versions = [numba.__version__, llvmlite.__version__, platform.python_version()]
    return b"\n".join([*sources, *(version.encode() for version in versions)])


@cache
def module_of(source: str) -> ModuleType:
    """Return generated source as a module, from its file if that can be.

    Parameters
    ----------
    source : str
        It defines ``entry``, decorated with `numba.cfunc` whose ``cache`` is the name ``CACHE``.
    """
    name = hashlib.sha256(_foundations() + source.encode()).hexdigest()[:24]
    path = cache_folder() / f"kernel_{name}.py"
    if _written(path, source):
        try:
            return _load(path, f"dnn_kernel_{name}", cache=True)
        except (OSError, RuntimeError):  # Numba's own files cannot be written beside it
            pass
    # Numba needs a file name for its messages only.
    module = ModuleType(f"dnn_kernel_{name}")
    module.__dict__["CACHE"] = False
    exec(compile(source, f"<kernel {name}>", "exec"), module.__dict__)
    return module


def _written(path: Path, source: str) -> bool:
    try:
        if path.read_text() == source:
            return True
    except (OSError, UnicodeDecodeError):
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renaming is one step: nobody reads half a file.
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(draft, path)
    except (OSError, RuntimeError):  # RuntimeError: no home
        return False
    return True


def _load(path: Path, name: str, cache: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["CACHE"] = cache
    # Numba's cache looks the module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compiled_here(compiler: Callable[[bool], Any]) -> Any:
    """Call a compiler with ``cache=True``, and where the cache cannot be written without."""
    try:
        return compiler(True)
    except (OSError, RuntimeError):
        return compiler(False)
