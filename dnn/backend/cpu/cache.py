"""Compilation of kernels to machine code, which is kept between processes.

::

    source --> hash --> file there? --yes------------------------------------> loaded by llvmlite
                          |                                                              ^
                          no --> `lowering`, else Numba --> machine code, stored --------+

A folder of the user's, or the one that ``DNN_KERNEL_CACHE`` names. A file is named by a hash of all
that its code depends on, so files never change. Processes that need the same one at the same time
wait for the first of them; should they write it twice, no harm is done. Where nothing can be
written the kernels are compiled anew in each process.

Numba's own cache would do, but for what it takes to read it: the import of all of Numba, and of
SciPy's linear algebra, which takes longer than most trainings of small networks.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import threading
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

import dnn
from dnn.backend.routines import cache_folder, one_process
from dnn.compilation import compiling

__all__ = [
    "FLAGS",
    "HEADER",
    "compiled_by_numba",
    "compiled_loops",
    "entry_of",
    "measured_with",
    "source_of",
    "target_machine",
]


FLAGS = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}
"""How Numba compiles: full fastmath would make a value depend on its place; Python's errors block
vectorisation."""

_IMPORTS = """\
import numpy as np
from numba import boolean as b1, carray, cfunc, float32 as f4, float64 as f8, int64 as i8
from numba import uint64 as u8

from dnn.backend.cpu import intrinsics, vector_math
from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.intrinsics import KERNEL_TYPE, pointer


"""

HEADER = f"""{_IMPORTS}@cfunc(KERNEL_TYPE, **FLAGS)
def entry(r):
"""
"""Beginning of each source; the body of ``entry`` follows."""

_DIGEST_BYTES = hashlib.sha256().digest_size
_NAME = re.compile(r'@(?:"([^"]+)"|([\w.$-]+))')
_lock = threading.RLock()
_compiled_here: list[object] = []
"""Numba's objects that own machine code which is not stored."""


@cache
def measured_with(threads: int) -> tuple[str, str]:
    """Return a name with a hash of all that times depend on, and a description for people."""
    name = _hash_of(f"NumPy {np.__version__}, {threads} threads")
    about = f"{llvm.get_host_cpu_name()}, {threads} threads, dnn {dnn.__version__}"
    return f"routines-{name[:16]}", about


def source_of(module: str, function: str) -> str:
    """Return the source of a kernel that a module defines: a function, or a call that makes one."""
    return (
        f"{_IMPORTS}from dnn.backend.cpu import {module}\n\n"
        f"entry = cfunc(KERNEL_TYPE, **FLAGS)({module}.{function})\n"
    )


def entry_of(source: str) -> int:
    """Return the address of the C function ``entry`` of a source.

    The source is `HEADER` and a body, or comes from `source_of`.
    """
    with _lock:
        return _entry_of(source)


@cache
def _entry_of(source: str) -> int:
    symbol = f"kernel_{_hash_of(source)[:24]}"
    code: bytes | int | None = _stored(symbol)
    if code is None:
        with compiling(_kept_in()), _claimed(symbol):
            code = _stored(symbol) or _compiled(source, symbol)
    if isinstance(code, int):
        return code
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


def _compiled(source: str, symbol: str) -> bytes | int:
    """Compile and store a kernel; return its address where no other process can use its code."""
    from dnn.backend.cpu.lowering import machine_code

    code = machine_code(source, symbol, target_machine(), FLAGS)
    if code is None:
        entry, code = compiled_by_numba(source, symbol)
        if code is None:
            _compiled_here.append(entry)
            return int(entry.address)
    _store(symbol, code)
    return code


def compiled_by_numba(source: str, symbol: str) -> tuple[Any, bytes | None]:
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
    return entry, bytes(target_machine().emit_object(module))


@cache
def compiled_loops(module: ModuleType) -> ModuleType:
    """Return a copy of a module whose loops Numba compiles for the types that they are called with.

    Their global names are those of the copy, so that a loop calls compiled ones.
    """
    from numba import njit

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


def _kept_in() -> str:
    try:
        return str(cache_folder())
    except RuntimeError:  # no home
        return "this process alone"


@contextlib.contextmanager
def _claimed(symbol: str) -> Iterator[None]:
    """Let one process at a time compile a kernel: all ranks of a network ask for the same ones.

    A process that has waited finds it stored. A process that ends, in whatever way, holds no lock.
    """
    try:
        lock = cache_folder() / f".{symbol}.lock"
    except RuntimeError:  # no home
        lock = None
    with one_process(lock):
        try:
            yield
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):
                    lock.unlink()


def _hash_of(text: str) -> str:
    """Return the hash of a text and of all that every kernel depends on besides its own source."""
    begun = _hash_of_foundations().copy()  # to hash them each time takes longer than to load
    begun.update(text.encode())
    return str(begun.hexdigest())


@lru_cache(maxsize=1)
def _hash_of_foundations() -> Any:
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    parts = [llvmlite.__version__, platform.python_version(), platform.machine()]
    parts += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    parts += [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name[:6] == "NUMBA_"]
    return hashlib.sha256(b"\n".join([*sources, _numba_version(), *map(str.encode, parts)]))


def _numba_version() -> bytes:
    """Return Numba's version without importing it."""
    spec = importlib.util.find_spec("numba")
    assert spec is not None
    assert spec.origin is not None
    try:
        return Path(spec.origin).with_name("_version.py").read_bytes()
    except OSError:
        from importlib.metadata import version

        return version("numba").encode()


def _stored(symbol: str) -> bytes | None:
    """Return code that an earlier process has stored, if it is there and whole."""
    try:
        content = (cache_folder() / f"{symbol}.o").read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: no home
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _store(symbol: str, code: bytes) -> None:
    """Store machine code in one step, so that no process reads half of it; ignore failures."""
    import tempfile  # imports bz2 and lzma too; needed once for each kernel

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=folder, prefix=f".{symbol}.")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(draft, folder / f"{symbol}.o")
    except (OSError, RuntimeError):
        pass


@lru_cache(maxsize=1)
def target_machine() -> Any:
    """Return LLVM's target machine for this processor, with the options that Numba uses."""
    with contextlib.suppress(RuntimeError):  # newer versions of llvmlite have done it
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if triple.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


@lru_cache(maxsize=1)
def _engine() -> Any:
    """Return LLVM's execution engine, which holds the machine code of this process."""
    machine = target_machine()
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    return llvm.create_mcjit_compiler(empty, machine)
