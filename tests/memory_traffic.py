"""Bytes that kernels exchange with memory, counted while they run on the CPU, access by access.

A kernel's own source is compiled for the emulator with calls at each access, those that compilers
have for ThreadSanitizer. Blocks run one after the other, so what a block exchanges with the
level-2 cache is counted as if its level-1 cache lost nothing: sectors of 32 bytes, each once a
block. The least that is possible is each byte that is read once, and each that is written once.
``python tests/memory_traffic.py`` writes the table of docs/gpu.md, which takes a minute or two.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import cuda_emulator
import fake_cublas
import fake_cupy
import pytest
import step_counts
from compile_cache import digest

from dnn.backend.cuda import launch

BEGIN = "<!-- traffic: python tests/memory_traffic.py -->\n"
STEPS = {
    "MLP depth 4": step_counts.STEPS["MLP depth 4"],
    "LeNet-5": step_counts.STEPS["LeNet-5"],
    "LSTM of 28 steps": step_counts.STEPS["LSTM of 28 steps"],
    "ResNet-18 of 1 image": step_counts.net("resnet18_cifar_step", batch=1),
    "ResNet-18 of 1 image, bfloat16": step_counts.net("resnet18_cifar_step", "bfloat16", 1),
}
"""Steps of the table; of ResNet-18 one image, since it is run on the CPU."""

LEAST_SHOWN_BYTES = 1_000_000
FLAGS = (
    *("-O1", "-fno-exceptions", "-fsanitize=thread"),
    *("--param", "tsan-instrument-func-entry-exit=0"),
    # Without the runtime library of the sanitizer, whose functions are defined below.
    *("-nodefaultlibs", "-Wl,--no-as-needed", "-lgcc_s", "-lm", "-lc"),
)

OF_BLOCK = """
extern "C" __attribute__((no_sanitize("thread"), visibility("hidden")))
const unsigned int* block_number_() { return &blockIdx.x; }
"""

HOOKS = """
extern "C" __attribute__((visibility("hidden"))) const unsigned int* block_number_();
extern "C" void* calloc(unsigned long, unsigned long);
extern "C" void free(void*);
#define HOOK extern "C" __attribute__((visibility("hidden")))
#define CALLED extern "C" __attribute__((visibility("default")))
struct array_ { unsigned long low, high; unsigned int *by[2]; unsigned char *seen[2]; };
static array_ arrays_[512];  // a launch has no more arguments; they are in order, and none overlap
static array_* touched_ = arrays_;  // most accesses are to the array of the one before
static unsigned int arrays_count_;
static const unsigned int* block_;
static long long moved_[2];

static bool find_(unsigned long at) {
    if (!arrays_count_ || at < arrays_[0].low || at >= arrays_[arrays_count_ - 1].high)
        return false;
    for (touched_ = arrays_; at >= touched_->high; ++touched_) {}
    return at >= touched_->low;
}

static inline __attribute__((always_inline))
void touch_(unsigned long at, unsigned long size, int writes) {
    if ((at < touched_->low || at >= touched_->high) && !find_(at)) return;
    const array_& of = *touched_;
    const unsigned long first = at - of.low, last = first + size - 1;
    for (unsigned long s = first / 32; s <= last / 32; ++s)
        if (of.by[writes][s] != *block_ + 1) {
            of.by[writes][s] = *block_ + 1;
            moved_[writes] += 32;
        }
    __builtin_memset(of.seen[writes] + first, 1, size);
}

CALLED void begin_counting(unsigned int count, const unsigned long* bounds) {
    arrays_count_ = count;
    touched_ = arrays_;
    block_ = block_number_();
    moved_[0] = moved_[1] = 0;
    for (unsigned int k = 0; k < count; ++k) {
        array_& of = arrays_[k];
        of.low = bounds[2 * k] / 32 * 32;
        of.high = bounds[2 * k + 1];
        const unsigned long size = of.high - of.low + 32;
        for (auto& stamps : of.by) stamps = (unsigned int*)calloc(size / 32 + 1, 4);
        for (auto& bytes : of.seen) bytes = (unsigned char*)calloc(size, 1);
    }
}

CALLED void end_counting(long long* found) {
    for (int i = 0; i < 2; ++i) { found[i] = moved_[i]; found[2 + i] = 0; }
    for (unsigned int k = 0; k < arrays_count_; ++k) {
        array_& of = arrays_[k];
        for (int i = 0; i < 2; ++i) {
            for (unsigned long b = 0; b < of.high - of.low; ++b) found[2 + i] += of.seen[i][b];
            free(of.by[i]);
            free(of.seen[i]);
        }
    }
    arrays_count_ = 0;
    arrays_[0] = {};
    touched_ = arrays_;
}

HOOK void __tsan_init() {}
#define HOOKS_OF(size) \\
    HOOK void __tsan_read##size(unsigned long at) { touch_(at, size, 0); } \\
    HOOK void __tsan_write##size(unsigned long at) { touch_(at, size, 1); } \\
    HOOK void __tsan_unaligned_read##size(unsigned long at) { touch_(at, size, 0); } \\
    HOOK void __tsan_unaligned_write##size(unsigned long at) { touch_(at, size, 1); }
HOOKS_OF(1) HOOKS_OF(2) HOOKS_OF(4) HOOKS_OF(8) HOOKS_OF(16)
HOOK void __tsan_read_range(unsigned long at, unsigned long size) { touch_(at, size, 0); }
HOOK void __tsan_write_range(unsigned long at, unsigned long size) { touch_(at, size, 1); }
"""


@dataclass(frozen=True)
class Traffic:
    """Bytes of a launch: moved between blocks and the level-2 cache, and the least possible."""

    kind: str
    moved_bytes: int
    least_bytes: int


def _library(kernel: Any) -> Any:
    """Return a kernel, compiled with counts of its accesses."""
    header = cuda_emulator.HEADER + OF_BLOCK
    made = cuda_emulator.compiled(
        f"traffic-{digest(header, FLAGS)}.h.gch", header, "-x", "c++-header", *FLAGS
    )
    hooks = cuda_emulator.compiled(f"hooks-{digest(HOOKS)}.cpp.o", HOOKS, "-O3", "-c")
    code = re.sub("#include <cuda_.*", "", cuda_emulator.with_launcher(kernel.program, kernel.name))
    arguments = (*FLAGS, "-include", str(made.with_suffix("")), str(hooks))
    name = f"{digest(code, arguments)}.cpp.so"
    loaded = ctypes.CDLL(str(cuda_emulator.compiled(name, code, *arguments)))
    loaded[f"launch_{kernel.name}"].argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
    loaded.begin_counting.argtypes = [ctypes.c_uint, ctypes.c_void_p]
    return loaded


def _bounds(arguments: tuple[Any, ...]) -> list[tuple[int, int]]:
    """Return where arrays lie, from and to; those that overlap as one."""
    found: list[tuple[int, int]] = []
    spans = []
    for array in arguments:
        if isinstance(array, fake_cupy.ndarray) and array.size:
            steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
            at = array.data.ptr
            low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
            spans.append((at + low, at + high + array.dtype.itemsize))
    for low, high in sorted(spans):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


@contextlib.contextmanager
def running() -> Iterator[list[Any]]:
    """Let ``device="cuda"`` be a GPU that computes and counts; give the list of its launches."""
    launches: list[Any] = []
    multiply = fake_cublas.Library._multiply

    def compiled(cupy: Any, index: int, kernel: Any) -> Callable[..., None]:
        loaded = _library(kernel)
        fake_cupy.RawModule.compiled[kernel.name] = loaded[f"launch_{kernel.name}"]
        run = cupy.RawModule(code=kernel.program).get_function(kernel.name)
        kind = re.sub(r"_[0-9a-f]{12}", "", kernel.name)

        def function(grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
            stream = cupy.cuda.get_current_stream()
            if stream.is_capturing():  # it is the same once more
                return
            bounds = _bounds(arguments)
            flat = [end for span in bounds for end in span]
            loaded.begin_counting(len(bounds), (ctypes.c_ulong * len(flat))(*flat))
            run(grid, block, arguments)
            stream.synchronize()
            found = (ctypes.c_longlong * 4)()
            loaded.end_counting(found)
            launches.append(Traffic(kind, found[0] + found[1], found[2] + found[3]))

        function.kernel = run.kernel  # type: ignore[attr-defined]
        return function

    def multiplied(library: Any, *arguments: Any, **options: Any) -> Any:
        launches.append(None)
        return multiply(library, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        fake_cupy.install(patch)
        patch.setattr(fake_cupy.RawModule, "compiled", {})
        patch.setattr(fake_cupy.RawModule, "codes", {})
        patch.setattr(launch, "compiled", compiled)
        patch.setattr(fake_cublas.Library, "_multiply", multiplied)
        patch.setenv("DNN_ROUTINES", "fixed")
        yield launches


def launches_of(count: Callable[[], Any]) -> list[Traffic]:
    """Return the kernels of a step that `step_counts` counts, in order."""
    with mock.patch.object(step_counts, "counting", running):
        return [launch for launch in count() if isinstance(launch, Traffic)]


def _in_words(kind: str) -> str:
    """Return the name of a kernel with its types, of which equal neighbours are counted."""
    name, *rest = kind.split("__")
    types = itertools.groupby(rest[0].split("_") if rest else ())
    words = [f"{key} x {n}" if (n := len(list(group))) > 1 else key for key, group in types]
    for part in rest[1:]:  # such as 2, 1_by_4_001 and rows_2_1_by_4
        way, _, at_once = part.partition("_by_")
        words.append(f"axes: {way}" if way[0].isdigit() else f"by {way.partition('_')[0]}")
        words += [f"{at_once.partition('_')[0]} at once"] if at_once else []
    return ", ".join([f"`{name}`", *words])


def by_kind(launches: Iterable[Traffic]) -> dict[str, list[Traffic]]:
    """Return launches by the name of their kernel, as the table has it."""
    found: dict[str, list[Traffic]] = {}
    for one in launches:
        found.setdefault(_in_words(one.kind), []).append(one)
    return found


def table() -> str:
    """Return the kernels of `STEPS` that move the most, as Markdown."""
    launches = [one for count in STEPS.values() for one in launches_of(count)]
    rows: list[tuple[str, int, int, int]] = []
    others = [0, 0, 0]
    for kind, some in by_kind(launches).items():
        numbers = len(some), sum(x.moved_bytes for x in some), sum(x.least_bytes for x in some)
        if numbers[1] >= LEAST_SHOWN_BYTES:
            rows.append((kind, *numbers))
        else:
            others = [sum(pair) for pair in zip(others, numbers, strict=True)]
    rows.sort(key=lambda row: row[3] - row[2])
    lines = ["| kernel | launches | MB moved | MB at least | ratio |", "|---|--:|--:|--:|--:|"]
    for kind, count, moved, least in (*rows, ("all others", *others)):
        numbers = f"{count} | {moved / 1e6:,.1f} | {least / 1e6:,.1f} | {moved / least:.2f}"
        lines.append(f"| {kind} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    roofline = step_counts.benchmark("roofline_gpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    text = roofline.PAGE.read_text(encoding="utf-8")
    page = roofline.with_table(text, BEGIN, table())
    roofline.PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
