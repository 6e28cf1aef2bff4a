"""Matrix products by cuBLAS, called so that a CUDA graph can hold the calls.

CuPy's own bindings refuse to be captured, since cuBLAS may allocate a workspace when it is called.
Here it gets a permanent workspace, and is called through ctypes: two functions to set it up, and
one for all products. NVIDIA names a workspace of 32 MiB for Hopper and 4 MiB for other GPUs.

References
----------
.. [1] cuBLAS documentation, sections "cublasSetWorkspace", "CUDA Graphs Support" and
   "cublasGemmStridedBatchedEx".
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cuda.launch import Launcher, element_strides
from dnn.backend.cuda.source import code_of
from dnn.backend.device import allocating
from dnn.errors import DeviceError, DtypeError, ShapeError

__all__ = ["Cublas", "Product", "cublas_version", "load_library", "multiply", "product_of"]

WORKSPACE_BYTES = 32 << 20

DATA_TYPES = {"f2": 2, "u2": 14, "f4": 0, "f8": 1}
"""cudaDataType: CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F."""

COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
"""Values of cublasComputeType_t; the first does not use TF32."""

DEFAULT_ALGORITHM = -1

MOST = 2**31 - 1
"""Largest length: cuBLAS counts in 32 bits, but for steps from matrix to matrix."""


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
        launcher.call(blas.multiply, codes, product, *pointers, operands, fast_tf32)


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


class Cublas:
    """A handle of cuBLAS with a workspace of its own; `DeviceError` if it does not start.

    Networks share it, see `of_thread`: its workspace alone is as large as many of them.
    """

    _of_thread = threading.local()

    @classmethod
    def of_thread(cls, cupy: Any, index: int) -> Cublas:
        """Return the handle of this thread for a GPU; no other thread sets its stream."""
        found: dict[Any, Cublas] = vars(cls._of_thread)
        if (cupy, index) not in found:
            found[cupy, index] = cls(cupy, index)
        return found[cupy, index]

    def __init__(self, cupy: Any, index: int = 0) -> None:
        self._cupy = cupy
        self._library = load_library("cublas")
        self.lt = load_library("cublasLt")  # the part of it that `CublasLt` calls
        self._handle = ctypes.c_void_p()
        check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        with allocating(cupy, WORKSPACE_BYTES, index):
            self.workspace = cupy.empty(WORKSPACE_BYTES, np.uint8)
        self._stream: int | None = None
        self._one = {"f4": ctypes.c_float(1.0), "f8": ctypes.c_double(1.0)}
        self._zero = {"f4": ctypes.c_float(0.0), "f8": ctypes.c_double(0.0)}

    def multiply(
        self,
        codes: tuple[str, str, str],
        product: Product,
        a: int,
        b: int,
        c: int,
        arrays: Any = None,
        fast_tf32: bool = False,
    ) -> None:
        """Enqueue a product of matrices at addresses in the current stream.

        `codes` are their types of elements. `arrays` are the arrays at these addresses: an argument
        so that a recorded call keeps them alive.
        """
        check_types(codes)
        self.use_current_stream()
        scalar = "f8" if codes[2] == "f8" else "f4"
        type_a, type_b, type_c = (DATA_TYPES[code] for code in codes)
        status = self._library.cublasGemmStridedBatchedEx(
            self._handle,
            int(product.transpose_a),
            int(product.transpose_b),
            product.rows,
            product.columns,
            product.inner,
            ctypes.byref(self._one[scalar]),
            ctypes.c_void_p(a),
            type_a,
            product.lead_a,
            ctypes.c_longlong(product.step_a),
            ctypes.c_void_p(b),
            type_b,
            product.lead_b,
            ctypes.c_longlong(product.step_b),
            ctypes.byref(self._zero[scalar]),
            ctypes.c_void_p(c),
            type_c,
            product.lead_c,
            ctypes.c_longlong(product.step_c),
            product.batch,
            compute_type(codes, fast_tf32),
            DEFAULT_ALGORITHM,
        )
        check(status, "cublasGemmStridedBatchedEx")

    def use_current_stream(self) -> None:
        """Make further products run in CuPy's current stream."""
        stream = self._cupy.cuda.get_current_stream().ptr
        if stream == self._stream:
            return
        status = self._library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream))
        check(status, "cublasSetStream")
        # Setting the stream resets the workspace.
        status = self._library.cublasSetWorkspace_v2(
            self._handle,
            ctypes.c_void_p(self.workspace.data.ptr),
            ctypes.c_size_t(WORKSPACE_BYTES),
        )
        check(status, "cublasSetWorkspace")
        self._stream = stream


def check_types(codes: tuple[str, str, str]) -> None:
    """Raise `DtypeError` unless cuBLAS multiplies matrices of these types of elements."""
    a, b, c = codes
    if a not in DATA_TYPES or a != b or c not in (a, "f4") or (a == "f8" and c != "f8"):
        raise DtypeError(f"gemm: cuBLAS does not multiply {a} by {b} to {c}")


def compute_type(codes: tuple[str, str, str], fast_tf32: bool) -> int:
    """Return the cublasComputeType_t in which a product is summed up."""
    if codes[2] == "f8":
        return COMPUTE_64F
    return COMPUTE_32F_FAST_TF32 if fast_tf32 and codes[0] == "f4" else COMPUTE_32F


def cublas_version() -> str:
    """Return the version of cuBLAS, such as ``"13.0.2"``."""
    library, numbers = load_library("cublas"), []
    for part in range(3):  # libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
        number = ctypes.c_int()
        check(library.cublasGetProperty(part, ctypes.byref(number)), "cublasGetProperty")
        numbers.append(number.value)
    return ".".join(map(str, numbers))


def check(status: int, function: str) -> None:
    """Raise `DeviceError` unless a call succeeded."""
    if status:
        raise DeviceError(f"{function} failed with cuBLAS status {status}")


def load_library(name: str) -> Any:
    """Load ``"cublas"`` or ``"cublasLt"``; functions have their names in C.

    It is the library that CuPy uses too, where it comes from PyPI or a CUDA toolkit.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except Exception as error:  # each source of libraries has errors of its own
        message = f"{name} is not to be found: {error} (pip install 'diel[gpu]')"
        raise DeviceError(message) from error
