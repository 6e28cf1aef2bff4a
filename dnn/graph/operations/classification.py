"""Softmax and cross entropies of classifiers, in their numerically stable form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Formula, Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import broadcast, check_kind, describe
from dnn.graph.node import Node, Shape, check_nodes
from dnn.graph.operation import (
    Arrays,
    Operation,
    StackedOperation,
    Step,
    aligned,
    apply,
    register,
    reshaped,
)
from dnn.graph.operations.activations import activation, sigmoid
from dnn.graph.operations.arithmetic import exp
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.operations.reductions import sum

__all__ = ["binary_cross_entropy", "log_softmax", "softmax", "softmax_cross_entropy"]


@register
class LogSoftmax(Operation):
    """``y = x - log(sum(exp(x)))`` over the last axis, ``dx = dy - softmax(x) sum(dy)``."""

    name = "log_softmax"
    overwrites = (0,)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        check_kind(self.name, inputs, "f")
        if x.ndim < 1:
            raise ShapeError("log_softmax", f"{describe(x)} has no axis", x.shape)
        if not x.shape[-1]:
            raise ShapeError("log_softmax", f"{describe(x)} has no classes", x.shape)
        return x.shape, x.dtype

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
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
class SoftmaxCrossEntropy(StackedOperation):
    """Mean over rows of ``-sum(target * log_softmax(logits))``: (..., rows, classes) to (...).

    A class whose target is 0 adds nothing, though its logit be -inf: so classes are masked.
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
        if not logits.shape[-2]:
            raise ShapeError(self.name, f"logits {logits.shape} have no rows", logits.shape)
        return logits.shape[:-2], broadcast(self.name, inputs)[1]

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        logits = node.inputs[0]
        return [(logits.shape, np.dtype(bool)), (logits.shape, logits.dtype)]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        _, log_probabilities, target = arrays.inputs
        return [
            (ops.mean_cross_entropy, (log_probabilities, target, *arrays.workspace, arrays.out))
        ]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, log_probabilities, target = node.inputs
        scale = reshaped(dy * (1.0 / logits.shape[-2]), (*dy.shape, 1, 1) if dy.shape else ())
        return (exp(log_probabilities) - target) * scale, None, None


@register
class BinaryCrossEntropy(Elementwise):
    """``y = (max(x, 0) - target x) + log(1 + exp(-|x|))`` of a logit x, element by element.

    That is ``-target log(p) - (1 - target) log(1 - p)`` with p the logistic function of the logit,
    and its gradient ``p - target``: neither overflows, and neither is 0 / 0 anywhere.
    """

    formula = Formula(
        "binary_cross_entropy",
        "x target",
        # In this order the small term is added after the large ones have cancelled.
        "(max(x, 0) - x * target) + log1p(exp(-abs(x)))",
    )
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, target = node.inputs
        return dy * (sigmoid(logits) - target), -dy * logits


def log_softmax(x: Node) -> Node:
    """Return the logarithm of the softmax over the last axis, ``x - ln(sum(e^x))``.

    Parameters
    ----------
    x : Node of floats, shape (..., classes)

    Returns
    -------
    Node, of the shape and type of `x`
        Rows are first shifted by their largest element, so that nothing overflows.

    Raises
    ------
    ShapeError
        If `x` has no axis, or no elements along the last one.
    DtypeError
        If `x` is not of floats.
    """
    return apply("log_softmax", x)


@activation
def softmax(x: Node) -> Node:
    """Return the softmax over the last axis, ``e^x / sum(e^x)``, as ``exp(log_softmax(x))``.

    Parameters
    ----------
    x : Node of floats, shape (..., classes)

    Returns
    -------
    Node, of the shape and type of `x`
        Each row sums to 1.

    Raises
    ------
    ShapeError, DtypeError
        As for `log_softmax`.
    """
    return exp(log_softmax(x))


def softmax_cross_entropy(logits: Node, target: Node) -> Node:
    """Return the mean over rows of ``-sum(target ln(softmax(logits)))``.

    Parameters
    ----------
    logits : Node of floats, shape (..., rows, classes)
    target : Node of the shape and type of `logits`
        Each row sums to 1. Where it is 0, the logit may be -inf.

    Returns
    -------
    Node, shape (...), of the type of `logits`
        The gradient of `logits` is ``(softmax(logits) - target) / rows``; `target` has none.

    Raises
    ------
    ShapeError
        If the shapes differ, have fewer than two axes, or no rows or classes.
    DtypeError
        If the types differ or are not of floats.
    """
    name = "softmax_cross_entropy"
    check_nodes(name, logits, target)
    check_kind(name, (logits,), "f")
    if logits.ndim < 2 or not logits.shape[-1]:
        message = f"{describe(logits)} has not the shape (..., rows, classes)"
        raise ShapeError(name, message, logits.shape, target.shape)
    return apply(name, logits, log_softmax(logits), target)


def binary_cross_entropy(logits: Node, target: Node) -> Node:
    """Return the cross entropy between `target` and the logistic function of `logits`.

    Parameters
    ----------
    logits : Node of floats
    target : Node of the type of `logits`
        In 0 .. 1.

    Returns
    -------
    Node, of the shape that both broadcast to
        Element by element, with no mean taken.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    DtypeError
        If the types differ or are not of floats.
    """
    return apply("binary_cross_entropy", logits, target)
