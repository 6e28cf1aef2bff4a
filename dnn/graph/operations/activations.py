"""Activation functions, such as relu, sigmoid, tanh and gelu.

Their gradients are written in terms of their output, so that the forward pass may overwrite
their input, the sum of a product and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import TypeVar

import numpy as np

from dnn.backend.formula import RELU, SIGMOID, TANH, Formula
from dnn.graph.node import Node, Operand, constant
from dnn.graph.operation import apply, register
from dnn.graph.operations.arithmetic import exp, expm1, log1p
from dnn.graph.operations.comparisons import abs, clip, maximum
from dnn.graph.operations.elementwise import Elementwise, unary

__all__ = [
    "elu",
    "exact_gelu",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "normal_cdf",
    "positive",
    "rbf",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "softplus",
    "tanh",
]

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {}
"""Functions that `dnn.Activation` takes by name: those decorated with `activation`."""

RECTIFIERS: set[str] = set()
"""Names of activations that are about ``max(x, 0)``; layers before them start larger."""

_Function = TypeVar("_Function", bound=Callable[..., Node])


_PARAMETERS = "Parameters\n----------\nx : Node of floats\n"
_RETURNS = """\
Returns
-------
Node, of the shape and type of `x`

Raises
------
DtypeError
    If `x` is not of floats.
"""


def of_floats(function: _Function) -> _Function:
    """Add to a function's documentation what those of a node of floats have in common."""
    text, heading, sources = cleandoc(function.__doc__ or "").partition("References\n---")
    if text and "Returns\n---" not in text:
        own, _, further = text.partition("Parameters\n----------\n")
        parts = [own, _PARAMETERS + further, _RETURNS, heading + sources]
        function.__doc__ = "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
    return function


def activation(function: _Function) -> _Function:
    """Enter a function in `ACTIVATIONS` under its name; used as a decorator."""
    ACTIVATIONS[function.__name__] = function
    return of_floats(function)


def rectifier(function: _Function) -> _Function:
    """Enter a function in `ACTIVATIONS` and in `RECTIFIERS`; used as a decorator."""
    RECTIFIERS.add(function.__name__)
    return activation(function)


GELU_FLAT = 25.0
"""Where ``|x|`` is larger, `gelu` is 0 or `x`."""


CDF_FLAT = 40.0
"""Where ``|x|`` is larger, `normal_cdf` is 0 or 1."""

_TAIL = (
    *(-0.6717940840566905, 0.6726432239776977, 0.04734330684141247, -0.046895610234924584),
    *(-0.009872689341245621, 0.0088249386578675, 0.0017589330512564874, -0.002345813753660921),
    *(-1.4624159641919631e-04, 6.736874371328338e-04, -9.37672805019525e-05),
    *(-1.7433915756535676e-04, 7.152602212811507e-05, 3.184163852293312e-05),
    *(-3.0507039408558425e-05, -2.7506623816720541e-08, 9.108358441357817e-06),
    *(-2.7710803114553157e-06, -1.89500839568802e-06, 1.144909470522781e-06),
    *(2.92600679795166e-07, -2.328929445073611e-07, -5.4116940625505365e-08),
    *(1.9747701295065906e-08, 9.82332424298777e-09),
)
"""Polynomial ``ln(erfc(z) e^(z^2) / t)`` of ``2 t - 1``, with ``t = 2 / (2 + z)`` and z above 0."""


def _horner(coefficients: Sequence[float], x: str) -> str:
    """Return a polynomial as an expression; the first coefficient is that of ``x^0``."""
    first, *rest = coefficients
    return f"({first!r} + {x} * {_horner(rest, x)})" if rest else repr(first)


@register
class NormalCdf(Elementwise):
    """The share of a standard normal distribution below `x`.

    ::

        z = |x| / sqrt(2),  u = (2 - z) / (2 + z)
        (u + 1) / 2 exp(-z^2 + polynomial(u)) / 2           for x below 0, else 1 less that

    By a Chebyshev fit as in [1]_, within 1e-14 of the tail in float64. The second operand is `u`,
    and has no gradient of its own.

    References
    ----------
    .. [1] Press et al., Numerical Recipes, 3rd edition, 2007, section 6.2.2.
    """

    formula = Formula(
        "normal_cdf",
        "x u",
        f"abs((1 if x > 0 else 0) - (0.25 * u + 0.25) * exp({_horner(_TAIL, 'u')} - 0.5 * x * x))",
    )
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x = node.inputs[0]
        return dy * exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi)), None


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

    The derivative at 0 is taken to be `slope`.

    Parameters
    ----------
    slope : float

    References
    ----------
    .. [1] Maas et al., Rectifier nonlinearities improve neural network acoustic models, 2013,
       section 2.
    """
    return relu(x) + clip(x, high=0.0) * slope


@rectifier
def elu(x: Node, alpha: float = 1.0) -> Node:
    """Return `x` where it is positive, else ``alpha (e^x - 1)`` [1]_.

    The derivative at 0 is `alpha`, the limit from below, as in PyTorch.

    Parameters
    ----------
    alpha : float

    References
    ----------
    .. [1] Clevert et al., Fast and accurate deep network learning by exponential linear units,
       2016, equation 15.
    """
    return relu(x) + expm1(clip(x, high=0.0)) * alpha


@activation
def softplus(x: Node) -> Node:
    """Return ``ln(1 + e^x)``, as ``max(x, 0) + ln(1 + e^-|x|)``, which does not overflow."""
    return maximum(x, 0.0) + log1p(exp(-abs(x)))


@activation
def rbf(x: Node, epsilon: Operand = 1.0) -> Node:
    """Return the Gaussian radial basis function, ``e^(-(epsilon x)^2)`` [1]_.

    In 0 .. 1, and 1 at 0.

    Parameters
    ----------
    epsilon : float, array or Node
        The larger it is, the narrower is the function. A node gets a gradient.

    References
    ----------
    .. [1] Broomhead and Lowe, Multivariable functional interpolation and adaptive networks, 1988.
    """
    if isinstance(epsilon, Node) or not np.array_equal(epsilon, 1.0):
        x = x * epsilon
    return exp(-(x * x))


@rectifier
def gelu(x: Node) -> Node:
    """Return the Gaussian error linear unit, in the approximation by tanh [1]_.

    ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, as ``x sigmoid(2 ...)``, which is the
    same and does not cancel where `x` is negative.

    References
    ----------
    .. [1] Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2.
    """
    # Beyond, the logistic function is 0 or 1 in float64 too; the cube would overflow.
    y = clip(x, -GELU_FLAT, GELU_FLAT)
    return x * sigmoid((y + y * y * y * 0.044715) * (2.0 * math.sqrt(2.0 / math.pi)))


@of_floats
def normal_cdf(x: Node) -> Node:
    """Return the share of a standard normal distribution below `x`, ``(1 + erf(x / sqrt(2))) / 2``.

    In 0 .. 1.
    """
    near = clip(x, -CDF_FLAT, CDF_FLAT)  # beyond, the square would overflow
    z = abs(near) * math.sqrt(0.5)
    return apply("normal_cdf", near, (2.0 - z) / (2.0 + z))


@rectifier
def exact_gelu(x: Node) -> Node:
    """Return the Gaussian error linear unit, `x` times `normal_cdf` of it [1]_.

    References
    ----------
    .. [1] Hendrycks and Gimpel, Gaussian error linear units, 2016, equation 1.
    """
    return x * normal_cdf(x)


@rectifier
def silu(x: Node) -> Node:
    """Return the sigmoid linear unit, `x` times `sigmoid` of it [1]_; also called swish.

    References
    ----------
    .. [1] Hendrycks and Gimpel, Gaussian error linear units, 2016, section 5.
    """
    return x * sigmoid(x)


@rectifier
def relu6(x: Node) -> Node:
    """Return `x` where it is positive and below 6, else 0 or 6 [1]_.

    References
    ----------
    .. [1] Howard et al., MobileNets: efficient convolutional neural networks for mobile vision
       applications, 2017.
    """
    return clip(relu(x), high=6.0)


@activation
def hard_sigmoid(x: Node) -> Node:
    """Return ``relu6(x + 3) / 6``, which is like `sigmoid` and made of straight lines [1]_.

    In 0 .. 1.

    References
    ----------
    .. [1] Howard et al., Searching for MobileNetV3, 2019, section 5.2.
    """
    return relu6(x + 3.0) * (1.0 / 6.0)


@rectifier
def hard_swish(x: Node) -> Node:
    """Return `x` times `hard_sigmoid` of it [1]_.

    References
    ----------
    .. [1] Howard et al., Searching for MobileNetV3, 2019, section 5.2.
    """
    return x * hard_sigmoid(x)
