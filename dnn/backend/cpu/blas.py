"""The matrix product of the BLAS that NumPy itself uses, as a kernel.

Found in the library behind NumPy's core, so there is one thread pool and there are the same bits.
NumPy's wheels rename the function, and there are 32-bit and 64-bit integers; where none of the
names is found (macOS' Accelerate, say) products go through `numpy.matmul`.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

__all__ = ["ROW_MAJOR", "TRANSPOSED", "UNCHANGED", "Gemm", "find_gemm", "numpy_blas"]

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
