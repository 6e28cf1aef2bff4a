"""Many small copies as one kernel, a block for each.

A training step copies what batch normalisation has summed up, a few numbers of each layer, into the
buffers of gradients and of states. By one kernel for each that would be most of its kernels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend.cuda.launch import Launcher, broadcast_strides, collapse, element_strides
from dnn.backend.cuda.source import C_TYPES, THREADS, Kernel, code_of, function, lengths

__all__ = ["copies_kernel", "copy_all", "is_small", "may_join"]

Pair = tuple[Any, Any]

AXES = 2
"""Most axes of an array: one of models, and the numbers of each."""

LARGEST = 1 << 16
"""Elements of a copy that has more than enough work for a kernel of its own."""

NUMBERS = ("elements", "width", "x_row", "x_step", "out_row", "out_step")
"""What a copy is given besides its arrays: lengths, and strides in elements."""

MOST_COPIES = 60
"""CUDA passes 4 KiB to a kernel on every GPU; each copy takes 64 bytes."""


@functools.cache
def copies_kernel(code: str, number: int) -> Kernel:
    """Return the kernel of a number of copies.

    Its parameters: for each copy x, out and `NUMBERS`.
    """
    kind = C_TYPES[code]
    parameters, choices = [], []
    for i in range(number):
        names = [f"{name}{i}" for name in NUMBERS]
        parameters.append(f"const {kind}* x{i}, {kind}* out{i}, {lengths(' '.join(names))}")
        given = "; ".join(f"{name} = {name}{i}" for name in ("x", "out", *NUMBERS))
        choices.append(f"case {i}: {given}; break;")
    choice = "\n            ".join(choices)
    numbers = "; ".join(f"long long {name} = 1" for name in NUMBERS)
    body = f"""for (int copy = blockIdx.x; copy < {number}; copy += gridDim.x) {{
        const {kind}* x = x0;
        {kind}* out = out0;
        {numbers};
        switch (copy) {{
            {choice}
        }}
        for (long long i = threadIdx.x; i < elements; i += {THREADS}) {{
            const long long row = i / width, at = i % width;
            out[row * out_row + at * out_step] = x[row * x_row + at * x_step];
        }}
    }}"""
    return function(f"copies_{number}__{code}", ", ".join(parameters), body)


def is_small(x: Any, out: Any) -> bool:
    """Say whether the kernel can do a copy, and would do it in the time of a launch."""
    if x.dtype != out.dtype or out.dtype.kind not in "fi" or not 0 < out.size <= LARGEST:
        return False
    return len(_loops(x, out)[0]) <= AXES


def may_join(pair: Pair, others: Sequence[Pair]) -> bool:
    """Say whether a copy can be done at the same time as others, by the same kernel."""
    x, out = pair
    return all(
        out.dtype == other.dtype and not (_meet(out, other) or _meet(x, other) or _meet(out, read))
        for read, other in others
    )


def _meet(a: Any, b: Any) -> bool:
    """Say whether two arrays may have an element in common."""
    (first, end), (begin, last) = _span(a), _span(b)
    if first >= last or begin >= end:
        return False
    # Parts of a buffer with a row for each of K models lie beside each other in every row.
    row = a.strides[0] if a.ndim > 1 else 0
    if not row or b.ndim < 2 or b.strides[0] != row or len(a) != len(b):
        return True
    (first, end), (begin, last) = _span(a[0]), _span(b[0])
    return (begin - first) % row < end - first or (first - begin) % row < last - begin


def _span(x: Any) -> tuple[int, int]:
    """Return the first address of an array, and the first one behind its last element."""
    far = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True))
    return x.data.ptr, x.data.ptr + far + x.dtype.itemsize


def _loops(x: Any, out: Any) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    shape = tuple(out.shape)
    steps = broadcast_strides(tuple(x.shape), element_strides(x), shape)
    return collapse(shape, [steps, element_strides(out)])


def copy_all(launcher: Launcher, *pairs: Pair) -> None:
    """Launch kernels that copy each x of (x, out), each `is_small`, and they `may_join`."""
    for begin in range(0, len(pairs), MOST_COPIES):
        part = pairs[begin : begin + MOST_COPIES]
        kernel = copies_kernel(code_of(part[0][1].dtype), len(part))
        arguments = itertools.chain.from_iterable((*pair, *_numbers(*pair)) for pair in part)
        launcher.launch(kernel, len(part), list(arguments))


def _numbers(x: Any, out: Any) -> list[np.int64]:
    """Return `NUMBERS` of a copy."""
    loops, (x_steps, out_steps) = _loops(x, out)
    x_row, x_step = (0, *x_steps)[-AXES:]
    out_row, out_step = (0, *out_steps)[-AXES:]
    return [np.int64(n) for n in (out.size, loops[-1], x_row, x_step, out_row, out_step)]
