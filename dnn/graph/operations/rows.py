"""Rows by index: gathering them, their gradient, and one-hot rows of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import Ops
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.arguments import describe
from dnn.graph.node import Node, Shape, constant
from dnn.graph.operation import Arrays, Operation, Step, apply, register, reshaped, stack_all

__all__ = ["one_hot", "take_rows"]


@register
class TakeRows(Operation):
    """``y[i] = x[rows[i]]``; ``dx`` sums the gradients of all copies of a row."""

    name = "take_rows"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        x, rows = inputs
        if rows.dtype != np.intp:
            raise DtypeError(f"take_rows: rows must be {np.dtype(np.intp)}, not {rows.dtype}")
        if x.ndim < 1:
            raise ShapeError("take_rows", f"{describe(x)} has no rows", x.shape)
        return (*rows.shape, *x.shape[1:]), x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.take_rows, (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        x, rows = inputs
        if stacked[0]:  # the rows of all models, one model behind the other
            x, rows = _flat_rows(x, stack_all([rows], stacked[1:], models)[0])
        return apply("take_rows", x, rows)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, rows = node.inputs
        return apply("add_rows", dy, rows, count=x.shape[0]), None


@register
class AddRows(Operation):
    """The transpose of `take_rows`: zeros, to which ``y[rows[i]] += x[i]``."""

    name = "add_rows"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        x, rows = inputs
        return (attributes["count"], *x.shape[rows.ndim :]), x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.add_rows, (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        x, rows = stack_all(inputs, stacked, models)
        count = node.attributes["count"]
        offsets = np.arange(models).reshape(models, *(1,) * (rows.ndim - 1)) * count
        y = apply("add_rows", x, rows + offsets, count=models * count)
        return reshaped(y, (models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return apply("take_rows", dy, node.inputs[1]), None


def _flat_rows(x: Node, rows: Node) -> tuple[Node, Node]:
    """Turn rows of x[k] into rows of x with its first two axes made one."""
    models, count = x.shape[:2]
    offsets = np.arange(models).reshape(models, *(1,) * (rows.ndim - 1)) * count
    return reshaped(x, (models * count, *x.shape[2:])), rows + constant(offsets, np.intp)


@register
class OneHot(Operation):
    """Labels (n,) of integers to rows (n, classes) of the identity matrix; no gradient."""

    name = "one_hot"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (labels,) = inputs
        if labels.dtype != np.intp:
            raise DtypeError(f"one_hot: labels must be {np.dtype(np.intp)}, not {labels.dtype}")
        return (*labels.shape, attributes["classes"]), np.dtype(attributes["dtype"])

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        identity = ops.asarray(np.eye(node.shape[-1], dtype=node.dtype))
        return [(ops.take_rows, (identity, arrays.inputs[0], arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *inputs, **node.attributes)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


def take_rows(x: Node, rows: Node) -> Node:
    """Return rows of `x`: ``y[i] = x[rows[i]]``.

    Parameters
    ----------
    x : Node, shape (n, ...)
    rows : Node of intp
        In ``0 .. n - 1``; the caller that feeds them checks that.

    Returns
    -------
    Node, shape (*rows.shape, ...), of the type of `x`
        A row that is taken several times gets the sum of their gradients.

    Raises
    ------
    ShapeError
        If `x` has no axis.
    DtypeError
        If `rows` are not of intp.
    """
    return apply("take_rows", x, rows)


def one_hot(labels: Node, classes: int, dtype: npt.DTypeLike = np.float32) -> Node:
    """Return rows of the identity matrix, one for each label.

    Parameters
    ----------
    labels : Node of intp
        In ``0 .. classes - 1``; the caller that feeds them checks that.
    classes : int, at least 1
    dtype : type of elements of the result

    Returns
    -------
    Node of `dtype`, shape (*labels.shape, classes)
        It has no gradient.

    Raises
    ------
    ConfigurationError
        If `classes` is no integer, or less than 1.
    DtypeError
        If `labels` are not of intp, or there is no such `dtype`.
    """
    if not isinstance(classes, int | np.integer) or classes < 1:
        message = f"classes must be an integer of at least 1, not {classes!r}"
        raise ConfigurationError(f"one_hot: {message}")
    return apply("one_hot", labels, classes=int(classes), dtype=dtype_of("one_hot", dtype))
