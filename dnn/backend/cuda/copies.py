"""Many small copies as one kernel, which finds arrays by a table of addresses.

A training step copies what batch normalisation has summed up, a few numbers of each layer, into the
buffers of gradients and of states. By one kernel for each that would be most of its kernels.
"""

from __future__ import annotations

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

COLUMNS = ("from", "to", "elements", "width", "from_row", "from_step", "to_row", "to_step")
"""What the table has for each copy: two addresses, lengths, and strides in elements."""


def copies_kernel(code: str) -> Kernel:
    """Return the kernel of copies, a block for each.

    Its parameters: table, of `COLUMNS`, and number of copies.
    """
    kind = C_TYPES[code]
    values = "\n        ".join(
        f"const long long {name}_ = table[copy * {len(COLUMNS)} + {i}];"
        for i, name in enumerate(COLUMNS)
    )
    body = f"""for (long long copy = blockIdx.x; copy < copies; copy += gridDim.x) {{
        {values}
        const {kind}* from = (const {kind}*)from_;
        {kind}* to = ({kind}*)to_;
        for (long long i = threadIdx.x; i < elements_; i += {THREADS}) {{
            const long long row = i / width_, at = i % width_;
            to[row * to_row_ + at * to_step_] = from[row * from_row_ + at * from_step_];
        }}
    }}"""
    return function(f"copies__{code}", f"const long long* table, {lengths('copies')}", body)


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
    """Launch one kernel that copies each x of (x, out); each `is_small`, and they `may_join`.

    The kernel has addresses alone: the caller keeps the arrays as long as it may be launched.
    """
    rows = []
    for x, out in pairs:
        loops, (x_steps, out_steps) = _loops(x, out)
        x_row, x_step = (0, *x_steps)[-AXES:]
        out_row, out_step = (0, *out_steps)[-AXES:]
        strides = (x_row, x_step, out_row, out_step)
        rows.append((x.data.ptr, out.data.ptr, out.size, loops[-1], *strides))
    table = launcher.cupy.asarray(np.array(rows, np.int64))
    kernel = copies_kernel(code_of(pairs[0][1].dtype))
    launcher.launch(kernel, len(pairs), [table, np.int64(len(pairs))])
