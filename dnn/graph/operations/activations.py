"""Activation functions, such as relu, sigmoid, tanh and gelu.

Their gradients are written in terms of their output, so that the forward pass may overwrite
their input, the sum of a product and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from dnn.backend.formula import RELU, SIGMOID, TANH, Formula
from dnn.graph.node import Node, constant
from dnn.graph.operation import apply, register
from dnn.graph.operations.arithmetic import exp, expm1, log1p
from dnn.graph.operations.comparisons import abs, clip, maximum
from dnn.graph.operations.elementwise import Elementwise, unary

__all__ = ["elu", "gelu", "leaky_relu", "positive", "rbf", "relu", "sigmoid", "softplus", "tanh"]

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {}
"""Functions that `dnn.Activation` takes by name: those decorated with `activation`."""

RECTIFIERS: set[str] = set()
"""Names of activations that are about ``max(x, 0)``; layers before them start larger."""

_Function = TypeVar("_Function", bound=Callable[..., Node])


def activation(function: _Function) -> _Function:
    """Enter a function in `ACTIVATIONS` under its name; used as a decorator."""
    ACTIVATIONS[function.__name__] = function
    return function


def rectifier(function: _Function) -> _Function:
    """Enter a function in `ACTIVATIONS` and in `RECTIFIERS`; used as a decorator."""
    RECTIFIERS.add(function.__name__)
    return activation(function)


GELU_FLAT = 25.0
"""Where ``|x|`` is larger, `gelu` is 0 or `x`."""


@register
class Relu(Elementwise):
    """``max(x, 0)``.

    NaN stays NaN; the derivative at 0 is taken to be 0, as in PyTorch: most units that are 0 are
    below it, where 0 is the derivative.
    """

    formula = RELU
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (apply("where_greater", dy, node, constant(0.0, dy.dtype)),)


@register
class Positive(Elementwise):
    """1 where `x` is above 0, else 0: the derivative of `relu`.

    0 where `x` is NaN. It has no gradient: its derivative is 0 wherever there is one.
    """

    formula = Formula("positive", "x", "x > 0")

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


@register
class Sigmoid(Elementwise):
    """The logistic function, ``1 / (1 + e^-x)``.

    In 0 .. 1. Nothing overflows and nothing cancels: small values are as exact as those near 1.
    """

    formula = SIGMOID
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        dy_y = dy * node
        return (dy_y - dy_y * node,)


@register
class Tanh(Elementwise):
    """The hyperbolic tangent.

    In -1 .. 1.
    """

    formula = TANH
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy - dy * node * node,)


relu = rectifier(unary(Relu))
positive = unary(Positive)
sigmoid = activation(unary(Sigmoid))
tanh = activation(unary(Tanh))


@rectifier
def leaky_relu(x: Node, slope: float = 0.01) -> Node:
    """Return `x` where it is positive, else ``slope x`` [1]_.

    Parameters
    ----------
    x : Node of floats
    slope : float

    Returns
    -------
    Node, of the shape and type of `x`
        The derivative at 0 is taken to be `slope`.

    Raises
    ------
    DtypeError
        If `x` is not of floats.

    References
    ----------
    .. [1] Maas et al., Rectifier nonlinearities improve neural network acoustic models, 2013,
       section 2.
    """
    return relu(x) + clip(x, high=0.0) * slope


@rectifier
def elu(x: Node, alpha: float = 1.0) -> Node:
    """Return `x` where it is positive, else ``alpha (e^x - 1)`` [1]_.

    Parameters
    ----------
    x : Node of floats
    alpha : float

    Returns
    -------
    Node, of the shape and type of `x`
        The derivative at 0 is `alpha`, the limit from below, as in PyTorch.

    Raises
    ------
    DtypeError
        If `x` is not of floats.

    References
    ----------
    .. [1] Clevert et al., Fast and accurate deep network learning by exponential linear units,
       2016, equation 15.
    """
    return relu(x) + expm1(clip(x, high=0.0)) * alpha


@activation
def softplus(x: Node) -> Node:
    """Return ``ln(1 + e^x)``, as ``max(x, 0) + ln(1 + e^-|x|)``, which does not overflow.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`

    Raises
    ------
    DtypeError
        If `x` is not of floats.
    """
    return maximum(x, 0.0) + log1p(exp(-abs(x)))


@activation
def rbf(x: Node) -> Node:
    """Return the Gaussian radial basis function, ``e^(-x^2)`` [1]_.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        In 0 .. 1, and 1 at 0.

    Raises
    ------
    DtypeError
        If `x` is not of floats.

    References
    ----------
    .. [1] Broomhead and Lowe, Multivariable functional interpolation and adaptive networks, 1988.
    """
    return exp(-(x * x))


@rectifier
def gelu(x: Node) -> Node:
    """Return the Gaussian error linear unit, in the approximation by tanh [1]_.

    Parameters
    ----------
    x : Node of floats

    Returns
    -------
    Node, of the shape and type of `x`
        ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, as ``x sigmoid(2 ...)``, which is
        the same and does not cancel where `x` is negative.

    Raises
    ------
    DtypeError
        If `x` is not of floats.

    References
    ----------
    .. [1] Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2.
    """
    # Beyond, the logistic function is 0 or 1 in float64 too; the cube would overflow.
    y = clip(x, -GELU_FLAT, GELU_FLAT)
    return x * sigmoid((y + y * y * y * 0.044715) * (2.0 * math.sqrt(2.0 / math.pi)))
