"""Products of matrices with few rows or columns, as a kernel.

The outputs of a network are mostly few: the product that computes them and the gradient of their
weights fill none of the tiles that cuBLAS computes. A kernel may share a launch with others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.launch import Launcher, broadcast_strides, element_strides
from dnn.backend.cuda.products import check_types
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

__all__ = ["is_narrow", "narrow_product", "narrow_product_kernel"]

MOST_NARROW, MOST_TERMS, MOST_MULTIPLY_ADDS = 16, 256, 1 << 20
"""Most columns or rows of the result, most terms of a sum, and most multiplications of a network,
of products that are not left to cuBLAS: one that fills none of its tiles is no faster there."""


def is_narrow(a: Any, out: Any) -> bool:
    """Say whether a kernel computes a product. It does not depend on the number of networks."""
    rows, columns = out.shape[-2:]
    inner = a.shape[-1]
    few = min(rows, columns) <= MOST_NARROW and inner <= MOST_TERMS
    return bool(few and out.ndim <= 3 and rows * columns * inner <= MOST_MULTIPLY_ADDS)


def narrow_product_kernel(codes: tuple[str, str, str]) -> Kernel:
    """Return the kernel of ``out = a @ b``, a thread for each element of the result.

    Its parameters: a, b, out, numbers of rows, columns and terms, elements of out, and for each
    array strides over matrices, over its rows and over its columns.
    """
    of_a, of_b, of_out = codes
    kind = arithmetic(of_out)
    body = for_each(f"""
        const long long c = i % columns, r = i / columns % rows, m = i / columns / rows;
        const {C_TYPES[of_a]}* left = a + m * a_m + r * a_r;
        const {C_TYPES[of_b]}* right = b + m * b_m + c * b_c;
        {kind} total = 0;
        for (long long k = 0; k < terms; ++k)
            total = total + ({kind})left[k * a_c] * ({kind})right[k * b_r];
        out[m * out_m + r * out_r + c * out_c] = {stored(of_out, "total")};""")
    arrays = f"const {C_TYPES[of_a]}* a, const {C_TYPES[of_b]}* b, {C_TYPES[of_out]}* out"
    strides = " ".join(f"{name}_{axis}" for name in ("a", "b", "out") for axis in "mrc")
    numbers = lengths(f"rows columns terms n {strides}")
    return function(f"narrow_product__{'_'.join(codes)}", f"{arrays}, {numbers}", body)


def narrow_product(launcher: Launcher, a: Any, b: Any, out: Any) -> None:
    """Launch ``out = a @ b`` as a kernel; leading axes broadcast."""
    check_types((code_of(b.dtype), code_of(a.dtype), code_of(out.dtype)))
    shape = (*out.shape[:-2], 1, 1)
    strides: list[int] = []
    for x in (a, b, out):
        *leading, down, right = element_strides(x)
        over = broadcast_strides((*x.shape[:-2], 1, 1), (*leading, 0, 0), shape)
        strides += (*((0,) * (3 - len(over)) + over)[:1], down, right)
    kernel = narrow_product_kernel((code_of(a.dtype), code_of(b.dtype), code_of(out.dtype)))
    numbers = (*out.shape[-2:], a.shape[-1], out.size, *strides)
    launcher.for_each(kernel, out.size, [a, b, out, *map(np.int64, numbers)])
