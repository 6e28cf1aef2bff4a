"""The BLAS that NumPy itself uses: its matrix product as a kernel, and its threads.

Found in the library behind NumPy's core, so there is one thread pool and there are the same bits.
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
    """Where cblas_sgemm or cblas_dgemm is, and how wide its integers are."""

    address: int
    integer_bits: int


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """Return the library of NumPy's core, which shows what the libraries behind it define."""
    core = getattr(np, "_core", None) or np.core
    try:
        return ctypes.CDLL(core._multiarray_umath.__file__)
    except OSError:
        return None


@cache
def find_gemm(dtype: str) -> Gemm | None:
    """Find the product for ``"f4"`` or ``"f8"``; None where NumPy's BLAS does not show it."""
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
    """Where BLAS' functions that return and set its number of threads are."""

    get: int
    set: int


@cache
def thread_functions() -> Threads | None:
    """Find the functions for the number of threads; None where BLAS does not show them."""
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
