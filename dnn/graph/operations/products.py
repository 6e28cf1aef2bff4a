"""Matrix products, and functions of linear algebra that are composed of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import check_same_type, describe
from dnn.graph.node import Node, Operand, Shape, as_nodes, check_nodes
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply, register
from dnn.graph.operations.shapes import reshape, transpose

__all__ = [
    "axpy",
    "bias_add",
    "bmatmul",
    "dot",
    "gemm",
    "gemv",
    "linear",
    "matmul",
    "scal",
    "scalar_product",
]


@register
class Matmul(Operation):
    """``y = a @ b`` over the last two axes, ``da = dy b^T``, ``db = a^T dy``.

    Transposes are views, and BLAS reads them in place. Leading axes broadcast.
    """

    name = "matmul"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        a, b = inputs
        check_same_type(self.name, inputs)
        try:
            leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            leading = None
        if leading is None or a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            message = f"{describe(a)} and {describe(b)} do not fit"
            raise ShapeError("matmul", message, a.shape, b.shape)
        return (*leading, a.shape[-2], b.shape[-1]), a.dtype

    def multiply_adds(self, node: Node) -> int:
        return node.size * node.inputs[0].shape[-1]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.gemm, (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return matmul(*(aligned(x, has, node.ndim) for x, has in zip(inputs, stacked, strict=True)))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return matmul(dy, transpose(b)), matmul(transpose(a), dy)


def matmul(a: Node, b: Node) -> Node:
    """Return the matrix product over the last two axes; also written ``a @ b``.

    Parameters
    ----------
    a : Node, shape (..., n, k)
    b : Node, shape (..., k, m)
        Of the type of `a`.

    Returns
    -------
    Node, shape (..., n, m), of their type
        Leading axes broadcast.

    Raises
    ------
    ShapeError
        If one has fewer than two axes, or the shapes do not fit.
    DtypeError
        If the types differ.
    """
    return apply("matmul", a, b)


def bmatmul(a: Node, b: Node) -> Node:
    """Return the products of two batches of matrices, one matrix of each at a time.

    Parameters
    ----------
    a : Node, shape (..., n, k), of at least three axes
    b : Node, shape (..., k, m)
        Of the type of `a`, and with the same leading axes.

    Returns
    -------
    Node, shape (..., n, m), of their type

    Raises
    ------
    ShapeError
        If there are fewer than three axes, or the shapes do not fit; `matmul` broadcasts.
    DtypeError
        If the types differ.
    """
    check_nodes("bmatmul", a, b)
    if min(a.ndim, b.ndim) < 3 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        message = f"{describe(a)} and {describe(b)} are no batches of matrices that fit"
        raise ShapeError("bmatmul", message, a.shape, b.shape)
    return matmul(a, b)


def dot(a: Node, b: Node) -> Node:
    """Return the product of vectors or matrices, as `numpy.matmul` has it.

    Parameters
    ----------
    a : Node, shape (k,) or (..., n, k)
    b : Node, shape (k,) or (..., k, m)
        Of the type of `a`.

    Returns
    -------
    Node, shape (..., n, m), of their type
        Without the axis n where `a` is a vector, without m where `b` is: of two vectors a scalar.

    Raises
    ------
    ShapeError
        If the lengths k differ, one has no axis, or the leading axes do not broadcast.
    DtypeError
        If the types differ.
    """
    check_nodes("dot", a, b)
    if min(a.ndim, b.ndim) < 1 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError("dot", f"{describe(a)} and {describe(b)} do not fit", a.shape, b.shape)
    left = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
    y = matmul(left, right)
    shape = y.shape[:-1] if b.ndim == 1 else y.shape
    if a.ndim == 1:
        shape = (*y.shape[:-2], *shape[y.ndim - 1 :])
    return reshape(y, shape)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """Return ``x W + b``, as a fully connected layer computes it.

    Parameters
    ----------
    x : Node, shape (batch, inputs)
    weight : Node, shape (inputs, units)
    bias : Node, shape (units,), optional

    Returns
    -------
    Node, shape (batch, units), of their type

    Raises
    ------
    ShapeError, DtypeError
        If the shapes do not fit, or the types differ.
    """
    y = matmul(x, weight)
    return y if bias is None else bias_add(y, bias)


def bias_add(x: Node, bias: Node) -> Node:
    """Return `x` plus one bias for each unit, the same for each sample.

    Parameters
    ----------
    x : Node, shape (..., units)
    bias : Node, shape (units,)
        Of the type of `x`.

    Returns
    -------
    Node, of the shape and type of `x`

    Raises
    ------
    ShapeError
        If the bias is no vector with one element for each unit.
    DtypeError
        If the types differ.
    """
    check_nodes("bias_add", x, bias)
    if bias.ndim != 1 or x.shape[-1:] != bias.shape:
        message = f"{describe(x)} and {describe(bias)} do not fit"
        raise ShapeError("bias_add", message, x.shape, bias.shape)
    return x + bias


def gemm(
    a: Node,
    b: Node,
    c: Node | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Node:
    """Return ``alpha op(a) op(b) + beta c``, in the words of BLAS [1]_.

    Parameters
    ----------
    a : Node, shape (..., n, k), or (..., k, n) where it is transposed
    b : Node, shape (..., k, m), or (..., m, k) where it is transposed
    c : Node, optional
        Broadcast with the product.
    alpha, beta : float
    transpose_a, transpose_b : bool
        Whether the last two axes are exchanged before.

    Returns
    -------
    Node, shape (..., n, m), of their type

    Raises
    ------
    ShapeError, DtypeError
        If the shapes do not fit, or the types differ.

    References
    ----------
    .. [1] Dongarra et al., A set of level 3 basic linear algebra subprograms, 1990.
    """
    y = matmul(transpose(a) if transpose_a else a, transpose(b) if transpose_b else b)
    y = y if alpha == 1 else y * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


def gemv(a: Node, x: Node, y: Node | None = None, *, alpha: float = 1.0, beta: float = 1.0) -> Node:
    """Return ``alpha a x + beta y`` of a matrix and vectors.

    Parameters
    ----------
    a : Node, shape (n, k)
    x : Node, shape (k,)
    y : Node, shape (n,), optional
    alpha, beta : float

    Returns
    -------
    Node, shape (n,), of their type

    Raises
    ------
    ShapeError, DtypeError
        If the shapes do not fit, or the types differ.
    """
    product = dot(a, x)
    product = product if alpha == 1 else product * alpha
    return product if y is None else product + (y if beta == 1 else y * beta)


def axpy(alpha: float, x: Node, y: Node) -> Node:
    """Return ``alpha x + y``.

    Parameters
    ----------
    alpha : float
    x, y : Node
        Of one type.

    Returns
    -------
    Node, of the shape that both broadcast to and of their type

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        If the types differ, or are of integers that cannot hold `alpha`.
    """
    check_nodes("axpy", x, y)
    return x * alpha + y


def scalar_product(alpha: Operand, x: Node) -> Node:
    """Return ``alpha x`` of a scalar, which may be a node; the inner product of vectors is `dot`.

    Parameters
    ----------
    alpha : float, or Node of shape ()
        A node gets a gradient.
    x : Node

    Returns
    -------
    Node, of the shape and type of `x`

    Raises
    ------
    ShapeError
        If `alpha` is no scalar.
    DtypeError
        If their types differ, or that of `x` cannot hold `alpha`.
    """
    check_nodes("scalar_product", x)
    factor, _ = as_nodes("scalar_product", alpha, x)
    if factor.shape:
        message = f"{describe(factor)} is no scalar: see dot, and multiply"
        raise ShapeError("scalar_product", message, factor.shape, x.shape)
    return factor * x


scal = scalar_product
