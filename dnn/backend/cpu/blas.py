"""The BLAS that NumPy itself uses: addresses of its matrix products, and its number of threads.

Found in the library behind NumPy's core, so there is one thread pool and results are the same bits.
NumPy's wheels rename the function, and there are 32-bit and 64-bit integers; where none of the
names is found (macOS' Accelerate, say) products go through `numpy.matmul`.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

__all__ = [
    "ROW_MAJOR",
    "TRANSPOSED",
    "UNCHANGED",
    "Gemm",
    "blas_threads",
    "find_gemm",
    "thread_functions",
]

ROW_MAJOR, UNCHANGED, TRANSPOSED = 101, 111, 112  # of cblas.h
_NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_", "scipy_cblas_{}gemm", "cblas_{}gemm")


class Gemm(NamedTuple):
    """Address of cblas_sgemm or cblas_dgemm, and the width of its integers."""

    address: int
    integer_bits: int


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """Return NumPy's core library, in which symbols of the libraries behind it are found too."""
    core = getattr(np, "_core", None) or np.core
    try:
        return ctypes.CDLL(core._multiarray_umath.__file__)
    except OSError:
        return None


@cache
def find_gemm(dtype: str) -> Gemm | None:
    """Find the matrix product for ``"f4"`` or ``"f8"``; None if NumPy's BLAS does not export it."""
    library = _library()
    if library is None:
        return None
    for name in _NAMES:
        found = getattr(library, name.format({"f4": "s", "f8": "d"}[dtype]), None)
        if found is not None:
            address = ctypes.cast(found, ctypes.c_void_p).value
            assert address is not None
            return Gemm(address, 64 if name.endswith("64_") else 32)
    return None


class Threads(NamedTuple):
    """Addresses of BLAS' functions that return and set its number of threads."""

    get: int
    set: int


@cache
def thread_functions() -> Threads | None:
    """Find the functions for BLAS' number of threads; None if BLAS does not export them."""
    library = _library()
    if library is None:
        return None
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_",
                 "scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):  # fmt: skip
        found = [
            function
            for verb in ("get", "set")
            if (function := getattr(library, name.format(verb), None)) is not None
        ]
        if len(found) == 2:
            places = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found]
            return Threads(*places)
    return None


def blas_threads() -> int:
    """Return how many threads a program is to have: BLAS' number, or 1 where it cannot be set."""
    functions = thread_functions()
    if functions is None:
        return 1
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(functions.get)())
