"""CUDA C++ run on the CPU: every block after the other, its threads as fibers.

A kernel's own source is compiled by the C++ compiler of the machine, behind a header in which
CUDA's words mean what they mean: `__syncthreads()` gives the turn to the next thread of the
block, and everything `__shared__` is static. What is tested is what is compiled for a GPU; what
is not is how threads of a GPU race, and what it costs. Where NVIDIA's compiler is installed, it has
to take the source as well (`nvrtc`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import nvrtc
import ptx
from compile_cache import cache_folder, digest, made_once

HEADER = (
    r"""
#include <setjmp.h>
#include <ucontext.h>
// Declared here, since C++'s own headers take the compiler longer than a kernel does.
#define MATH_1_(name) \
    extern "C" double name(double) throw(); \
    extern "C" float name##f(float) throw(); \
    static inline float name(float x) { return name##f(x); }
#define MATH_2_(name) \
    extern "C" double name(double, double) throw(); \
    extern "C" float name##f(float, float) throw(); \
    static inline float name(float x, float y) { return name##f(x, y); }
MATH_1_(exp) MATH_1_(exp2) MATH_1_(expm1) MATH_1_(log) MATH_1_(log2) MATH_1_(log1p) MATH_1_(sqrt)
MATH_1_(sin) MATH_1_(cos) MATH_1_(tanh) MATH_1_(erf) MATH_1_(fabs) MATH_1_(floor) MATH_1_(ceil)
MATH_1_(trunc) MATH_1_(rint) MATH_1_(round)
MATH_2_(pow) MATH_2_(fmod) MATH_2_(fmin) MATH_2_(fmax) MATH_2_(copysign)
extern "C" double fma(double, double, double) throw();
extern "C" float fmaf(float, float, float) throw();
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }
extern "C" void* malloc(size_t) throw();
typedef _Float16 __half;
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        unsigned int b;
        __builtin_memcpy(&b, &x, 4);
        bits = x != x ? 0x7FC0 : (unsigned short)((b + ((b >> 16 & 1) + 0x7FFF)) >> 16);
    }
    operator float() const {
        const unsigned int b = (unsigned int)bits << 16;
        float x;
        __builtin_memcpy(&x, &b, 4);
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
static bool at_warp_[1024];
static void wait_() { if (!_setjmp(turns_[now_])) _longjmp(block_turn_, 1); }
static __attribute__((noinline)) void __syncthreads() { at_warp_[now_] = false; wait_(); }
// Waits for the other threads of the warp alone, which have to come to it as well.
static __attribute__((noinline)) void syncwarp_() { at_warp_[now_] = true; wait_(); }
// Blocks run one after the other, and their threads too: the last ones first, so that one that
// wrongly needs what an earlier one writes does not find it.
static void __threadfence() {}
template <class T> static T atomicAdd(T* address, T value) {
    *address += value;
    return *address - value;
}
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
        for (unsigned int t = blockDim.x; t-- > 0;) { threadIdx.x = t; body_(); }
        return;
    }
    for (unsigned int t = 0; t < blockDim.x; ++t) begun_[t] = done_[t] = at_warp_[t] = false;
    for (volatile bool left = true; left;) {
        left = false;
        for (volatile unsigned int end = blockDim.x; end > 0; end = (end - 1) / 32 * 32) {
            const unsigned int first = (end - 1) / 32 * 32;
            volatile unsigned int waiting = 0;
            do {  // until all threads of the warp are at the end or wait for the block
                const bool together = waiting;
                waiting = 0;
                for (volatile unsigned int t = end; t-- > first;) {
                    if (done_[t] || (together && !at_warp_[t])) continue;
                    at_warp_[t] = false;
                    now_ = threadIdx.x = t;
                    if (!_setjmp(block_turn_)) {
                        if (begun_[t]) _longjmp(turns_[t], 1);
                        begin_(t);
                    }
                    left = left || !done_[t];
                    waiting = waiting + (at_warp_[t] && !done_[t]);
                }
                if (waiting && waiting != end - first) __builtin_trap();
            } while (waiting);
        }
    }
}

static void launch_(unsigned int blocks, unsigned int threads, bool syncs, void (*body)()) {
    blockDim.x = threads; gridDim.x = blocks; body_ = body;
    for (unsigned int b = blocks; b-- > 0;) { blockIdx.x = b; block_(syncs); }
}
"""
    + ptx.INSTRUCTIONS
)

ROUNDING = ["-O0", "-ffp-contract=off"]
if os.environ.get("DIEL_STANDIN_FMA") == "1":  # which GCC does among its optimisations alone
    ROUNDING = ["-O1", "-fexpensive-optimizations", "-ffp-contract=fast"]
    ROUNDING += ["-mfma"] if platform.machine() == "x86_64" else []
OPTIONS = ["-std=c++17", *ROUNDING, "-shared", "-fPIC", "-w", "-nostdlib"]
LIBRARIES = ["-lm", "-lc", "-lgcc"]
COMPILER = shutil.which("g++")


def parameter_types(source: str, name: str) -> list[str]:
    """Return the C type of each parameter of a kernel."""
    head = source[source.index(f"void {name}(") + len(f"void {name}(") :]
    return [" ".join(one.split()[:-1]) for one in head[: head.index(")")].split(",")]


def with_launcher(source: str, name: str) -> str:
    """Add a function that takes pointers to the arguments, as CUDA's launch does."""
    source = ptx.with_calls(source)
    types = parameter_types(source, name)
    given = ", ".join(f"*({kind}*)arguments_{name}[{i}]" for i, kind in enumerate(types))
    syncs = "true" if re.search("__syncthreads|_sync_", source) else "false"
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


def compiled(name: str, code: str, *arguments: str) -> Path:
    """Return a file that the compiler made of a file, which stays; one process makes it."""

    def compile_it(made: Path) -> None:
        source = made.with_suffix("")
        source.write_text(code)
        line = [COMPILER, *OPTIONS, *arguments, str(source), *LIBRARIES, "-o", str(made)]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)

    folder = cache_folder("cuda-emulator", HEADER, OPTIONS, platform.machine())
    return made_once(folder / name, compile_it)


def build(sources: dict[str, str]) -> dict[str, ctypes._CFuncPtr]:
    """Compile kernels, given by name, and return what launches them.

    Raises
    ------
    KernelRefused
        If NVIDIA's compiler does not take one; see `nvrtc`.
    """
    functions = {}
    for name, source in sources.items():
        nvrtc.check(name, source)
        code = HEADER + re.sub("#include <cuda_.*", "", with_launcher(source, name))
        library = ctypes.CDLL(str(compiled(f"{digest(code)}.cpp.so", code)))
        function = functions[name] = library[f"launch_{name}"]
        function.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
        function.restype = None
    return functions
