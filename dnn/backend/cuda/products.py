"""Products of matrices: as what cuBLAS is asked for one, and a kernel for those that are narrow.

The outputs of a network are mostly few: the product that computes them and the gradient of their
weights fill none of the tiles that cuBLAS computes. Such a product is a kernel, which may share a
launch with others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnn.backend.cuda.joining import Call, Uses
from dnn.backend.cuda.launch import Launcher, broadcast_strides, element_strides
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
from dnn.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    from dnn.backend.cuda.cublas import Cublas

__all__ = [
    "DATA_TYPES",
    "Product",
    "check_types",
    "is_narrow",
    "multiply",
    "narrow_product",
    "narrow_product_kernel",
    "product_of",
]

DATA_TYPES = {"f2": 2, "u2": 14, "f4": 0, "f8": 1}
"""cudaDataType: CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F."""

JOINT_PRODUCT = 1 << 27
"""Most multiplications of products that become one with others; larger ones fill a GPU alone."""

MOST = 2**31 - 1
"""Largest length: cuBLAS counts in 32 bits, but for steps from matrix to matrix."""

MOST_NARROW, MOST_TERMS, MOST_MULTIPLY_ADDS = 16, 256, 1 << 20
"""Most columns or rows of the result, most terms of a sum, and most multiplications of a network,
of products that are not left to cuBLAS: one that fills none of its tiles is no faster there."""


class Product(NamedTuple):
    """A batch of products of matrices in cuBLAS's terms, column by column: ``C = op(A) op(B)``.

    Attributes
    ----------
    transpose_a, transpose_b : bool
    rows, columns, inner : int
        Of op(A), op(B) and between them.
    lead_a, lead_b, lead_c : int
        Elements from one column to the next.
    step_a, step_b, step_c : int
        Elements from one matrix of the batch to the next.
    batch : int
        Number of matrices.
    """

    transpose_a: bool
    transpose_b: bool
    rows: int
    columns: int
    inner: int
    lead_a: int
    lead_b: int
    lead_c: int
    step_a: int
    step_b: int
    step_c: int
    batch: int

    @property
    def multiply_adds(self) -> int:
        """Number of multiplications."""
        return self.rows * self.columns * self.inner * self.batch


def product_of(a: Any, b: Any, out: Any) -> list[tuple[Product, int, int, int]]:
    """Return ``out = a @ b``, with leading axes that broadcast, as products of cuBLAS.

    Parameters
    ----------
    a, b : array, shape (..., n, k) and (..., k, m)
        Of their last two axes one is contiguous.
    out : array, shape (..., n, m)
        Contiguous along its last axis.

    Returns
    -------
    list of (Product, int, int, int)
        Products, with the offsets of b, a and out in elements: cuBLAS counts column by column,
        so that row by row it computes ``out^T = b^T a^T``.

    Raises
    ------
    ShapeError
        If an operand has strides that cuBLAS cannot read, or a length over `MOST`.
    """
    n, m, k = out.shape[-2], out.shape[-1], a.shape[-1]
    transpose_b, lead_b = _orientation(b)
    transpose_a, lead_a = _orientation(a)
    transpose_out, lead_out = _orientation(out)
    if transpose_out:
        raise ShapeError("gemm", f"the result {out.shape} is not contiguous", out.shape)
    leading = out.shape[:-2]
    steps = []
    for x in (b, a, out):
        strides = element_strides(x)[:-2]
        lengths = x.shape[:-2]
        missing = len(leading) - len(lengths)
        kept = [0 if length == 1 else step for length, step in zip(lengths, strides, strict=True)]
        steps.append([0] * missing + kept)
    batch = leading[-1] if leading else 1
    step_b, step_a, step_out = (s[-1] if s else 0 for s in steps)
    leads = (lead_b, lead_a, lead_out)
    product = Product(transpose_b, transpose_a, m, n, k, *leads, step_b, step_a, step_out, batch)
    if max(m, n, k, *leads, batch) > MOST:  # ctypes would cut them
        message = f"{a.shape} by {b.shape}: cuBLAS takes {MOST:,} rows, columns or matrices at most"
        raise ShapeError("gemm", message, tuple(a.shape), tuple(b.shape))
    products = []
    for index in np.ndindex(*leading[:-1]):
        offsets = [sum(i * step for i, step in zip(index, s[:-1], strict=True)) for s in steps]
        products.append((product, offsets[0], offsets[1], offsets[2]))
    return products


def multiply(
    launcher: Launcher, blas: Cublas, a: Any, b: Any, out: Any, fast_tf32: bool = False
) -> None:
    """Launch ``out = a @ b``, a call for each of the leading axes but the last.

    `a` and `b` are of one type, and `out` of the same or of float32. With `fast_tf32` operands of
    float32 are multiplied with 10 bits of their fractions.
    """
    operands = (b, a, out)
    codes = tuple(code_of(x.dtype) for x in operands)
    for product, *offsets in product_of(a, b, out):
        pointers = [
            x.data.ptr + at * x.dtype.itemsize for x, at in zip(operands, offsets, strict=True)
        ]
        arguments = (codes, product, *pointers, operands, fast_tf32)
        key = (codes, product, fast_tf32) if product.multiply_adds <= JOINT_PRODUCT else None
        call = Call(blas.multiply, arguments, key, blas.together)
        launcher.call(call, Uses.of((a, b), (out,)))


def _orientation(x: Any) -> tuple[bool, int]:
    """Return whether the last axis but one is contiguous, not the last, and the other's stride."""
    rows, columns = x.shape[-2:]
    down, right = element_strides(x)[-2:]
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return False, max(1, down if rows > 1 else columns)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return True, max(1, right if columns > 1 else rows)
    message = f"a matrix {x.shape} with strides {element_strides(x)} cannot be read by cuBLAS"
    raise ShapeError("gemm", message, tuple(x.shape))


def check_types(codes: tuple[str, str, str]) -> None:
    """Raise `DtypeError` unless cuBLAS multiplies matrices of these types of elements."""
    a, b, c = codes
    if a not in DATA_TYPES or a != b or c not in (a, "f4") or (a == "f8" and c != "f8"):
        raise DtypeError(f"gemm: cuBLAS does not multiply {a} by {b} to {c}")


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
