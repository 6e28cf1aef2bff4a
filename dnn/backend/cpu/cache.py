"""Machine code of kernels, and where it is kept between processes.

::

    source --> hash --> file there? --yes------------------------------------> loaded by llvmlite
                          |                                                              ^
                          no --> `lowering`, else Numba --> machine code, stored --------+

A folder of the user's, or the one that ``DNN_KERNEL_CACHE`` names. A file is named by a hash of all
that its code depends on, so files never change. Processes that need the same one at the same time
wait for the first of them; should they write it twice, no harm is done. Where nothing can be
written the kernels are compiled anew in each process.

Importing Numba takes longer than most trainings of small networks, so only `compiling` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import threading
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
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
        from dnn.backend.cpu.compiling import compiled

        entry, code = compiled(source, symbol, target_machine())
        if code is None:
            _compiled_here.append(entry)
            return int(entry.address)
    _store(symbol, code)
    return code


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
