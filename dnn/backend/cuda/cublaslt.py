"""Matrix products with a bias and relu in one kernel, by cuBLASLt.

A product is described, and its algorithm chosen, when a plan is compiled; a run is one call, which
a CUDA graph can hold.

References
----------
.. [1] cuBLAS documentation, section "Using the cuBLASLt API"; the numbers are those of
   ``cublasLt.h``.
"""

from __future__ import annotations

import ctypes
import logging
import math
import weakref
from typing import Any, NamedTuple

from dnn.backend.cuda.launch import element_strides
from dnn.backend.cuda.products import (
    DATA_TYPES,
    WORKSPACE_BYTES,
    Cublas,
    check,
    check_types,
    compute_type,
    product_of,
)
from dnn.backend.cuda.source import code_of

__all__ = ["CublasLt", "Prepared"]

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
