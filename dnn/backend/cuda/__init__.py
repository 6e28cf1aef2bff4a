"""The GPU: array functions through CuPy, with kernels of our own.

In the order in which a call goes through them:

1. `ops`: `CudaOps`, a method for each of `dnn.backend.Ops`.
2. `layout`: shapes and strides of the operands, with as few axes as will do.
3. `source`: CUDA C++ of a kernel for types of elements and a number of axes, from a few lines of
   C that say what happens to one element (`elementwise`, from formulas) or by hand (`kernels`).
4. `launch`: sources to compiled kernels, calls of them, and those of a plan as one CUDA graph.

`blas` is cuBLAS, `memory` what `dnn.memory` asks of a GPU. No file but `launch`, `blas` and
`memory` touches CuPy, and none when it is imported, so every source can be looked at and compiled
where there is no GPU.
"""
