"""Normalisation: to mean 0 and variance 1 over some axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import broadcast, describe
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, apply, register, stack_all
from dnn.graph.operations.arithmetic import Multiply, sqrt, square
from dnn.graph.operations.sums import mean_of, sum_to

__all__ = ["normalise"]


@register
class Normalise(Operation):
    """``y = centred inverse``, where ``centred = x - mean(x)``, ``inverse = 1 / deviation(x)``.

    Its inputs are x, centred and inverse. The latter two follow from the first, and its gradient
    is the whole one, so they have none of their own::

        dx = inverse (dy - mean(dy) - y mean(dy y))

    with means over the axes that `inverse` does not have [1]_.

    References
    ----------
    .. [1] Ioffe and Szegedy, Batch normalization, 2015, section 3, with the terms gathered.
    """

    name = "normalise"
    overwrites = (1,)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        x, centred, inverse = inputs
        shape, dtype = broadcast(self.name, inputs)
        if not shape == x.shape == centred.shape or inverse.ndim != x.ndim:
            given = ", ".join(describe(node) for node in inputs)
            raise ShapeError(self.name, f"{given} do not fit", *(node.shape for node in inputs))
        return shape, dtype

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *stack_all(inputs, stacked, models))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        _, centred, inverse = arrays.inputs
        return [ops.elementwise(Multiply.formula, (centred, inverse), arrays.out)]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        inverse = node.inputs[2]
        shared = zip(node.shape, inverse.shape, strict=True)
        share = 1.0 / math.prod(length for length, kept in shared if kept == 1)
        mean_dy = sum_to(dy, inverse.shape) * share
        mean_dy_y = sum_to(dy * node, inverse.shape) * share
        return (dy - mean_dy - node * mean_dy_y) * inverse, None, None


class Normalised(NamedTuple):
    """The normalised values, and what they were normalised by, with axes of length 1."""

    values: Node
    mean: Node
    variance: Node


def normalise(x: Node, axis: int | Sequence[int] | None, epsilon: float) -> Normalised:
    """Shift and scale to mean 0 and variance 1.

    Parameters
    ----------
    x : Node of floats
    axis : int, sequence of int or None
        The axes over which mean and variance are taken, negative ones from the end; None for all.
    epsilon : float
        Added to the variance, so that a constant `x` becomes 0.

    Returns
    -------
    Normalised
        ``(x - mean) / sqrt(variance + epsilon)``, of the shape of `x`, and mean and variance, of
        length 1 along the axes. The variance divides by the number of elements, not by one less.

    Raises
    ------
    ShapeError
        If there is no such axis, or there are no elements along it.
    DtypeError
        If `x` is not of floats.

    Notes
    -----
    `mean` and `variance` are to be read and not to be differentiated along with `values`, whose
    gradient goes past them.
    """
    middle = mean_of("normalise", x, axis, keepdims=True)
    centred = x - middle
    variance = mean_of("normalise", square(centred), axis, keepdims=True)
    inverse = 1.0 / sqrt(variance + epsilon)
    return Normalised(apply("normalise", x, centred, inverse), middle, variance)
