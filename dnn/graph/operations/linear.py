"""Linear algebra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.errors import DtypeError, ShapeError
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, apply, describe, register
from dnn.graph.operations.shapes import transpose

__all__ = ["matmul"]


@register
class Matmul(Operation):
    """``y = a @ b`` over the last two axes, ``da = dy b^T``, ``db = a^T dy``.

    Transposes are views, and BLAS reads them in place. Leading axes broadcast.
    """

    name = "matmul"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        a, b = inputs
        if a.dtype != b.dtype:
            given = f"{describe(a)} of {a.dtype} and {describe(b)} of {b.dtype}"
            raise DtypeError(f"matmul: {given} have different types of elements")
        try:
            leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            leading = None
        if leading is None or a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            message = f"{describe(a)} and {describe(b)} do not fit"
            raise ShapeError("matmul", message, a.shape, b.shape)
        return (*leading, a.shape[-2], b.shape[-1]), a.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.gemm, (*arrays.inputs, arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return matmul(dy, transpose(b)), matmul(transpose(a), dy)


def matmul(a: Node, b: Node) -> Node:
    """Return the matrix product over the last two axes; also written ``a @ b``."""
    return apply("matmul", a, b)
