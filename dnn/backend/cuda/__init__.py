"""The GPU: array functions through CuPy, with kernels of our own.

In the order in which a call goes through them:

1. `ops`: `CudaOps`, a method for each of `dnn.backend.Ops`.
2. A file for each kind of operation, with its kernels and the calls that launch them:
   `formulas` (elementwise operations and updates), `products` (by `cublas`, which calls cuBLAS and
   cuBLASLt), `reductions`, `classification`, `batches`, `pooling`; convolutions as products of
   cuBLAS (`im2col`) and by kernels alone (`direct_convolution`), whose kernels take the same
   arguments for images (`images`).
3. `source`: CUDA C++ of a kernel for types of elements and a number of axes, from a few lines of
   C that compute one element; `transposition`, where the arrays differ in their contiguous axis.
4. `launch`: compiles sources, calls kernels over as few axes as possible, and replays the calls of
   a plan as one CUDA graph.

CuPy is imported only when a GPU is used, so every source can be read and compiled where there is no
GPU.
"""
