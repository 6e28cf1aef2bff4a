"""Kernels that gather rows of samples, add them up, and advance from batch to batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.launch import Launcher, element_strides, require_contiguous
from dnn.backend.cuda.source import (
    C_TYPES,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.errors import DtypeError

__all__ = ["add_rows", "end_batch", "take_batch", "take_rows"]


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
    launcher.for_each(kernel, out.size, [x, order, position, out, *numbers])


def end_batch_kernel(code: str, kept: str) -> Kernel:
    """Return the kernel of ``losses[position[1]] = loss``, which advances to the next batch.

    Its parameters: loss, losses, position, losses of a step (one for each model), and the losses'
    distance from step to step and from model to model, in elements.
    """
    value = stored(kept, f"({arithmetic(code)})loss[k]")
    arrays = f"const {C_TYPES[code]}* loss, {C_TYPES[kept]}* losses, long long* position"
    body = f"""if (blockIdx.x || threadIdx.x) return;
    for (long long k = 0; k < models; ++k)
        losses[position[1] * by_step + k * by_model] = {value};
    position[0] += position[2];
    position[1] += 1;"""
    numbers = lengths("models by_step by_model")
    return function(f"end_batch__{code}_{kept}", f"{arrays}, {numbers}", body)


def end_batch(launcher: Launcher, loss: Any, losses: Any, position: Any) -> None:
    """Launch the kernel that records a loss and advances the position to the next batch."""
    steps = (*element_strides(losses), 0)
    kernel = end_batch_kernel(code_of(loss.dtype), code_of(losses.dtype))
    numbers = [np.int64(loss.size), np.int64(steps[0]), np.int64(steps[1])]
    launcher.launch(kernel, 1, [loss, losses, position, *numbers])
