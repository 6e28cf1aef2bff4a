"""Tensors: arrays with a shape, on the host or on a GPU.

A tensor looks at memory through a shape, strides and an offset, so slices, reshaped and squeezed
tensors share the memory of the one they come from, and what is written through one is read
through all of them, on whichever side. Plans of the graph never see tensors: they work on the
arrays that a tensor hands out.

| module | what it is |
|---|---|
| `shapes` | shapes, axes and indices, checked |
| `view` | shape, strides and offset, and how parts and other shapes follow from them |
| `sources` | memory with values from elsewhere: of NumPy, CuPy, DLPack |
| `elements` | memory looked at through a view, handed out as arrays of any library |
| `parts` | parts and other axes, which share the memory |
| `tensor` | ways in and out, and copies: what users hold |
"""

from dnn.tensor.tensor import Tensor

__all__ = ["Tensor"]
