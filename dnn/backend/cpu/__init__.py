"""The CPU's array functions in compiled loops; needs Numba.

From the ground up:

1. `cache`: compilation of kernels, whose machine code is kept between processes; `thread_pool`.
2. `program`: kernels that run one after the other without Python.
3. `kernels`: kernels made of loops written in Python. `chains`: kernels of formulas.
4. A file for each kind of structured operation, with its loops and the arrays that these take:
   `products` (by `blas`), `reductions`, `batches`, `pooling`, `updates` of optimizers, and the
   routines of `convolutions`; `winograd` and `indirect` by `convolution_work` and
   `register_tiles`, whose sizes are those of `registers`.
5. `ops`: `CpuOps`, from which a plan gets its functions.

Numba is imported only to compile: by `cache` in functions, by `intrinsics`, `vector_math`,
`vectors`, `thread_pool_kernels`, `register_tiles`, and the kernels of `direct_rows`, `depthwise`,
`pooling`, `winograd` and `indirect`.
"""
