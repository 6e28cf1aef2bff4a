"""The CPU's array functions in compiled loops; needs Numba.

From the ground up: the `cache` of machine code, `thread_pool`, `program`: kernels that run one
after the other without Python, `blas`, `products`, `kernel_wrappers` and `chains` that make records
of kernels, and `ops`, which a plan asks. Numba is imported by what only compiles: `compiling`,
`intrinsics`, `vector_math`, `kernels` and `thread_pool_kernels`.
"""

from dnn.backend.cpu.ops import CpuOps

__all__ = ["CpuOps"]
