"""How many blocks of a kernel a processor of an H100 has at once, as CUDA's driver would say.

NVRTC makes the code for such a processor, which says how many registers a thread takes and how much
memory a block shares. The rest is NVIDIA's own calculation, in the header ``cuda_occupancy.h`` that
comes with CUDA's runtime, compiled by g++. Where the extra ``nvrtc`` is not installed, the threads
that a processor has at once are the only limit.
"""

from __future__ import annotations

import ctypes
import functools
import json
import struct
from pathlib import Path
from typing import NamedTuple

import cuda_emulator
import nvrtc
from compile_cache import cache_folder, digest, made_once

PROCESSORS = 132
PROCESSOR_THREADS = 2048
RESERVED_BYTES = 1 << 10
"""Memory of a block that CUDA takes; the compiler counts it where a kernel has some of its own."""

CALCULATION = """
#include <cuda_occupancy.h>

extern "C" int resident_blocks(int threads, int registers, unsigned long shared, unsigned long more)
{
    cudaOccDeviceProp h100;
    h100.computeMajor = 9;
    h100.computeMinor = 0;
    h100.maxThreadsPerBlock = 1024;
    h100.maxThreadsPerMultiprocessor = 2048;
    h100.regsPerBlock = h100.regsPerMultiprocessor = 65536;
    h100.warpSize = 32;
    h100.sharedMemPerBlock = 48 << 10;
    h100.sharedMemPerMultiprocessor = 228 << 10;
    h100.numSms = 132;
    h100.sharedMemPerBlockOptin = 227 << 10;
    h100.reservedSharedMemPerBlock = 1 << 10;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = shared;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult found;
    const int status = cudaOccMaxActiveBlocksPerMultiprocessor(
        &found, &h100, &kernel, &state, threads, more);
    return status ? -status : found.activeBlocksPerMultiprocessor;
}
"""


class Resources(NamedTuple):
    """What a kernel takes of a processor: registers of a thread, bytes that a block shares."""

    registers: int
    shared_bytes: int


def resident_blocks(name: str, program: str, threads: int, dynamic_bytes: int = 0) -> int:
    """Return how many blocks with that many threads a processor has at once."""
    compiler = nvrtc.installed()
    if isinstance(compiler, str):
        return PROCESSOR_THREADS // threads
    given = resources(compiler, name, program)
    blocks: int = _calculation(compiler.headers)(threads, *given, dynamic_bytes)
    assert blocks >= 0, f"cuda_occupancy.h: status {-blocks} for {given}"
    return blocks


@functools.cache
def _calculation(headers: Path) -> ctypes._CFuncPtr:
    name = f"occupancy-{digest(CALCULATION, headers)}.cpp.so"
    library = ctypes.CDLL(str(cuda_emulator.compiled(name, CALCULATION, f"-I{headers}")))
    library.resident_blocks.argtypes = [ctypes.c_int] * 2 + [ctypes.c_ulong] * 2
    return library.resident_blocks


def resources(compiler: nvrtc.Nvrtc, name: str, program: str) -> Resources:
    """Return what a kernel takes of a processor, optimised as for a GPU."""
    options = (f"--gpu-architecture={nvrtc.ARCHITECTURES[0]}", "--std=c++17")

    def compile_it(made: Path) -> None:
        log, code = compiler.made(f"{name}.cu", program, options)
        if not code:
            raise nvrtc.KernelRefused(f"NVRTC {compiler.version} on {name}:\n{log}")
        made.write_text(json.dumps(_resources_of(name, code)))

    folder = cache_folder("nvrtc-resources", compiler.version, options)
    kept = made_once(folder / digest(name, program), compile_it)
    return Resources(*json.loads(kept.read_text()))


REGISTERS = 0x2F
"""EIATTR_REGCOUNT: the attribute of the section ``.nv.info`` that has a function's registers."""


def _resources_of(name: str, code: bytes) -> Resources:
    """Read the resources of a kernel in an ELF file, as ``cuobjdump --dump-resource-usage`` does.

    The number of the kernel's symbol is in the header of the section with its code.
    """
    (at,) = struct.unpack_from("<Q", code, 40)
    count, of_names = struct.unpack_from("<HH", code, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, at + 64 * i) for i in range(count)]
    names = code[headers[of_names][4] :]
    sections = {names[h[0] :].partition(b"\0")[0].decode(): h for h in headers}
    symbol = sections[f".text.{name}"][7] & 0xFFFFFF
    shared = sections.get(f".nv.shared.{name}")
    _, _, _, _, at, size, *_ = sections[".nv.info"]
    end, found = at + size, {}
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", code, at)
        if form != 4:  # only this form has more than 4 bytes
            length = 0
        elif attribute == REGISTERS:
            found.update([struct.unpack_from("<II", code, at + 4)])
        at += 4 + length
    return Resources(found[symbol], shared[5] - RESERVED_BYTES if shared else 0)
