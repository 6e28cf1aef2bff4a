"""The CPU's array functions in compiled loops; needs Numba.

From the ground up: `vector_math`, `kernels` written by hand, the `cache` of generated source,
`native`: programs that run without Python, `blas`, `products`, `entries` and `chains` that make
records, and `ops`, which a plan asks.
"""

from dnn.backend.cpu.ops import CpuOps

__all__ = ["CpuOps"]
