"""Compilation of kernels from source to machine code, by Numba.

Imported when something is compiled, and only then: see `cache`. Numba's own cache would do, but for
what it takes to read it: the import of all of Numba, and of SciPy's linear algebra.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
from numba import njit

__all__ = ["compiled", "compiled_loops"]

_NAME = re.compile(r'@(?:"([^"]+)"|([\w.$-]+))')


def compiled(source: str, symbol: str, machine: Any) -> tuple[Any, bytes | None]:
    """Compile a kernel; return Numba's object and machine code that works without Numba.

    The source defines ``entry``, a `numba.cfunc`, which is called `symbol` in the machine code. The
    code is None where the kernel calls functions of Numba's own.
    """
    # Numba needs a file name for its messages only.
    names: dict[str, Any] = {"__name__": f"dnn.{symbol}"}
    exec(compile(source, f"<{symbol}>", "exec"), names)
    entry = names["entry"]
    text = _without_exceptions(entry.inspect_llvm(), entry.native_name)
    if text is None:
        return entry, None
    module = llvm.parse_assembly(text)
    reached = _reached(module, entry.native_name)
    needed = [f.name for f in module.functions if f.is_declaration and f.name in reached]
    needed += [v.name for v in module.global_variables if v.is_declaration and v.name in reached]
    process = ctypes.CDLL(None)
    if not all(name.startswith("llvm.") or hasattr(process, name) for name in needed):
        return entry, None
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            # What is not reached is left out, and only the entry is visible from outside.
            value.linkage = "internal" if value.name in reached else "available_externally"
    module.get_function(entry.native_name).linkage = "external"
    module.get_function(entry.native_name).name = symbol
    return entry, bytes(machine.emit_object(module))


@cache
def compiled_loops(module: ModuleType) -> ModuleType:
    """Return a copy of a module whose loops Numba compiles for the types that they are called with.

    Their global names are those of the copy, so that a loop calls compiled ones.
    """
    copy = ModuleType(module.__name__)
    names = vars(copy)
    names.update(vars(module))
    for name, function in vars(module).items():
        if isinstance(function, FunctionType) and hasattr(function, "numba_flags"):
            rebound = FunctionType(function.__code__, names, name)
            names[name] = njit(**function.numba_flags)(rebound)
    return copy


def _without_exceptions(text: str, name: str) -> str | None:
    """Return LLVM code whose C function returns right after the kernel; None for unexpected code.

    Numba's wrapper goes on to print a Python exception if there was one. Kernels raise none, and
    that part needs Numba at run time.
    """
    head = re.search(rf'^define [^\n]*?(\S+) @"?{re.escape(name)}"?\(', text, re.MULTILINE)
    if head is None:
        return None
    end = text.index("\n}\n", head.start())
    inner = re.escape(name.removeprefix("cfunc."))
    call = re.compile(rf'^[^\n]*call [^\n]*@"?{inner}"?\([^\n]*$', re.MULTILINE)
    found = call.search(text, head.start(), end)
    if found is None:
        return None
    kind = head.group(1)  # its value is not read
    value = "void" if kind == "void" else f"{kind} zeroinitializer"
    return f"{text[: found.end()]}\n  ret {value}{text[end:]}"


def _reached(module: Any, name: str) -> set[str]:
    """Return the names of the functions and variables that a function needs, itself among them."""
    every = {value.name: value for value in (*module.functions, *module.global_variables)}
    reached, waiting = {name}, [name]
    while waiting:
        for quoted, plain in _NAME.findall(str(every[waiting.pop()])):
            found = quoted or plain
            if found in every and found not in reached:
                reached.add(found)
                waiting.append(found)
    return reached
