"""The CPU's array functions in compiled loops; needs Numba.

From the ground up: the `cache` of machine code, `native`: programs that run without Python, `team`:
their threads, `blas`, `products`, `entries` and `chains` that make records, and `ops`, which a plan
asks. Numba is imported by what only compiles: `compiling`, `intrinsics`, `vector_math`, `kernels`,
`turning` and `team_kernels`.
"""

from dnn.backend.cpu.ops import CpuOps

__all__ = ["CpuOps"]
