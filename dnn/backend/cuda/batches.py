"""Kernels of a batch: they gather its samples, draw its random numbers, and go to the next one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cuda.launch import (
    FEWEST_FOR_LOADS,
    LOAD_BYTES,
    Launcher,
    element_strides,
    index_of,
    require_contiguous,
)
from dnn.backend.cuda.source import (
    C_TYPES,
    ITEM_BYTES,
    LONG,
    SHORT,
    THREADS,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.errors import DtypeError

__all__ = ["add_rows", "end_batch", "take_batch", "take_rows", "uniform_noise"]


class _Unit(NamedTuple):
    """What a thread copies at once: `many` neighbours of a row, numbered by a type."""

    code: str
    many: int = 1
    number: str = SHORT.number

    @classmethod
    def of(cls, x: Any, out: Any, width: int) -> _Unit:
        """Return as much as one load has, where there is enough and each row begins with one."""
        many = LOAD_BYTES // out.dtype.itemsize
        fits = out.size >= FEWEST_FOR_LOADS and width % many == 0
        fits = fits and not any(y.data.ptr % LOAD_BYTES for y in (x, out))
        number = index_of((out.size,), ((1,),)).number
        return cls(code_of(out.dtype), many if fits else 1, number)

    def kernel(self, name: str, parameters: str, head: str, body: str) -> Kernel:
        """Return the kernel whose `body` sets ``to[i]`` to a unit of `from`, for each i < n."""
        code, many, number = self
        kind = C_TYPES[code]
        unit = f"struct alignas({many * ITEM_BYTES[code]}) V {{ {kind} of[{many}]; }};"
        lines = [unit, "const V* from = (const V*)x;", "V* to = (V*)out;", head]
        name += f"__{code}__rows_by_{many}{'_long' if number == LONG.number else ''}"
        inside = "\n    ".join([*lines, for_each(body, "", number)])
        return function(name, parameters.replace("T*", f"{kind}*"), inside)


def take_rows_kernel(unit: _Unit) -> Kernel:
    """Return the kernel of ``out[i] = x[rows[i]]``, with the nearest row if out of range.

    Its parameters: x, rows, out, rows of x, and units of a row and of out.
    """
    parameters = f"const T* x, const long long* rows, T* out, {lengths('length width n')}"
    body = f"""
        long long row = rows[i / ({unit.number})width];
        row = row < 0 ? 0 : row >= length ? length - 1 : row;
        to[i] = from[row * width + i % ({unit.number})width];"""
    return unit.kernel("take_rows", parameters, "", body)


def take_rows(launcher: Launcher, x: Any, rows: Any, out: Any) -> None:
    """Launch the kernel that gathers rows, a thread for each unit."""
    width = _width("take_rows", x, rows, out)
    unit = _Unit.of(x, out, width)
    numbers = [np.int64(n) for n in (len(x), width // unit.many, out.size // unit.many)]
    arguments = [x, rows, out, *numbers]
    launcher.for_each(take_rows_kernel(unit), out.size, arguments, [2], unit.many)


def add_rows_kernel(code: str) -> Kernel:
    """Return the kernel of ``out[rows[i]] += x[i]``, where out begins as zeros.

    A thread searches all rows for those that are added to its element, in their order: no two
    threads write one element, so the same input gives the same bits.

    Its parameters: x, rows, out, number of rows, width of a row, elements of out.
    """
    kind, middle = C_TYPES[code], arithmetic(code)
    arrays = f"const {kind}* x, const long long* rows, {kind}* out"
    body = f"""
        {middle} total = 0;
        for (long long j = 0; j < count; ++j)
            if (rows[j] == i / width) total = total + ({middle})x[j * width + i % width];
        out[i] = {stored(code, "total")};"""
    return function(f"add_rows__{code}", f"{arrays}, {lengths('count width n')}", for_each(body))


def add_rows(launcher: Launcher, x: Any, rows: Any, out: Any) -> None:
    """Launch the kernel that adds up rows in order, a thread for each element of the result."""
    width = _width("add_rows", out, rows, x)
    numbers = [np.int64(n) for n in (rows.size, width, out.size)]
    launcher.for_each(add_rows_kernel(code_of(out.dtype)), out.size, [x, rows, out, *numbers])


def _width(name: str, whole: Any, rows: Any, part: Any) -> int:
    """Return the elements of a row, after a check of the arrays of an operation."""
    if rows.dtype != np.intp:
        raise DtypeError(f"{name}: rows must be {np.dtype(np.intp)}, not {rows.dtype}")
    for array in (whole, rows, part):
        require_contiguous(name, array)
    width: int = max(1, math.prod(whole.shape[1:]))
    return width


def take_batch_kernel(unit: _Unit) -> Kernel:
    """Return the kernel of ``out[..., i] = x[order[..., position[0] + i]]``.

    Its parameters: x, order, position, out, length of an order, rows of a batch, and units of a row
    and of out.
    """
    arrays = "const T* x, const long long* order, const long long* position, T* out"
    body = f"""
        const {unit.number} row = i / ({unit.number})width;
        const {unit.number} model = row / ({unit.number})batch;
        const long long at = model * length + start + row % ({unit.number})batch;
        to[i] = from[order[at] * width + i % ({unit.number})width];"""
    head = "const long long start = position[0];"
    return unit.kernel("take_batch", f"{arrays}, {lengths('length batch width n')}", head, body)


def take_batch(launcher: Launcher, x: Any, order: Any, position: Any, out: Any) -> None:
    """Launch the kernel that gathers the next batch, which reads the position on the GPU."""
    for array in (x, order, out):
        require_contiguous("take_batch", array)
    width = max(1, math.prod(x.shape[1:]))
    unit = _Unit.of(x, out, width)
    batch = out.shape[order.ndim - 1]
    in_units = (width // unit.many, out.size // unit.many)
    numbers = [np.int64(n) for n in (order.shape[-1], batch, *in_units)]
    arguments = [x, order, position, out, *numbers]
    launcher.for_each(take_batch_kernel(unit), out.size, arguments, [3], unit.many)


def end_batch_kernel(code: str, kept: str) -> Kernel:
    """Return the kernel of ``losses[position[1]] = loss``, which advances to the next batch.

    Its parameters: loss, losses, position, losses of a step (one for each model), and the losses'
    distance from step to step and from model to model, in elements.
    """
    value = stored(kept, f"({arithmetic(code)})loss[k]")
    arrays = f"const {C_TYPES[code]}* loss, {C_TYPES[kept]}* losses, long long* position"
    body = f"""if (blockIdx.x) return;
    const long long step = position[1];
    for (long long k = threadIdx.x; k < models; k += {THREADS})
        losses[step * by_step + k * by_model] = {value};
    __syncthreads();
    if (threadIdx.x == 0) {{
        position[0] += position[2];
        position[1] = step + 1;
    }}"""
    numbers = lengths("models by_step by_model")
    return function(f"end_batch__{code}_{kept}", f"{arrays}, {numbers}", body)


def end_batch(launcher: Launcher, loss: Any, losses: Any, position: Any) -> None:
    """Launch the kernel that records a loss and advances the position to the next batch."""
    steps = (*element_strides(losses), 0)
    kernel = end_batch_kernel(code_of(loss.dtype), code_of(losses.dtype))
    numbers = [np.int64(loss.size), np.int64(steps[0]), np.int64(steps[1])]
    launcher.launch(kernel, 1, [loss, losses, position, *numbers])


PHILOX_ROUNDS = 10


def uniform_noise_kernel(code: str) -> Kernel:
    """Return the kernel that writes floats in [0, 1) from Philox-4x32-10, see `dnn.backend.philox`.

    A thread computes one block of four words. Its parameters: seeds, step, out, stream, number
    of seeds, elements for each.
    """
    bits = 11 if code == "f2" else 24
    middle = arithmetic(code)
    value = f"({middle})(word[lane] >> {32 - bits}) * ({middle})(1.0 / {1 << bits})"
    body = for_each(
        f"""
        const long long model = i_ / blocks, block = i_ % blocks;
        unsigned int key0 = (unsigned int)seeds[model];
        unsigned int key1 = (unsigned int)(seeds[model] >> 32);
        unsigned int word[4] = {{(unsigned int)block, (unsigned int)*step,
                                (unsigned int)(*step >> 32), (unsigned int)stream}};
        for (int round = 0; round < {PHILOX_ROUNDS}; ++round) {{
            const unsigned long long p0 = 0xD2511F53ull * word[0];
            const unsigned long long p1 = 0xCD9E8D57ull * word[2];
            word[0] = (unsigned int)(p1 >> 32) ^ word[1] ^ key0;
            word[1] = (unsigned int)p1;
            word[2] = (unsigned int)(p0 >> 32) ^ word[3] ^ key1;
            word[3] = (unsigned int)p0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }}
        for (int lane = 0; lane < 4; ++lane) {{
            const long long at = 4 * block + lane;
            if (at < n) out[model * n + at] = {stored(code, value)};
        }}""",
        "_",
    )
    words = "const unsigned long long* seeds, const unsigned long long* step"
    parameters = f"{words}, {C_TYPES[code]}* out, {lengths('stream models n')}"
    blocks = "const long long blocks = (n + 3) / 4, n_ = models * blocks;"
    return function(f"uniform_noise__{code}", parameters, f"{blocks}\n    {body}")


def uniform_noise(
    launcher: Launcher, seed: Any, step: Any, stream: int, words: Any, keys: Any, out: Any
) -> None:
    """Launch the kernel that draws floats from [0, 1), equal to those of `dnn.backend.philox`."""
    require_contiguous("uniform_noise", out)
    models = max(1, seed.size)
    elements = out.size // models
    blocks = models * -(-elements // 4)
    numbers = [np.int64(stream), np.int64(models), np.int64(elements)]
    kernel = uniform_noise_kernel(code_of(out.dtype))
    if blocks:
        launcher.launch(kernel, -(-blocks // THREADS), [seed, step, out, *numbers])
