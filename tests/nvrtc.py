"""NVIDIA's own compiler on the source of each kernel that a test builds; it needs no GPU.

What it refuses, and what it warns of, fails the test. Sources that were taken are kept by a hash
of their text, the options and the compiler's version, so that each is compiled once. The compiler
is that of the extra ``nvrtc``; where it is not installed, sources go to g++ alone.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path

from compile_cache import cache_folder, digest, made_once

LONG = 2500
"""Characters of a program that could need more registers than a thread has.

It is optimised as for a GPU, which takes the compiler longer, and warned of if registers are kept
in memory. What is short is not: to see what the language forbids, it need not be.
"""

SAMPLE = 8
"""Of so many kernels that share a launch, one is treated as others are.

They are half of all kernels, and take the compiler three quarters of its time. A thread of theirs
runs one part after the other, so it needs the registers of the part that needs the most (the most
seen is 95 of 255), and their parts are kernels too. The rest are made once, without optimisation.
"""

ARCHITECTURES = ("sm_90",)
if os.environ.get("DIEL_TESTS") == "thorough":
    # To PTX, which is half the work: it shows what the language lacks or has only there.
    ARCHITECTURES += ("compute_80", "compute_120")


class KernelRefused(AssertionError):
    """NVRTC does not take a kernel, or warns of it; no code takes this for an error of a GPU."""


@dataclass(frozen=True)
class Nvrtc:
    """The compiler as it is installed."""

    version: str
    library: Path
    headers: Path

    @functools.cached_property
    def functions(self) -> ctypes.CDLL:
        """The C functions; the library is loaded where something is to be compiled."""
        return ctypes.CDLL(str(self.library))

    def made(self, name: str, program: str, options: tuple[str, ...]) -> tuple[str, bytes]:
        """Compile a program; return what the compiler says of it, and the code for a processor."""
        given = [option.encode() for option in (*options, f"-I{self.headers}")]
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._call("CreateProgram", ctypes.byref(handle), program.encode(), name.encode(), 0, 0, 0)
        try:
            strings = (ctypes.c_char_p * len(given))(*given)
            status = self.functions.nvrtcCompileProgram(handle, len(given), strings)
            self._call("GetProgramLogSize", handle, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            self._call("GetProgramLog", handle, text)
            log = text.value.decode().strip() or (f"status {status}" if status else "")
            self._call("GetCUBINSize", handle, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            if size.value:
                self._call("GetCUBIN", handle, code)
        finally:
            self._call("DestroyProgram", ctypes.byref(handle))
        return log, code.raw

    def _call(self, name: str, *arguments: object) -> None:
        status = self.functions[f"nvrtc{name}"](*arguments)
        if status:
            raise RuntimeError(f"nvrtc{name}: status {status}")


@functools.cache
def installed() -> Nvrtc | str:
    """Return the compiler, or why there is none."""
    try:
        found = importlib.metadata.distribution("nvidia-cuda-nvrtc")
        importlib.metadata.distribution("nvidia-cuda-runtime")
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} (the extra nvrtc) is not installed: kernels are compiled by g++ alone"
    files = [file for file in found.files or () if file.name.startswith("libnvrtc.so")]
    library = Path(str(found.locate_file(files[0])))
    return Nvrtc(found.version, library, library.parent.parent / "include")


def _is_left_out(name: str, program: str) -> bool:
    """Whether a kernel shares a launch with others, and is not among those of the sample."""
    return name.startswith("joint_") and int(digest(program), 16) % SAMPLE != 0


def _options(architecture: str, name: str, program: str) -> tuple[str, ...]:
    is_long = len(program) > LONG and not _is_left_out(name, program)
    is_long = is_long and architecture == ARCHITECTURES[0]
    effort = "--ptxas-options=--warn-on-spills" if is_long else "--Ofast-compile=max"
    return f"--gpu-architecture={architecture}", "--std=c++17", effort


def check(name: str, program: str) -> None:
    """Raise `KernelRefused` unless NVRTC takes a kernel's program without a word."""
    compiler = installed()
    if isinstance(compiler, str):
        return
    for architecture in ARCHITECTURES[: 1 if _is_left_out(name, program) else None]:
        options = _options(architecture, name, program)

        def compile_it(taken: Path, options=options, architecture=architecture) -> None:
            log, _ = compiler.made(f"{name}.cu", program, options)
            if log:
                message = f"NVRTC {compiler.version} on {name} for {architecture}"
                raise KernelRefused(f"{message}:\n{log}")
            taken.touch()

        folder = cache_folder("nvrtc", compiler.version, options)
        made_once(folder / digest(name, program), compile_it)
