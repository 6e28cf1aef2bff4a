"""Normalisation: to mean 0 and variance 1 over some axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Formula, Ops
from dnn.errors import ShapeError
from dnn.graph.arguments import broadcast, describe
from dnn.graph.node import Node, Shape
from dnn.graph.operation import (
    Arrays,
    StackedOperation,
    Step,
    apply,
    register,
    reshaped,
)
from dnn.graph.operations.arithmetic import Multiply, sqrt, square
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.operations.reductions import mean_of, sum_to

__all__ = ["batch_norm", "normalise"]


@register
class Normalise(StackedOperation):
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


@register
class BatchNorm(Elementwise):
    """``y = (x - mean) inverse scale + shift`` of images, with one number for each channel.

    `mean` and `inverse` follow from x. The gradient of x is the whole one, as of `normalise`, so
    they have none of their own; with u = (x - mean) inverse::

        dshift = sum(dy)      dscale = sum(dy u)
        dx = (dy - dshift / n - u dscale / n) inverse scale
    """

    formula = Formula(
        "batch_norm", "x mean inverse scale shift", "(x - mean) * inverse * scale + shift"
    )
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, mean, inverse, scale, _ = node.inputs
        dshift = sum_to(dy, inverse.shape)
        dscale = sum_to(dy * apply("standardise", x, mean, inverse), inverse.shape)
        share = inverse.size / x.size
        operands = (dy, x, mean, inverse, inverse * scale, dshift * share, dscale * share)
        dx = apply("batch_norm_gradient", *operands)
        return dx, None, None, sum_to(dscale, scale.shape), sum_to(dshift, scale.shape)


@register
class Standardise(Elementwise):
    """``(x - mean) inverse``, where `mean` and `inverse` do not depend on `x`."""

    formula = Formula("standardise", "x mean inverse", "(x - mean) * inverse")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, mean, inverse = node.inputs
        return dy * inverse, -(dy * inverse), dy * (x - mean)


@register
class BatchNormGradient(Elementwise):
    """``(dy - mean_dy - (x - mean) inverse mean_dyu) factor``, see `BatchNorm`."""

    formula = Formula(
        "batch_norm_gradient",
        "dy x mean inverse factor mean_dy mean_dyu",
        "(dy - mean_dy - (x - mean) * inverse * mean_dyu) * factor",
    )
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        of_y, x, mean, inverse, factor, mean_dy, mean_dyu = node.inputs
        u = apply("standardise", x, mean, inverse)
        inside = dy * factor
        through = -(inside * mean_dyu)
        return (
            inside,
            through * inverse,
            -(through * inverse),
            through * (x - mean),
            dy * (of_y - mean_dy - u * mean_dyu),
            -inside,
            -(inside * u),
        )


class Normalised(NamedTuple):
    """Normalised values, with their mean and variance before, of length 1 along the axes."""

    values: Node
    mean: Node
    variance: Node


def batch_norm(x: Node, scale: Node, shift: Node, axis: int, epsilon: float) -> Normalised:
    """Return images with each channel normalised, then scaled by `scale` and shifted by `shift`.

    Parameters
    ----------
    x : Node of floats, shape (images, ..., channels, ...)
    scale, shift : Node, shape (channels,)
    axis : int
        The axis of the channels.
    epsilon : float
        Added to the variance.

    Returns
    -------
    Normalised
        As of `normalise`, with its values times `scale` plus `shift`.

    References
    ----------
    .. [1] Ioffe and Szegedy, Batch normalization, 2015, section 3.
    """
    axes = tuple(i for i in range(x.ndim) if i != axis)
    spread = tuple(x.shape[i] if i == axis else 1 for i in range(x.ndim))
    middle = mean_of("batch_norm", x, axes, keepdims=True)
    variance = mean_of("batch_norm", square(x - middle), axes, keepdims=True)
    inverse = 1.0 / sqrt(variance + epsilon)
    by_channel = (reshaped(each, spread) for each in (scale, shift))
    return Normalised(apply("batch_norm", x, middle, inverse, *by_channel), middle, variance)


def normalise(x: Node, axis: int | Sequence[int] | None, epsilon: float) -> Normalised:
    """Shift and scale `x` to mean 0 and variance 1 over some axes.

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
    `mean` and `variance` are for reading. They should not be part of what is differentiated: the
    gradient of `values` is the whole one without them.
    """
    middle = mean_of("normalise", x, axis, keepdims=True)
    centred = x - middle
    variance = mean_of("normalise", square(centred), axis, keepdims=True)
    inverse = 1.0 / sqrt(variance + epsilon)
    return Normalised(apply("normalise", x, centred, inverse), middle, variance)
