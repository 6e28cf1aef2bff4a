"""The GPU: array functions through CuPy, with kernels of our own.

In the order in which a call goes through them:

1. `ops`: `CudaOps`, a method for each of `dnn.backend.Ops`.
2. A file for each kind of operation, with its kernels and the calls that launch them:
   `formulas` (elementwise operations and updates), `products` (by cuBLAS) and `cublaslt` (with
   bias and relu), `reductions`, `gathers`, `classification`, `noise`, `pooling`; convolutions as
   products of cuBLAS (`im2col`) and by kernels alone (`direct_convolution`), which are told the
   same of their images (`images`).
3. `source`: CUDA C++ of a kernel for types of elements and a number of axes, from a few lines of
   C that say what happens to one element.
4. `launch`: sources to compiled kernels, calls of them over as few axes as will do, and those of a
   plan as one CUDA graph.

`memory` is what `dnn.memory` asks of a GPU. No file but `launch`, `products` and `memory` touches
CuPy, and none when it is imported, so every source can be looked at and compiled where there is no
GPU.
"""
