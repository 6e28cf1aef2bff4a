"""Tensors: arrays with a shape, on the host or on a GPU.

A tensor looks at memory through a shape, strides and an offset, so slices, reshaped and squeezed
tensors share the memory of the one they come from, and what is written through one is read
through all of them, on whichever side. Plans of the graph never see tensors: they work on the
arrays that a tensor hands out.

| module | what it is |
|---|---|
| `elements` | flat memory seen through a shape and strides, as arrays and in parts |
| `arithmetic` | operators, reductions, products |
| `tensor` | what users hold: ways in and out, and copies |
"""

from dnn.tensor.tensor import Tensor

__all__ = ["Tensor"]
