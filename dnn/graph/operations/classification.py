"""What a classifier ends in: softmax and cross entropy, in the stable form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Ops
from dnn.errors import DtypeError, ShapeError
from dnn.graph.node import Node, Shape
from dnn.graph.operation import (
    Arrays,
    Operation,
    Step,
    aligned,
    apply,
    broadcast,
    describe,
    register,
    reshaped,
    stack_all,
)
from dnn.graph.operations.activations import sigmoid
from dnn.graph.operations.elementwise import Elementwise, exp
from dnn.graph.operations.shapes import sum

__all__ = ["binary_cross_entropy", "log_softmax", "one_hot", "softmax", "softmax_cross_entropy"]


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


@register
class LogSoftmax(Operation):
    """``y = x - log(sum(exp(x)))`` over the last axis, ``dx = dy - softmax(x) sum(dy)``."""

    name = "log_softmax"
    overwrites = (0,)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        if x.ndim < 1:
            raise ShapeError("log_softmax", f"{describe(x)} has no axis", x.shape)
        return x.shape, x.dtype

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        return [((*node.shape[:-1], 1), node.dtype), (node.shape, node.dtype)]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.log_softmax, (arrays.inputs[0], *arrays.workspace, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return log_softmax(aligned(inputs[0], True, node.ndim))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy - exp(node) * sum(dy, -1, keepdims=True),)


@register
class SoftmaxCrossEntropy(Operation):
    """Mean over rows of ``-sum(target * log_softmax(logits))``: (..., rows, classes) to (...).

    Its inputs are logits, log_softmax(logits) and target. The second only saves the backward pass
    from computing it again: the gradient of the first is the whole one,
    ``(softmax(logits) - target) / rows``, which holds because rows of `target` sum to 1.
    """

    name = "softmax_cross_entropy"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        logits, _, target = inputs
        if logits.ndim < 2 or logits.shape != target.shape:
            message = f"logits {logits.shape} and target {target.shape} do not fit"
            raise ShapeError(self.name, message, logits.shape, target.shape)
        return logits.shape[:-2], broadcast(self.name, inputs)[1]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *stack_all(inputs, stacked, models))

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        logits = node.inputs[0]
        return [(logits.shape, logits.dtype)]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        _, log_probabilities, target = arrays.inputs
        return [
            (ops.mean_cross_entropy, (log_probabilities, target, *arrays.workspace, arrays.out))
        ]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, log_probabilities, target = node.inputs
        slope = reshaped(dy * (1.0 / logits.shape[-2]), (*dy.shape, 1, 1) if dy.shape else ())
        return (exp(log_probabilities) - target) * slope, None, None


@register
class BinaryCrossEntropy(Elementwise):
    """``y = log(1 + exp(logit)) - target logit``, element by element.

    That is ``-target log(p) - (1 - target) log(1 - p)`` with p the logistic function of the logit,
    and its gradient ``p - target``: neither overflows, and neither is 0 / 0 anywhere.
    """

    name = "binary_cross_entropy"
    overwrites = ()  # two results on the way, one of them in `out`

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        return [(node.shape, node.dtype)]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, target = node.inputs
        return dy * (sigmoid(logits) - target), -dy * logits


def one_hot(labels: Node, classes: int, dtype: npt.DTypeLike = np.float32) -> Node:
    """Return rows of the identity matrix, one for each label.

    Parameters
    ----------
    labels : Node of intp, shape (n,)
        In ``0 .. classes - 1``; whoever feeds them checks that.
    classes : int
    dtype : type of elements of the result

    Returns
    -------
    Node, shape (n, classes)
    """
    return apply("one_hot", labels, classes=classes, dtype=dtype)


def log_softmax(x: Node) -> Node:
    """Return the logarithm of the softmax over the last axis."""
    return apply("log_softmax", x)


def softmax(x: Node) -> Node:
    """Return the softmax over the last axis."""
    return exp(log_softmax(x))


def softmax_cross_entropy(logits: Node, target: Node) -> Node:
    """Return the mean cross entropy between `target` and the softmax of `logits`.

    Parameters
    ----------
    logits : Node, shape (rows, classes)
    target : Node, shape (rows, classes)
        Each row sums to 1.

    Returns
    -------
    Node, shape ()

    Raises
    ------
    ShapeError
        If the shapes differ.
    """
    return apply("softmax_cross_entropy", logits, log_softmax(logits), target)


def binary_cross_entropy(logits: Node, target: Node) -> Node:
    """Return the cross entropy between `target` and the logistic function of `logits`.

    Parameters
    ----------
    logits, target : Node
        Targets are in 0 .. 1.

    Returns
    -------
    Node
        Element by element, with no mean taken.

    Raises
    ------
    ShapeError, DtypeError
        If they do not fit.
    """
    return apply("binary_cross_entropy", logits, target)
