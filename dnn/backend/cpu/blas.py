"""The matrix product of the BLAS that NumPy itself uses, as a kernel.

Found in the library behind NumPy's core, so there is one thread pool and there are the same bits.
NumPy's wheels rename the function, and there are 32-bit and 64-bit integers; where none of the
names is found (macOS' Accelerate, say) products go through `numpy.matmul`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["ROW_MAJOR", "TRANSPOSED", "UNCHANGED", "Gemm", "call_gemm", "find_gemm", "numpy_blas"]

ROW_MAJOR, UNCHANGED, TRANSPOSED = 101, 111, 112  # of cblas.h
_NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_", "scipy_cblas_{}gemm", "cblas_{}gemm")


class Gemm(NamedTuple):
    """Where cblas_sgemm or cblas_dgemm is, and how wide its integers are."""

    address: int
    integer_bits: int


@lru_cache(maxsize=1)
def numpy_blas() -> ctypes.CDLL | None:
    """Return the library of NumPy's core, which shows what the libraries behind it define."""
    core = getattr(np, "_core", None) or np.core
    try:
        return ctypes.CDLL(core._multiarray_umath.__file__)
    except OSError:
        return None


@cache
def find_gemm(dtype: str) -> Gemm | None:
    """Find the product for ``"f4"`` or ``"f8"``; None where NumPy's BLAS does not show it."""
    library = numpy_blas()
    if library is None:
        return None
    for name in _NAMES:
        found = getattr(library, name.format({"f4": "s", "f8": "d"}[dtype]), None)
        if found is not None:
            address = ctypes.cast(found, ctypes.c_void_p).value
            assert address is not None
            return Gemm(address, 64 if name.endswith("64_") else 32)
    return None


def _caller(integer_bits):
    integer = ir.IntType(integer_bits)

    def call(context, gemm, a_form, b_form, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        def generate(context, builder, signature, arguments):
            address, *given = arguments
            real = context.get_value_type(alpha)
            byte = ir.IntType(8).as_pointer()
            flag = ir.IntType(32)
            # cblas_sgemm(order, a_form, b_form, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
            parameters = [flag, flag, flag, integer, integer, integer, real, byte, integer, byte,
                          integer, real, byte, integer]  # fmt: skip
            values = [flag(ROW_MAJOR)]
            for value, wanted in zip(given, parameters[1:], strict=True):
                if wanted == byte:
                    values.append(builder.inttoptr(value, byte))
                elif wanted == real or value.type == wanted:
                    values.append(value)
                else:
                    values.append(builder.trunc(value, wanted))
            kind = ir.FunctionType(ir.VoidType(), parameters).as_pointer()
            builder.call(builder.inttoptr(address, kind), values)
            return context.get_dummy_value()

        word = types.int64
        signature = types.void(
            word, word, word, word, word, word, alpha, word, word, word, word, alpha, word, word
        )
        return signature, generate

    return call


call_gemm = {bits: intrinsic(_caller(bits)) for bits in (32, 64)}
call_gemm_32, call_gemm_64 = call_gemm[32], call_gemm[64]
