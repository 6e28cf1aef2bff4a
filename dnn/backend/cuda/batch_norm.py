"""Batch normalisation of images: statistics, and sums of a gradient, by one kernel each.

Rows of (rows, channels) are cut into parts, since there are few channels. A block sums up a part of
32 channels, and the block that is the last to finish among those of its channels adds the parts up.
It is found by a counter. Parts are added in the same order whichever block does it, so that sums
have the same bits in each run.

A part is read twice for statistics, the second time from the cache: its variance is about its own
mean, and the parts are joined as in [1]_.

References
----------
.. [1] Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
   variances, 1979.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend.convolution import ALIGNMENT_BYTES, Routine
from dnn.backend.cuda.launch import Launcher, element_strides, index_of
from dnn.backend.cuda.source import (
    C_TYPES,
    LONG,
    SHORT,
    THREADS,
    Index,
    Kernel,
    code_of,
    function,
    lengths,
)
from dnn.backend.normalisation import BatchNormSums
from dnn.backend.ops import Array, Step

__all__ = ["gradient_kernel", "routine", "statistics_kernel"]

LANES = 32
"""Neighbouring channels of a block."""

ALONG = THREADS // LANES

FEWEST_ROWS, MOST_ROWS = 64, 512
"""Rows of a part: as many as fit into the cache near the processor, with the next block's."""

WANTED_BLOCKS = 528
"""Parts are as long as they may be while there are so many blocks, 4 for each processor."""


def _total(name: str, value: str) -> str:
    """Return the statements that sum a value of each thread over the rows of a block, in order."""
    return f"""
        partial[threadIdx.x] = {value};
        __syncthreads();
        for (int half = {ALONG // 2}; half > 0; half /= 2) {{
            if (along < half)
                partial[threadIdx.x] = partial[threadIdx.x] + partial[threadIdx.x + half * {LANES}];
            __syncthreads();
        }}
        const A {name} = partial[lane];
        __syncthreads();"""


LENGTHS = ("models", "rows", "channels", "parts", "length")


def _kernel(
    name: str,
    kind: str,
    index: Index,
    pointers: Sequence[str],
    numbers: str,
    part: str,
    whole: str,
) -> Kernel:
    """Return the kernel of statements that sum up a part, and that join all parts.

    The former set ``first_sum`` and ``second_sum``, the latter write the result of channel c.
    `kind` is the C type of arithmetic and of the result, ``P`` that of a place in memory.
    """
    declared = " ".join(f"const P {each} = (P){each}_;" for each in LENGTHS)
    body = f"""typedef {kind} A; typedef {index.place} P;
    {declared}
    __shared__ A partial[{THREADS}];
    __shared__ int is_last;
    const int lane = threadIdx.x % {LANES}, along = threadIdx.x / {LANES};
    const P groups = (channels + {LANES - 1}) / {LANES};
    for (P item = blockIdx.x; item < models * groups * parts; item += gridDim.x) {{
        const P part = item % parts, group = item / parts % groups;
        const P m = item / parts / groups, c = group * {LANES} + lane;
        const P first = part * length;
        const P last = first + length < rows ? first + length : rows;
        const bool is_inside = c < channels;
        const P base = m * rows * channels + c;
        volatile A* parts_of = p_parts + m * parts * 2 * channels + c;
        {part}
        if (along == 0 && is_inside) {{
            parts_of[part * 2 * channels] = first_sum;
            parts_of[(part * 2 + 1) * channels] = second_sum;
        }}
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            is_last = atomicAdd(&p_counts[m * groups + group], 1) == (int)parts - 1;
        __syncthreads();
        if (is_last) {{
            __threadfence();
            {whole}
            if (threadIdx.x == 0) p_counts[m * groups + group] = 0;
        }}
        __syncthreads();
    }}"""
    arrays = ", ".join([*pointers, f"{kind}* p_out, {kind}* p_parts, int* p_counts"])
    given = lengths(" ".join(f"{each}_" for each in LENGTHS))
    name += "__long" if index is LONG else ""
    return function(name, f"{arrays}, {given}, {numbers}", body)


@functools.cache
def statistics_kernel(code: str, out: str, runs: bool, index: Index = SHORT) -> Kernel:
    """Return the kernel of `STATISTICS`, for types of x and of the result.

    Its parameters: x; with `runs` running mean and variance; result, parts, counters; models, rows,
    channels, parts, rows of a part, elements to the next model's running mean and variance; and
    epsilon, momentum and ``rows / (rows - 1)``.
    """
    part = f"""A sum = A(0), squares = A(0);
        if (is_inside)
            for (P r = first + along; r < last; r += {ALONG})
                sum = sum + (A)p_x[base + r * channels];
        {_total("part_sum", "sum")}
        const A first_sum = part_sum / A(last - first);
        if (is_inside)
            for (P r = first + along; r < last; r += {ALONG}) {{
                const A apart = (A)p_x[base + r * channels] - first_sum;
                squares = squares + apart * apart;
            }}
        {_total("second_sum", "squares")}"""
    running = """
                const A next_mean = p_mean[m * mean_m + c] * A(momentum);
                p_out[3 * row + at] = next_mean + mean * A(1.0 - momentum);
                const A next_variance = p_variance[m * variance_m + c] * A(momentum);
                p_out[4 * row + at] = next_variance + variance * A(unbiased) * A(1.0 - momentum);"""
    whole = f"""A of_all = A(0), apart = A(0);
            if (is_inside)
                for (P q = along; q < parts; q += {ALONG}) {{
                    const A count = A(q < parts - 1 ? length : rows - q * length);
                    of_all = of_all + parts_of[q * 2 * channels] * count;
                }}
            {_total("whole_sum", "of_all")}
            const A mean = whole_sum / A(rows);
            if (is_inside)
                for (P q = along; q < parts; q += {ALONG}) {{
                    const A count = A(q < parts - 1 ? length : rows - q * length);
                    const A between = parts_of[q * 2 * channels] - mean;
                    apart = apart + (parts_of[(q * 2 + 1) * channels] + count * between * between);
                }}
            {_total("whole_squares", "apart")}
            if (along == 0 && is_inside) {{
                const A variance = whole_squares / A(rows);
                const P row = models * channels, at = m * channels + c;
                p_out[at] = mean;
                p_out[row + at] = variance;
                p_out[2 * row + at] = A(1) / sqrt(variance + A(epsilon));{running if runs else ""}
            }}"""
    pointers = [f"const {C_TYPES[code]}* p_x"]
    kind = C_TYPES[out]
    pointers += [f"const {kind}* p_mean", f"const {kind}* p_variance"] if runs else []
    name = f"batch_statistics_{'running_' if runs else ''}_{code}_{out}"
    numbers = [lengths("mean_m variance_m")]
    numbers += [f"const double {each}" for each in ("epsilon", "momentum", "unbiased")]
    return _kernel(name, kind, index, pointers, ", ".join(numbers), part, whole)


@functools.cache
def gradient_kernel(codes: Sequence[str], out: str, index: Index = SHORT) -> Kernel:
    """Return the kernel of `GRADIENT_ROWS`, for types of dy, maybe of y, of x, and of the result.

    Its parameters: dy, maybe y, x, mean, inverse, scale; result, parts, counters; models, rows,
    channels, parts, rows of a part, elements to the next model's mean, inverse and scale.
    """
    names = ("dy", "y", "x") if len(codes) == 3 else ("dy", "x")
    pointers = [f"const {C_TYPES[code]}* p_{name}" for name, code in zip(names, codes, strict=True)]
    kind = C_TYPES[out]
    pointers += [f"const {kind}* p_{name}" for name in ("mean", "inverse", "scale")]
    at = "[base + r * channels]"
    dy = f"(A)p_dy{at}"
    dy = f"(A)p_y{at} > A(0) ? {dy} : A(0)" if "y" in names else dy
    part = f"""A sum = A(0), products = A(0);
        const A mean = is_inside ? p_mean[m * mean_m + c] : A(0);
        const A inverse = is_inside ? p_inverse[m * inverse_m + c] : A(0);
        if (is_inside)
            for (P r = first + along; r < last; r += {ALONG}) {{
                const A dy = {dy};
                sum = sum + dy;
                products = products + dy * (((A)p_x{at} - mean) * inverse);
            }}
        {_total("first_sum", "sum")}
        {_total("second_sum", "products")}"""
    whole = f"""A of_all = A(0), products_of_all = A(0);
            if (is_inside)
                for (P q = along; q < parts; q += {ALONG}) {{
                    of_all = of_all + parts_of[q * 2 * channels];
                    products_of_all = products_of_all + parts_of[(q * 2 + 1) * channels];
                }}
            {_total("dshift", "of_all")}
            {_total("dscale", "products_of_all")}
            if (along == 0 && is_inside) {{
                const P row = models * channels, at = m * channels + c;
                const A share = A(1) / A(rows);
                p_out[at] = dshift;
                p_out[row + at] = dscale;
                p_out[2 * row + at] = dshift * share;
                p_out[3 * row + at] = inverse * (dscale * share);
                p_out[4 * row + at] = inverse * p_scale[m * scale_m + c];
            }}"""
    name = f"batch_norm_sums__{'_'.join(codes)}_{out}"
    numbers = lengths("mean_m inverse_m scale_m")
    return _kernel(name, kind, index, pointers, numbers, part, whole)


def _cut(problem: BatchNormSums) -> tuple[int, int]:
    """Return the number of parts of each channel, and their rows; of one model, whatever K is."""
    groups = -(-problem.channels // LANES)
    wanted = -(-problem.rows * groups // WANTED_BLOCKS)
    length = min(MOST_ROWS, max(FEWEST_ROWS, wanted))
    return -(-problem.rows // length), length


def routine(ops: Any, problem: BatchNormSums) -> Routine:
    """Return the routine of sums of batch normalisation: one kernel."""
    parts, length = _cut(problem)
    size = 2 * parts * problem.models * problem.channels
    size_bytes = size * np.dtype(problem.dtype).itemsize

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        assert workspace is not None
        space = workspace[:size_bytes].view(problem.dtype)
        return [(ops.run_kernels, (_launch, problem, parts, length, inputs, out, space))]

    return Routine("kernel", -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, steps)


def _launch(
    launcher: Launcher,
    problem: BatchNormSums,
    parts: int,
    length: int,
    inputs: Sequence[Any],
    out: Any,
    space: Any,
) -> None:
    images = problem.images
    # Of each model its own row, one behind the other or in a buffer with other parameters.
    steps = [_model_step(x, problem) for x in inputs[images:]]
    codes = [code_of(x.dtype) for x in inputs[:images]]
    index = index_of((inputs[0].size,), ((1,),))
    if problem.kind == "gradient":
        kernel = gradient_kernel(tuple(codes), problem.dtype, index)
        further = []
    else:
        kernel = statistics_kernel(codes[0], problem.dtype, problem.has_further, index)
        steps = steps or [0, 0]
        unbiased = problem.rows / max(1, problem.rows - 1)
        further = [np.float64(x) for x in (problem.epsilon, problem.momentum, unbiased)]
    groups = -(-problem.channels // LANES)
    counts = launcher.counters(problem.models * groups)
    numbers = (problem.models, problem.rows, problem.channels, parts, length, *steps)
    arguments = [*inputs, out, space, counts, *map(np.int64, numbers), *further]
    launcher.launch(kernel, problem.models * groups * parts, arguments)


def _model_step(x: Any, problem: BatchNormSums) -> int:
    """Return the elements from one model's numbers to the next one's."""
    return element_strides(x)[0] if problem.models > 1 and math.prod(x.shape[:1]) > 1 else 0
