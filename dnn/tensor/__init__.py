"""Tensors: arrays with a shape, on the host or on a GPU.

A tensor looks at memory through a shape, strides and an offset, so slices, reshaped and squeezed
tensors share the memory of the one they come from, and what is written through one is read
through all of them, on whichever side. Plans of the graph never see tensors: they work on the
arrays that a tensor hands out.

| module | what it is |
|---|---|
| `strides` | shapes, strides and offsets, and how parts and other shapes follow from them |
| `from_array` | memory with values from elsewhere: of NumPy, CuPy, DLPack |
| `access` | elements as arrays of any library, and parts, which share the memory |
| `tensor` | ways in and out, and copies: what users hold |
"""

from dnn.tensor.tensor import Tensor

__all__ = ["Tensor"]
