"""Kernels of a batch: they gather its samples, draw its random numbers, and go to the next one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.launch import Launcher, element_strides, require_contiguous
from dnn.backend.cuda.source import (
    C_TYPES,
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


def take_rows_kernel(code: str) -> Kernel:
    """Return the kernel of ``out[i] = x[rows[i]]``, with the nearest row if out of range.

    Its parameters: x, rows, out, rows of x, width of a row, elements of out.
    """
    kind = C_TYPES[code]
    arrays = f"const {kind}* x, const long long* rows, {kind}* out"
    body = """
        long long row = rows[i / width];
        row = row < 0 ? 0 : row >= length ? length - 1 : row;
        out[i] = x[row * width + i % width];"""
    return function(f"take_rows__{code}", f"{arrays}, {lengths('length width n')}", for_each(body))


def take_rows(launcher: Launcher, x: Any, rows: Any, out: Any) -> None:
    """Launch the kernel that gathers rows, a thread for each element."""
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    _by_rows(launcher, "take_rows", take_rows_kernel(code_of(x.dtype)), x, rows, out, len(x), width)


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
    width = int(np.prod(out.shape[1:], dtype=np.int64))
    kernel = add_rows_kernel(code_of(out.dtype))
    _by_rows(launcher, "add_rows", kernel, x, rows, out, rows.size, width)


def _by_rows(
    launcher: Launcher,
    name: str,
    kernel: Kernel,
    x: Any,
    rows: Any,
    out: Any,
    length: int,
    width: int,
) -> None:
    if rows.dtype != np.intp:
        raise DtypeError(f"{name}: rows must be {np.dtype(np.intp)}, not {rows.dtype}")
    for array in (x, rows, out):
        require_contiguous(name, array)
    numbers = [np.int64(length), np.int64(max(1, width)), np.int64(out.size)]
    launcher.for_each(kernel, out.size, [x, rows, out, *numbers])


def take_batch_kernel(code: str) -> Kernel:
    """Return the kernel of ``out[..., i] = x[order[..., position[0] + i]]``.

    Its parameters: x, order, position, out, length of an order, rows of a batch, width of a row,
    elements of out.
    """
    kind = C_TYPES[code]
    arrays = f"const {kind}* x, const long long* order, const long long* position, {kind}* out"
    body = for_each("""
        const long long row = i / width;
        const long long at = row / batch * length + start + row % batch;
        out[i] = x[order[at] * width + i % width];""")
    body = f"const long long start = position[0];\n    {body}"
    return function(f"take_batch__{code}", f"{arrays}, {lengths('length batch width n')}", body)


def take_batch(launcher: Launcher, x: Any, order: Any, position: Any, out: Any) -> None:
    """Launch the kernel that gathers the next batch, which reads the position on the GPU."""
    for array in (x, order, out):
        require_contiguous("take_batch", array)
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    kernel = take_batch_kernel(code_of(x.dtype))
    batch = out.shape[order.ndim - 1]
    numbers = [np.int64(n) for n in (order.shape[-1], batch, max(1, width), out.size)]
    launcher.for_each(kernel, out.size, [x, order, position, out, *numbers], [3])


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
