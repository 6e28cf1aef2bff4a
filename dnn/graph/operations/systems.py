"""Linear systems, Cholesky factors and Fourier transforms, by NumPy or CuPy, as nodes.

Their gradients are products and further systems and transforms [1]_, so that all of them can be
part of a loss or of a layer.

References
----------
.. [1] Giles, Collected matrix derivative results for forward and reverse mode algorithmic
   differentiation, 2008; of the Cholesky factor: Murray, Differentiation of the Cholesky
   decomposition, 2016, equation 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import DataError, DtypeError, ShapeError
from dnn.graph.arguments import check_kind, check_same_type, describe, integers_of
from dnn.graph.node import Node, Shape, check_nodes, constant
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply, register, reshaped
from dnn.graph.operations.products import matmul
from dnn.graph.operations.shapes import transpose
from dnn.graph.operations.slices import concat

__all__ = ["cholesky", "fft", "ifft", "inv", "solve"]


def _check_matrices(name: str, a: Node) -> None:
    check_kind(name, (a,), "f")
    if a.dtype.itemsize < 4:
        raise DtypeError(f"{name}: {describe(a)} is of {a.dtype}: it takes float32 or float64")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(name, f"{describe(a)} are no square matrices", a.shape)


def _library(ops: Ops) -> Any:
    """Return CuPy on a GPU, else NumPy."""
    return getattr(ops, "cupy", np)


# Free functions and no methods of `Ops`: libraries allocate, and no CUDA graph captures that.


def solved(xp: Any, a: Array, b: Array) -> Array:
    """Return the solution of ``a x = b`` by NumPy or CuPy, whose leading axes do not broadcast."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    same = [
        x if x.shape[:-2] == leading else xp.broadcast_to(x, (*leading, *x.shape[-2:]))
        for x in (a, b)
    ]
    x: Array = xp.linalg.solve(*same)
    return x


def _factored(name: str, xp: Any, *arrays: Array) -> None:
    """Solve a system or compute a Cholesky factor, into the last array."""
    *inputs, out = arrays
    try:
        out[...] = solved(xp, *inputs) if name == "solve" else xp.linalg.cholesky(*inputs)
    except np.linalg.LinAlgError as error:
        raise DataError(f"{name}: {error}") from None


def _fourier(xp: Any, axes: tuple[int, ...], inverse: bool, x: Array, out: Array) -> None:
    transform = xp.fft.ifftn if inverse else xp.fft.fftn
    complex_type = np.result_type(x.dtype, np.complex64)
    found = out.view(complex_type)
    found[..., 0] = transform(x.view(complex_type)[..., 0], None, axes)


@register
class Solve(Operation):
    """``a x = b``, ``db = a^-T dx``, ``da = -db x^T``; leading axes broadcast."""

    name = "solve"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        a, b = inputs
        check_same_type(self.name, inputs)
        _check_matrices(self.name, a)
        try:
            leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            leading = None
        if leading is None or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            message = f"{describe(a)} and {describe(b)} do not fit"
            raise ShapeError(self.name, message, a.shape, b.shape)
        return (*leading, *b.shape[-2:]), a.dtype

    def multiply_adds(self, node: Node) -> int:
        a = node.inputs[0]
        return a.size * a.shape[-1] // 3 + node.size * a.shape[-1]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(partial(_factored, self.name, _library(ops)), (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        pairs = zip(inputs, stacked, strict=True)
        return apply(self.name, *(aligned(x, has, node.ndim) for x, has in pairs))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        db = apply(self.name, transpose(node.inputs[0]), dy)
        return -matmul(db, transpose(node)), db


class OfOne(Operation):
    """Base class: the axis of models is one more leading axis."""

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *inputs, **node.attributes)


@register
class Cholesky(OfOne):
    """``x = l l^T``, ``dx = s + s^T`` halved, with ``s = l^-T p l^-1``.

    ``p`` is the lower triangle of ``l^T dl``, its diagonal halved.
    """

    name = "cholesky"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        _check_matrices(self.name, inputs[0])
        return inputs[0].shape, inputs[0].dtype

    def multiply_adds(self, node: Node) -> int:
        return node.size * node.shape[-1] // 6

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(partial(_factored, self.name, _library(ops)), (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        size = node.shape[-1]
        halves = constant(np.tril(np.ones((size, size))) - 0.5 * np.eye(size), dy.dtype)
        upper = transpose(node)
        left = solve(upper, matmul(upper, dy) * halves)
        s = transpose(solve(upper, transpose(left)))
        return ((s + transpose(s)) * 0.5,)


@register
class Fourier(OfOne):
    """Fourier transform of complex numbers, pairs along the last axis, over axes before it.

    It is linear: the gradient is the inverse transform times the number of elements of a transform,
    or of the inverse the transform divided by it.
    """

    name = "fourier"
    contiguous = (0,)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return inputs[0].shape, inputs[0].dtype

    def multiply_adds(self, node: Node) -> int:
        length = _length(node)
        return node.size * max(1, math.ceil(math.log2(length)))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        axes, inverse = node.attributes["axes"], node.attributes["inverse"]
        transform = partial(_fourier, _library(ops), axes, inverse)
        return [(transform, (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        axes, inverse = node.attributes["axes"], node.attributes["inverse"]
        length = _length(node)
        dx = apply(self.name, dy, axes=axes, inverse=not inverse)
        return (dx * (1.0 / length if inverse else float(length)),)


def _length(node: Node) -> int:
    """Return the number of elements of each transform."""
    return math.prod(node.shape[axis - 1] for axis in node.attributes["axes"])


def solve(a: Node, b: Node) -> Node:
    """Return x with ``a x = b``, of square matrices.

    Parameters
    ----------
    a : Node, shape (..., n, n)
        Of float32 or float64.
    b : Node, shape (n,) or (..., n, m)
        Of the type of `a`.

    Returns
    -------
    Node, shape (n,) or (..., n, m)
        Leading axes broadcast. A singular matrix is a `DataError` when it is computed, and gives
        NaN or infinity on a GPU.

    Raises
    ------
    ShapeError, DtypeError
        If `a` is not square, they do not fit, or their types differ or are narrow.
    """
    check_nodes("solve", a, b)
    if b.ndim != 1:
        return apply("solve", a, b)
    x = apply("solve", a, reshaped(b, (*b.shape, 1)))
    return reshaped(x, x.shape[:-1])


def inv(a: Node) -> Node:
    """Return the inverses of square matrices, as solutions of ``a x = 1``; errors as for `solve`.

    Parameters
    ----------
    a : Node, shape (..., n, n)
        Of float32 or float64.

    Returns
    -------
    Node, shape (..., n, n)
    """
    check_nodes("inv", a)
    _check_matrices("inv", a)
    return apply("solve", a, constant(np.eye(a.shape[-1]), a.dtype))


def cholesky(a: Node) -> Node:
    """Return l with ``a = l l^T``, a lower triangle, of symmetric positive definite matrices.

    Parameters
    ----------
    a : Node, shape (..., n, n)
        Of float32 or float64; its lower triangle is read.

    Returns
    -------
    Node, shape (..., n, n)
        The gradient is symmetric. A matrix that is not positive definite is a `DataError` when it
        is computed, and gives NaN on a GPU.

    Raises
    ------
    ShapeError, DtypeError
        If `a` is not square, or of a narrow type.
    """
    return apply("cholesky", a)


def fft(
    real: Node, imaginary: Node | None = None, axes: Sequence[int] = (-1,)
) -> tuple[Node, Node]:
    """Return the discrete Fourier transform along some axes, as real and imaginary parts.

    Parameters
    ----------
    real : Node of float32 or float64
    imaginary : Node, optional
        Of the shape and type of `real`; 0 if left out.
    axes : sequence of int

    Returns
    -------
    real, imaginary : Node, of the shape and type of `real`

    Raises
    ------
    ShapeError, DtypeError
        If there is no such axis, the parts do not fit, or are of a narrow type.
    """
    return _transformed("fft", real, imaginary, axes, inverse=False)


def ifft(
    real: Node, imaginary: Node | None = None, axes: Sequence[int] = (-1,)
) -> tuple[Node, Node]:
    """Return the inverse of `fft`, as real and imaginary parts.

    Parameters
    ----------
    real, imaginary, axes
        As for `fft`; errors are the same too.

    Returns
    -------
    real, imaginary : Node, of the shape and type of `real`
    """
    return _transformed("ifft", real, imaginary, axes, inverse=True)


def _transformed(
    name: str, real: Node, imaginary: Node | None, axes: Sequence[int], inverse: bool
) -> tuple[Node, Node]:
    check_nodes(name, real)
    if imaginary is None:
        imaginary = apply("broadcast_to", constant(0.0, real.dtype), shape=real.shape)
    parts = [real, imaginary]
    check_nodes(name, imaginary)
    check_same_type(name, parts)
    check_kind(name, parts, "f")
    if real.dtype.itemsize < 4 or real.shape != parts[1].shape:
        shown = " and ".join(f"{describe(part)} of {part.dtype}" for part in parts)
        raise ShapeError(name, f"{shown}: it takes float32 or float64, of one shape", real.shape)
    numbers = integers_of(name, axes, "a list of axes")
    wanted = tuple(sorted(axis if axis < 0 else axis - real.ndim for axis in numbers))
    if not wanted or len({*wanted}) < len(wanted) or not -real.ndim <= wanted[0] <= wanted[-1] < 0:
        raise ShapeError(name, f"{describe(real)} has no axes {numbers}", real.shape)
    if not all(real.shape[axis] for axis in wanted):
        raise ShapeError(name, f"{describe(real)} has no elements along {wanted}", real.shape)
    pair = concat([reshaped(part, (*part.shape, 1)) for part in parts], -1)
    y = apply("fourier", pair, axes=wanted, inverse=inverse)
    index = tuple((0, length, 1) for length in real.shape)
    found = [apply("slice", y, index=(*index, (at, at + 1, 1))) for at in (0, 1)]
    return reshaped(found[0], real.shape), reshaped(found[1], real.shape)
