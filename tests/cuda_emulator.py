"""CUDA C++ run on the CPU: every block after the other, its threads as fibers.

A kernel's own source is compiled by the C++ compiler of the machine, behind a header in which
CUDA's words mean what they mean: `__syncthreads()` gives the turn to the next thread of the
block, and everything `__shared__` is static. What is tested is what is compiled for a GPU; what
is not is how threads of a GPU race, and what it costs.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

HEADER = r"""
#include <cmath>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
using std::exp; using std::log; using std::log1p; using std::pow; using std::sqrt; using std::tanh;
using std::abs; using std::fabs;
typedef _Float16 __half;
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        unsigned int b;
        std::memcpy(&b, &x, 4);
        bits = x != x ? 0x7FC0 : (unsigned short)((b + ((b >> 16 & 1) + 0x7FFF)) >> 16);
    }
    operator float() const {
        const unsigned int b = (unsigned int)bits << 16;
        float x;
        std::memcpy(&x, &b, 4);
        return x;
    }
};
struct dim3_ { unsigned int x, y, z; };
static dim3_ threadIdx, blockIdx, blockDim, gridDim;
#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static

// A fiber gets its stack by `setcontext`; from then on turns change hands by longjmp, which, unlike
// swapcontext, asks the system for nothing.
static ucontext_t fibers_[1024];
static jmp_buf block_turn_, turns_[1024];
static bool begun_[1024], done_[1024];
static char* stacks_ = nullptr;
static unsigned int now_;
static void (*body_)();
static __attribute__((noinline)) void __syncthreads() {
    if (!_setjmp(turns_[now_])) _longjmp(block_turn_, 1);
}
// Blocks run one after the other, and their threads too.
static void __threadfence() {}
static int atomicAdd(int* address, int value) { *address += value; return *address - value; }
static void fiber_() { body_(); done_[now_] = true; _longjmp(block_turn_, 1); }

static void begin_(unsigned int t) {
    const size_t size = 65536;
    if (!stacks_) stacks_ = (char*)malloc(1024 * size);
    begun_[t] = true;
    getcontext(&fibers_[t]);
    fibers_[t].uc_stack.ss_sp = stacks_ + t * size;
    fibers_[t].uc_stack.ss_size = size;
    fibers_[t].uc_link = nullptr;
    makecontext(&fibers_[t], fiber_, 0);
    setcontext(&fibers_[t]);
}

static void block_(bool syncs) {
    if (!syncs) {
        for (unsigned int t = 0; t < blockDim.x; ++t) { threadIdx.x = t; body_(); }
        return;
    }
    for (unsigned int t = 0; t < blockDim.x; ++t) begun_[t] = done_[t] = false;
    for (volatile bool left = true; left;) {
        left = false;
        for (volatile unsigned int t = 0; t < blockDim.x; ++t) {
            if (done_[t]) continue;
            now_ = threadIdx.x = t;
            if (!_setjmp(block_turn_)) {
                if (begun_[t]) _longjmp(turns_[t], 1);
                begin_(t);
            }
            left = left || !done_[t];
        }
    }
}

static void launch_(unsigned int blocks, unsigned int threads, bool syncs, void (*body)()) {
    blockDim.x = threads; gridDim.x = blocks; body_ = body;
    for (unsigned int b = 0; b < blocks; ++b) { blockIdx.x = b; block_(syncs); }
}
"""

ROUNDING = ["-O0", "-ffp-contract=off"]
if os.environ.get("DIEL_STANDIN_FMA") == "1":  # which GCC does among its optimisations alone
    ROUNDING = ["-O1", "-fexpensive-optimizations", "-ffp-contract=fast"]
    ROUNDING += ["-mfma"] if platform.machine() == "x86_64" else []
OPTIONS = ["-std=c++17", *ROUNDING, "-shared", "-fPIC", "-w"]
COMPILER = shutil.which("g++")


def parameter_types(source: str, name: str) -> list[str]:
    """Return the C type of each parameter of a kernel."""
    head = source[source.index(f"void {name}(") + len(f"void {name}(") :]
    return [" ".join(one.split()[:-1]) for one in head[: head.index(")")].split(",")]


def with_launcher(source: str, name: str) -> str:
    """Add a function that takes pointers to the arguments, as CUDA's launch does."""
    types = parameter_types(source, name)
    given = ", ".join(f"*({kind}*)arguments_{name}[{i}]" for i, kind in enumerate(types))
    syncs = "true" if "__syncthreads" in source else "false"
    return (
        source
        + f"""
static void** arguments_{name};
static void call_{name}() {{ {name}({given}); }}
extern "C" void launch_{name}(unsigned int blocks, unsigned int threads, void** arguments) {{
    arguments_{name} = arguments;
    launch_(blocks, threads, {syncs}, call_{name});
}}
"""
    )


@functools.cache
def _folder() -> Path:
    """Return the folder of what has been compiled, which processes and later tests share."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(f"{HEADER}{OPTIONS}{platform.machine()}".encode()).hexdigest()[:16]
    folder = base / "dnn" / "cuda-emulator" / digest
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiled(name: str, code: str, *arguments: str) -> Path:
    """Return a file that the compiler made of a file, which stays; one process makes it."""
    made = _folder() / name
    if made.exists():
        return made
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            source = made.with_suffix("")
            source.write_text(code)
            half_done = made.with_suffix(".tmp")
            line = [COMPILER, *OPTIONS, *arguments, str(source), "-o", str(half_done)]
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            half_done.replace(made)
        return made


def build(sources: dict[str, str]) -> dict[str, ctypes._CFuncPtr]:
    """Compile kernels, given by name, and return what launches them."""
    code = "".join(with_launcher(source, name) for name, source in sources.items())
    code = re.sub("#include <cuda_.*", "", code)
    # Compiled once: most of what a small kernel would take is the header.
    header = compiled("cuda.h.gch", HEADER, "-x", "c++-header").with_suffix("")
    name = hashlib.sha256(code.encode()).hexdigest()[:16]
    library = compiled(f"{name}.cpp.so", code, "-include", str(header))
    loaded = ctypes.CDLL(str(library))
    functions = {}
    for name in sources:
        function = loaded[f"launch_{name}"]
        function.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
        function.restype = None
        functions[name] = function
    return functions
