"""Tensors: arrays with a shape, on the host or on a GPU.

A tensor is memory with a shape, strides and an offset, so slices, reshaped and squeezed tensors
share the memory of the tensor they come from, and a value written through one of them is read
through all of them, on the host and on the device. Plans of the graph do not take tensors: they
work on arrays.

| module | contents |
|---|---|
| `elements` | flat memory with a shape and strides, as arrays of NumPy and CuPy, and its slices |
| `arithmetic` | operators, reductions, products |
| `tensor` | the class `Tensor`: constructors, files, moves and copies |
"""

from dnn.tensor.tensor import Tensor

__all__ = ["Tensor"]
