"""cuBLAS, and cuBLASLt for products with a bias and relu, called as a CUDA graph can hold it.

CuPy's own bindings refuse to be captured, since cuBLAS may allocate a workspace when it is called.
Here it gets a permanent workspace, and is called through ctypes: two functions to set it up, and
two for all products. NVIDIA names a workspace of 32 MiB for Hopper and 4 MiB for other GPUs.

A product of cuBLASLt is described, and its algorithm chosen, when a plan is compiled; a run is one
call.

References
----------
.. [1] cuBLAS documentation, sections "cublasSetWorkspace", "CUDA Graphs Support",
   "cublasGemmStridedBatchedEx" and "Using the cuBLASLt API"; numbers are those of ``cublasLt.h``.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cuda.joining import Call
from dnn.backend.cuda.launch import element_strides
from dnn.backend.cuda.products import DATA_TYPES, Product, check_types, product_of
from dnn.backend.cuda.source import code_of
from dnn.backend.device import allocating
from dnn.errors import DeviceError

__all__ = ["Cublas", "CublasLt", "Prepared", "cublas_version", "load_library"]

WORKSPACE_BYTES = 32 << 20

COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
"""Values of cublasComputeType_t; the first does not use TF32."""

DEFAULT_ALGORITHM = -1


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
        self._index = index
        self._library = load_library("cublas")
        self.lt = load_library("cublasLt")  # the part of it that `CublasLt` calls
        self._handle = ctypes.c_void_p()
        with cupy.cuda.Device(index), allocating(cupy, WORKSPACE_BYTES, index):
            check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
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
        steps = map(ctypes.c_longlong, (product.step_a, product.step_b, product.step_c))
        matrices = list(zip((a, b, c), steps, strict=True))
        name = "cublasGemmStridedBatchedEx"
        self._multiply(name, codes, product, matrices, product.batch, fast_tf32)

    def together(self, given: Sequence[tuple[Any, ...]]) -> Call:
        """Return a call of `multiply_several` in the place of several calls of `multiply`.

        `given` are their arguments, which differ in addresses and arrays alone.
        """
        codes, product, *_, fast_tf32 = given[0]
        steps = (product.step_a, product.step_b, product.step_c)
        addresses = np.array(
            [
                [
                    each[2 + at] + i * step * np.dtype(code).itemsize
                    for each in given
                    for i in range(product.batch)
                ]
                for at, (step, code) in enumerate(zip(steps, codes, strict=True))
            ],
            np.int64,
        )
        with allocating(self._cupy, addresses.nbytes, self._index):
            there = self._cupy.asarray(addresses)
        arrays = [each[5] for each in given]
        return Call(self.multiply_several, (codes, product, there, arrays, fast_tf32))

    def multiply_several(
        self,
        codes: tuple[str, str, str],
        product: Product,
        addresses: Any,
        arrays: Any,
        fast_tf32: bool,
    ) -> None:
        """Enqueue products of one shape in the current stream; their steps and number are ignored.

        `addresses` are those of all matrices, on the GPU: a row each for A, B and C. `arrays` are
        the arrays at these addresses, as in `multiply`.
        """
        matrices = [(row.data.ptr,) for row in addresses]
        name, batch = "cublasGemmBatchedEx", addresses.shape[1]
        self._multiply(name, codes, product, matrices, batch, fast_tf32)

    def _multiply(
        self,
        name: str,
        codes: tuple[str, str, str],
        product: Product,
        matrices: Sequence[tuple[Any, ...]],
        batch: int,
        fast_tf32: bool,
    ) -> None:
        """Call a function for products, to which each of A, B and C is an address, maybe a step."""
        check_types(codes)
        self.use_current_stream()
        scalar = "f8" if codes[2] == "f8" else "f4"
        leads = (product.lead_a, product.lead_b, product.lead_c)
        a, b, c = (
            (ctypes.c_void_p(at), DATA_TYPES[code], lead, *step)
            for (at, *step), code, lead in zip(matrices, codes, leads, strict=True)
        )
        status = getattr(self._library, name)(
            self._handle,
            int(product.transpose_a),
            int(product.transpose_b),
            *(product.rows, product.columns, product.inner),
            ctypes.byref(self._one[scalar]),
            *(*a, *b),
            ctypes.byref(self._zero[scalar]),
            *c,
            batch,
            compute_type(codes, fast_tf32),
            DEFAULT_ALGORITHM,
        )
        check(status, name)

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


# cublasLtMatmulDescAttributes_t.
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, BIAS_BATCH_STRIDE = 3, 4, 7, 8, 10

EPILOGUES = {(False, False): 1, (False, True): 2, (True, False): 4, (True, True): 6}
"""cublasLtEpilogue_t, by whether there is a bias and whether there is relu."""

# cublasLtMatrixLayoutAttribute_t and cublasLtMatmulPreferenceAttributes_t.
BATCH_COUNT, BATCH_OFFSET = 5, 6
MOST_WORKSPACE_BYTES, LEAST_ALIGNMENT = 1, (5, 6, 7, 8)

MOST_ALIGNMENT_BYTES = 256


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Prepared(NamedTuple):
    """A product with its algorithm, as arguments of ``cublasLtMatmul``.

    Attributes
    ----------
    arguments : tuple
        All arguments between the handle and the workspace, in order.
    keeps : tuple
        Objects that must exist as long as the arguments are used.
    """

    arguments: tuple[Any, ...]
    keeps: tuple[Any, ...]


class CublasLt:
    """A handle of cuBLASLt, with the workspace of a `Cublas`; products run one after the other."""

    def __init__(self, cupy: Any, blas: Cublas) -> None:
        self._cupy = cupy
        self._workspace = blas.workspace
        self._library = blas.lt
        self._handle = ctypes.c_void_p()
        check(self._library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        handle = ctypes.c_void_p(self._handle.value)
        weakref.finalize(self, self._library.cublasLtDestroy, handle).atexit = False
        self._without: set[str] = set()

    def prepare(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        relu: bool = False,
        fast_tf32: bool = False,
    ) -> Prepared | None:
        """Describe ``out = relu(a @ b + bias)`` and choose its algorithm.

        Returns
        -------
        Prepared or None
            None where it cannot be one call: a bias of another type than `out`, or not a vector
            along its last axis, several axes of batches, or no algorithm, which is logged.
        """
        found = product_of(a, b, out)
        if len(found) != 1:
            return None
        bias_step = 0 if bias is None else _bias_step(bias, out)
        if bias_step is None:
            return None
        ((product, *offsets),) = found
        operands = (b, a, out)
        codes = (code_of(b.dtype), code_of(a.dtype), code_of(out.dtype))
        check_types(codes)
        pointers = [
            x.data.ptr + at * x.dtype.itemsize for x, at in zip(operands, offsets, strict=True)
        ]
        double = codes[2] == "f8"
        described = self._new("MatmulDesc", compute_type(codes, fast_tf32), int(double))
        epilogue = EPILOGUES[bias is not None, relu]
        self._set("MatmulDesc", described, TRANSPOSE_A, ctypes.c_int32(product.transpose_a))
        self._set("MatmulDesc", described, TRANSPOSE_B, ctypes.c_int32(product.transpose_b))
        self._set("MatmulDesc", described, EPILOGUE, ctypes.c_uint32(epilogue))
        if bias is not None:
            self._set("MatmulDesc", described, BIAS_POINTER, ctypes.c_void_p(bias.data.ptr))
            self._set("MatmulDesc", described, BIAS_BATCH_STRIDE, ctypes.c_int64(bias_step))
        p = product
        stored_a = (p.inner, p.rows) if p.transpose_a else (p.rows, p.inner)
        stored_b = (p.columns, p.inner) if p.transpose_b else (p.inner, p.columns)
        layouts = [
            self._layout(*each, p.batch)
            for each in (
                (codes[0], *stored_a, p.lead_a, p.step_a),
                (codes[1], *stored_b, p.lead_b, p.step_b),
                (codes[2], p.rows, p.columns, p.lead_c, p.step_c),
            )
        ]
        algorithm = self._algorithm(described, layouts, pointers)
        if algorithm is None:
            self._log_missing(f"{a.shape} @ {b.shape} of {a.dtype} to {out.dtype}")
            return None
        number = ctypes.c_double if double else ctypes.c_float
        one, zero = number(1.0), number(0.0)
        at_a, at_b, at_out = map(ctypes.c_void_p, pointers)
        of_a, of_b, of_out = layouts
        operands_in_order = (at_a, of_a, at_b, of_b, ctypes.byref(zero), at_out, of_out, at_out)
        arguments = (described, ctypes.byref(one), *operands_in_order, of_out)
        chosen = ctypes.byref(algorithm.algorithm)
        return Prepared((*arguments, chosen), (a, b, out, bias, algorithm, one, zero))

    def run(self, prepared: Prepared) -> None:
        """Enqueue a product in CuPy's current stream."""
        status = self._library.cublasLtMatmul(
            self._handle,
            *prepared.arguments,
            ctypes.c_void_p(self._workspace.data.ptr),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(self._cupy.cuda.get_current_stream().ptr),
        )
        check(status, "cublasLtMatmul")

    def _new(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """Return a new descriptor, which is destroyed when Python frees the object."""
        made = ctypes.c_void_p()
        name = f"cublasLt{kind}Create"
        check(getattr(self._library, name)(ctypes.byref(made), *arguments), name)
        destroy = getattr(self._library, f"cublasLt{kind}Destroy")
        weakref.finalize(made, destroy, ctypes.c_void_p(made.value)).atexit = False
        return made

    def _set(self, kind: str, described: ctypes.c_void_p, attribute: int, value: Any) -> None:
        name = f"cublasLt{kind}SetAttribute"
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = getattr(self._library, name)(described, attribute, ctypes.byref(value), size)
        check(status, f"{name} {attribute}")

    def _layout(
        self, code: str, rows: int, columns: int, lead: int, step: int, batch: int
    ) -> ctypes.c_void_p:
        shape = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(lead))
        layout = self._new("MatrixLayout", DATA_TYPES[code], *shape)
        self._set("MatrixLayout", layout, BATCH_COUNT, ctypes.c_int32(batch))
        self._set("MatrixLayout", layout, BATCH_OFFSET, ctypes.c_int64(step))
        return layout

    def _algorithm(
        self, described: ctypes.c_void_p, layouts: list[ctypes.c_void_p], pointers: list[int]
    ) -> _Heuristic | None:
        """Return the algorithm that cuBLASLt suggests for a product; None if there is none."""
        preference = self._new("MatmulPreference")
        workspace = ctypes.c_uint64(WORKSPACE_BYTES)
        self._set("MatmulPreference", preference, MOST_WORKSPACE_BYTES, workspace)
        for attribute, pointer in zip(LEAST_ALIGNMENT, (*pointers, pointers[-1]), strict=True):
            alignment = min(pointer & -pointer, MOST_ALIGNMENT_BYTES)
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
        result, count = _Heuristic(), ctypes.c_int()
        self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle,
            described,
            *layouts,
            layouts[-1],
            preference,
            1,
            ctypes.byref(result),
            ctypes.byref(count),
        )
        return result if count.value and not result.state else None

    def _log_missing(self, product: str) -> None:
        if product not in self._without:
            self._without.add(product)
            message = "cuBLASLt has no algorithm for %s: %s"
            instead = "bias and activation in a kernel of their own"
            logging.getLogger("dnn").warning(message, product, instead)


def _bias_step(bias: Any, out: Any) -> int | None:
    """Return a bias's stride from matrix to matrix; None if it is not a vector for each matrix."""
    lengths, steps = (1, 1, *bias.shape), (0, 0, *element_strides(bias))
    of_units = bias.dtype == out.dtype and lengths[-1] == out.shape[-1] and steps[-1] == 1
    if not of_units or (bias.ndim > 1 and lengths[-2] != 1) or math.prod(lengths[:-3]) != 1:
        return None
    return steps[-3] if lengths[-3] > 1 else 0
