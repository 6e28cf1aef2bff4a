"""Pooling of images: a kernel for each kind, a thread for each element that is written.

In each of the three layouts images are (outer, height, width, inner), where outer and inner are
images and channels. No two threads write one element: an element of x gathers its gradient from the
windows that it is in, and searches each for the largest element again. So nothing is kept from the
forward pass, and sums have one order, that of `dnn.backend.pooling.pool_by_taps`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend.convolution import Routine
from dnn.backend.cuda.launch import Launcher, index_of
from dnn.backend.cuda.source import (
    C_TYPES,
    LONG,
    SHORT,
    Index,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    stored,
)
from dnn.backend.ops import Array, Step
from dnn.backend.pooling import Pooling

__all__ = ["KINDS", "pool", "pooling_kernel", "routine"]

LENGTHS = (
    *("inner", "height", "width", "out_height", "out_width", "rows", "across"),
    *("down", "right", "top", "left", "counts_padding"),
)
"""Further parameters of a kernel: lengths, the window, its stride, the padding before."""

WINDOW = """
const int begin_y = row * down - top, begin_x = column * right - left;
const int first_y = begin_y > 0 ? begin_y : 0, first_x = begin_x > 0 ? begin_x : 0;
const int last_y = begin_y + rows < height ? begin_y + rows : height;
const int last_x = begin_x + across < width ? begin_x + across : width;
"""
"""Statements that compute which elements of x the window at (row, column) meets."""

LARGEST = """
A best = -A(1.0 / 0.0);
[[maybe_unused]] P found = 0;
for (int y = first_y; y < last_y; ++y)
    for (int x = first_x; x < last_x; ++x) {
        const P at = base + (y * (P)width + x) * inner;
        const A value = (A)p_x[at];
        if (value > best || (value != value && best == best) || (y == first_y && x == first_x)) {
            best = value;
            found = at;
        }
    }
"""
"""Statements that find the first largest element of a window; NaN is larger than all numbers."""

COUNT = "const A count = counts_padding ? rows * across : (last_y - first_y) * (last_x - first_x);"

KINDS = {
    "max": (("x",), f"{LARGEST}total = best;"),
    "max_taken": (("v", "x"), f"{LARGEST}total = (A)p_v[found];"),
    "max_gradient": (("dy", "x"), f"{LARGEST}if (found == (P)i) total = total + (A)p_dy[window];"),
    "average": (
        ("x",),
        f"""
for (int y = first_y; y < last_y; ++y)
    for (int x = first_x; x < last_x; ++x)
        total = total + (A)p_x[base + (y * (P)width + x) * inner];
{COUNT}
total = total / count;
""",
    ),
    "average_gradient": (("dy",), f"{COUNT}\ntotal = total + (A)p_dy[window] / count;"),
}
"""By kind of `Pooling` the arrays that are read, and the statements for each window: `total`, which
begins as 0, is what is written. ``P`` is the type of a place in memory."""


def pooling_kernel(kind: str, codes: tuple[str, ...], index: Index = SHORT) -> Kernel:
    """Return the kernel of a kind of pooling, for types of elements of the arrays and the result.

    Its parameters: the arrays that are read, out, elements of out, and `LENGTHS`.
    """
    read, body = KINDS[kind]
    *given, result = codes
    arrays = "".join(
        f"const {C_TYPES[code]}* p_{each}, " for each, code in zip(read, given, strict=True)
    )
    numbers = ", ".join(f"const long long {each}_" for each in LENGTHS)
    declared = "\n    ".join(
        f"[[maybe_unused]] const int {each} = (int){each}_;" for each in LENGTHS
    )
    place = "[[maybe_unused]] const P base = outer * height * width * inner + inside;"
    if kind.endswith("_gradient"):
        # The windows that x is in, the last one first: so taps come in ascending order.
        high, wide = "height", "width"
        each = f"""
        {place}
        const int at_y = place_y + top, at_x = place_x + left;
        const int last_row = at_y / down < out_height - 1 ? at_y / down : out_height - 1;
        const int last_column = at_x / right < out_width - 1 ? at_x / right : out_width - 1;
        for (int row = last_row; row >= 0 && row * down + rows > at_y; --row)
            for (int column = last_column; column >= 0 && column * right + across > at_x;
                 --column) {{
                const P window =
                    ((outer * out_height + row) * out_width + column) * inner + inside;
                {WINDOW}{body}
            }}"""
    else:
        high, wide = "out_height", "out_width"
        each = f"""
        {place}
        const int row = place_y, column = place_x;
        {WINDOW}{body}"""
    loop = for_each(
        f"""
        const N pixel = i / (N)inner, line = pixel / (N){wide};
        const int place_x = (int)(pixel % (N){wide}), place_y = (int)(line % (N){high});
        const P outer = line / (N){high}, inside = i % (N)inner;
        A total = 0;
        {each}
        out[i] = {stored(result, "total")};""",
        number="N",
    )
    parameters = f"{arrays}{C_TYPES[result]}* out, const long long n, {numbers}"
    types = f"typedef {arithmetic(result)} A; typedef {index.number} N; typedef {index.place} P;"
    name = f"pool_{kind}__{'_'.join(codes)}{'__long' if index is LONG else ''}"
    return function(name, parameters, f"{types}\n    {declared}\n    {loop}")


def pool(launcher: Launcher, problem: Pooling, *arrays: Any) -> None:
    """Launch a pooling of contiguous arrays; the last one is written. Arrays may be narrow."""
    letters = problem.layout
    of_letter = {"N": problem.images, "C": problem.channels}
    inner = math.prod(of_letter[letter] for letter in letters[letters.index("W") + 1 :])
    (top, _), (left, _) = problem.padding
    lengths = (inner, *problem.size, *problem.out_size, *problem.window, *problem.stride)
    numbers = (arrays[-1].size, *lengths, top, left, problem.counts_padding)
    index = index_of((max(x.size for x in arrays),), ((1,),))
    kernel = pooling_kernel(problem.kind, tuple(code_of(x.dtype) for x in arrays), index)
    launcher.for_each(kernel, arrays[-1].size, [*arrays, *map(np.int64, numbers)])


def routine(ops: Any, problem: Pooling) -> Routine:
    """Return the routine of a pooling: one kernel, and no workspace."""

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        return [(ops.run_kernels, (pool, problem, *inputs, out))]

    return Routine("kernel", 0, steps)
